"""The building commands of a page of the documentation, typed in its order, with the embedded engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import documented
from tests.world.world import World, up

pytestmark = [pytest.mark.engine, pytest.mark.long]
ENVKIT = (sys.executable, "-m", "envkit")
# Only what the world's channel holds.
DEFINITION = """schema: envkit.image/1
title: CPU
companions: []
request: {os: debian12, python: "3.11", cpu: true}
"""


@pytest.fixture(scope="module")
def place() -> World:
    found = up(("registry", "base", "channel"))
    found.require("registry", "base", "channel")
    return found


def test_the_commands_of_the_page_about_no_docker_run_in_their_order(place: World, tmp_path: Path) -> None:
    (tmp_path / "image.yaml").write_text(DEFINITION)
    (tmp_path / "train.py").write_text("import torch\nprint('trained with', torch.__version__)\n")
    commands = [one for one in documented.commands() if one.page.stem == "no-docker"]
    assert sum(one.words[0] == "build" for one in commands) >= 4
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")}
    own = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for command in commands:
        words = [word.replace("registry.example.com", str(place.registry)) for word in command.words]
        done = subprocess.run(
            [*ENVKIT, *words], cwd=tmp_path, env=kept | place.env() | own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command.line}\n{done.stderr[-3000:]}{done.stdout[-2000:]}"
    assert (tmp_path / "build" / "train" / "index.json").is_file()
