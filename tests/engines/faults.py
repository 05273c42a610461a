"""A proxy on loopback before a real server, which breaks what passes in one chosen way, and notes every request."""

import base64
import contextlib
import http.client
import re
import threading
import time
from collections.abc import Iterator
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
    flip: int = -1  # change this byte of the body
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

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, one.line)) for one in self.seen)

    def fault_for(self, line: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.match, line):
                fault.times -= 1
                return fault
        return None


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
            elif self.refused():
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
                right = "Basic " + base64.b64encode(proxy.login.encode()).decode()
                self.answer(200 if sent == right else 401, {}, b'{"token": "%s"}' % TOKEN.encode() * (sent == right))
                return True
            if sent == f"Bearer {TOKEN}":
                return False
            realm = proxy.realm or f"http://{proxy.address}/token"
            self.answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="it",scope="repository:a/b:pull"'})
            return True

        def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
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
            left -= len(self.copy(self.rfile, connection.send, min(left, stop)))
            if left > 0:
                self.close_connection = True
                return 0
            response = connection.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name not in ("Transfer-Encoding", "Connection"):
                    self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.copy_back(response, fault)
            return response.status

        def copy(self, source: object, sink: object, size: int) -> bytes:
            done = bytearray()
            while len(done) < size and (piece := source.read(min(1 << 16, size - len(done)))):  # type: ignore[attr-defined]
                sink(piece)  # type: ignore[operator]
                done += piece
            return bytes(done)

        def copy_back(self, response: http.client.HTTPResponse, fault: Fault) -> None:
            at = 0
            while piece := response.read(1 << 16):
                if 0 <= fault.flip - at < len(piece):
                    changed = bytearray(piece)
                    changed[fault.flip - at] ^= 1
                    piece = bytes(changed)
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
