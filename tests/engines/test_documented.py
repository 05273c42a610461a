"""The documentation's commands, typed as they stand there: in bash, and those of one page in its order."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.run import runners
from tests.engines.documented_machine import HOST, Machine, machine
from tests.support import documented
from tests.world import apt
from tests.world.places import UnavailableError
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


# A line with what stands below it; pages that show the same share a test.
SHOWN = list(dict.fromkeys((one.line, one.answer) for one in documented.commands() if one.state == documented.TYPED))
# What stands in a synopsis for a value, and the value.
PLACEHOLDERS = (
    (r"(\S+ push )REF (--image )oci:DIR \| (docker-archive:)FILE \| (registry:)HOST/NAME:TAG",
     (rf"\1{HOST}/team/a:1 \2oci:build/train && \1{HOST}/team/b:1 \2\3image.tar"
     rf" && \1{HOST}/team/c:1 \2\4{HOST}/team/train:1")),
    (r"--image REF", "--image oci:build/train"),
    (r"HOST/NAME:TAG", f"{HOST}/team/train:1"),
    (r"--record FILE", "--record record.json"),
    (r"--python (PATH|/path/to/\S+)", f"--python {sys.executable}"),
)  # fmt: skip
# What a page says in words before a command, typed first.
BEFORE = (
    (r"--new-key", "rm team.key team.key.pub"),
    (r"my\.yaml", "python -m envkit.checks.thresholds > my.yaml"),
    (r"envkit install", "python -m venv --without-pip env; . env/bin/activate"),
    (r"envkit inspect .*--key", f"envkit attest {HOST}/team/train:1 --record r.json --key team.key"),
)
# Their pages show an image of several GB, so only their exit code is compared.
LARGER = r"envkit (inspect|build)"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    apt.require("bwrap", "bubblewrap")
    fault = runners.make("bubblewrap").probe()
    if fault is not None:
        raise UnavailableError(fault)
    with machine(tmp_path_factory.mktemp("machine")) as found:
        yield found


def typed(line: str) -> str:
    """Return what is typed for a line of a page.

    Placeholders have values, stubs are not verified, and the base is the registry's where it would be made of packages
    from Debian.
    """
    for pattern, value in PLACEHOLDERS:
        line = re.sub(pattern, value, line)
    before = [text for pattern, text in BEFORE if re.search(pattern, line)]
    line = re.sub(r"(envkit build)\b(?!.*--no-verify)", r"\1 --no-verify", line.replace(" --allow-cpu", ""))
    line = line.replace("--template wheels", "--template wheels --base docker.io/library/debian:bookworm-slim")
    return "; ".join([*before, line])


@pytest.mark.parametrize(("line", "answer"), SHOWN, ids=[line.partition(" #")[0].strip() for line, _ in SHOWN])
def test_a_line_of_the_documentation_does_in_bash_what_its_page_shows(
    line: str, answer: str, here: Machine, tmp_path: Path
) -> None:
    own = f"own{SHOWN.index((line, answer))}" if "envkit build" in line else "team"
    done = here.type(typed(line), tmp_path / "copy", repository=own)
    assert done.returncode == 0, f"{typed(line)}\n{done.stderr[-3000:]}{done.stdout[-2000:]}"
    printed = done.stdout.rstrip("\n").replace(f"{here.host}/{own}", f"{HOST}/team")
    if not re.search(LARGER, line):
        assert documented.fits(answer, printed), printed
