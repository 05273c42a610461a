"""C04: an assertion on the device ends every client of the multi-process service, so that control is left out there."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.payloads import module, observer, ruled
from tests.support.standin import StandIn

check = observer("c04_kernel")
gpus = module("gpus")


@pytest.fixture
def asserted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that were started as the control, in new interpreters because the driver is in use."""
    started: list[str] = []

    def probe(code: str, arguments: Any, _limit: float) -> dict[str, Any]:
        if "assertion" not in arguments:
            mps = gpus.uses_mps()
            answer = {"total": check.TOTAL, "last": check.LAST, "planted": check.TOTAL + 1, "init_s": 1.0, "mps": mps}
            return {"outcome": "answered", "text": "", "wall_s": 1.0, **answer}
        started.append(code)
        return {"outcome": "answered", "text": "raised CUDA error: device-side assert triggered"}

    monkeypatch.setattr(check, "probe", probe)
    monkeypatch.setattr(check.hostfacts, "device_nodes", lambda _names: ["nvidia0"])
    return started


class Ctx:
    """The context of a run whose torch cannot see the GPU by itself."""

    class torch:  # noqa: N801 - as the attribute is called
        class version:  # noqa: N801
            cuda = "12.6"

    has_cuda = False
    cuda_usable = True

    def __init__(self, *, looked_for_cuda: bool = True) -> None:
        self.notes: dict[str, Any] = {}
        self.looked_for_cuda = looked_for_cuda


def controls() -> dict[str, bool]:
    (item,) = check.run(Ctx())
    return {control["name"]: control["held"] for control in item["controls"]}


def test_under_mps_no_assertion_is_raised_and_a_planted_total_is_the_control(
    monkeypatch: pytest.MonkeyPatch, asserted: list[str]
) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert controls() == {"changed_element_is_noticed": True, "errors_surface": True}
    assert len(asserted) == 1
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    assert controls() == {"changed_element_is_noticed": True}
    assert len(asserted) == 1


def test_a_sum_that_does_not_follow_its_elements_fails_the_control(
    monkeypatch: pytest.MonkeyPatch, asserted: list[str]
) -> None:
    plain = check.probe

    def same(code: str, arguments: Any, limit: float) -> dict[str, Any]:
        found: dict[str, Any] = plain(code, arguments, limit)
        return {**found, "planted": found.get("total")}

    monkeypatch.setattr(check, "probe", same)
    assert controls()["changed_element_is_noticed"] is False
    del asserted


@pytest.mark.parametrize(
    ("program", "answers", "expected"),
    [
        ("", True, ("INCONCLUSIVE", "GPU_SLOW_TO_START")),
        ("print('ready', flush=True)", True, ("FAIL", "GPU_HANGS")),
        ("", False, ("FAIL", "GPU_HANGS")),
    ],
)
def test_a_slow_start_is_told_from_a_gpu_that_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, expected: tuple[str, str], *, answers: bool
) -> None:
    if answers:
        standin = StandIn.prepare(tmp_path)
        if not standin.has_driver:
            pytest.skip("needs gcc")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(standin.folder))
    monkeypatch.setattr(check.hostfacts, "device_nodes", lambda _names: ["nvidia0"])
    real, slow = check.code_of, f"import time\n{program}\ntime.sleep(3600)\n"
    monkeypatch.setattr(check, "code_of", lambda name: slow if name == "first_kernel" else real(name))
    monkeypatch.setattr(check, "PROBE_LIMIT_S", 2.0)
    (item,) = check.run(Ctx())
    finding = ruled(item)
    assert (finding.verdict, finding.reason_code) == expected


def test_a_control_may_take_as_long_as_the_start_before_it(
    monkeypatch: pytest.MonkeyPatch, asserted: list[str]
) -> None:
    plain, limits = check.probe, []

    def slow(code: str, arguments: Any, limit: float) -> dict[str, Any]:
        limits.append(limit)
        return {**plain(code, arguments, limit), "wall_s": 30.0}

    monkeypatch.setattr(check, "probe", slow)
    ctx = Ctx()
    check.run(ctx)
    assert limits == [check.PROBE_LIMIT_S, 90.0]
    assert ctx.notes == {"cuda_start_s": 1.0}
    del asserted


@pytest.fixture
def in_forks(monkeypatch: pytest.MonkeyPatch, asserted: list[str]) -> list[str]:
    """What the forks do, in order: `answers`, `lies`, `fails` or `hangs`; the interpreters answer."""
    del asserted
    kinds: list[str] = []

    def main(_arguments: Any) -> int:
        kind = kinds[0]
        if kind == "hangs":
            time.sleep(3600)
        if kind == "fails":
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        total = check.TOTAL - (kind == "lies")
        print(json.dumps({"total": total, "last": check.LAST, "planted": total + 1, "init_s": 0.2, "mps": True}))
        return 0

    monkeypatch.setattr(check.first_kernel, "main", main)
    monkeypatch.setattr(check, "FORK_LIMIT_S", 0.3)
    return kinds


@pytest.mark.parametrize(
    ("kind", "forked", "expected"),
    [
        ("answers", True, ("PASS", None)),
        # A GPU that is wrong once is wrong, whatever it answers the second time.
        ("lies", True, ("FAIL", "WRONG_RESULT")),
        ("fails", False, ("PASS", None)),
        ("hangs", False, ("PASS", None)),
    ],
)
def test_a_fork_answers_and_a_new_interpreter_where_it_does_not(
    in_forks: list[str], kind: str, expected: tuple[str, str | None], *, forked: bool
) -> None:
    in_forks.append(kind)
    (item,) = check.run(Ctx(looked_for_cuda=False))
    finding = ruled(item)
    assert (finding.verdict, finding.reason_code) == expected
    assert item["observed"]["forked"] == forked


def test_no_fork_is_made_of_a_process_that_has_started_the_driver(in_forks: list[str]) -> None:
    in_forks.append("lies")
    (item,) = check.run(Ctx(looked_for_cuda=True))
    assert item["observed"]["forked"] is False


def test_the_mps_server_is_looked_for_in_the_probe() -> None:
    """Doing it in the process of the checks starts CUDA there, and forks of it cannot use the GPU afterwards."""
    tree = ast.parse(Path(check.__file__).read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"open_session", "nvml_index"}


@pytest.mark.long
def test_on_a_gpu_both_answers_come_from_forks_and_the_driver_starts_only_there(tmp_path: Path) -> None:
    """On the model of a GPU, with the node and the build of a real one, in the order of the suite."""
    StandIn.prepare(tmp_path)
    code = """
        import sys
        sys.path.insert(0, "payload.pyz")
        import torch
        torch.version.cuda = "12.6"
        from envkit.checks import c04_kernel as check
        from envkit.smoke import hostfacts
        from envkit.smoke.context import Ctx
        hostfacts.device_nodes = lambda names: ["nvidia0"]
        ctx = Ctx({"nonce": "n"})
        (item,) = check.run(ctx)
        assert not ctx.looked_for_cuda
        print(json.dumps(item))
    """
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", "import json\n" + textwrap.dedent(code)],
        cwd=tmp_path, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    item = json.loads(done.stdout)
    assert (item["observed"]["forked"], item["observed"]["outcome"]) == (True, "answered")
    # The model has no assertion that destroys its context: nothing is raised, and the control says so.
    assert item["observed"]["control_outcome"] == "answered"
    assert item["controls"][0]["held"]
