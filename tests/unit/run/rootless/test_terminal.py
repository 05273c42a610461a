"""A pseudoterminal whose container has ended."""

import os
from typing import Any

import pytest

from envkit.ground.errors import EnvironmentProblem
from envkit.run.rootless import start
from envkit.run.rootless.terminal import Terminal, new_terminal


class Ended:
    """A process of bubblewrap that has ended."""

    def wait(self) -> int:
        return 1


def test_bubblewraps_error_at_a_terminal_is_in_the_message() -> None:
    process: Any = Ended()
    with new_terminal() as terminal:
        os.write(terminal.theirs, b"bwrap: Can't mount proc\n")
        with pytest.raises(EnvironmentProblem, match="bwrap: Can't mount proc"):
            start.follow(start.Started(process, first=0, go=-1), terminal, first=False)


def test_a_terminal_to_which_nothing_was_written_has_nothing_unread() -> None:
    own, theirs = os.openpty()
    os.close(theirs)
    assert Terminal(own, theirs).unread() == b""
    os.close(own)
