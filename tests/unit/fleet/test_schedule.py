"""Tasks into executors: every task has an outcome, whatever its worker does."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import pytest

from envkit.fleet import schedule
from envkit.fleet.model import BuildTask, Outcome
from envkit.ground.errors import EngineError, InterruptedRun
from tests.unit.fleet.samples import outcome, task


class Later(ThreadPoolExecutor):
    """A pool that remembers its futures."""

    def __init__(self) -> None:
        super().__init__(2)
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(super().submit(fn, *args, **kwargs))
        return self.futures[-1]


def do(asked: BuildTask) -> Outcome:
    match asked.name:
        case "refused":
            raise EngineError("the registry denied access", hint="docker login", details=("401",))
        case "bug":
            raise ZeroDivisionError("division by zero")
        case _:
            pass
    return outcome(asked.name)


def test_every_task_has_an_outcome_in_the_order_of_the_tasks() -> None:
    heard: list[Outcome] = []
    known = outcome("known", "present")
    with ThreadPoolExecutor(2) as pool:
        found = schedule.run([task("a"), known, task("refused"), task("bug"), task("b")], pool, heard.append, do=do)
    assert [(one.name, one.status, one.exit_code) for one in found] == [
        ("a", "built", 0),
        ("known", "present", 0),
        ("refused", "failed", 8),
        ("bug", "failed", 1),
        ("b", "built", 0),
    ]
    assert {one.name for one in heard} == {one.name for one in found}
    assert (found[2].error, found[2].hint, found[2].details) == ("the registry denied access", "docker login", ("401",))
    assert found[3].error == "this is a bug in envkit: ZeroDivisionError: division by zero"
    assert found[3].hint == "report the lines above together with the command you typed"
    assert any("raise ZeroDivisionError" in line for line in found[3].details)


class Immediate(Executor):
    """An executor without threads: a future is done as soon as it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_outcomes_are_heard_while_tasks_are_still_being_prepared() -> None:
    heard: list[Outcome] = []

    def prepared() -> Iterator[BuildTask]:
        yield task("a")
        assert [one.name for one in heard] == ["a"]
        yield task("b")
        assert [one.name for one in heard] == ["a", "b"]
        yield task("c")

    schedule.run(prepared(), Immediate(), heard.append, do=lambda asked: outcome(asked.name))
    assert [one.name for one in heard] == ["a", "b", "c"]


def test_an_interruption_cancels_what_was_not_begun() -> None:
    go, begun = Event(), Barrier(3)  # both threads of the pool, and this one

    def wait(asked: BuildTask) -> Outcome:
        begun.wait(10)
        assert go.wait(10)
        return outcome(asked.name)

    def interrupted() -> Iterator[BuildTask]:
        for name in "abcd":
            yield task(name)
        begun.wait(10)
        raise InterruptedRun(2)

    pool = Later()
    with pytest.raises(InterruptedRun):
        schedule.run(interrupted(), pool, lambda _: None, do=wait)
    go.set()
    pool.shutdown()
    assert [future.cancelled() for future in pool.futures] == [False, False, True, True]


class Interrupted(Future[Any]):
    """A signal reaches this thread while it looks at what became of the task."""

    def result(self, timeout: float | None = None) -> Any:
        del timeout
        raise InterruptedRun(2)


def test_a_signal_is_never_what_became_of_a_task() -> None:
    with pytest.raises(InterruptedRun):
        schedule.outcome_of(task("a"), Interrupted())


def test_a_cancelled_task_was_stopped() -> None:
    future: Future[Outcome] = Future()
    future.cancel()
    found = schedule.outcome_of(task("a"), future)
    assert (found.status, found.exit_code, found.error) == ("stopped", 130, "ended by SIGINT")
