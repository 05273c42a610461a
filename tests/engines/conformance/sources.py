"""Small packages of every shape, served on loopback as conda channel, torch index and Python index.

What is named torch here only knows its version: builders install packages, and none of them looks into one. Python,
tini, pip and setuptools are those of the test world.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.engines.faults import Proxy, proxy_before
from tests.support.wheels import raw_zip, wheel_entries
from tests.world import channel, conda_package, image, processes
from tests.world.conda_package import Metadata
from tests.world.serve import Files
from tests.world.world import World

TORCH = "2.13.0"
_FROM_THE_WORLD = ("python", "tini", "pip", "setuptools", "wheel")
TORCH_FILES = {
    "torch/__init__.py": f'from torch import version\n\n__version__ = "{TORCH}+cpu"\n'.encode(),
    "torch/version.py": b"cuda = None\n",
    "torch/lib/libtorch.so": b"\x7fELF" + bytes(range(256)) * 64,
    "torch/bin/tool": b"#!/bin/sh\nexit 0\n",
}
_SCRIPT = "greeting-1.0.data/scripts/greet-by-script"
# Whatever a wheel may bring: commands, `.data` folders of every kind, odd names, modules that do not compile.
_GREETING = {
    "greeting/__init__.py": b'def main():\n    print("hello")\n',
    "greeting/template.py": b"def {{ name }}(): ...\n",
    "greeting/empty.txt": b"",
    "greeting/déjà vu.txt": b"seen\n",
    "greeting/tool": b"#!/bin/sh\nexit 0\n",
    "greeting-1.0.dist-info/entry_points.txt": b"[console_scripts]\ngreet = greeting:main\n",
    "greeting-1.0.dist-info/licenses/LICENSE": b"free\n",
    _SCRIPT: b"#!python\nimport greeting\n\ngreeting.main()\n",
    "greeting-1.0.data/data/share/greeting/text.txt": b"hello\n",
    "greeting-1.0.data/headers/greeting.h": b"#pragma once\n",
    "greeting-1.0.data/purelib/greeting_extra.py": b"extra = 1\n",
}
_SETUPTOOLS = {"setuptools/__init__.py": b'__version__ = "99.0"\n'}
# As in Debian's own images: apt keeps no copy of its index.
_MAKE_BASE = r"""
printf 'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";\n' > /etc/apt/apt.conf.d/docker-clean &&
rm -f /var/cache/apt/*.bin && apt-get update &&
apt-get install -y --no-install-recommends ca-certificates curl python3 python3-venv tini &&
find /usr -name __pycache__ -prune -exec rm -r {} + &&
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/cache/ldconfig/aux-cache
"""
_BASE = "envkit-test/debian-with-python"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where things are: `address` is host:port of the files, `base` an image with Debian's Python, by digest."""

    address: str
    base: str

    def settings(self, address: str, *, fresh: str = "") -> dict[str, str]:
        """The settings that lead to these sources through a proxy at `address`.

        With `fresh`, some word, the URLs are others than before: no builder finds steps of an earlier build.
        """
        root = f"http://{address}{f'/fresh-{fresh}' if fresh else ''}"
        return {
            "ENVKIT_CONDA_CHANNEL_ALIAS": root,
            "ENVKIT_PYTORCH_INDEX": f"{root}/whl",
            "ENVKIT_PYTHON_INDEX": f"{root}/simple",
        }

    def to_text(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))


@contextmanager
def serve(folder: Path, world: World) -> Iterator[Sources]:
    """Make the packages below `folder` and serve them; the base is put into the world's registry."""
    world.require("docker", "registry", "base", "channel", "miniconda")
    _write_channel(folder / "conda-forge", folder / "stage")
    _write_wheel(folder / "whl" / "cpu", "torch", f"{TORCH}+cpu", TORCH_FILES, "torch/bin/tool")
    _write_wheel(folder / "whl" / "cpu", "setuptools", "99.0", _SETUPTOOLS)
    _write_wheel(folder / "simple", "greeting", "1.0", _GREETING, "greeting/tool", _SCRIPT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Sources(f"127.0.0.1:{server.server_address[1]}", _base(world))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def through_proxy(sources: Sources) -> Iterator[Proxy]:
    """A proxy before the sources, for faults."""
    with proxy_before(sources.address) as proxy:
        yield proxy


class _Quiet(Files):
    """Static files; a first folder `fresh-...` in a path means the root."""

    def translate_path(self, path: str) -> str:
        first, _, rest = path.lstrip("/").partition("/")
        return super().translate_path(f"/{rest}" if first.startswith("fresh-") else path)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
        pass


def _write_channel(folder: Path, stage: Path) -> None:
    for package in (channel.packed() / channel.CHANNEL).glob("*/*.conda"):
        if package.name.rsplit("-", 2)[0] in _FROM_THE_WORLD:
            (folder / package.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(package, folder / package.parent.name / package.name)
    files = {f"lib/python3.11/site-packages/{name}": data for name, data in TORCH_FILES.items()}
    files["share/torch/prefix"] = f"{conda_package.PLACEHOLDER}/share\n".encode()
    for name, data in files.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_bytes(data)
    (stage / "lib/python3.11/site-packages/torch/bin/tool").chmod(0o755)
    (stage / "lib" / "libtorch.so").symlink_to("python3.11/site-packages/torch/lib/libtorch.so")
    conda_package.write(Metadata("pytorch", TORCH, "cpu_0", ("python 3.11.*",)), stage, folder)
    tool = stage.with_name("tool")
    (tool / "site-packages").mkdir(parents=True)
    (tool / "site-packages" / "tool.py").write_text("def main():\n    print('tool')\n")
    meta = Metadata("tool", "1.0", "py_0", ("python",), noarch="python", entry_points=("tool = tool:main",))
    conda_package.write(meta, tool, folder)
    processes.run_rattler("index", str(folder))


def _write_wheel(index: Path, name: str, version: str, files: dict[str, bytes], *executable: str) -> None:
    folder = index / name
    folder.mkdir(parents=True)
    entries = wheel_entries(files, name=name, version=version, executable=frozenset(executable))
    file = f"{name}-{version}-py3-none-any.whl"
    (folder / file).write_bytes(raw_zip(entries))
    anchor = file.replace("+", "%2B")
    (folder / "index.html").write_text(f'<!DOCTYPE html>\n<a href="{anchor}">{file}</a>\n')


def _base(world: World) -> str:
    """The Debian base with what both templates install, so that the engines install nothing of it twice."""
    tag = hashlib.sha256(_MAKE_BASE.encode()).hexdigest()[:12]
    name = f"{world.registry}/{_BASE}:{tag}"
    if image.tagged(str(world.registry), _BASE, tag) is None:
        script = " ".join(_MAKE_BASE.split("\n"))
        command = ["docker", "build", "--network", "host", "--tag", name, "-"]
        text = f"FROM {world.base}\nRUN {script}\n"
        for argv, data in ((command, text), (["docker", "push", name], "")):
            environ = {**os.environ, **world.env()}
            subprocess.run(argv, input=data, text=True, check=True, capture_output=True, env=environ)
    return f"{name}@{image.tagged(str(world.registry), _BASE, tag)}"


def read(file: Path) -> Sources:
    """What `Sources.to_text` wrote."""
    return Sources(**json.loads(file.read_text()))
