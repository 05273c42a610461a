from __future__ import annotations

import pytest

from envkit.checks.model import Verdict
from envkit.verify.exit_status import trouble_of


def test_exit_0_is_no_trouble() -> None:
    assert trouble_of(0, oom_killed=False, last_line="") is None


@pytest.mark.parametrize(
    ("exit_code", "code", "words"),
    [
        (1, "PAYLOAD_EXIT", "exit code 1"),
        (2, "PAYLOAD_USAGE", "arguments"),
        (3, "PYTHON_ABORTED", "code 3"),
        (125, "NOT_STARTED", "could not start"),
        (126, "PYTHON_NOT_EXECUTABLE", "cannot be executed"),
        (127, "PYTHON_MISSING", "no Python"),
        (134, "ABORTED", "SIGABRT"),
        (135, "SHM_TOO_SMALL", "shm"),
        (136, "CRASHED", "SIGFPE"),
        (137, "KILLED", "SIGKILL"),
        (139, "CRASHED", "SIGSEGV"),
        (143, "TERMINATED", "SIGTERM"),
        (250, "CRASHED", "signal 122"),
    ],
)
def test_each_ending_has_its_words(exit_code: int, code: str, words: str) -> None:
    trouble = trouble_of(exit_code, oom_killed=False, last_line="C13 /dev/shm")
    assert trouble is not None
    assert (trouble.verdict, trouble.exit_code, trouble.reason.code) == (Verdict.FAIL, 6, code)
    assert words in trouble.reason.message
    assert "C13 /dev/shm" in trouble.reason.message


def test_no_two_endings_read_alike() -> None:
    codes = (1, 2, 3, 125, 126, 127, 134, 135, 137, 139, 143)
    texts = [trouble_of(code, oom_killed=False, last_line="") for code in codes]
    assert len({item.reason.message for item in texts if item}) == len(codes)


def test_a_small_dev_shm_is_named_with_the_option_that_mends_it() -> None:
    trouble = trouble_of(135, oom_killed=False, last_line="")
    assert trouble is not None
    assert "--shm-size" in (trouble.reason.advice or "")


@pytest.mark.parametrize("exit_code", [0, 137])
def test_memory_is_named_whatever_the_exit_code(exit_code: int) -> None:
    trouble = trouble_of(exit_code, oom_killed=True, last_line="")
    assert trouble is not None
    assert trouble.reason.code == "OUT_OF_MEMORY"
