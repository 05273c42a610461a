"""HTTP connections to exactly the address that was checked, with a time limit for the response headers."""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from envkit.ground.addresses import Reach, RefusedAddressError, reach_of, refusal

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SLOW_HEAD = "the response headers took too long"
Resolve = Callable[..., list[tuple[Any, ...]]]


def connect(
    host: str,
    port: int,
    allowed: frozenset[Reach],
    timeout_s: float | None,
    *,
    resolve: Resolve = socket.getaddrinfo,
) -> tuple[socket.socket, Reach]:
    """A connection to a host, and how far away it is.

    The name is resolved once, all its addresses are judged, and one of these is connected to: a name that has another
    address a moment later gains nothing.

    Raises:
        RefusedAddressError: one of the addresses is not allowed.
        OSError: the name cannot be resolved, or no address answers.
    """
    rows = resolve(host, port, 0, socket.SOCK_STREAM)
    addresses = [row[4][0] for row in rows]
    why = refusal(host, allowed, addresses)
    if why is not None:
        raise RefusedAddressError(f"{host} {why}")
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in rows:
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(timeout_s)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.connect(address)
        except OSError as error:
            made.close()
            failure = error
        else:
            return made, min(reach_of(ip_address(text)) for text in addresses)
    raise failure


def reach_of_url(url: str, *, resolve: Resolve = socket.getaddrinfo) -> Reach:
    """How far away a URL's host is; one whose name is not known here, perhaps only to a proxy, counts as public."""
    name = urlsplit(url).hostname or ""
    try:
        return min(reach_of(ip_address(row[4][0])) for row in resolve(name, None, 0, socket.SOCK_STREAM))
    except (OSError, ValueError):
        return Reach.PUBLIC


class Response(http.client.HTTPResponse):
    """An answer whose head, all of it, has the time that a single read has: the socket's timeout when it begins.

    Without this a server that sends a byte now and then, or `100 Continue` for ever, is never given up.
    """

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self._paced = _Paced(self.fp.detach(), sock)
        self.fp = io.BufferedReader(self._paced)

    def begin(self) -> None:
        """Read the head.

        Raises:
            TimeoutError: it was not there in time.
        """
        super().begin()
        self._paced.relax()


class _Paced(io.RawIOBase):
    """Reads of a socket that end together."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        super().__init__()
        self._raw, self._sock, self._timeout_s = raw, sock, sock.gettimeout()
        self._begun = False
        self._end = None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        if self._end is None:
            return self._raw.readinto(buffer)
        late = TimeoutError(SLOW_HEAD if self._begun else "timed out")  # who sends nothing at all is merely silent
        left = self._end - time.monotonic()
        if left <= 0:
            raise late
        self._sock.settimeout(left)
        try:
            count = self._raw.readinto(buffer)
        except TimeoutError as error:
            raise late from error
        self._begun = True
        return count

    def relax(self) -> None:
        """From here on every read has the whole time."""
        if self._end is not None:
            self._end = None
            self._sock.settimeout(self._timeout_s)

    def close(self) -> None:
        self._raw.close()
        super().close()
