"""A stand-in for PyTorch's wheel index on loopback, for tools that have its address built in.

Its pages list every torch, torchvision and torchaudio in the facts (`files_of`), or other files. The wheels are
stand-ins of a few kB with torch's version attributes. Tools reach it through an HTTPS proxy with its own certificate
authority, which only their environment trusts; every other host is refused. Other packages come from a Python index,
which settings name.
"""

from __future__ import annotations

import hashlib
import html
import http.server
import io
import re
import ssl
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envkit.facts.model import PYPI, ROOT, Facts
from tests.engines.certificates import authority
from tests.support.wheels import raw_zip, wheel_entries

_TORCH = """__version__ = {version!r}
class version:
    cuda = {cuda!r}
    __version__ = __version__
class cuda:
    @staticmethod
    def init(): raise RuntimeError("a stand-in of torch computes nothing")
    @staticmethod
    def is_available(): return False
    @staticmethod
    def device_count(): return 0
    @staticmethod
    def get_arch_list(): return {archs!r}
class backends:
    class cudnn:
        @staticmethod
        def version(): return None
"""
ANY = "any"  # stands for every index
PYTHON_INDEX = "simple"  # stands for the Python index
_BELOW = re.compile(r"^/(simple|whl/\w+)/")
_VERSION = "__version__ = {version!r}\ncuda = {cuda!r}\ndebug = False\nhip = None\n"


@dataclass(frozen=True, slots=True)
class File:
    """A wheel of the index."""

    index: str  # the last part of its index: 'cu126'
    name: str
    version: str  # with the local part: '2.7.1+cu126'
    tag: str
    cuda: str | None
    archs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    requires_python: str | None = None

    @property
    def path(self) -> str:
        """The path of the wheel on the host."""
        return f"{self.folder}{self.name.replace('-', '_')}-{self.version}-{self.tag}.whl"

    @property
    def folder(self) -> str:
        """The path of the page that lists it."""
        return f"/simple/{self.name}/" if self.index == PYTHON_INDEX else f"/whl/{self.index}/{self.name}/"

    def metadata(self) -> bytes:
        """Return METADATA, as in the wheel."""
        with zipfile.ZipFile(io.BytesIO(self.data())) as wheel:
            return wheel.read(next(name for name in wheel.namelist() if name.endswith("/METADATA")))

    @cache  # noqa: B019 - there are few files, and each page needs the digests of all of its own
    def data(self) -> bytes:
        """Return the bytes of the wheel."""
        return raw_zip(wheel_entries(
            self._files(), name=self.name.replace("-", "_"), version=self.version, requires=self.requires,
            requires_python=self.requires_python,
        ))  # fmt: skip

    def unpack(self, site: Path) -> None:
        """Put the wheel's files into a folder."""
        with zipfile.ZipFile(io.BytesIO(self.data())) as wheel:
            wheel.extractall(site)

    def _files(self) -> dict[str, bytes]:
        archs = [f"sm_{capability.replace('.', '')}" for capability in self.archs]
        own: dict[str, object] = {"version": self.version, "cuda": self.cuda, "archs": archs}
        texts = {"__init__.py": f"__version__ = {self.version!r}\n"}
        if self.name == "torch":
            texts = {"__init__.py": _TORCH.format(**own), "version.py": _VERSION.format(**own)}
        return {f"{self.name}/{name}": text.encode() for name, text in texts.items()}


def files_of(facts: Facts, platform: str = "linux-64") -> Iterator[File]:
    """Yield the files of the wheel index, one per package and Python: torch of every build, and its companions."""
    machine = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}[platform]
    for build in facts.builds:
        if build.source == "pytorch" and build.platform == platform and build.index:
            folder = urlsplit(build.index).path.rpartition("/")[2]
            libc = f"manylinux_{build.glibc.replace('.', '_')}_{machine}" if build.glibc else f"linux_{machine}"
            full = f"{build.torch}{build.local_version or ''}"
            for abi in _abis(build.pythons or ()):
                yield File(folder, "torch", full, f"{abi}-{abi}-{libc}", build.cuda, build.archs or ())
    for one in facts.companions:
        if one.platform == platform:
            folder = {PYPI: PYTHON_INDEX, ROOT: ANY}.get(one.index, one.index)
            for abi in _abis(one.pythons):
                yield File(folder, one.package, one.pinned, f"{abi}-{abi}-linux_{machine}", one.cuda)


