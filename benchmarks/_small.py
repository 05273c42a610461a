"""A small image and everything its commands need, on loopback, for benchmarks that run commands hundreds of times.

It has thirteen wheels of 200 kB from an index served here and no base, so a build by the embedded engine takes about a
second. The image to verify is the test world's Debian root in bubblewrap: it has no Python, so the run ends soon, but
goes through every step of a verification.
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
    """A wheel with random content that is the same in every run."""

    def data(self) -> bytes:
        body = random.Random(self.name).randbytes(200_000)  # noqa: S311 - content, not secrets
        return raw_zip(wheel_entries({f"{self.name}/data.bin": body}, name=self.name, version=self.version))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code (negative for a signal), its stderr and its seconds."""

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
        """Return the arguments of a build from the lock, which needs no network once the wheels are in the cache."""
        argv = ["build", "d.yaml", "--locked", "x.lock", "--engine", "embedded", "--base", "none"]
        return [*argv, "--no-verify", "--output", output, *more]

    def lock(self, output: str = "new.lock") -> list[str]:
        """Return the arguments of a lock."""
        return ["lock", "d.yaml", "--base", "none", "-o", output]

    def push(self, tag: str) -> list[str]:
        """Return the arguments of a push of `image`."""
        return ["push", f"{self.registry}/team/small:{tag}", "--image", "oci:image", "--unverified"]

    def verify(self, record: str = "record.json") -> list[str]:
        """Return the arguments of a verification of `debian`."""
        return ["verify", "oci:debian", "--runner", "bubblewrap", "-o", record]

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "envkit", *argv],
            cwd=self.folder,
            env=self.env | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        """Run a command to its end."""
        return self.signaled(argv, None, 0.0, env)

    def signaled(
        self, argv: Sequence[str], number: signal.Signals | None, after_s: float, env: Mapping[str, str] | None = None
    ) -> Ended:
        """Run a command that gets a signal after some seconds. Code -1000: it did not end and had to be killed."""
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
        """Return the processes that are left of commands that ended; they have this folder in their environment."""
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
        """Return the manifest digest of a layout, or None if there is no layout.

        Raises:
            ValueError: the layout is incomplete or damaged.
        """
        folder = self.folder / layout
        if not folder.exists():
            return None
        return checked_digest(folder)


def checked_digest(folder: Path) -> str:
    """Return the manifest digest of an OCI layout after checking the digest of every blob.

    Raises:
        ValueError: a blob is missing or does not match its digest.
    """
    import hashlib  # noqa: PLC0415

    try:
        listed = json.loads((folder / "index.json").read_bytes())["manifests"][0]["digest"]
        manifest = json.loads((folder / "blobs" / listed.replace(":", "/")).read_bytes())
        for row in ({"digest": listed}, manifest["config"], *manifest["layers"]):
            path = folder / "blobs" / row["digest"].replace(":", "/")
            if f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" != row["digest"]:
                raise ValueError(f"{path} does not match its digest")
    except (OSError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{folder} is an incomplete image: {error}") from error
    return str(listed)


@contextmanager
def small() -> Iterator[Small]:
    """Yield the folder with its files, while the index and the registry are served."""
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
        # A variable that envkit accepts and ignores marks its processes.
        here = Small(folder, kept | own | sources | {"ENVKIT_WORLD": str(folder)}, host)
        (folder / "d.yaml").write_text(DEFINITION)
        debian = base.layer()
        config = {"Env": [f"PATH={base.PATH}"], "User": "1000:1000"}
        write_layout(folder / "debian", [Packed(debian.path.read_bytes(), debian.diff_id)], config)
        for argv, code in ((here.lock("x.lock"), 0), (here.build("oci:image"), 0), (here.verify(), 6)):
            ended = here.run(argv)
            if ended.code != code:
                raise SystemExit(f"envkit {' '.join(argv)} exited {ended.code}:\n{ended.err}")
        here.digest = checked_digest(folder / "image")
        yield here
