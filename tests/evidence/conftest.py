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
    clock: list[str] = dataclasses.field(default_factory=list)  # what its Date headers say

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


_BYTES = "application/octet-stream"
_PARTS = ("other range", "other size", "changes", "other bytes", "more bytes", "fewer bytes")


class Bent(Handler):
    """Answers as `bent` says for a path."""

    bent: dict[str, str]
    before: dict[str, Callable[[], object]]
    clock: list[str]
    silence: threading.Event  # set when the test is over

    def date_time_string(self, _timestamp: float | None = None) -> str:
        return self.clock[0]

    def do_GET(self) -> None:  # noqa: N802 - the base class calls it so
        for act in [act for part, act in self.before.items() if part in self.path]:
            act()
        how = next((how for part, how in self.bent.items() if part in self.path), None)
        if how is None or (how == "elsewhere" and "localhost" in self.headers.get("Host", "")):
            super().do_GET()
            return
        self.site.seen.append(("GET", self.path))
        data = self.site.files.get(self.path, ("", b""))[1]
        if how in _PARTS:
            self._part(how, data)
        else:
            self._other(how, data)

    def _other(self, how: str, data: bytes) -> None:
        """Answer with something else than the file."""
        if how == "silent":
            self.silence.wait()
        elif how == "html":
            self._send(200, b"<html><body>Please log in</body></html>", "text/html")
        elif how == "login":
            self._send(401, b"", "text/plain")
        elif how == "elsewhere":
            self._send(302, b"", "text/plain", Location=self.site.url.replace("127.0.0.1", "localhost") + self.path)
        elif how == "no ranges":
            self._send(200, data + b"\0" * (2 << 20))
        elif how == "sends too slowly":
            self._head(200, len(data), "application/json")
            for at in range(len(data)):
                if self.silence.wait(0.05):
                    break
                self.wfile.write(data[at : at + 1])

    def _part(self, how: str, data: bytes) -> None:
        """Answer with a part of the file, and with something wrong about it."""
        asked = sum(path == self.path for _, path in self.site.seen)
        begin, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        start = int(begin) if begin else max(0, len(data) - int(last))
        end = min(int(last) + 1 if begin and last else len(data), len(data))
        part, span = data[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        if how == "other range":
            self._send(206, data[:100], **{"Content-Range": f"bytes 0-99/{len(data)}"})
        elif how == "other size":
            self._send(206, part, **{"Content-Range": f"bytes {start}-{end - 1}/{len(data) + 7}"})
        elif how == "changes":
            self._send(206, part, ETag=f'"{asked}"', **span)
        elif how == "other bytes":
            self._send(206, bytes(255 - byte for byte in part), **span)
        elif how == "more bytes":
            self._send(206, part + b"more", **span)
        else:
            self._head(206, len(part), _BYTES, **span)
            self.wfile.write(part[:-10])
            self.close_connection = True

    def _send(self, status: int, body: bytes, kind: str = _BYTES, **headers: str) -> None:
        self._head(status, len(body), kind, **headers)
        self.wfile.write(body)

    def _head(self, status: int, length: int, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(length)} | headers).items():
            self.send_header(name, value)
        self.end_headers()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that envkit's settings name, with a cache of its own."""
    bent: dict[str, str] = {}
    before: dict[str, Callable[[], object]] = {}
    clock = ["Tue, 01 Dec 2026 00:00:00 GMT"]  # after every upload of the wheels here
    silence = threading.Event()
    own = {"bent": bent, "before": before, "clock": clock, "silence": silence}
    with Served(type("OfTest", (Bent,), own)) as site:
        for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "NETRC"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("ENVKIT_PYTHON_INDEX", f"{site.url}/simple")
        monkeypatch.setenv("COLUMNS", "300")
        monkeypatch.chdir(tmp_path)
        found = Index(site, bent, before, clock)
        found.put(release())
        yield found
        silence.set()
