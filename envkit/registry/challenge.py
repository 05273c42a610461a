"""What a registry says when it wants a login: the WWW-Authenticate header (RFC 9110, 11.6.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'\s*({_WORD})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_WORD}))\s*(?:,|$)')
_SCHEME = re.compile(rf"\s*,?\s*({_WORD})(?:\s+(?!=)|\s*,|\s*$)")
_MAX_HEADER = 8192
_COUNTRY, _SHORT = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """One way to log in; `scheme` and the parameters' names are in lower case."""

    scheme: str  # 'bearer' | 'basic' | ...
    parameters: Mapping[str, str]


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """Every way that a header offers; what cannot be read ends the list."""
    found: list[Challenge] = []
    text, at = header[:_MAX_HEADER], 0
    while at < len(text) and (scheme := _SCHEME.match(text, at)):
        at = scheme.end()
        parameters: dict[str, str] = {}
        while pair := _PARAMETER.match(text, at):
            quoted, plain = pair[2], pair[3]
            parameters.setdefault(pair[1].lower(), re.sub(r"\\(.)", r"\1", quoted) if plain is None else plain)
            at = pair.end()
        found.append(Challenge(scheme=scheme[1].lower(), parameters=parameters))
    return tuple(found)


def trusted_realm(registry: str, realm: str) -> bool:
    """Whether a login for the registry at one URL may be shown to the token server at another.

    It has to be the same host or one of the same domain (auth.example.com for registry.example.com), and encrypted
    unless both are this machine.
    """
    here, there = urlsplit(registry), urlsplit(realm)
    if there.scheme not in ("http", "https") or not there.hostname or there.username:
        return False
    if there.scheme == "http" and here.scheme != "http":
        return False
    ours, theirs = here.hostname or "", there.hostname
    if ours == theirs:
        return True
    domain = _domain(ours)
    return domain is not None and (theirs == domain or theirs.endswith(f".{domain}"))


def _domain(host: str) -> str | None:
    """The domain whose owner a host belongs to; None for an address or a name without one."""
    labels = host.split(".")
    if ":" in host or labels[-1].isdigit() or len(labels) < _COUNTRY:
        return None
    # Names under `co.uk` and its like have different owners.
    shared = len(labels[-1]) == _COUNTRY and len(labels[-2]) <= _SHORT
    kept = 3 if shared else 2
    return ".".join(labels[-kept:]) if len(labels) >= kept else None
