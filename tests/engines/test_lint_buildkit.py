"""The lint's reader beside BuildKit's own parser: what the lint lets pass becomes the image that it read."""

import json
import os
import subprocess
from collections import Counter
from typing import Any

import pytest

from envkit.render import lint
from envkit.render.dockerfile import parse
from envkit.render.model import Rendered
from tests.support.mutated_dockerfiles import dockerfile
from tests.world.world import World

# The rules that refuse what the reader does not follow; those on dangerous values judge what it has read.
# Build arguments (D12) and entry points for a shell (D34) are refused whatever they say.
UNREADABLE = ("D3", "D10", "D12", "D34", "D54")
pytestmark = pytest.mark.engine


def built(client: str, source: str) -> dict[str, Any] | None:
    """The configuration of the image that BuildKit makes of a Dockerfile; None if it refuses."""
    env = {**os.environ, "DOCKER_BUILDKIT": "1"}
    build = [client, "build", "--quiet", "--network=none", "-"]
    done = subprocess.run(build, input=source.encode(), capture_output=True, env=env, timeout=120, check=False)
    if done.returncode:
        return None
    image = done.stdout.decode().strip()
    try:
        shown = subprocess.run([client, "image", "inspect", image], capture_output=True, check=True, timeout=60)
        config: dict[str, Any] = json.loads(shown.stdout)[0]["Config"]
        return config
    finally:
        subprocess.run([client, "image", "rm", "--force", image], capture_output=True, check=False, timeout=60)


def read(source: str) -> dict[str, Any] | None:
    """The same as the lint reads it; None if it refuses the file as unreadable."""
    made = Rendered(files={"Dockerfile": source.encode()}, build_image="", final_image="", syntax="buildkit")
    if any(item.severity == "error" for item in lint.check(made, UNREADABLE)):
        return None
    image = parse(source).image
    return {
        "Env": dict(image.env),
        "Labels": dict(image.labels),
        "User": image.user,
        "Entrypoint": image.entrypoint,
    }


def compared(client: str, source: str) -> str:
    """How the lint's reading and the engine's go together."""
    mine = read(source)
    theirs = built(client, source)
    if mine is None:
        return "both refuse" if theirs is None else "the lint refuses more"
    if theirs is None:
        return "the engine refuses more"
    config = {
        "Env": dict(text.split("=", 1) for text in theirs["Env"]),
        "Labels": theirs["Labels"] or {},
        "User": theirs["User"],
        "Entrypoint": theirs["Entrypoint"] or [],
    }
    assert mine == config, f"the lint reads something else than BuildKit:\n{source}"
    return "both read the same"


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 220), marks=pytest.mark.long)], ids=["20", "200"])
def test_what_the_lint_lets_pass_is_what_buildkit_builds(seeds: range, place: World) -> None:
    place.require("docker")
    assert place.docker_client is not None
    counts = Counter(compared(place.docker_client, dockerfile(seed)) for seed in seeds)
    print(dict(counts))
    assert counts["both read the same"] >= len(seeds) // 4  # else the mutations are so wild that nothing is compared
