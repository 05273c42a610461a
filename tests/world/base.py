"""The Debian base image: made from the distribution's own signed packages with mmdebstrap, kept in the registry."""

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
_EPOCH = "1735689600"  # 2025-01-01: one constant date for every file that the making touches
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")


def up(registry: str) -> str:
    """Make sure the base image is in the registry and return its reference; raises UnavailableError."""
    with locked("base"):
        if image.tagged(registry, REPOSITORY, TAGS[0]) is None:
            image.push(registry, REPOSITORY, TAGS, [layer()], env={"PATH": PATH})
    return f"{registry}/{REPOSITORY}:{TAGS[0]}"


def layer() -> Layer:
    """The one layer of the base image, made once and kept in the cache folder."""
    folder = cache("base")
    note = folder / "layer.json"
    packed = folder / "debian-bookworm.tar.gz"
    if note.exists() and packed.exists():
        kept = json.loads(note.read_text())
        return Layer(packed, kept["digest"], kept["size"], kept["diff_id"])
    tar = folder / "debian-bookworm.tar"
    _bootstrap(tar)
    made = image.compress(tar, packed)
    tar.unlink()
    note.write_text(json.dumps({"digest": made.digest, "size": made.size, "diff_id": made.diff_id}))
    return made


def _bootstrap(tar: Path) -> None:
    if os.geteuid() != 0:
        raise UnavailableError("the Debian base image is made as root here (mmdebstrap)")
    sources = apt.debian_sources()
    command = [apt.require("mmdebstrap", "mmdebstrap"), "--quiet", "--mode=root", "--variant=minbase"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    command += [f"--aptopt={option}" for option in apt.carried_options()]
    command += ["--customize-hook=rm -rf $1/var/lib/apt/lists/* $1/var/cache/apt/*.bin $1/var/log/*log"]
    command += ["bookworm", str(tar), *[source.line() for source in sources]]
    say("making the Debian base image with mmdebstrap (about half a minute)")
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
    )
    if done.returncode:
        tar.unlink(missing_ok=True)
        raise UnavailableError(f"mmdebstrap: {done.stderr.strip()[-600:]}")
    say(f"Debian base image: {tar.stat().st_size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")
