"""A Python index and conda channels on loopback, made of rows: what a solver asks for is there, and nothing larger."""

import base64
import hashlib
import http.server
import io
import json
import ssl
import sys
import threading
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote


@dataclass
class Site:
    """Files by path, faults by path, and the requests that came."""

    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    faults: dict[str, list[int]] = field(default_factory=dict)  # path -> statuses to answer with before the file
    login: str | None = None  # 'user:password' that every request has to carry
    no_head: bool = False
    lengths: dict[str, int] = field(default_factory=dict)  # path -> Content-Length instead of the true one
    redirects: dict[str, str] = field(default_factory=dict)  # path -> Location
    logins: list[str | None] = field(default_factory=list)  # the Authorization header of each request
    seen: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0  # bytes of bodies
    url: str = ""

    def put(self, path: str, data: bytes, kind: str = "application/octet-stream") -> None:
        self.files[path] = (kind, data)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        self.site.seen.append((self.command, path))
        self.site.logins.append(self.headers.get("Authorization"))
        status, (kind, data) = self._found(path)
        given = self.headers.get("Range")
        if status == 200 and given and body:
            first, _, last = given.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            end = min(int(last) + 1 if first and last else len(data), len(data))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            data = data[start:end]
        else:
            self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(self.site.lengths.get(path, len(data))))
        self.close_connection = path in self.site.lengths
        self.send_header("Accept-Ranges", "bytes")
        if path in self.site.redirects:
            self.send_header("Location", self.site.redirects[path])
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.end_headers()
        if body:
            self.site.sent += len(data)
            self.wfile.write(data)

    def _found(self, path: str) -> tuple[int, tuple[str, bytes]]:
        nothing = ("text/plain", b"")
        if self.site.faults.get(path):
            return self.site.faults[path].pop(0), nothing
        if self.site.login:
            wanted = "Basic " + base64.b64encode(self.site.login.encode()).decode()
            if self.headers.get("Authorization") != wanted:
                return 401, nothing
        if path in self.site.redirects:
            return 302, nothing
        if self.command == "HEAD" and self.site.no_head:
            return 405, nothing
        return (200, self.site.files[path]) if path in self.site.files else (404, nothing)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class names it so
        """Keep the terminal quiet."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep the terminal quiet where a client hung up; it may, and its test reads the terminal."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Served:
    """A site that is served while the `with` lasts; with TLS if there is a file with a certificate and its key."""

    def __init__(self, handler: type[Handler] = Handler, *, certificate: Path | None = None) -> None:
        self.site = Site()
        handler = type("Handler", (handler,), {"site": self.site})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.site.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.site.url = f"https://localhost:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Site:
        self._thread.start()
        return self.site

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass(frozen=True)
class Dist:
    """A wheel of the index."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    tag: str = "py3-none-any"
    uploaded: str = "2026-01-01T00:00:00Z"
    filling: int = 0  # bytes that make wheels of one name differ in size
    requires_python: str | None = None

    @property
    def file(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}-{self.tag}.whl"

    def data(self) -> bytes:
        stem = f"{self.name.replace('-', '_')}-{self.version}.dist-info"
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}"]
        lines += [f"Requires-Dist: {one}" for one in self.requires]
        lines += [f"Requires-Python: {self.requires_python}"] if self.requires_python else []
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, text in (
                (f"{stem}/METADATA", "\n".join(lines) + "\n"),
                (f"{stem}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {self.tag}\n"),
                (f"{stem}/RECORD", ""),
                ("filling.py", "#" * self.filling),
            ):
                archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text)
        return stream.getvalue()


def put_index(site: Site, folder: str, dists: Iterable[Dist], *, sizes: bool = True, dates: bool = True) -> str:
    """A simple index (PEP 691, or PEP 503 pages without `sizes` and `dates`) below `folder`; returns its URL."""
    by_name: dict[str, list[Dist]] = {}
    for dist in dists:
        by_name.setdefault(dist.name, []).append(dist)
    for name, found in by_name.items():
        rows, anchors = [], []
        for dist in found:
            data = dist.data()
            digest = hashlib.sha256(data).hexdigest()
            site.put(f"{folder}/files/{dist.file}", data)
            href = f"../files/{dist.file.replace('+', '%2B')}"
            row: dict[str, object] = {"filename": dist.file, "url": href, "hashes": {"sha256": digest}}
            row |= {"size": len(data)} if sizes else {}
            row |= {"upload-time": dist.uploaded} if dates else {}
            rows.append(row)
            anchors.append(f'<a href="{href}#sha256={digest}">{dist.file}</a>')
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": rows}
        if sizes or dates:
            site.put(f"{folder}/{name}/", json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json")
        else:
            html = "<!DOCTYPE html><html><body>" + "\n".join(anchors) + "</body></html>"
            site.put(f"{folder}/{name}/", html.encode(), "text/html")
    return f"{site.url}{folder}"


def put_pages(site: Site, folder: str, dists: Iterable[Dist], *, hashes: bool) -> str:
    """A flat page that lists every wheel beside it, as a web server lists a folder; returns its URL."""
    anchors = []
    for dist in dists:
        site.put(f"{folder}/{dist.file}", dist.data())
        href = dist.file.replace("+", "%2B")
        if hashes:
            href += f"#sha256={hashlib.sha256(dist.data()).hexdigest()}"
        anchors.append(f'<a href="{href}">{dist.file.replace("+", "&#43;")}</a>')
    html = "<!DOCTYPE html><html><body><h1>Index of</h1>" + "\n".join(anchors) + "</body></html>"
    site.put(f"{folder}/", html.encode(), "text/html")
    return f"{site.url}{folder}/"


@dataclass(frozen=True)
class Pkg:
    """A record of a conda channel."""

    name: str
    version: str
    depends: tuple[str, ...] = ()
    build: str = "0"
    subdir: str = "linux-64"
    noarch: str | None = None
    uploaded: int = 1767225600000  # ms since 1970: 2026-01-01
    sha256: str | None = None
    size: int | None = 1000


def put_channel(site: Site, name: str, packages: Iterable[Pkg]) -> None:
    """A channel's repodata below the site's root; there are no archives, because a solve needs none."""
    subdirs: dict[str, dict[str, object]] = {"linux-64": {}, "noarch": {}}
    for package in packages:
        file = f"{package.name}-{package.version}-{package.build}.conda"
        row: dict[str, object] = {
            "name": package.name,
            "version": package.version,
            "build": package.build,
            "build_number": 0,
            "subdir": package.subdir,
            "depends": list(package.depends),
            "timestamp": package.uploaded,
            "md5": hashlib.md5(file.encode()).hexdigest(),
        }
        row |= {"noarch": package.noarch} if package.noarch else {}
        row |= {"size": package.size} if package.size is not None else {}
        digest = hashlib.sha256(f"{name}/{file}".encode()).hexdigest() if package.sha256 is None else package.sha256
        row |= {"sha256": digest} if digest else {}
        subdirs[package.subdir][file] = row
    for subdir, rows in subdirs.items():
        tree = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": rows, "repodata_version": 1}
        site.put(f"/{name}/{subdir}/repodata.json", json.dumps(tree).encode(), "application/json")
