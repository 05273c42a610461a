"""A pseudoterminal whose container has ended."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from envkit.ground.errors import EnvironmentProblem
from envkit.run.bubblewrap import BubblewrapRunner
from envkit.run.rootless import start
from envkit.run.rootless.terminal import Terminal, new_terminal


class Ended:
    """A process of bubblewrap that has ended."""

    def wait(self) -> int:
        return 1


def test_bubblewraps_error_at_a_terminal_is_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def started(*_: Any, streams: start.Streams, **_options: Any) -> Iterator[start.Started]:
        assert streams.stderr is not None
        os.write(streams.stderr, b"bwrap: Can't mount proc\n")
        process: Any = Ended()
        yield start.Started(process, first=0, go=-1)

    monkeypatch.setattr(start, "started", started)
    nothing: Any = None
    with new_terminal() as terminal, pytest.raises(EnvironmentProblem, match="bwrap: Can't mount proc"):
        BubblewrapRunner()._attach(nothing, nothing, ["true"], terminal, first=False)


def test_a_terminal_to_which_nothing_was_written_has_nothing_unread() -> None:
    own, theirs = os.openpty()
    os.close(theirs)
    assert Terminal(own, theirs).unread() == b""
    os.close(own)
