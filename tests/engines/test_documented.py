"""The documentation's commands, typed as they stand there: in bash, and those of one page in its order."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.run import runners
from tests.engines.dask_cluster import cluster
from tests.engines.documented_machine import HOST, Machine, beside_docker, machine
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
SHOWN = documented.shown(documented.TYPED)
BESIDE_DOCKER = documented.shown(documented.DOCKED)
# What stands in a synopsis for a value, and the value.
PLACEHOLDERS = (
    (r"(\S+ push )REF (--image )oci:DIR \| (docker-archive:)FILE \| (registry:)HOST/NAME:TAG",
     (rf"\1{HOST}/team/a:1 \2oci:build/train && \1{HOST}/team/b:1 \2\3image.tar"
     rf" && \1{HOST}/team/c:1 \2\4{HOST}/team/train:1")),
    (r"--image REF", "--image oci:build/train"),
    (r"HOST/NAME:TAG", f"{HOST}/team/train:1"),
    (r"--record FILE", "--record record.json"),
    (r"--python (PATH|/path/to/\S+)", f"--python {sys.executable}"),
    (r"push REF", f"push {HOST}/team/docked:1"),
    (r"/datasets", "$HOME/.ssh"),
    (r"(train:1)(?= --ssh)", "ssh:1"),
    (r"^envkit shell[^#]*", r'echo exit | script --quiet --return --command "\g<0>" /dev/null '),
    (r"torchrun \.\.\. t\.py", "torchrun --nproc-per-node 2 train.py"),
    (r"envkit watch --advise-only 4711", "sleep 5 & envkit watch --advise-only $!"),
)  # fmt: skip
_WHEELS = "envkit build --cuda 12.6 --source pypi --template wheels --base docker.io/library/debian:bookworm-slim"
# What a page says in words before a command, typed first.
BEFORE = (
    (r"--new-key", "rm team.key team.key.pub"),
    (r"my\.yaml", "python -m envkit.checks.thresholds > my.yaml"),
    (r"envkit install", "python -m venv --without-pip env; . env/bin/activate"),
    (
        r"envkit run +# an image with the feature jupyter",
        "envkit build lab.yaml -t lab:1 --engine embedded --no-verify --output docker-daemon > log 2>&1",
    ),
    (
        r"envkit inspect oci:build/image$",
        f"rm -r build/image; {_WHEELS} --no-verify --output oci:build/image > log 2>&1",
    ),
    (
        r"envkit cache (export|import)",
        "envkit build image.yaml --engine embedded --locked envkit.lock --no-verify --output oci:build/far > log 2>&1",
    ),
    (r"envkit cache import", "envkit cache export need.tar > log 2>&1"),
    (r"envkit inspect .*--key", f"envkit attest {HOST}/team/train:1 --record r.json --key team.key"),
)
# What differs between the machine of a page and this one: it has no GPU, its user is another, its limits are lower.
NORMALIZED = (
    (r"GPUs all", "GPUs none"),
    (r" --gpus all", ""),
    (r"1000:1000", f"{os.getuid()}:{os.getgid()}"),
    (r"memlock=-1", "memlock=..."),
    (r"token=5f0c", "token="),
    (r" \\\n +", " "),
)
# Images are stubs here: their sizes, numbers of packages and base, the digest of their plan, and the time it took.
MEASURED = (
    (r"sha256:[0-9a-f]{12}", "sha256:..."),
    (r"\d+(\.\d+)? [kMG]?B\b", "..."),
    (r"in \d+ (s|layers)", r"in ... \1"),
    (r"\d+ packages: .* \(by", "... (by"),
    (r"bootstrap:debian/bookworm", "..."),
    (r"(apptainer exec) --nv --bind=/home/me/project", r"\1 ...--bind=..."),  # the stub is for CPUs
)
# The page shows records of two machines, so only the exit code is compared.
OF_MACHINES = r"envkit inspect .*--key"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    apt.require("bwrap", "bubblewrap")
    fault = runners.make("bubblewrap").probe()
    if fault is not None:
        raise UnavailableError(fault)
    with machine(tmp_path_factory.mktemp("machine")) as found:
        yield found


@pytest.fixture(scope="module")
def scheduler(here: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Dask cluster of one worker, with the settings of the machine."""
    pytest.importorskip("dask", reason="the extra fleet is not installed: pip install '.[fleet]'")
    with cluster(tmp_path_factory.mktemp("cluster"), here.environ, "one") as found:
        yield found.address


@pytest.fixture(scope="module")
def docked(here: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = up(("docker", "podman"))
    found.require("docker", "podman")
    apt.require("script", "bsdutils")
    with beside_docker(here, found, tmp_path_factory.mktemp("docked") / "machine") as made:
        yield made


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
    line: str, answer: str, here: Machine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    own = f"own{SHOWN.index((line, answer))}" if "envkit build" in line else "team"
    if "--scheduler" in line:
        line = re.sub(r"tcp://\S+:8786", request.getfixturevalue("scheduler"), line)
    done = here.type(typed(line), tmp_path / "copy", repository=own)
    assert done.returncode == 0, f"{typed(line)}\n{done.stderr[-3000:]}{done.stdout[-2000:]}"
    told = done.stderr if answer.startswith("PyTorch") else done.stdout
    printed = told.rstrip("\n").replace(f"{here.host}/{own}", f"{HOST}/team")
    for pattern, value in MEASURED:
        answer = re.sub(pattern, value, answer)
    if not re.search(OF_MACHINES, line):
        assert documented.fits(answer, printed), printed


# The word podman in a test's name would move it to another set (tests/groups.py), where `docked` is made once more.
@pytest.mark.parametrize(
    ("line", "answer"),
    BESIDE_DOCKER,
    ids=[line.partition(" #")[0].strip().replace("podman", "Podman") for line, _ in BESIDE_DOCKER],
)
def test_a_line_that_needs_docker_does_beside_it_what_its_page_shows(
    line: str, answer: str, docked: Machine, tmp_path: Path
) -> None:
    place = tmp_path / "copy"
    done = docked.type(typed(line), place)
    assert done.returncode == 0, f"{typed(line)}\n{done.stderr[-3000:]}{done.stdout[-2000:]}"
    for pattern, value in (*NORMALIZED, (r"/home/me/project", str(place / "project"))):
        answer = re.sub(pattern, value, answer)
    printed = (done.stdout if "--print" in line else done.stderr + done.stdout).rstrip("\n")
    assert documented.fits(answer, printed), printed
