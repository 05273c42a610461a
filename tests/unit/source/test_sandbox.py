"""One build as the host sees it: what goes into the sandbox, and what of its answer is believed."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, IntegrityError
from envkit.ground.progress import Reporter, Silent
from envkit.image.name import ImageName, image_name
from envkit.lock.built import Outcome
from envkit.run.model import STRONG, Isolation, RunLimits, RunResult
from envkit.source import sandbox
from envkit.source.fetch import Archive
from envkit.source.look import look
from envkit.source.sandbox import Job
from tests.support.sources import FASTSUM, sdist
from tests.unit.lock.samples import from_source

FILE = "fastsum-1.2-cp311-cp311-linux_x86_64.whl"


def _wheel(name: str = "fastsum") -> bytes:
    buffer, info = io.BytesIO(), f"{name}-1.2.dist-info"
    files = {
        f"{name}.py": "x = 1\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: cp311-cp311-linux_x86_64\n",
    }
    rows = "".join(f"{file},,\n" for file in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(buffer, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": rows}.items():
            archive.writestr(file, text)
    return buffer.getvalue()


@dataclass
class Answers:
    """A runner that ends as it is told, and remembers what it was given."""

    stdout: bytes = b""
    exit_code: int = 0
    stderr: bytes = b""
    isolation: Isolation = STRONG
    name: str = "bubblewrap"
    seen: dict[str, Any] = field(default_factory=dict)

    def probe(self) -> str | None:
        return None

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        raise AssertionError(image)

    def run(
        self,
        image: ImageName,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,  # noqa: ARG002 - of the protocol
        entrypoint: bool = False,  # noqa: ARG002
    ) -> RunResult:
        self.seen = {"image": image, "argv": list(argv), "files": files, "gpus": gpus, "limits": limits}
        return RunResult(
            exit_code=self.exit_code,
            stdout=self.stdout,
            stderr=self.stderr,
            duration_s=1.0,
            oom_killed=False,
            image_id="sha256:1",
        )


def _job(folder: Path, **more: Any) -> Job:
    path = folder / "source"
    path.write_bytes(sdist(FASTSUM))
    archive = Archive(
        name="fastsum",
        version="1.2",
        url="https://files.example.com/fastsum-1.2.tar.gz",
        commit=None,
        path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    row: dict[str, Any] = {"archive": archive, "project": look(path, "fastsum"), "nvcc": False, "gpu_archs": ()}
    return Job(builder=from_source().builders[0], **row | more)


def _answer(tree: object, body: bytes = b"") -> Answers:
    return Answers(stdout=json.dumps(tree).encode() + b"\n" + body)


def _build(runner: Answers, folder: Path, **more: Any) -> Outcome:
    return sandbox.build(_job(folder, **more), runner, image_name("oci:image"), folder, Silent())


def test_a_wheel_comes_out(tmp_path: Path) -> None:
    outcome = _build(_answer({"file": FILE, "cxx11_abi": None}, _wheel()), tmp_path)
    assert outcome.wheel == tmp_path / FILE
    assert outcome.wheel.read_bytes() == _wheel()


def test_what_the_backend_asks_for_comes_back(tmp_path: Path) -> None:
    assert _build(_answer({"requires": ["wheel"]}), tmp_path) == Outcome(wheel=None, requires=("wheel",))


def test_the_build_gets_fixed_variables_and_the_source_alone(tmp_path: Path) -> None:
    runner = _answer({"requires": []})
    _build(runner, tmp_path)
    assert {"PYTHONHASHSEED=0", "SOURCE_DATE_EPOCH=315532800", "TZ=UTC", "PIP_NO_INDEX=1"} <= set(runner.seen["argv"])
    assert sorted(runner.seen["files"]) == [
        "/run/envkit-source/asked.json", "/run/envkit-source/inside.py", "/run/envkit-source/source.tar",
    ]  # fmt: skip


def test_gpus_decide_what_is_compiled(tmp_path: Path) -> None:
    job = _job(tmp_path, nvcc=True, gpu_archs=("8.0", "9.0"))
    job = replace(job, project=replace(job.project, torch=True))
    assert job.variables["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"


@pytest.mark.parametrize(
    ("answer", "body", "error", "why"),
    [
        (
            {"missing": "nvcc"},
            b"",
            EnvironmentProblem,
            "the build of fastsum needs nvcc, which is missing in bootstr",
        ),
        ([], b"", EngineError, "returned no result"),
        ({"file": "other-1.2-py3-none-any.whl"}, _wheel("other"), IntegrityError, "made 'other-1.2-py3-none-any.whl'"),
        ({"file": "fastsum-1.3-py3-none-any.whl"}, _wheel(), IntegrityError, "made 'fastsum-1.3"),
        ({"file": "../fastsum-1.2-py3-none-any.whl"}, _wheel(), IntegrityError, "made"),
        ({"file": "fastsum-1.2-1/a-cp311-cp311-linux_x86_64.whl"}, _wheel(), IntegrityError, "made"),
        ({"file": f"fastsum-1.2-1{'a' * 255}-cp311-cp311-linux_x86_64.whl"}, _wheel(), IntegrityError, "made"),
        ({"file": "fastsum-1.2-cp312-cp312-linux_x86_64.whl"}, _wheel(), IntegrityError, "is not for Python 3.11"),
        ({"file": FILE}, b"no zip", IntegrityError, FILE),
        ({"file": FILE}, _wheel()[:-30], IntegrityError, FILE),
    ],
)
def test_another_answer_is_an_error(
    answer: object, body: bytes, error: type[EnvkitError], why: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=why):
        _build(_answer(answer, body), tmp_path)


def test_a_build_that_fails_shows_its_last_lines_without_escapes(tmp_path: Path) -> None:
    runner = Answers(exit_code=1, stderr=b"\x1b[31mgcc: error: no such file\n")
    with pytest.raises(EngineError, match=r"the build of fastsum 1\.2 from source failed with exit code 1") as caught:
        _build(runner, tmp_path)
    assert caught.value.details == ("gcc: error: no such file",)


def test_a_runner_that_shares_the_network_builds_nothing(tmp_path: Path) -> None:
    runner = Answers(name="proot", isolation=Isolation(level="weak", missing=("network",)))
    with pytest.raises(EnvironmentProblem, match="the runner proot does not isolate the network"):
        _build(runner, tmp_path)
    assert runner.seen == {}


@pytest.mark.parametrize("what", ["source", "requires", "packages", "gpus"])
def test_all_that_decides_the_bytes_is_in_the_key(what: str, tmp_path: Path) -> None:
    job = _job(tmp_path)
    other = {
        "source": lambda: replace(job, archive=replace(job.archive, sha256="1" * 64)),
        "requires": lambda: replace(job, project=replace(job.project, requires=("setuptools", "wheel"))),
        "packages": lambda: replace(job, builder=replace(job.builder, wheels=())),
        "gpus": lambda: replace(job, nvcc=True),
    }[what]()
    assert other.key != job.key


def test_what_a_plan_says_of_itself_is_not_in_the_key(tmp_path: Path) -> None:
    job = _job(tmp_path)
    assert replace(job, builder=replace(job.builder, plan="sha256:" + "0" * 64)).key == job.key
