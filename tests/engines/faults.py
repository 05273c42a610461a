"""A proxy on loopback before a real server, which breaks what passes in one chosen way, and notes every request."""

import base64
import contextlib
import email.utils
import http.client
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "granted"


@dataclass
class Fault:
    """One way to fail, for the first `times` requests whose `METHOD path` matches."""

    match: str
    status: int = 0  # answer with it, and with `headers`
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = -1  # end the connection after so many bytes of the body (of the request's for PATCH)
    flip: int = -1  # change this byte of the answer's body, counted round where it is shorter
    flip_sent: int = -1  # the same of the request's body
    mute: bool = False  # pass the request on, and end the connection in place of an answer
    silent_s: float = 0  # answer nothing for so long
    times: int = 1_000_000


@dataclass
class Seen:
    """One request."""

    line: str  # 'GET /v2/'
    at: float
    headers: dict[str, str]
    status: int = 0


@dataclass
class Proxy:
    """The running proxy; `login` makes it ask for a token that only `user:password` get."""

    address: str
    upstream: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    login: str | None = None
    realm: str | None = None
    identity: str | None = None  # an identity token that the token server takes in place of a password
    weather: Callable[[int, str], Fault | None] | None = None  # number and line of a request; comes after `faults`

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, one.line)) for one in self.seen)

    def fault_for(self, line: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.match, line):
                fault.times -= 1
                return fault
        return self.weather(len(self.seen), line) if self.weather is not None else None


def storm(seed: int, *, most: int = 4, rate: float = 0.4) -> Callable[[int, str], Fault | None]:
    """Weather for a proxy: faults of every kind at random, until there were `most` of them."""
    chance, lock, left = random.Random(seed), threading.Lock(), [most]

    def one(number: int, line: str) -> Fault | None:
        del number, line
        with lock:
            if not left[0] or chance.random() > rate:
                return None
            left[0] -= 1
            where = chance.randrange(1 << 20)
            later = email.utils.formatdate(time.time() + chance.randrange(3), usegmt=True)
            return chance.choice(
                (
                    Fault("", status=429, headers={"Retry-After": chance.choice(("0", "1", later))}),
                    Fault("", status=chance.choice((500, 502, 503, 504))),
                    Fault("", cut=chance.choice((0, 40, where))),
                    Fault("", mute=True),
                    Fault("", flip=where),
                    Fault("", flip_sent=where),
                )
            )

    return one


def changed(piece: bytes, at: int) -> bytes:
    """The piece with one bit of the byte at `at` changed, as it is where it has no such byte."""
    if not 0 <= at < len(piece):
        return piece
    other = bytearray(piece)
    other[at] ^= 1
    return bytes(other)


def flipping(sink: Callable[[bytes], object], at: int) -> Callable[[bytes], object]:
    """A sink before another one that changes a byte of what passes."""
    passed = [0]

    def send(piece: bytes) -> None:
        sink(changed(piece, at - passed[0]))
        passed[0] += len(piece)

    return send


@contextmanager
def proxy_before(upstream: str) -> Iterator[Proxy]:
    """A proxy before `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

        def pass_on(self) -> None:
            seen = Seen(f"{self.command} {self.path}", time.monotonic(), dict(self.headers))
            proxy.seen.append(seen)
            fault = proxy.fault_for(seen.line) or Fault("")
            if fault.silent_s:
                time.sleep(fault.silent_s)
                self.close_connection = True
            elif not (fault.status and self.path.startswith("/token")) and self.refused():
                seen.status = 401
            elif fault.status:
                self.answer(fault.status, fault.headers)
                seen.status = fault.status
            else:
                with contextlib.suppress(ConnectionError):  # whoever asked has gone
                    seen.status = self.relay(fault)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on  # noqa: N815

        def refused(self) -> bool:
            """Play the token server, and ask for a token."""
            if proxy.login is None:
                return False
            sent = self.headers.get("Authorization", "")
            if self.path.startswith("/token"):
                if self.command == "POST":  # a password would be in the header, an identity token is in the form
                    form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                    welcome = form["grant_type"] == ["refresh_token"] and form["refresh_token"] == [proxy.identity]
                else:
                    welcome = sent == "Basic " + base64.b64encode(proxy.login.encode()).decode()
                self.answer(200 if welcome else 401, {}, b'{"token": "%s"}' % TOKEN.encode() * welcome, read=True)
                return True
            if sent == f"Bearer {TOKEN}":
                return False
            realm = proxy.realm or f"http://{proxy.address}/token"
            self.answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="it",scope="repository:a/b:pull"'})
            return True

        def answer(self, status: int, headers: dict[str, str], body: bytes = b"", *, read: bool = False) -> None:
            if not read:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def relay(self, fault: Fault) -> int:
            with contextlib.closing(http.client.HTTPConnection(proxy.upstream, timeout=60)) as connection:
                return self.relay_over(connection, fault)

        def relay_over(self, connection: http.client.HTTPConnection, fault: Fault) -> int:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if not (proxy.login and name == "Authorization"):
                    connection.putheader(name, value)
            connection.endheaders()
            left = int(self.headers.get("Content-Length", 0))
            stop = fault.cut if self.command == "PATCH" and fault.cut >= 0 else left
            send = (
                flipping(connection.send, fault.flip_sent % left) if fault.flip_sent >= 0 and left else connection.send
            )
            left -= len(self.copy(self.rfile, send, min(left, stop)))
            if left > 0:
                self.close_connection = True
                return 0
            response = connection.getresponse()
            if fault.mute:
                self.close_connection = True
                return 0
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name not in ("Transfer-Encoding", "Connection"):
                    self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.copy_back(response, fault, int(response.headers.get("Content-Length") or 0))
            return response.status

        def copy(self, source: object, sink: object, size: int) -> bytes:
            done = bytearray()
            while len(done) < size and (piece := source.read(min(1 << 16, size - len(done)))):  # type: ignore[attr-defined]
                sink(piece)  # type: ignore[operator]
                done += piece
            return bytes(done)

        def copy_back(self, response: http.client.HTTPResponse, fault: Fault, size: int) -> None:
            at, flip = 0, fault.flip % size if fault.flip >= 0 and size else -1
            while piece := response.read(1 << 16):
                piece = changed(piece, flip - at)
                if 0 <= fault.cut - at < len(piece):
                    self.wfile.write(piece[: fault.cut - at])
                    self.close_connection = True
                    return
                self.wfile.write(piece)
                at += len(piece)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = Proxy(address=f"127.0.0.1:{server.server_address[1]}", upstream=upstream)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
