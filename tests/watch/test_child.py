"""A function of envkit in a process of its own: its exit code, its errors and its signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envkit.ground.errors import EnvironmentProblem, EnvkitError
from envkit.watch import child


@contextmanager
def forked(work: Callable[[], int], stdout: int | None = None) -> Iterator[child.Forked]:
    with child.blocked() as before:
        made = child.Forked(work, stdout, before)
        while child.wait(made, 60.0):
            pass
        yield made


def test_what_it_returns_is_the_exit_code() -> None:
    with forked(lambda: 7) as made:
        made.close()
    assert made.returncode == 7


def test_a_program_that_it_becomes_ends_it() -> None:
    with forked(lambda: os.execv("/bin/sh", ["sh", "-c", "kill -TERM $$"])) as made:
        made.close()
    assert made.returncode == -signal.SIGTERM


def test_an_error_of_envkit_is_raised_here() -> None:
    def refuse() -> int:
        raise EnvironmentProblem("no client", hint="install it", details=("a", "b"))

    with forked(refuse) as made, pytest.raises(EnvkitError, match="no client") as caught:
        made.close()
    assert (caught.value.hint, caught.value.details, caught.value.exit_code) == ("install it", ("a", "b"), 9)


def test_no_signal_is_blocked_in_it(tmp_path: Path) -> None:
    def note() -> int:
        (tmp_path / "blocked").write_text(str(len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
        return 0

    with forked(note) as made:
        made.close()
    assert (tmp_path / "blocked").read_text() == "0"


def test_its_output_can_go_elsewhere(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file, forked(lambda: os.write(1, b"said"), file.fileno()) as made:
        made.close()
    assert (tmp_path / "out").read_bytes() == b"said"
