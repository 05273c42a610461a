"""The strongest rival of the embedded engine: buildah, uv in the Dockerfile in pip's place, and a push with zstd.

Buildah keeps everything in a folder of its own, without a daemon, and runs the steps in a chroot. The layers are made
once, at the push; steps are not cached. zstd compresses on all cores, where `docker push` runs gzip on one.
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
_DRIVERS = ("overlay", "vfs")  # the first that works here: overlay not within an overlay


def with_uv(dockerfile: str) -> str:
    """A rendered Dockerfile whose wheels are installed by uv, from the build context's copy of it.

    Raises:
        ValueError: no step of it runs pip.
    """
    first = _PIP.search(dockerfile)
    if first is None:
        raise ValueError("no step of this Dockerfile runs pip")
    step = dockerfile.rindex("\nRUN ", 0, first.start()) + 1
    changed = _PIP.sub(_as_uv, dockerfile[step:])
    return dockerfile[:step] + _COPY.format(uv=UV) + changed


def _as_uv(found: re.Match[str]) -> str:
    # A cache in the layer would be a second copy of the wheels, and links would lead into it.
    options = found["options"].replace(" --no-cache-dir", "").replace("--only-binary=:all:", "--only-binary :all:")
    return f"uv pip install --python {found['python']} --no-cache --link-mode copy{options} -r {found['file']};"


def bases(dockerfile: str) -> tuple[str, ...]:
    """The images that a Dockerfile stands on, without its own stages."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    return tuple(dict.fromkeys(name for name in _FROM.findall(dockerfile) if name not in stages))


@dataclass(frozen=True, slots=True)
class Buildah:
    """Buildah with storage below a folder."""

    folder: Path
    driver: str
    run: Run

    def pull(self, references: Iterable[str]) -> None:
        """Fetch base images before time is taken."""
        for reference in references:
            self.run(self.command("pull", "--quiet", "--tls-verify=false", reference))

    def build(self, context: Path, tag: str) -> float:
        """Seconds from a rendered context to a local image; uv takes pip's place."""
        dockerfile = self.folder / "Dockerfile"
        dockerfile.write_text(with_uv((context / "Dockerfile").read_text()))
        shutil.copy2(Path(sys.executable).with_name("uv"), context / UV)
        ignored = self.folder / "ignored"  # the context's own file lets in only what its Dockerfile copies
        ignored.write_text(f"{(context / '.dockerignore').read_text()}\n!{UV}\n")
        options = ["--quiet", "--isolation", "chroot", "--network", "host", "--no-cache", "--layers=false"]
        options += ["--ignorefile", str(ignored)]
        return self.run(
            self.command("build", *options, "--tls-verify=false", "-f", str(dockerfile), "-t", tag, str(context))
        )

    def push(self, tag: str) -> float:
        """Seconds of the push of zstd layers."""
        options = ["--quiet", "--tls-verify=false", "--format", "oci", "--compression-format", "zstd"]
        return self.run(self.command("push", *options, tag, f"docker://{tag}"))

    def command(self, *arguments: str) -> list[str]:
        """Arguments of buildah on this storage."""
        storage = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")]
        return ["buildah", *storage, "--storage-driver", self.driver, *arguments]


@contextmanager
def buildah(parent: Path, run: Run) -> Iterator[Buildah]:
    """Buildah, installed if it is missing, in a folder that is gone afterwards."""
    apt.require("buildah", "buildah")
    folder = Path(tempfile.mkdtemp(prefix="buildah-", dir=parent))
    try:
        yield Buildah(folder, _driver(folder), run)
    finally:
        # Overlays that a killed build left mounted would keep the folder.
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((one for one in mounts if one.startswith(f"{folder}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _driver(folder: Path) -> str:
    for driver in _DRIVERS:
        trial = Buildah(folder / f"trial-{driver}", driver, lambda _: 0.0)
        done = subprocess.run(trial.command("from", "scratch"), capture_output=True, check=False)
        subprocess.run(trial.command("rm", "--all"), capture_output=True, check=False)
        if done.returncode == 0:
            return driver
    raise SystemExit(f"buildah starts with none of {', '.join(_DRIVERS)}")
