"""Decide which addresses envkit may connect to, for mirrors, base images, token servers, redirects and uploads.

A user may name this machine, a private network or the internet. A server may lead envkit (by a redirect, for example)
only to addresses that are at least as far away as its own: a server on the internet cannot lead it into a private
network, and none can lead it to a link-local address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from enum import IntEnum
from urllib.parse import urljoin, urlsplit

from envkit.ground.errors import UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SCHEMES = ("http", "https")
# Mirrors are written into Dockerfiles and package sources, so quotes, blanks, `$`, `?` and `#` are not accepted.
_URL = re.compile(r"https?://[A-Za-z0-9.\-]+(?::[0-9]+)?(?:/[A-Za-z0-9._~%+/-]*)?")
_V6 = re.compile(r"https?://\[[0-9a-fA-F:]+\](?::[0-9]+)?(?:/[A-Za-z0-9._~%+/-]*)?")
_TOKEN = re.compile(r"/t/[^/]")  # conda servers accept a token in the path, after /t/
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052, the well-known prefix
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")  # Linux connects to this machine for 0.0.0.0
# Metadata services of clouds outside the link-local range: they hand out the machine's credentials.
# AWS over IPv6, Alibaba Cloud, and the WireServer of Azure.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16")))


class Reach(IntEnum):
    """How far away an address is; NEVER is for addresses that envkit never connects to."""

    NEVER = 0
    LOOPBACK = 1
    PRIVATE = 2
    PUBLIC = 3


NAMED = frozenset({Reach.LOOPBACK, Reach.PRIVATE, Reach.PUBLIC})
"""The addresses that a user may name."""
HERE = frozenset({Reach.LOOPBACK})
_WORDS = {
    Reach.NEVER: "a link-local address, a cloud metadata service or not a host address",
    Reach.LOOPBACK: "an address of this machine",
    Reach.PRIVATE: "an address in a private network",
    Reach.PUBLIC: "an address outside this machine",
}


class RefusedAddressError(Exception):
    """A refused address; the message names it and the reason."""


def reachable_from(reach: Reach) -> frozenset[Reach]:
    """Return where a server at this reach may lead envkit."""
    return frozenset(candidate for candidate in NAMED if candidate >= reach)


def refusal(host: str, allowed: frozenset[Reach] = NAMED, resolved: Iterable[str] | None = None) -> str | None:
    """Return why a connection to a host is refused, None if it is allowed.

    Args:
        host: a URL's host, without port and brackets.
        allowed: the reaches that are allowed.
        resolved: the addresses that the name resolves to; None = not resolved yet.
    """
    try:
        written = _written(host)
    except ValueError:
        return "is an IP address written in an unusual way"
    if written is not None:
        reach = reach_of(written)
        return None if reach in allowed else f"is {_WORDS[reach]}"
    # A redirect is checked before its name is resolved. Names below localhost are loopback names (RFC 6761).
    if _is_localhost(host) and Reach.LOOPBACK not in allowed:
        return f"is {_WORDS[Reach.LOOPBACK]}"
    for text in resolved or ():
        reach = reach_of(ipaddress.ip_address(text))
        if reach not in allowed:
            return f"resolves to {text}, {_WORDS[reach]}"
    return None


def refusal_of_image(reference: str) -> str | None:
    """Return why a connection to the registry in an image's name is refused, None if it is allowed or there is none."""
    first, slash, _ = reference.partition("/")
    try:
        host = urlsplit(f"//{first}").hostname or ""
    except ValueError:
        return f"{first!r:.100} is not a registry host"
    # Docker's rule: the first part of `a/b` is a registry only if it has a dot or a port.
    why = refusal(host) if slash and ("." in first or ":" in first) else None
    return None if why is None else f"{host} {why}"


