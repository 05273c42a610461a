"""An index on loopback whose wheels say what the facts say of torch 2.15.0, and which can be bent."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lock.served import Handler, Served, Site
from tests.support.torch_wheels import TorchWheel, page, release


@dataclasses.dataclass
class Index:
    """The served index and the wheels on it."""

    site: Site
    bent: dict[str, str]  # what a path does wrong
    before: dict[str, Callable[[], object]] = dataclasses.field(default_factory=dict)  # done before a path is answered

    @property
    def url(self) -> str:
        return f"{self.site.url}/simple"

    def put(self, wheels: list[TorchWheel], *, sizes: bool = False) -> None:
        """Serve these wheels and the lists of all their packages."""
        for name in {"torch", "torchvision", "torchaudio", *(one.name for one in wheels)}:
            self.site.put(f"/simple/{name}/", page(name, wheels, sizes=sizes), "application/vnd.pypi.simple.v1+json")
        for one in wheels:
            self.site.put(f"/simple/files/{one.file}", one.data())

    def requests(self) -> int:
        return len(self.site.seen)


class Bent(Handler):
    """Answers as `bent` says for a path."""

    bent: dict[str, str]
    before: dict[str, Callable[[], object]]
    silence: threading.Event  # set when the test is over

    def do_GET(self) -> None:  # noqa: N802 - the base class calls it so
        for act in [act for part, act in self.before.items() if part in self.path]:
            act()
        how = next((how for part, how in self.bent.items() if part in self.path), None)
        if how is None or (how == "elsewhere" and "localhost" in self.headers.get("Host", "")):
            super().do_GET()
            return
        data = self.site.files.get(self.path, ("", b""))[1]
        given = self.headers.get("Range", "")
        self.site.seen.append(("GET", self.path))
        if how == "silent":
            self.silence.wait()
        elif how == "html":
            self._send(200, b"<html><body>Please log in</body></html>", "text/html")
        elif how == "login":
            self._send(401, b"", "text/plain")
        elif how == "elsewhere":
            self._send(302, b"", "text/plain", Location=self.site.url.replace("127.0.0.1", "localhost") + self.path)
        elif how == "no ranges":
            self._send(200, data + b"\0" * (2 << 20), "application/octet-stream")
        elif how == "other range":
            self._send(206, data[:100], "application/octet-stream", **{"Content-Range": f"bytes 0-99/{len(data)}"})
        elif how == "other size":
            first = 0 if "bytes=0-" in given else len(data) - 10
            part = data[first:]
            span = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data) + 7}"}
            self._send(206, part, "application/octet-stream", **span)
        elif how == "changes":
            asked = sum(path == self.path for _, path in self.site.seen)
            begin, _, last = given.removeprefix("bytes=").partition("-")
            start = int(begin) if begin else max(0, len(data) - int(last))
            end = min(int(last) + 1 if begin and last else len(data), len(data))
            span = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}", "ETag": f'"{asked}"'}
            self._send(206, data[start:end], "application/octet-stream", **span)

    def _send(self, status: int, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that envkit's settings name, with a cache of its own."""
    bent: dict[str, str] = {}
    before: dict[str, Callable[[], object]] = {}
    silence = threading.Event()
    with Served(type("OfTest", (Bent,), {"bent": bent, "before": before, "silence": silence})) as site:
        for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "NETRC"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("ENVKIT_PYTHON_INDEX", f"{site.url}/simple")
        monkeypatch.setenv("COLUMNS", "300")
        monkeypatch.chdir(tmp_path)
        found = Index(site, bent, before)
        found.put(release())
        yield found
        silence.set()
