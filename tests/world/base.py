"""The Debian base image, built with mmdebstrap from the distribution's signed packages and pushed to the registry."""

import json
import os
import subprocess
import time
from pathlib import Path

from tests.world import apt, image
from tests.world.image import Layer
from tests.world.places import UnavailableError, cache, locked, say

REPOSITORY = "library/debian"
TAGS = ("bookworm-slim", "bookworm", "12-slim")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EPOCH = "1735689600"  # 2025-01-01, the date of every file that is written
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")


def up(registry: str) -> str:
    """Push the base image to the registry if it is missing and return its reference; raises UnavailableError."""
    with locked("base"):
        if image.tagged(registry, REPOSITORY, TAGS[0]) is None:
            image.push(registry, REPOSITORY, TAGS, [layer()], env={"PATH": PATH})
    return f"{registry}/{REPOSITORY}:{TAGS[0]}"


def layer() -> Layer:
    """Return the only layer of the base image, which is built once and kept in the cache folder."""
    folder = cache("base")
    note = folder / "layer.json"
    packed = folder / "debian-bookworm.tar.gz"
    if note.exists() and packed.exists():
        kept = json.loads(note.read_text())
        return Layer(packed, kept["digest"], kept["size"], kept["diff_id"])
    tar = folder / "debian-bookworm.tar"
    _bootstrap(tar)
    compressed = image.compress(tar, packed)
    tar.unlink()
    note.write_text(json.dumps({"digest": compressed.digest, "size": compressed.size, "diff_id": compressed.diff_id}))
    return compressed


def _bootstrap(tar: Path) -> None:
    if os.geteuid() != 0:
        raise UnavailableError("building the Debian base image with mmdebstrap needs root here")
    sources = apt.debian_sources()
    command = [apt.require("mmdebstrap", "mmdebstrap"), "--quiet", "--mode=root", "--variant=minbase"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    command += [f"--aptopt={option}" for option in apt.carried_options()]
    command += ["--customize-hook=rm -rf $1/var/lib/apt/lists/* $1/var/cache/apt/*.bin $1/var/log/*log"]
    command += ["bookworm", str(tar), *[source.line() for source in sources]]
    say("building the Debian base image with mmdebstrap (about half a minute)")
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
    )
    if done.returncode:
        tar.unlink(missing_ok=True)
        raise UnavailableError(f"mmdebstrap: {done.stderr.strip()[-600:]}")
    say(f"Debian base image: {tar.stat().st_size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")