def reach_of(address: Address) -> Reach:
    """Return how far away an address is. One that embeds another address (mapped, 6to4, NAT64) counts as that one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return reach_of(inner)
    elif address in _THIS_NETWORK:
        return Reach.NEVER
    if address.is_loopback:
        return Reach.LOOPBACK
    if address.is_link_local or address.is_multicast or address.is_unspecified or address in _METADATA:
        return Reach.NEVER
    # 240.0.0.0/4, which no host has (RFC 1112).
    if isinstance(address, ipaddress.IPv4Address) and address.is_reserved:
        return Reach.NEVER
    return Reach.PUBLIC if address.is_global else Reach.PRIVATE


def written_reach(host: str) -> Reach | None:
    """Return how far away a host is if its text alone shows that: an IP address or localhost. None for other names."""
    try:
        written = _written(host)
    except ValueError:
        return Reach.NEVER
    if written is not None:
        return reach_of(written)
    return Reach.LOOPBACK if _is_localhost(host) else None


def mirror(value: str, what: str, *, plain: bool = False) -> str:
    """Return the URL of a mirror from the settings, without its final slash.

    Args:
        value: the URL.
        what: the setting, which begins the message.
        plain: whether plain http is also allowed beyond this machine.

    Raises:
        UsageError: it is not an http or https URL, contains a login, a token or invalid characters, has a refused
            address, or is plain http beyond this machine.
    """
    if "@" in value.partition("//")[2].partition("/")[0] or has_token(value):
        raise UsageError(
            f"{what}: the URL contains a login or a token, which would be visible in every layer",
            hint="put the login in a netrc file and build with --engine buildkit",
        )
    if not (_URL.fullmatch(value) or _V6.fullmatch(value)):
        raise UsageError(f"{what}: {value!r:.200} is not an http or https URL", hint="https://mirror.example.com/path")
    name = urlsplit(value).hostname or ""
    why = refusal(name)
    if why is not None:
        raise UsageError(f"{what}: {name} {why}", hint="write the full URL: https://mirror.example.com/path")
    if value.startswith("http:") and not plain and not is_loopback(value):
        raise UsageError(
            f"{what}: {value} is plain http", hint="use https; http is allowed for loopback addresses only"
        )
    return value.rstrip("/")


def has_token(url: str) -> bool:
    """Return whether a URL's path contains a token, in the form of conda servers: /t/TOKEN/."""
    return _TOKEN.search(url.partition("//")[2]) is not None


def redirect_target(origin: str, location: str, reach: Reach) -> str:
    """Return the URL that a server leads to: a redirect, the location of an upload, or its token server.

    Args:
        origin: the URL that answered.
        location: the URL in its answer, absolute or relative to `origin`.
        reach: how far away the server is.

    Raises:
        RefusedAddressError: the location is invalid, or the server may not lead there.
    """
    invalid = RefusedAddressError("which is not an http or https address")
    try:
        target = urljoin(origin, location)
        parts = urlsplit(target)
        usable = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # an incomplete IPv6 address, or a port above 65535
        raise invalid from error
    if not location or not usable:
        raise invalid
    # A redirect to plain http would show the request to everyone on the way.
    if urlsplit(origin).scheme == "https" and parts.scheme == "http":
        raise RefusedAddressError("which is an unencrypted address")
    if "@" in parts.netloc:
        raise RefusedAddressError("which contains a login")
    why = refusal(parts.hostname or "", reachable_from(reach))
    if why is not None:
        raise RefusedAddressError(f"which {why}")
    return target


def is_loopback(url: str | None) -> bool:
    """Return whether a URL or host[:port] points to this machine."""
    if not url:
        return False
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return False
    # A name may begin with these digits: 127.example.com is an ordinary name.
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _written(host: str) -> Address | None:
    """Return the IP address that a host is written as, None for a name.

    Raises:
        ValueError: the notation is one that programs interpret differently: 2130706433, 0x7f.1, 127.1, 0177.0.0.1.
    """
    text = host.removesuffix(".")
    if ":" in text:
        return ipaddress.ip_address(text)
    # The C library parses a host whose last part is a number as an address.
    return ipaddress.ip_address(text) if _NUMBER.fullmatch(text.rpartition(".")[2]) else None


def _is_localhost(host: str) -> bool:
    name = host.lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost")
