"""Which tests share a process, and which are not begun."""

import time
from typing import Any

import pytest

from tests import conftest
from tests.groups import _LONGEST, _OF_RUNNER, _TOGETHER, TOO_LATE, Groups, group_of, process_of
from tests.world.places import REPOSITORY

ENGINES = "tests/engines"


@pytest.mark.parametrize(
    ("nodeid", "process"),
    [
        ("tests/unit/plan/test_model.py::test_a[docker]", "tests/unit/plan/test_model.py"),
        ("tests/lock/test_world.py::test_a[podman]", "tests/lock/test_world.py"),
        (f"{ENGINES}/test_runners.py::test_a[podman-0]", "podman"),
        ("tests/world/test_world.py::test_a[podman]", "podman"),
        (f"{ENGINES}/conformance/test_failures.py::test_a[podman-wheels]", "podman"),
        (f"{ENGINES}/conformance/test_failures.py::test_a[embedded-wheels]", "builds"),
        (f"{ENGINES}/test_source_wheels.py::test_a", "builds"),
        (f"{ENGINES}/test_podman_storage.py::test_a[True]", "podman"),
        (f"{ENGINES}/test_runners.py::test_a[bubblewrap-0-/tmp]", "files"),
        (f"{ENGINES}/test_runners.py::test_a[docker]", f"{ENGINES}/test_runners.py"),
        (f"{ENGINES}/test_bubblewrap_registry.py::test_a", "files"),
        (f"{ENGINES}/test_negative_controls_host.py::test_a", "sound"),
        (f"{ENGINES}/test_new.py::test_a", f"{ENGINES}/test_new.py"),
    ],
)
def test_tests_of_one_engine_share_a_process(nodeid: str, process: str) -> None:
    assert process_of(nodeid) == process


def test_every_set_that_starts_early_has_tests() -> None:
    files = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("test_*.py")}
    shared = {*_OF_RUNNER.values(), *_TOGETHER.values()}
    assert set(_LONGEST) <= files | shared
    assert all(any(group_of(file).startswith(f"engines/{prefix}") for file in files) for prefix in _TOGETHER)


def test_after_the_limit_no_test_begins() -> None:
    groups = Groups("rest", limit_s=60.0)
    groups.pytest_runtest_setup()
    groups.begin = time.monotonic() - 61.0
    with pytest.raises(pytest.skip.Exception, match="the limit of the run was reached"):
        groups.pytest_runtest_setup()


def test_without_a_limit_every_test_begins() -> None:
    groups = Groups("rest")
    groups.begin -= 1e6
    groups.pytest_runtest_setup()


class EngineTest:
    def get_closest_marker(self, name: str) -> str:
        return name


@pytest.mark.parametrize(("reason", "outcome"), [("no docker here", "failed"), (TOO_LATE, "skipped")])
def test_in_ci_an_engine_test_is_not_skipped_but_for_the_limit(
    reason: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "IN_CI", True)
    skip: Any = ("tests/groups.py", 145, f"Skipped: {reason}")
    report = pytest.TestReport("tests/engines/a.py::b", ("a.py", 1, "b"), {}, "skipped", skip, "setup")
    item: Any = EngineTest()
    made = conftest.pytest_runtest_makereport(item)
    next(made)
    with pytest.raises(StopIteration) as ended:
        made.send(report)
    assert ended.value.value.outcome == outcome
