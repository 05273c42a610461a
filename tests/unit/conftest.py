"""Unit tests are pure: a socket or a process in one of them fails it."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3  # noqa: F401 - its first import binds a socket, to see whether there is IPv6

_FORBIDDEN = frozenset({
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn",
})  # fmt: skip
_guarding = [False]


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _guarding[0] and event in _FORBIDDEN:
        # Not an Exception, so no `except Exception` of the code under test can hide it.
        pytest.fail(f"a unit test opens no socket and starts no process, but this one did: {event} {arguments!r}")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _no_sockets_no_processes() -> Iterator[None]:
    _guarding[0] = True
    try:
        yield
    finally:
        _guarding[0] = False
