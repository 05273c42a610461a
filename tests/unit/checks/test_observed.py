from __future__ import annotations

import pytest

from envkit.checks.catalog import judges
from envkit.checks.observed import (
    MalformedError,
    flag,
    last_line,
    mapping,
    number,
    optional_number,
    strings,
    text,
    version_key,
)
from tests.support.verdicts import ERROR, SKIP, said

PARTS = {
    "C00": "gpu",
    "C01": "torch",
    "C02": "libraries",
    "C03": "driver",
    "C04": "kernel",
    "C08": "threads",
    "C09": "pinned",
    "C10": "h2d_pinned_256MiB",
    "C13": "shm",
}


@pytest.mark.parametrize("check", PARTS)
def test_a_slack_control_is_an_error_whatever_was_observed(check: str) -> None:
    slack = [{"name": "planted", "held": False, "detail": ""}]
    assert said(f"{check}.{PARTS[check]}", {}, controls=slack) == (ERROR, "CONTROL_FAILED")


@pytest.mark.parametrize("check", PARTS)
def test_an_observation_without_a_control_is_an_error(check: str) -> None:
    assert said(f"{check}.{PARTS[check]}", {}, controls=[]) == (ERROR, "CONTROL_MISSING")


@pytest.mark.parametrize("check", PARTS)
def test_a_skip_and_an_error_keep_their_reason(check: str) -> None:
    assert said(check, {}, status="skip", reason={"code": "NO_GPU", "message": "m"}) == (SKIP, "NO_GPU")
    assert said(check, {}, status="error", reason={"code": "TIME_LIMIT", "message": "m"}) == (ERROR, "TIME_LIMIT")


@pytest.mark.parametrize("observed", [{}, {"found": 3}, {"found": "x"}])
@pytest.mark.parametrize("check", PARTS)
def test_fields_that_are_missing_or_of_another_type_are_an_error_not_a_crash(
    check: str, observed: dict[str, object]
) -> None:
    spec = {"gpu": True, "torch": "2.7.1", "driver": {"minimum": "525.60.13"}, "prefix": "/opt/env"}
    if check == "C01" and not observed:
        return  # nothing found is what C01 judges
    assert said(f"{check}.{PARTS[check]}", observed, spec) == (ERROR, "MALFORMED_OBSERVATION")


@pytest.mark.parametrize("check", sorted(set(PARTS) & set(judges())))
def test_a_part_no_rule_knows_is_an_error(check: str) -> None:
    assert said(f"{check}.of_another_version", {"found": "1"})[0] == ERROR


def test_readers_refuse_what_is_not_their_type() -> None:
    for reader, value in (
        (number, True),
        (number, "1"),
        (number, None),
        (text, 1),
        (flag, 1),
        (mapping, []),
        (strings, ["a", 1]),
        (optional_number, "x"),
    ):
        with pytest.raises(MalformedError):
            reader({"key": value}, "key")
    assert optional_number({}, "key") is None
    with pytest.raises(MalformedError, match="'n/a' is not a version"):
        version_key("n/a")


CAUSE = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3135, invalid usage"


@pytest.mark.parametrize(
    "after",
    [
        "[W1126 15:25:36.596110387 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called",
        "[rank0]:[W1126 15:25:36.596110387 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been",
        "W1126 15:25:36.596000 4711 site-packages/torch/multiprocessing/spawn.py:169] Terminating process 4711",
        "/usr/lib/python3.10/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear",
        "  warnings.warn('resource_tracker: There appear to be %d leaked semaphore objects'",
        "Exception raised from ncclCommInitRank at NCCLUtils.cpp:91 (most recent call first):",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f in libc10.so)",
        "Exception ignored in: <function _ExecutorManagerThread.__init__ at 0x7f>",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    ],
)
def test_what_libraries_write_after_an_exception_is_not_its_cause(after: str) -> None:
    head = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    assert last_line(f"{head}{CAUSE}\n{after}\n\n") == CAUSE
    assert last_line(f"[rank0]: {CAUSE}\n{after}") == CAUSE
    assert last_line(after)
    assert last_line(after) in after


def test_a_warning_that_is_the_exception_is_the_cause() -> None:
    """Where warnings are errors, the last line of the traceback is one."""
    text = 'Traceback (most recent call last):\n  File "x.py", line 2, in f\nUserWarning: deprecated'
    assert last_line(text) == "UserWarning: deprecated"
