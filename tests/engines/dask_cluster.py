"""A real Dask cluster on loopback: a scheduler and workers, each a process of its own with caches of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.world import processes
from tests.world.places import REPOSITORY

_START_S = 30.0
# The kernel ends them together with the tests, however these end.
_BOUND = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
_DASK = (*_BOUND, sys.executable, "-m", "dask")


@dataclass
class Cluster:
    """What runs."""

    address: str
    folder: Path
    env: Mapping[str, str]
    scheduler: subprocess.Popen[bytes]
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def cache(self, name: str) -> Path:
        """A worker's cache folder."""
        return self.folder / name / "cache"

    def add(self, name: str, *flags: str, env: Mapping[str, str] | None = None) -> None:
        """Start a worker; it may still be on its way when this returns. Without a nanny, so that a kill is one."""
        place = self.folder / name
        place.mkdir()
        own = {"XDG_CACHE_HOME": str(self.cache(name)), "XDG_STATE_HOME": str(place / "state"), "HOME": str(place)}
        argv = [*_DASK, "worker", self.address, "--name", name, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
        argv += ["--local-directory", str(place / "dask"), "--memory-limit", "0", *flags]
        with (place / "log").open("wb") as log:
            self.workers[name] = subprocess.Popen(
                argv, stdout=log, stderr=log, cwd=place, env={**self.env, **own, **(env or {})}, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until every worker has come."""
        deadline = time.monotonic() + _START_S
        for name in self.workers:
            log = self.folder / name / "log"
            while b"Registered to:" not in log.read_bytes():
                assert time.monotonic() < deadline, log.read_text()
                assert self.workers[name].poll() is None, log.read_text()
                time.sleep(0.05)

    def kill(self, name: str) -> None:
        """End a worker as a machine ends that loses power."""
        process = self.workers.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self, name: str) -> None:
        """End a worker as its keeper would."""
        process = self.workers.pop(name)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def cluster(
    folder: Path, env: Mapping[str, str] | None = None, *names: str, protocol: str = "tcp"
) -> Iterator[Cluster]:
    """A scheduler on a free port with some workers, all gone afterwards."""
    port, own = processes.free_port(), {**os.environ, **(env or {})}
    own["PYTHONPATH"] = str(REPOSITORY)
    argv = [
        *_DASK,
        "scheduler",
        "--host",
        f"{protocol}://127.0.0.1",
        "--port",
        str(port),
        "--no-dashboard",
        "--no-show",
    ]
    with (folder / "scheduler.log").open("wb") as log:
        scheduler = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder, env=own, start_new_session=True)
    found = Cluster(f"{protocol}://127.0.0.1:{port}", folder, own, scheduler)
    try:
        for name in names:
            found.add(name)
        found.wait()
        yield found
    finally:
        for name in tuple(found.workers):
            found.end(name)
        scheduler.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            scheduler.wait(10)
        scheduler.kill()
        scheduler.wait()


def another_version(folder: Path, version: str) -> Path:
    """A folder for PYTHONPATH with an envkit that is this one but for its version."""
    package = folder / "envkit"
    package.mkdir(parents=True)
    for entry in (REPOSITORY / "envkit").iterdir():
        if entry.name not in ("__init__.py", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    (package / "__init__.py").write_text(f"__version__ = {json.dumps(version)}\n")
    return folder
