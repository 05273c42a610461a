"""Which addresses envkit connects to. Mirrors, base images, token servers, redirects and uploads are all judged here.

A user may name this machine, a private network or the internet. A server may lead envkit to addresses that are as far
away as its own or farther: one on the internet never to a private network, none to a link-local address.
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
_URL = re.compile(r"https?://[A-Za-z0-9.\-]+(?::[0-9]+)?(?:/[A-Za-z0-9._~%+/-]*)?")
_V6 = re.compile(r"https?://\[[0-9a-fA-F:]+\](?::[0-9]+)?(?:/[A-Za-z0-9._~%+/-]*)?")
_TOKEN = re.compile(r"/t/[^/]")  # servers of conda packages take a token as the part of a path after /t/
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")  # Linux connects 0.0.0.0 to this machine
# Where clouds answer a machine with its credentials, other than in the link-local range.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16")))


class Reach(IntEnum):
    """How far away an address is; NEVER is for those that no image, package or login comes from."""

    NEVER = 0
    LOOPBACK = 1
    PRIVATE = 2
    PUBLIC = 3


NAMED = frozenset({Reach.LOOPBACK, Reach.PRIVATE, Reach.PUBLIC})
"""What a user may name."""
HERE = frozenset({Reach.LOOPBACK})
_WORDS = {
    Reach.NEVER: "a link-local address, a cloud metadata service or not a host address",
    Reach.LOOPBACK: "an address of this machine",
    Reach.PRIVATE: "an address in a private network",
    Reach.PUBLIC: "an address outside this machine",
}


class RefusedAddressError(Exception):
    """An address that no connection is made to; the message says which and why."""


def led_from(reach: Reach) -> frozenset[Reach]:
    """Where a server at such a distance may lead."""
    return frozenset(candidate for candidate in NAMED if candidate >= reach)


def refusal(host: str, allowed: frozenset[Reach] = NAMED, resolved: Iterable[str] | None = None) -> str | None:
    """Why no connection to a host is allowed, None where one is.

    Args:
        host: a URL's host, without port and brackets.
        allowed: the distances that are allowed.
        resolved: the addresses that the name stands for; None = before it is resolved.
    """
    try:
        written = _written(host)
    except ValueError:
        return "is an IP address written in an unusual way"
    if written is not None:
        reach = reach_of(written)
        return None if reach in allowed else f"is {_WORDS[reach]}"
    if _is_localhost(host) and Reach.LOOPBACK not in allowed:
        return f"is {_WORDS[Reach.LOOPBACK]}"
    for text in resolved or ():
        reach = reach_of(ipaddress.ip_address(text))
        if reach not in allowed:
            return f"resolves to {text}, {_WORDS[reach]}"
    return None


def refusal_of_image(reference: str) -> str | None:
    """Why no connection to the registry of an image's name is allowed, None where one is or no registry is named."""
    first, slash, _ = reference.partition("/")
    try:
        host = urlsplit(f"//{first}").hostname or ""
    except ValueError:
        return f"{first!r:.100} is not a registry host"
    why = refusal(host) if slash and ("." in first or ":" in first) else None
    return None if why is None else f"{host} {why}"


def reach_of(address: Address) -> Reach:
    """How far away an address is. One that holds another one (mapped, 6to4, NAT64) counts as that."""
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
    if isinstance(address, ipaddress.IPv4Address) and address.is_reserved:
        return Reach.NEVER
    return Reach.PUBLIC if address.is_global else Reach.PRIVATE


def written_reach(host: str) -> Reach | None:
    """How far away a host is by its name alone: an IP address, or localhost. None for any other name."""
    try:
        written = _written(host)
    except ValueError:
        return Reach.NEVER
    if written is not None:
        return reach_of(written)
    return Reach.LOOPBACK if _is_localhost(host) else None


def mirror(value: str, what: str, *, plain: bool = False) -> str:
    """The URL of a source that a user named, without its final slash.

    Args:
        value: the URL.
        what: the setting; it begins the message.
        plain: http will do beyond this machine, too.

    Raises:
        UsageError: not http or https, a login or a token in it, characters a URL has not, an address that no package
            comes from, or plain http beyond this machine.
    """
    if "@" in value.partition("//")[2].partition("/")[0] or has_token(value):
        raise UsageError(
            f"{what}: the URL contains a login or a token, which would be visible in every layer",
            hint="put the login into a netrc file and build with --engine buildkit",
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
    """Whether a URL's path carries a token, as servers of packages take it: /t/TOKEN/."""
    return _TOKEN.search(url.partition("//")[2]) is not None


def led(origin: str, location: str, reach: Reach) -> str:
    """The URL that a server leads to: by a redirect, as the place of an upload, or as its token server.

    Args:
        origin: the URL that answered.
        location: what it names, absolute or relative to `origin`.
        reach: how far away the server is.

    Raises:
        RefusedAddressError: nothing leads there, or nothing may.
    """
    nowhere = RefusedAddressError("which is not an http or https address")
    try:
        target = urljoin(origin, location)
        there = urlsplit(target)
        usable = there.scheme in _SCHEMES and bool(there.hostname) and there.port != 0
    except ValueError as error:  # half an IPv6 address, a port beyond 65535
        raise nowhere from error
    if not location or not usable:
        raise nowhere
    if urlsplit(origin).scheme == "https" and there.scheme == "http":
        raise RefusedAddressError("which is an unencrypted address")
    if "@" in there.netloc:
        raise RefusedAddressError("which contains a login")
    why = refusal(there.hostname or "", led_from(reach))
    if why is not None:
        raise RefusedAddressError(f"which {why}")
    return target


def is_loopback(url: str | None) -> bool:
    """Whether a URL or host[:port] points at this machine."""
    if not url:
        return False
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return False
    # A name may begin with the digits, too: 127.example.com is an ordinary name.
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _written(host: str) -> Address | None:
    """The IP address that a host is, None for a name.

    Raises:
        ValueError: it is one in a notation that programs read differently: 2130706433, 0x7f.1, 127.1, 0177.0.0.1.
    """
    text = host.removesuffix(".")
    if ":" in text:
        return ipaddress.ip_address(text)
    # What ends in a number is an address for the C library, whatever stands before.
    return ipaddress.ip_address(text) if _NUMBER.fullmatch(text.rpartition(".")[2]) else None


def _is_localhost(host: str) -> bool:
    name = host.lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost")
