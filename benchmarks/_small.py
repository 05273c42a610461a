"""A small image and everything that its commands need, on loopback, for benchmarks that run commands hundreds of times.

Thirteen wheels of 200 kB on an index that is served here, no base, the embedded engine: a build takes about a second.
The image that is verified is the test world's Debian root, in bubblewrap: it has no Python, so the run ends soon, after
every step of a verification.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from envkit.ground.process import pids
from tests.engines.oci_images import registry
from tests.lock.served import Dist, Served, put_index
from tests.support.file_images import Packed, write_layout
from tests.support.wheels import raw_zip, wheel_entries
from tests.world import base

_NAMES = ("torch", *(f"part{number}" for number in range(11)))
DEFINITION = f"""schema: envkit.image/1
title: Small
template: wheels
companions: []
request: {{torch: "2.13.0", cpu: true, source: pytorch}}
pip: [{", ".join(f"{name}==1.0" for name in _NAMES[1:])}]
"""
_OWN = {"XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state", "TMPDIR": "tmp", "HOME": "home"}
_PATIENCE_S = 120.0


class _Wheel(Dist):
    """A wheel with files of its own, random and the same everywhere."""

    def data(self) -> bytes:
        body = random.Random(self.name).randbytes(200_000)  # noqa: S311 - the same bytes everywhere
        return raw_zip(wheel_entries({f"{self.name}/data.bin": body}, name=self.name, version=self.version))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, negative for a signal, its stderr, and seconds."""

    code: int
    err: str
    seconds: float


@dataclass(slots=True)
class Small:
    """A folder with `d.yaml`, `x.lock`, `image` (built), `debian` (an OCI layout), and a registry that starts empty."""

    folder: Path
    env: dict[str, str]
    registry: str
    digest: str = ""
    stack: ExitStack = field(default_factory=ExitStack)

    def build(self, output: str = "oci:out", *more: str) -> list[str]:
        """Arguments of the build from the lock; a network is not needed once the wheels are in the cache."""
        argv = ["build", "d.yaml", "--locked", "x.lock", "--engine", "embedded", "--base", "none"]
        return [*argv, "--no-verify", "--output", output, *more]

    def lock(self, output: str = "new.lock") -> list[str]:
        """Arguments of the lock."""
        return ["lock", "d.yaml", "--base", "none", "-o", output]

    def push(self, tag: str) -> list[str]:
        """Arguments of the push of `image`."""
        return ["push", f"{self.registry}/team/small:{tag}", "--image", "oci:image", "--unverified"]

    def verify(self, record: str = "record.json") -> list[str]:
        """Arguments of the verification of `debian`."""
        return ["verify", "oci:debian", "--runner", "bubblewrap", "-o", record]

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """A command, running."""
        return subprocess.Popen(
            [sys.executable, "-m", "envkit", *argv],
            cwd=self.folder,
            env=self.env | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        """A command, to its end."""
        return self.struck(argv, None, 0.0, env)

    def struck(
        self, argv: Sequence[str], number: signal.Signals | None, after_s: float, env: Mapping[str, str] | None = None
    ) -> Ended:
        """A command that gets a signal after some seconds; a code of -1000 means that it had to be killed at last."""
        began = time.monotonic()
        process = self.start(argv, env)
        if number is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(after_s)
            process.send_signal(number)
        try:
            _, err = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Ended(-1000, "", time.monotonic() - began)
        return Ended(process.returncode, err.decode(errors="replace"), time.monotonic() - began)

    def left(self) -> list[int]:
        """Processes of commands that ended; each carries this folder in its environment."""
        mark, left = f"ENVKIT_WORLD={self.folder}".encode(), []
        for pid in pids():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes() and pid != os.getpid():
                    left.append(pid)
        return left

    def forget(self, *names: str) -> None:
        """Remove files and folders."""
        for name in names:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def digest_of(self, layout: str) -> str | None:
        """The manifest of a layout all of whose blobs are whole; None where the layout does not exist.

        Raises:
            ValueError: it is there and not whole.
        """
        folder = self.folder / layout
        if not folder.exists():
            return None
        return whole(folder)


def whole(folder: Path) -> str:
    """The manifest's digest of an OCI layout whose every blob is what it is called.

    Raises:
        ValueError: a part is missing or another one.
    """
    import hashlib  # noqa: PLC0415

    try:
        listed = json.loads((folder / "index.json").read_bytes())["manifests"][0]["digest"]
        manifest = json.loads((folder / "blobs" / listed.replace(":", "/")).read_bytes())
        for row in ({"digest": listed}, manifest["config"], *manifest["layers"]):
            path = folder / "blobs" / row["digest"].replace(":", "/")
            if f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" != row["digest"]:
                raise ValueError(f"{path} is not what it is called")
    except (OSError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{folder} is half an image: {error}") from error
    return str(listed)


@contextmanager
def small() -> Iterator[Small]:
    """The folder, with everything in it and everything served."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-small-", ignore_cleanup_errors=True))
        )
        served = Served()
        served._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # noqa: SLF001 - a killed client
        site = stack.enter_context(served)
        put_index(site, "/whl/cpu", [_Wheel("torch", "2.13.0+cpu"), _Wheel("setuptools", "80.9.0")])
        put_index(site, "/simple", [_Wheel(name, "1.0") for name in _NAMES[1:]])
        (folder / "registry").mkdir()
        host = stack.enter_context(registry(folder / "registry"))
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ENVKIT_", "XDG_"))}
        own = {key: str(folder / name) for key, name in _OWN.items()}
        for path in own.values():
            Path(path).mkdir()
        sources = {"ENVKIT_PYTORCH_INDEX": f"{site.url}/whl", "ENVKIT_PYTHON_INDEX": f"{site.url}/simple"}
        # A variable that envkit knows and ignores marks its processes.
        here = Small(folder, kept | own | sources | {"ENVKIT_WORLD": str(folder)}, host)
        (folder / "d.yaml").write_text(DEFINITION)
        found = base.layer()
        config = {"Env": [f"PATH={base.PATH}"], "User": "1000:1000"}
        write_layout(folder / "debian", [Packed(found.path.read_bytes(), found.diff_id)], config)
        for argv, code in ((here.lock("x.lock"), 0), (here.build("oci:image"), 0), (here.verify(), 6)):
            ended = here.run(argv)
            if ended.code != code:
                raise SystemExit(f"envkit {' '.join(argv)} exited {ended.code}:\n{ended.err}")
        here.digest = whole(folder / "image")
        yield here
