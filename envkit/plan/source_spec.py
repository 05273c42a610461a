"""A package that may be built from source: an sdist on the index, by name, or a commit of a git repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from envkit.ground.addresses import is_loopback, refusal
from envkit.ground.errors import UsageError
from envkit.plan import names

# `mypkg @ git+https://git.example.com/team/mypkg@COMMIT`
_GIT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) ?@ ?git\+(\S+)")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# SHA-1 or SHA-256. A branch or a tag can move, and a short hash can become ambiguous.
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_URL = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+/[A-Za-z0-9._~%+=/-]+")
_LONGEST = 512  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """One entry of `allow_source`."""

    name: str  # normalized according to PEP 503
    requirement: str | None  # 'mypkg>=1', to choose an sdist; None for a commit
    url: str | None = None  # of the git repository
    commit: str | None = None  # 40 or 64 hex digits


def parse(text: str) -> SourceSpec:
    """Parse an entry for which `fault` returned None."""
    match = _GIT.fullmatch(text)
    if match is None:
        name = _NAME.match(text)
        assert name is not None
        return SourceSpec(name=canonicalize_name(name.group()), requirement=text)
    url, _, commit = match[2].rpartition("@")
    return SourceSpec(name=canonicalize_name(match[1]), requirement=None, url=url, commit=commit)


def merged(listed: Sequence[str], typed: Sequence[str]) -> tuple[str, ...]:
    """Return the entries of a definition with those of the command line, which replace entries for the same package.

    Raises:
        UsageError: an entry of the command line is refused.
    """
    for text in typed:
        if (why := fault(text)) is not None:
            raise UsageError(f"--allow-source: {text!r:.200} {why}", hint="--allow-source flash-attn")
    names = {parse(text).name for text in typed}
    kept = (text for text in listed if parse(text).name not in names)
    return tuple(dict.fromkeys((*kept, *typed)))


def fault(text: str) -> str | None:
    """Return why an entry of `allow_source` is refused, None if it is fine."""
    if len(text) > _LONGEST:
        return f"is longer than {_LONGEST} characters"
    match = _GIT.fullmatch(text)
    if match is None:
        if "://" in text or "git+" in text:
            return "is not a source; write NAME, or NAME @ git+https://HOST/REPOSITORY@COMMIT"
        return names.pip_spec(text)
    return names.pip_spec(match[1]) or _address_fault(match[2])


def _address_fault(address: str) -> str | None:
    url, at, commit = address.rpartition("@")
    if not at or "/" in commit:  # there is no commit: the last @ ends a login, or there is none
        url, commit = address, ""
    if (why := _url_fault(url)) is not None:
        return why
    if not commit:
        return f"has no commit; append @ and the full hash (40 hex digits): git ls-remote {url}"
    if not _COMMIT.fullmatch(commit):
        return f"ends with {commit!r:.80}, which is not a full commit hash (40 hex digits): git ls-remote {url}"
    return None


def _url_fault(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme in ("http", "https") and "@" in parts.netloc:
        return "contains a login; put it into git's credential helper or ~/.netrc"
    if not _URL.fullmatch(url):
        return "is not an https URL of a git repository"
    why = refusal(parts.hostname or "")
    if why is not None:
        return f"is on {parts.hostname}, which {why}"
    return "is plain http" if parts.scheme == "http" and not is_loopback(url) else None
