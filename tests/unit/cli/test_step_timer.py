"""Where the time went."""

from envkit.cli.console import StepTimer
from envkit.ground.progress import Silent


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


def test_every_second_belongs_to_one_step() -> None:
    clock = Clock()
    phases = StepTimer(Silent(), clock)
    clock.go(0.25)
    phases.step("lock")
    clock.go(3)
    phases.step("write")
    clock.go(0.125)
    phases.step("verify")
    clock.go(20)
    phases.close()
    assert phases.rows() == [("lock", 3), ("verify", 20), ("other", 0.375)]
    assert phases.total() == 23.375


def test_nothing_is_told_of_nothing() -> None:
    phases = StepTimer(Silent(), Clock())
    phases.close()
    assert phases.rows() == []