def _abis(pythons: Iterable[str]) -> Iterator[str]:
    return ("cp" + python.replace(".", "") for python in pythons)


def plain(name: str, version: str) -> File:
    """Return a stand-in for another package, for every Python and on all indexes, as numpy is."""
    return File(ANY, name, version, "py3-none-any", None)


class Pages:
    """The responses of the index: pages of files, wheels, and their metadata."""

    def __init__(self, files: Iterable[File]) -> None:
        self._files = {file.path: file for file in files}
        self._pages: dict[str, list[File]] = {}
        for file in self._files.values():
            self._pages.setdefault(file.folder, []).append(file)
        self._made: dict[str, bytes] = {}

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return content type and body for a path, or None if nothing is there."""
        own = unquote(path.partition("?")[0])
        everywhere = _BELOW.sub(f"/whl/{ANY}/", own)
        return self._answer(own) or self._answer(everywhere)

    def _answer(self, path: str) -> tuple[str, bytes] | None:
        if path in self._files:
            return "application/octet-stream", self._files[path].data()
        if path.removesuffix(".metadata") in self._files:
            return "application/octet-stream", self._files[path.removesuffix(".metadata")].metadata()
        folder = path if path.endswith("/") else f"{path}/"
        if folder not in self._pages:
            return None
        if folder not in self._made:
            self._made[folder] = self._page(self._pages[folder]).encode()
        return "text/html", self._made[folder]

    def _page(self, listed: Iterable[File]) -> str:
        rows = (
            f'<a href="{file.path.replace("+", "%2B")}#sha256={hashlib.sha256(file.data()).hexdigest()}" '
            f'data-dist-info-metadata="true" data-core-metadata="true"{_limit(file)}>'
            f"{file.path.rpartition('/')[2]}</a><br>"
            for file in listed
        )
        return "<!DOCTYPE html><html><body>" + "\n".join(rows) + "</body></html>"


def _limit(file: File) -> str:
    return f' data-requires-python="{html.escape(file.requires_python)}"' if file.requires_python else ""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pages: Pages
    host: str
    tls: ssl.SSLContext

    def do_CONNECT(self) -> None:
        """Become the one host that is served here; refuse all others."""
        if self.path.partition(":")[0] != self.host:
            self.send_error(403, "only the wheel index of PyTorch is served here")
            return
        self.send_response(200)
        self.end_headers()
        self.rfile.close()
        self.wfile.close()
        self.connection = self.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def finish(self) -> None:
        """Close what `do_CONNECT` opened, too."""
        super().finish()
        self.rfile.close()
        self.connection.close()

    def do_GET(self) -> None:
        """Send a page, a wheel or metadata."""
        answer = self.pages.answer(self.path)
        kind, body = answer or ("text/plain", b"")
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=600")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name in the base class

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that closed the connection."""


@contextmanager
def served(files: Iterable[File], host: str) -> Iterator[dict[str, str]]:
    """Serve the files of the PyTorch host; yield the variables that direct uv, pip and envkit here."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torch-index-")))
        signed = authority(folder / "authority")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*signed.sign(f"DNS:{host}"))
        handler = type("Handler", (_Handler,), {"pages": Pages(files), "host": host, "tls": context})
        server = stack.enter_context(_Server(("127.0.0.1", 0), handler))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        own = f"http://127.0.0.1:{server.server_port}"
        trusted = dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"), str(signed.bundle))
        index = dict.fromkeys(("UV_DEFAULT_INDEX", "PIP_INDEX_URL", "ENVKIT_PYTHON_INDEX"), f"{own}/simple")
        quiet = {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}  # no other index of this machine
        yield {"HTTPS_PROXY": own, "https_proxy": own, "NO_PROXY": "127.0.0.1", **trusted, **index, **quiet}
