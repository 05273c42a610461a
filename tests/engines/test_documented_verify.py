"""The documentation's lines that verify images, typed in bash, with images of a real torch for the CPU.

Those that build with Docker or Podman, or without a lock, are here as well.
"""

import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.dask_cluster import cluster
from tests.engines.pods import printed_by_pod
from tests.support import documented
from tests.world.world import up

pytestmark = [pytest.mark.engine, pytest.mark.long]
_BY_ENGINE = re.compile(r"--engine podman|--no-lock|--template miniconda-")
_LONGEST_S = 600
# Only what the world's channel holds.
_DEFINITION = """schema: envkit.image/1
title: CPU
companions: []
request: {os: debian12, python: "3.11", cpu: true}
"""
# `make` is what --dataset names.
_TRAINING = """import os


class Files:
    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return len(file.read())


make = Files
"""
# What stands for a value on a page, and the value.
PLACEHOLDERS = (
    (r"registry:(registry\.example\.com/team/train|HOST/(NAME|a)):", "registry:{host}/documented/train:"),
    (r"registry:HOST/b:", "registry:{host}/documented/other:"),
    (r"\bIMAGE\b", "train:1"),
    (r".* --baseline FILE", r"envkit verify train --write-baseline runs.yaml --reason first --only C14 && \g<0>"),
    (r"\bFILE\b(?<=baseline FILE)", "runs.yaml"),
    (r"\bA B C\b", "train:old train:new train:1"),
    (r"(train|image|images/train)\.yaml|(?<![:\w])cu126\b", "image.yaml"),
    (r"oci:DIR", "oci:train"),
    (r"--data (DIR|/datasets/train)", "--data {data}"),
    # The image of no definition has CUDA and several GB.
    (r"build --report", "build image.yaml --report"),
    (r"--observed LOG --questions FILE", "--observed train.log --questions plans/questions.yaml"),
    (r"--plan FILE", "--plan plan.json"),
)
# One check is enough for a line about tiers, names of images, baselines, machines or reports. `envkit verify` alone,
# the builds, and lines about the checks themselves run them all.
_ONE_CHECK = re.compile(
    r"envkit verify (?!.*--(?:only|observed|dataset))"
    r".*(?:--tier standard|train|oci:|registry:|--scheduler|baseline|--report)[^#]*"
)
_TEMPLATE = re.compile(r"```jinja\n(\{% extends \"builtin/miniconda.*?)```", re.DOTALL)
# A Python that no plan speaks of is not verified; its page says so.
UNVERIFIED = r"--runner host"
_NAMES = ("train:cu126", "train:old", "train:new", "train:1", "train")
_WRITTEN = re.compile(r"(?:-o |> |html=|junit=)(\S+)")


@dataclass(frozen=True, slots=True)
class Typist:
    """A folder with all that the lines name, and the variables under which they are typed."""

    folder: Path
    environ: dict[str, str]
    registry: str
    data: Path

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type a line in bash."""
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], cwd=self.folder, env=self.environ, capture_output=True,
            text=True, check=False, timeout=_LONGEST_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def typed(self, line: str) -> str:
        """Return what is typed for a line of a page."""
        return _typed(line, self.registry, str(self.data))


def _typed(line: str, registry: str, data: str) -> str:
    for pattern, value in PLACEHOLDERS:
        line = re.sub(pattern, value.format(host=registry, data=data), line)
    # A baseline holds measurements, and C14 has some; C01 takes a third of its time.
    check = "C14" if "baseline" in line else "C01"
    return _ONE_CHECK.sub(rf"\g<0> --only {check} ", line)


# Lines of several pages that are one command once it is typed are run once.
_ALL = list(
    {
        _typed(line, "HOST", "DIR").partition(" #")[0].strip(): line
        for line, _ in documented.shown(documented.VERIFIED)
    }.values()
)
LINES = [line for line in _ALL if not _BY_ENGINE.search(line)]
LINES_OF_ENGINES = [line for line in _ALL if _BY_ENGINE.search(line)]


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    """A folder of files that every user can read; those below pytest's own are for one user alone."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for number in range(64):
            (folder / f"{number}.bin").write_bytes(os.urandom(1 << 16))
        yield folder


