"""A conda channel whose packages are a few files each, served on loopback by a server that counts and can hold back."""

import functools
import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.world import conda_package, processes
from tests.world.conda_package import Metadata

PYTHONS = ("3.11", "3.12")
TORCHES = ("2.13.0", "2.12.1")


@dataclass
class Channel:
    """What is served, how often each file was asked for, and whether archives are given out."""

    address: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    asked_for_archive: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def archives(self) -> dict[str, int]:
        """How often each archive was downloaded."""
        return {path: count for path, count in self.asked.items() if path.endswith(".conda")}


@contextmanager
def channel(folder: Path) -> Iterator[Channel]:
    """Two Pythons, two versions of torch, and what comes with them."""
    root, stage = folder / "channel", folder / "stage"
    target = root / "conda-forge"
    (target / "noarch").mkdir(parents=True)
    for python in PYTHONS:
        tag = f"py{python.replace('.', '')}"
        binary = f"bin/python{python}"
        _write(target, stage, Metadata("python", f"{python}.9", "h0_0"), {binary: "\x7fELF", "lib/os.txt": python})
        _write(
            target, stage, Metadata("numpy", "2.4.6", f"{tag}_0", (f"python {python}.*",)), {f"lib/np-{tag}": "n" * 900}
        )
        for torch in TORCHES:
            depends = (f"python {python}.*", "numpy", f"libtorch {torch}")
            metadata = Metadata("pytorch", torch, f"cpu_generic_{tag}_0", depends)
            _write(target, stage, metadata, {f"lib/torch-{tag}.txt": f"torch {torch}\n" * 99})
    for torch in TORCHES:
        _write(target, stage, Metadata("libtorch", torch, "cpu_generic_h0_0"), {"lib/libtorch.txt": torch * 9999})
    # Between what the two versions of torch ask for.
    _write(target, stage, Metadata("setuptools", "80.9.0", "h0_0"), {"lib/setuptools.txt": "tools"})
    _write(target, stage, Metadata("tini", "0.19.0", "h0_0"), {"bin/tini": "\x7fELF"})
    processes.run_rattler("index", str(target))
    found = Channel()
    found.open.set()
    server = _Server(("127.0.0.1", 0), functools.partial(_Files, found, root))
    found.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        found.open.set()
        server.shutdown()
        server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Workers that are killed hang up in the middle."""


class _Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, channel: Channel, root: Path, *arguments: object) -> None:
        self._channel = channel
        super().__init__(*arguments, directory=str(root))  # type: ignore[arg-type]  # as the server gives them

    def do_GET(self) -> None:
        if self.path.endswith(".conda"):
            self._channel.asked_for_archive.set()
            self._channel.open.wait(60)
        self._channel.asked[self.path] += 1
        super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in the base class
        del format, arguments


def _write(target: Path, stage: Path, metadata: Metadata, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = stage / metadata.filename / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.startswith("bin/") else 0o644)
    conda_package.write(metadata, stage / metadata.filename, target)
