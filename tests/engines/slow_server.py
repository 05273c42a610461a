"""A server on loopback that answers and never ends: bytes of a head one by one, or `100 Continue` again and again."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_EVERY_S = 0.02


@dataclass
class Slow:
    """The running server; `met` counts connections."""

    address: str
    met: int = 0


def head_bytes(sent: int) -> bytes:
    return (b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 60000)[sent : sent + 1]


def headers(sent: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" if not sent else b"X-Slow: a\r\n"


def continues(sent: int) -> bytes:
    del sent
    return b"HTTP/1.1 100 Continue\r\n\r\n"


def body_bytes(sent: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000000\r\n\r\n" if not sent else b"a" * 64


@contextmanager
def slow(piece: Callable[[int], bytes]) -> Iterator[Slow]:
    """The server, running; `piece` gives what follows so many bytes."""
    over = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))
    found = Slow(f"127.0.0.1:{server.getsockname()[1]}")
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        sent = 0
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            while not over.wait(_EVERY_S):
                part = piece(sent)
                connection.sendall(part)
                sent += len(part)

    def listen() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                found.met += 1
                threads.append(threading.Thread(target=answer, args=(connection,), daemon=True))
                threads[-1].start()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield found
    finally:
        over.set()
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        for thread in (listener, *threads):
            thread.join(5)