@pytest.fixture(scope="module")
def here(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Typist:
    """The image as a layout, in a registry, and under the names of the pages, built once; and what a pod printed."""
    found = up(("registry", "base", "channel"))
    found.require("registry", "base", "channel")
    folder = tmp_path_factory.mktemp("verify")
    (folder / "image.yaml").write_text(_DEFINITION)
    (folder / "train.py").write_text(_TRAINING)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ENVKIT_")}
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DOCKER_HOST": f"unix://{folder}/no.sock",
        "ENVKIT_ENGINE": "embedded",
        "ENVKIT_RUNNER": "bubblewrap",
        "ENVKIT_REQUIREMENT": documented.REQUIREMENT,
        "CI_COMMIT": secrets.token_hex(4),  # the registry may have the tags of earlier runs
        "COLUMNS": "120",
        **{name: str(folder / part) for name, part in (("XDG_STATE_HOME", ".state"), ("XDG_CACHE_HOME", ".cache"))},
    }
    made = Typist(folder, {**kept, **found.env(), **own}, str(found.registry), data)
    for line in (
        "envkit build image.yaml --no-verify --output oci:train",
        *(
            f"envkit build image.yaml --no-verify --output registry:{found.registry}/documented/{name}:1 --replace-tag"
            for name in ("train", "other")
        ),
        *(f"envkit build image.yaml --no-verify -t {name}" for name in _NAMES),
        "envkit render image.yaml --only plan > plan.json",
        "envkit export kubernetes image.yaml --registry registry.example.com/team/train --set only=C01 --out ./",
    ):
        done = made.type(line)
        assert done.returncode == 0, f"{line}\n{done.stderr[-3000:]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", made.environ["XDG_CACHE_HOME"])
        log = printed_by_pod(folder, "image", f"oci:{folder / 'train'}")
    for name in ("train.log", "image.log"):
        (folder / name).write_bytes(log)
    return made


@pytest.fixture(scope="module")
def scheduler(here: Typist, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Dask cluster of one worker."""
    pytest.importorskip("dask", reason="the extra fleet is not installed: pip install '.[fleet]'")
    with cluster(tmp_path_factory.mktemp("cluster"), here.environ) as found:
        found.add("one", "--resources", "GPU=1")  # as the pages start it; the image has a torch for the CPU
        found.wait()
        yield found.address


def _ended_well(line: str, done: subprocess.CompletedProcess[str]) -> bool:
    """Whether a line ended as its page says, or without an answer because other tests kept the CPUs busy."""
    expected = {5} if re.search(UNVERIFIED, line) else {0}
    busy = re.search(r"the machine was busy|CPU pressure \d\.\d+ above", done.stdout)
    return done.returncode in (expected | {5} if busy else expected)


def _told(line: str, done: subprocess.CompletedProcess[str]) -> str:
    """Return what failed first: the whole output is long, and logs are cut in the middle."""
    said = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    failed = [number for number, text in enumerate(said) if re.search(r"\b(FAIL|ERROR|error:)", text)]
    worst = "\n".join(text for number in failed for text in said[number : number + 4])
    return f"{line}: exit code {done.returncode}\n{worst}\n\n{done.stderr}{done.stdout}"


def _id(line: str) -> str:
    return line.partition(" #")[0].strip()


@pytest.mark.parametrize("line", LINES, ids=_id)
def test_a_line_that_verifies_does_so_with_a_real_torch(
    line: str, here: Typist, request: pytest.FixtureRequest
) -> None:
    """Its page shows an image of several GB and another machine, so exit code and files are compared."""
    line = here.typed(line)
    if "--scheduler" in line:
        line = re.sub(r"tcp://\S+:8786", request.getfixturevalue("scheduler"), line)
    written = [here.folder / name for name in _WRITTEN.findall(line)]
    before = {file: file.stat().st_mtime_ns for file in written if file.exists()}
    done = here.type(line)
    assert _ended_well(line, done), _told(line, done)
    assert all(file.stat().st_size and before.get(file) != file.stat().st_mtime_ns for file in written), written


@pytest.mark.parametrize("line", LINES_OF_ENGINES, ids=_id)
def test_a_line_builds_and_verifies_with_its_engine(line: str, tmp_path: Path) -> None:
    """The world's Miniconda and channel stand for the real ones, and the engine solves where the line has no lock."""
    found = up(("docker", "podman", "miniconda"))
    found.require("podman" if "podman" in line else "docker", "miniconda")
    (tmp_path / "image.yaml").write_text(_DEFINITION)
    page = (documented.DOCS / "templates.md").read_text(encoding="utf-8")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/miniconda-berlin.Dockerfile.j2").write_text(_TEMPLATE.findall(page)[0])
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ENVKIT_")}
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ENVKIT_TEMPLATES": str(tmp_path / "templates"),
        **{name: str(tmp_path / part) for name, part in (("XDG_STATE_HOME", "state"), ("XDG_CACHE_HOME", "cache"))},
    }
    typist = Typist(tmp_path, {**kept, **found.env(), **own}, str(found.registry), tmp_path)
    done = typist.type(typist.typed(line))
    assert _ended_well(line, done), _told(typist.typed(line), done)
