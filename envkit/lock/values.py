"""Checks of the fields of a lock. Each returns why the value is refused, or None if it is fine."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from envkit.ground import platforms
from envkit.ground.addresses import is_loopback, refusal, refusal_of_image
from envkit.ground.errors import UsageError
from envkit.ground.platforms import PLATFORMS
from envkit.ground.records import Check, Each, Location
from envkit.ground.schemas import listed


def _formed(**schema: Any) -> Callable[[Callable[[Any], str | None]], Check]:
    return lambda why_not: Check(why_not, schema, tuple if schema["type"] == "array" else None)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
# Versions of Python, conda and Debian packages: `1!2.0`, `2.7.1+cu126`, `1:2.36-9~deb12u1`.
_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!:~-]{0,199}")
# `conda-forge`, `conda-forge/label/rc`
_CHANNEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,399}")
_HEX = re.compile(r"[0-9a-f]{64}")
_MD5 = re.compile(r"(?:md5[:=])?[0-9a-fA-F]{32}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# SHA-1 or SHA-256, the two object formats of git.
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl (PEP 427); the build begins with a digit.
_WHEEL = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.+!]+(?:-[0-9][A-Za-z0-9_.]*)?(?:-[A-Za-z0-9_.]+){3}\.whl")
# Of a file: `%` for escapes, as in `torch-2.7.1%2Bcu126-cp311-cp311-linux_x86_64.whl`, but no query and no fragment.
_URL = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+/[A-Za-z0-9._~%+!@,=()/-]*")
_LARGEST = 1 << 40  # bytes


@_formed(type="string")
def text(value: Any) -> str | None:
    """Check a text."""
    return None if isinstance(value, str) else _kind(value, "text")


@_formed(type="array", items={"type": "string"})
def texts(value: Any) -> str | None:
    """Check a list of texts."""
    whole = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return None if whole else _kind(value, "a list of texts")


def optional(check: Check) -> Check:
    """Return a check that also accepts null."""
    return Check(lambda value: None if value is None else check(value), {"anyOf": [check.schema, {"type": "null"}]})


def one_of(*words: str) -> Check:
    """Return a check for one of a few words."""
    form = {"enum": list(words)}
    return Check(lambda value: None if value in words else f"{value!r:.80} is not one of {', '.join(words)}", form)


def _matching(pattern: re.Pattern[str], what: str) -> Check:
    # A pattern of JSON Schema matches anywhere in a text unless it is anchored.
    @_formed(type="string", pattern=f"^(?:{pattern.pattern})$")
    def check(value: Any) -> str | None:
        return text(value) or (None if pattern.fullmatch(value) else f"{value!r:.80} is not {what}")

    return check


name = _matching(_NAME, "a name")
version = _matching(_VERSION, "a version")
channel = _matching(_CHANNEL, "a channel name")
digest = _matching(_DIGEST, "sha256: and 64 hex digits")
commit = _matching(_COMMIT, "a full commit hash, 40 hex digits")
moment = _matching(_MOMENT, "a time like 2026-06-01T00:00:00Z")
wheel_file = _matching(_WHEEL, "a wheel file name")
platform = one_of(*PLATFORMS)


@_formed(type="string", pattern=f"^(?:{_REFERENCE.pattern})$")
def reference(value: Any) -> str | None:
    """Check the name of an image, including that connections to its registry are allowed."""
    return _matching(_REFERENCE, "an image reference")(value) or refusal_of_image(value)


@_formed(type="string", pattern=f"^(?:{_HEX.pattern})$")
def sha256(value: Any) -> str | None:
    """Check for 64 lower-case hex digits. MD5 has its own message: it is insecure, and older tools write it."""
    if value in (None, ""):
        return "missing: the bytes cannot be verified without it"
    if isinstance(value, str) and _MD5.fullmatch(value):
        return f"{value} is an MD5; a lock accepts SHA-256 only"
    return _matching(_HEX, "64 hex digits")(value)


@_formed(type="integer", exclusiveMinimum=0, exclusiveMaximum=_LARGEST)
def size(value: Any) -> str | None:
    """Check a size in bytes, which is more than 0."""
    if not isinstance(value, int) or isinstance(value, bool):
        return _kind(value, "a whole number")
    return None if 0 < value < _LARGEST else f"{value} is not a size in bytes"


@_formed(type="string", pattern=f"^(?:{_URL.pattern})$")
def url(value: Any) -> str | None:
    """Check a URL: no login, token, query or fragment, and plain http only for loopback."""
    refused = text(value)
    if refused:
        return refused
    try:
        parts = urlsplit(value)
        name = parts.hostname or ""
    except ValueError:  # half an IPv6 address
        parts, name = None, ""
    # /t/TOKEN/ is how conda channels put a token into the path.
    if parts is not None and ("@" in parts.netloc or "/t/" in parts.path):
        return "contains a login or a token"
    if parts is None or not _URL.fullmatch(value):
        return f"{value!r:.120} is not an http or https URL of a file"
    if (why := refusal(name)) is not None:
        return f"{name} {why}"
    if value.startswith("http:") and not is_loopback(value):
        return f"{value!r:.120} is plain http"
    return None


def _request(value: Any, at: Location, path: str) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    if not isinstance(value, dict):
        at.no_mapping(path, value)
        return ()
    entries: list[tuple[str, str | tuple[str, ...] | None]] = []
    for key, item in value.items():
        if item is None or isinstance(item, str):
            entries.append((key, item))
        elif isinstance(item, list) and all(isinstance(text, str) for text in item):
            entries.append((key, tuple(item)))
        else:
            at.faults.add(f"{path}.{key:.80}", "neither a string nor a list of strings")
    return tuple(entries)


_ENTRY = {"anyOf": [{"type": ["string", "null"]}, listed({"type": "string"})]}
request = Each(_request, {"type": "object", "additionalProperties": _ENTRY})


def last_part(address: str) -> str:
    """Return the file name at the end of a URL, unescaped."""
    return unquote(urlsplit(address).path.rpartition("/")[2])


def wheel_platform(file: str) -> str:
    """Return the platform in a wheel's file name: 'linux-64', 'linux-aarch64', 'any', or the tag itself if unknown."""
    tags = file.removesuffix(".whl").rpartition("-")[2]
    if tags == "any":
        return "any"
    for known in PLATFORMS:
        machine = platforms.platform(known).machine
        # One file may have several tags: `manylinux_2_17_x86_64.manylinux2014_x86_64`.
        if all(tag.startswith(("linux", "manylinux")) and tag.endswith(machine) for tag in tags.split(".")):
            return known
    return tags


def _kind(value: Any, wanted: str) -> str:
    return "missing" if value is None else f"{value!r:.80} is not {wanted}"


def parse_moment(text: str, what: str) -> str:
    """Return a date or time in UTC; a date means its end: `2026-06-01` -> `2026-06-01T23:59:59Z`.

    Raises:
        UsageError: it is neither a date nor a time with a time zone.
    """
    try:
        if _DAY.fullmatch(text):
            parsed = datetime.fromisoformat(text).replace(hour=23, minute=59, second=59, tzinfo=UTC)
        else:
            parsed = datetime.fromisoformat(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise UsageError(f"{what}: {text!r:.80} is not a date", hint=f"{what} 2026-06-01, or 2026-06-01T12:00:00Z")
    return parsed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
