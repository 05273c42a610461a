"""HTTP connections to exactly the address that was checked, and with a time limit for all response headers together."""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable, Iterable
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
    """Return a connection to a host, and how far away the host is.

    The name is resolved once, all of its addresses are checked, and the connection is to one of these. So a name that
    resolves to another address a moment later (DNS rebinding) cannot evade the check.

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
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(timeout_s)
            # As http.client does for its own connections.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection, _reach(addresses)
    raise failure


def reach_of_url(url: str, *, resolve: Resolve = socket.getaddrinfo) -> Reach:
    """Return how far away a URL's host is. A name that only a proxy can resolve counts as public."""
    name = urlsplit(url).hostname or ""
    try:
        return _reach(row[4][0] for row in resolve(name, None, 0, socket.SOCK_STREAM))
    except (OSError, ValueError):
        # It allows the least: such a server may lead only to public addresses.
        return Reach.PUBLIC


def _reach(addresses: Iterable[str]) -> Reach:
    """Return how far away a host with these addresses is: as far as the farthest, so that it may lead to the least.

    Otherwise a server on the internet whose name also resolves to this machine could lead envkit to this machine.
    """
    return max(reach_of(ip_address(text)) for text in addresses)


class Response(http.client.HTTPResponse):
    """A response whose headers must all arrive within the socket's timeout.

    Otherwise the timeout is for each read, and a server that sends one byte at a time, or `100 Continue` forever, would
    never time out.
    """

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        # Nothing has been read yet, so the buffer that is replaced is empty.
        self._paced = _Paced(self.fp.detach(), sock)
        self.fp = io.BufferedReader(self._paced)

    def begin(self) -> None:
        """Read the headers.

        Raises:
            TimeoutError: they did not arrive in time.
        """
        super().begin()
        self._paced.relax()


class _Paced(io.RawIOBase):
    """A socket's reads with a common deadline."""

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
        # SLOW_HEAD only if headers have begun to arrive; a server that sends nothing is an ordinary timeout.
        late = TimeoutError(SLOW_HEAD if self._begun else "timed out")
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
        """Return to a timeout for each read."""
        if self._end is not None:
            self._end = None
            self._sock.settimeout(self._timeout_s)

    def close(self) -> None:
        self._raw.close()
        super().close()
