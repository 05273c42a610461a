"""One Dockerfile on stdin gives the files that the whole build context gives."""

import os
import subprocess
from pathlib import Path

import pytest

from envkit.render.inline import inline
from envkit.render.model import Rendered
from tests.world.world import World

pytestmark = pytest.mark.engine
FILES = {
    "list.txt": b"ca-certificates\ncurl $HOME\n",
    "from.py": b"from pathlib import Path\n\n\nrun = 'it''s' \\\n",
    "copied/0/run.sh": b"#!/bin/sh\n",
    "copied/0/data/empty": b"",
    "copied/0/data/with blank.bin": bytes(range(256)) * 600,  # more than one step holds
}
STEPS = """WORKDIR /build
COPY list.txt from.py ./
COPY list.txt /made/list
RUN set -eu; cp list.txt from.py /made
COPY copied/0/ /made/
"""
LISTED = "cd /made; find . -exec stat -c '%a %u:%g %F %n' {} + | sort; find . -type f -exec sha256sum {} + | sort"
HEREDOCS = 23  # the first Docker whose builder reads heredocs without a `# syntax=` line


def images(client: str, builder: str, made: Rendered, folder: Path) -> list[str]:
    """The images of the build context and of the Dockerfile alone."""
    for name, data in made.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755 if name in made.executable else 0o644)
    alone = inline(made, made.files).encode()
    return [_built(client, builder, str(folder), b""), _built(client, builder, "-", alone)]


def _built(client: str, builder: str, context: str, stdin: bytes) -> str:
    env = {**os.environ, "DOCKER_BUILDKIT": builder}
    argv = [client, "build", "--quiet", "--network=none", context]
    done = subprocess.run(argv, input=stdin, capture_output=True, env=env, timeout=300, check=True)
    return done.stdout.decode().split()[-1]


def _files(client: str, image: str) -> str:
    argv = [client, "run", "--rm", "--network=none", image, "sh", "-c", LISTED]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout


def _old(client: str) -> str | None:
    """Docker's version where it has no heredocs."""
    argv = [client, "version", "--format", "{{.Server.Version}}"]
    version = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    return version if int(version.split(".")[0]) < HEREDOCS else None


@pytest.mark.parametrize(
    "way",
    [("0", "classic"), ("1", "classic"), ("1", "buildkit")],
    ids=["classic", "buildkit", "heredocs"],
)
def test_stdin_gives_what_the_context_gives(
    way: tuple[str, str], place: World, pinned: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    builder, syntax = way
    place.require("docker", "registry", "base")
    client = place.docker_client or "docker"
    if syntax == "buildkit" and (version := _old(client)):
        reason = f"Docker {version} reads no heredocs, Docker {HEREDOCS} and later do"
        request.applymarker(pytest.mark.xfail(strict=True, raises=subprocess.CalledProcessError, reason=reason))
    text = f"FROM {pinned}\n{STEPS}".encode()
    executable = frozenset(["copied/0/run.sh"])
    made = Rendered({"Dockerfile": text, **FILES}, pinned, pinned, syntax, executable)
    (tmp_path / "context").mkdir()
    ids: list[str] = []
    try:
        ids += images(client, builder, made, tmp_path / "context")
        normal, alone = (_files(client, image) for image in ids)
    finally:
        subprocess.run([client, "image", "rm", "--force", *ids], capture_output=True, check=False, timeout=120)
    assert alone == normal
    assert normal.count("regular") == len(FILES) + 1
