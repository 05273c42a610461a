"""What is built twice, by whom, and what it means when two workers disagree."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from envkit.errors import SurroundingsError
from envkit.fleet.cluster import Placement
from envkit.fleet.model import BuildTask, Outcome
from envkit.fleet.twice import CHECKED, Twice, again, compared, is_second
from tests.unit.fleet.test_cluster import locked, machine, task

A, B = machine("a", cache="a:/c"), machine("b", cache="b:/c")


class Prepared(Executor):
    """Gives each task the outcome that was prepared for all, and remembers the tasks."""

    def __init__(self, outcome: Outcome | Exception) -> None:
        self.given: list[BuildTask] = []
        self._outcome = outcome

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, kwargs
        self.given.append(args[0])
        future: Future[Any] = Future()
        if isinstance(self._outcome, Exception):
            future.set_exception(self._outcome)
        else:
            future.set_result(self._outcome)
        return future


def built(name: str, worker: str, digest: str | None = "sha256:1", status: str = "built") -> Outcome:
    return Outcome(name=name, status=status, exit_code=0, worker=worker, duration_s=1.0, digest=digest, place="p")


def image(name: str, **more: Any) -> BuildTask:
    return task(name, lock=locked(("x", 1)), output="registry:h.example/t:1", **more)


def watched(
    executor: Prepared, tasks: list[BuildTask], outcomes: list[Outcome], **more: Any
) -> tuple[Twice, tuple[Outcome, ...], list[str]]:
    notes: list[str] = []
    row: dict[str, Any] = {"share": 1, "machines": (A, B), "note": notes.append, "executor": executor}
    twice = Twice(**row | more)
    assert list(twice.watch(tasks)) == tasks
    for outcome in outcomes:
        twice.heard(outcome)
    return twice, twice.settle(outcomes), notes


def test_the_first_image_is_built_again_by_another_worker() -> None:
    executor = Prepared(built("one (again)", "b"))
    tasks, outcomes = [image("one"), image("two")], [built("one", "a"), built("two", "b")]
    twice, settled, notes = watched(executor, tasks, outcomes)
    assert [one.name for one in executor.given] == ["one (again)"]
    assert twice.place(executor.given[0]) == Placement(workers=(B.address,), strict=True)
    assert twice.place(tasks[0]) is None
    assert settled[0].figures == {CHECKED: 1.0}
    assert settled[1] == outcomes[1]
    assert notes == ["one: a and b built the same sha256:1"]


def test_all_are_built_again_where_that_is_asked_for_and_none_where_nothing_is() -> None:
    tasks, outcomes = [image("one"), image("two")], [built("one", "a"), built("two", "b")]
    for share, count in ((None, 2), (0, 0), (5, 2)):
        executor = Prepared(built("x", "c"))
        watched(executor, tasks, outcomes, share=share)
        assert len(executor.given) == count


@pytest.mark.parametrize(
    ("task_of", "outcome"),
    [
        (image("one", engine="docker"), built("one", "a")),  # such builds do not repeat themselves
        (task("one"), built("one", "a")),  # no lock: two workers may solve two
        (image("one"), built("one", "a", status="present")),
        (image("one"), built("one", "a", status="failed")),
    ],
)
def test_what_says_nothing_is_not_built_again(task_of: BuildTask, outcome: Outcome) -> None:
    executor = Prepared(outcome)
    assert watched(executor, [task_of], [outcome])[1] == (outcome,)
    assert not executor.given


def test_a_worker_alone_checks_nothing() -> None:
    executor = Prepared(built("x", "a"))
    watched(executor, [image("one")], [built("one", "a")], machines=(A,))
    assert not executor.given


def test_from_shared_caches_nothing_is_taken() -> None:
    executor = Prepared(built("x", "b"))
    shared = (A, machine("b", cache="a:/c"))
    watched(executor, [image("one")], [built("one", "a")], machines=shared)
    assert executor.given[0].options["no_cache"] is True
    own = (*shared, machine("c", cache="c:/c"))
    twice, _, _ = watched(executor, [image("one")], [built("one", "a")], machines=own)
    assert "no_cache" not in executor.given[1].options
    assert twice.place(executor.given[1]) == Placement(workers=("tcp://c:1",), strict=True)


def test_a_second_build_goes_nowhere() -> None:
    first = image("one", tags=("t:1",), options={"replace_tag": True, "mount_from": ["x"], "base": "none"})
    second = again(first)
    assert is_second(second.name)
    assert not is_second(first.name)
    assert (second.output, second.verify, second.options) == (None, False, {"base": "none"})
    assert second.tags == ("cross-check/one:latest",)
    assert (second.plan, second.lock) == (first.plan, first.lock)


def test_digests_that_differ_fail_the_image() -> None:
    found = compared(built("one", "a"), built("one (again)", "b", "sha256:2"))
    assert (found.status, found.exit_code, found.digest) == ("failed", 10, "sha256:1")
    assert found.error == "one: a built sha256:1 and b built sha256:2 of the same plan and lock"
    assert (
        found.hint
        == "envkit cache prune --all on both and again; if it repeats, envkit diff of both images shows where"
    )
    assert found.details == ("on a: p", "on b: p")


def test_a_second_build_that_fails_says_nothing_of_the_first() -> None:
    first = built("one", "a")
    _, settled, notes = watched(Prepared(SurroundingsError("disk full")), [image("one")], [first])
    assert settled == (first,)
    assert notes == ["one was not built twice: disk full (on none)"]
