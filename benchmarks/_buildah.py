"""The fastest alternative to the embedded engine: Buildah, uv instead of pip in the Dockerfile, and a push with zstd.

Buildah keeps everything in its own folder, without a daemon, and runs the steps in a chroot. The layers are made once,
at the push; steps are not cached. zstd compresses on all cores, while `docker push` runs gzip on one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.world import apt

Run = Callable[[Sequence[str]], float]  # seconds of a command
UV = "uv"  # its name in the build context
_PIP = re.compile(r"(?P<python>\S+/python) -m pip install(?P<options>(?: --[\w-]+(?:=\S+)?)*) -r (?P<file>\S+);")
_FROM = re.compile(r"^FROM (\S+)", re.MULTILINE)
_COPY = "COPY {uv} /usr/local/bin/uv\n"
_DRIVERS = ("overlay", "vfs")  # the first that works is used; overlay does not work on top of an overlay


def with_uv(dockerfile: str) -> str:
    """Return a rendered Dockerfile in which uv, copied from the build context, installs the wheels.

    Raises:
        ValueError: no step of it runs pip.
    """
    first = _PIP.search(dockerfile)
    if first is None:
        raise ValueError("no step of this Dockerfile runs pip")
    step = dockerfile.rindex("\nRUN ", 0, first.start()) + 1
    changed = _PIP.sub(_as_uv, dockerfile[step:])
    return dockerfile[:step] + _COPY.format(uv=UV) + changed


def _as_uv(match: re.Match[str]) -> str:
    # A cache in the layer would be a second copy of the wheels, and links would point into it.
    options = match["options"].replace(" --no-cache-dir", "").replace("--only-binary=:all:", "--only-binary :all:")
    return f"uv pip install --python {match['python']} --no-cache --link-mode copy{options} -r {match['file']};"


def bases(dockerfile: str) -> tuple[str, ...]:
    """Return the base images of a Dockerfile, without its own stages."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    return tuple(dict.fromkeys(name for name in _FROM.findall(dockerfile) if name not in stages))


@dataclass(frozen=True, slots=True)
class Buildah:
    """Buildah with storage below a folder."""

    folder: Path
    driver: str
    run: Run

    def pull(self, references: Iterable[str]) -> None:
        """Pull base images before the build is timed."""
        for reference in references:
            self.run(self.command("pull", "--quiet", "--tls-verify=false", reference))

    def build(self, context: Path, tag: str) -> float:
        """Return the seconds from a rendered context to a local image, with uv instead of pip."""
        dockerfile = self.folder / "Dockerfile"
        dockerfile.write_text(with_uv((context / "Dockerfile").read_text()))
        shutil.copy2(Path(sys.executable).with_name("uv"), context / UV)
        ignored = self.folder / "ignored"  # the context's own .dockerignore allows only what its Dockerfile copies
        ignored.write_text(f"{(context / '.dockerignore').read_text()}\n!{UV}\n")
        options = ["--quiet", "--isolation", "chroot", "--network", "host", "--no-cache", "--layers=false"]
        options += ["--ignorefile", str(ignored)]
        return self.run(
            self.command("build", *options, "--tls-verify=false", "-f", str(dockerfile), "-t", tag, str(context))
        )

    def push(self, tag: str) -> float:
        """Return the seconds of a push with zstd layers."""
        options = ["--quiet", "--tls-verify=false", "--format", "oci", "--compression-format", "zstd"]
        return self.run(self.command("push", *options, tag, f"docker://{tag}"))

    def command(self, *arguments: str) -> list[str]:
        """Return a buildah command with this storage."""
        storage = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")]
        return ["buildah", *storage, "--storage-driver", self.driver, *arguments]


@contextmanager
def buildah(parent: Path, run: Run) -> Iterator[Buildah]:
    """Yield Buildah, installed if it is missing, with a folder that is removed afterwards."""
    apt.require("buildah", "buildah")
    folder = Path(tempfile.mkdtemp(prefix="buildah-", dir=parent))
    try:
        yield Buildah(folder, _driver(folder), run)
    finally:
        # Overlays left mounted by a killed build would keep the folder from being removed.
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((path for path in mounts if path.startswith(f"{folder}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _driver(folder: Path) -> str:
    for driver in _DRIVERS:
        trial = Buildah(folder / f"trial-{driver}", driver, lambda _: 0.0)
        done = subprocess.run(trial.command("from", "scratch"), capture_output=True, check=False)
        subprocess.run(trial.command("rm", "--all"), capture_output=True, check=False)
        if done.returncode == 0:
            return driver
    raise SystemExit(f"buildah works with none of the storage drivers {', '.join(_DRIVERS)}")
