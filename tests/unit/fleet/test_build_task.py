"""A task in a worker: whatever goes wrong is an outcome."""

import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.engines.model import BuildOptions
from envkit.fleet import build_task, worker
from envkit.fleet.model import worker_name
from envkit.fleet.tasks import task_of
from envkit.ground.errors import EngineError, InterruptedRun
from envkit.plan.copying import merged
from tests.support.heard import Heard
from tests.support.plans import plan_from
from tests.unit.fleet.samples import cell, task


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.mark.parametrize(
    ("more", "code", "error"),
    [
        ({"plan": "{}"}, 2, "the plan of train: None is not a plan (envkit.plan/1)"),
        ({"lock": "{}"}, 2, "the lock of train: "),
        ({"engine": "kaniko"}, 2, "--engine 'kaniko' is not one of auto, docker"),
        ({}, 4, "there is no lock; the embedded engine needs one"),
    ],
)
def test_what_a_user_can_cause_is_an_outcome(more: dict[str, Any], code: int, error: str) -> None:
    made = task_of(cell(), "embedded", BuildOptions(), verify=False, no_lock=True)
    found = build_task.build(pickle.loads(pickle.dumps(task("train", options=made.options, **more))))
    assert (found.name, found.status, found.exit_code) == ("train", "failed", code)
    assert found.error is not None
    assert found.error.startswith(error)
    assert found.hint
    assert found.worker == worker_name()
    assert found.duration_s >= 0


def test_the_system_s_refusals_name_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> None:
        del given
        raise PermissionError(13, "Permission denied", "/state")

    monkeypatch.setattr(build_task, "_build", refused)
    found = build_task.build(task())
    assert (found.status, found.exit_code, found.error) == ("failed", 9, "Permission denied: /state")


def test_an_interrupted_task_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        del given
        raise InterruptedRun(15)

    monkeypatch.setattr(build_task, "_build", interrupted)
    found = build_task.build(task())
    assert (found.status, found.exit_code, found.error) == ("stopped", 143, "ended by SIGTERM")


def test_a_task_reports_to_its_own_reporter() -> None:
    reporter = Heard()
    build_task.build(task("a", plan="{}"), reporter)
    build_task.build(task("b", plan="{}"))
    assert reporter.steps == ["begin"]


def test_exceptions_travel_with_their_traceback() -> None:
    found = worker._portable(EngineError("refused", hint="log in", details=("401",)))
    back = pickle.loads(pickle.dumps(found))
    assert isinstance(back, EngineError)
    assert (back.message, back.hint, back.details) == ("refused", "log in", ("401",))
    other = worker._portable(Stubborn("held"))
    assert (type(other), str(other)) == (RuntimeError, "Stubborn: held")
    assert "Stubborn: held" in other.__notes__[0]


class Stubborn(Exception):  # noqa: N818 - a sample
    """An exception with something that cannot leave its process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def test_a_worker_finds_the_files_to_copy_in_the_folder_of_the_definition(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    plan = plan_from("copy: [{from: train.py, to: ./}]", folder=tmp_path)
    made = task_of(replace(cell(), plan=plan), "embedded", BuildOptions(), verify=False)
    assert list(merged(build_task.request_of(pickle.loads(pickle.dumps(made))).plan)) == ["workspace/train.py"]
