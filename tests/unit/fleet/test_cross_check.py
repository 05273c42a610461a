"""What is built twice, by whom, and what it means when two workers disagree."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import pytest

from envkit.fleet import build_task, schedule
from envkit.fleet.cluster import Placement
from envkit.fleet.cross_check import CHECKED, CrossCheck, compared, is_second, second_build
from envkit.fleet.model import BuildTask, Outcome, TagTask
from envkit.ground.errors import EngineError, EnvironmentProblem
from tests.unit.fleet.test_cluster import locked, machine, task

A, B = machine("a", cache="a:/c"), machine("b", cache="b:/c")


class Prepared(Executor):
    """Gives each build the outcome that was prepared for it, held where that was asked for, and remembers the tasks.

    First builds end when all of them were given.
    """

    def __init__(self, *firsts: Outcome, second: Outcome | Exception, tags: Exception | None = None) -> None:
        self.given: list[BuildTask] = []  # second builds
        self.tagged: list[str] = []
        self._firsts, self._left = {one.name: one for one in firsts}, len(firsts)
        self._second, self._tags = second, tags
        self._waiting: list[tuple[Future[Any], Outcome | Exception]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        del kwargs
        future: Future[Any] = Future()
        self._waiting.append((future, self._of(fn, args[0])))
        self._left -= 1
        while self._waiting and self._left <= 0:
            one, found = self._waiting.pop(0)
            if isinstance(found, Exception):
                one.set_exception(found)
            else:
                one.set_result(found)
        return future

    def _of(self, fn: Callable[..., Any], asked: BuildTask | TagTask) -> Outcome | Exception:
        if isinstance(asked, TagTask):
            assert fn is build_task.tag
            self.tagged.append(f"{asked.name} {asked.digest} {asked.own_tag}")
            return self._tags or built(asked.name, "whoever")
        if is_second(asked.name):
            self.given.append(asked)
            return self._second
        first = self._firsts[asked.name]
        return replace(first, held="abc") if asked.hold and first.status == "built" else first


def built(name: str, worker: str, digest: str | None = "sha256:1", status: str = "built") -> Outcome:
    return Outcome(name=name, status=status, exit_code=0, worker=worker, duration_s=1.0, digest=digest, place="p")


def image(name: str, **more: Any) -> BuildTask:
    return task(name, lock=locked(("x", 1)), output="registry:h.example/t:1", **more)


def watched(
    executor: Prepared, tasks: list[BuildTask], **more: Any
) -> tuple[CrossCheck, tuple[Outcome, ...], list[str]]:
    notes: list[str] = []
    row: dict[str, Any] = {"share": 1, "machines": (A, B), "note": notes.append, "executor": executor}
    twice, heard = CrossCheck(**row | more), list[Outcome]()
    found = schedule.run(twice.without_tags(tasks), executor, heard.append, then=twice.then)
    assert sorted(heard, key=lambda one: one.name) == sorted(found, key=lambda one: one.name)
    return twice, found, notes


def test_the_first_image_is_built_again_by_another_worker_and_then_all_are_tagged() -> None:
    tasks, outcomes = [image("one"), image("two")], [built("one", "a"), built("two", "b")]
    executor = Prepared(*outcomes, second=built("one (again)", "b"))
    twice, settled, notes = watched(executor, tasks)
    assert [one.name for one in executor.given] == ["one (again)"]
    assert sorted(executor.tagged) == ["one sha256:1 abc", "two sha256:1 abc"]
    assert twice.place(executor.given[0]) == Placement(workers=(B.address,), strict=True)
    assert twice.place(tasks[0]) is None
    assert settled[0].figures == {CHECKED: 1.0}
    assert settled[1] == outcomes[1]
    assert notes == ["one: a and b built the same sha256:1"]


def test_all_are_built_again_where_that_is_asked_for_and_none_where_nothing_is() -> None:
    tasks, outcomes = [image("one"), image("two")], [built("one", "a"), built("two", "b")]
    for share, count in ((None, 2), (0, 0), (5, 2)):
        executor = Prepared(*outcomes, second=built("x", "c"))
        watched(executor, tasks, share=share)
        assert len(executor.given) == count
        assert len(executor.tagged) == (2 if count else 0)  # whom nobody compares tags by himself


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
    executor = Prepared(outcome, second=outcome)
    assert watched(executor, [task_of])[1] == (outcome,)
    assert not executor.given
    assert not executor.tagged


def test_a_worker_alone_checks_nothing() -> None:
    executor = Prepared(built("one", "a"), second=built("x", "a"))
    watched(executor, [image("one")], machines=(A,))
    assert not executor.given
    assert not executor.tagged


def test_from_shared_caches_nothing_is_taken() -> None:
    executor = Prepared(built("one", "a"), second=built("x", "b"))
    shared = (A, machine("b", cache="a:/c"))
    watched(executor, [image("one")], machines=shared)
    assert executor.given[0].options["no_cache"] is True
    own = (*shared, machine("c", cache="c:/c"))
    executor = Prepared(built("one", "a"), second=built("x", "b"))
    twice, _, _ = watched(executor, [image("one")], machines=own)
    assert "no_cache" not in executor.given[0].options
    assert twice.place(executor.given[0]) == Placement(workers=("tcp://c:1",), strict=True)


def test_a_second_build_goes_nowhere() -> None:
    first = image("one", tags=("t:1",), hold=True, options={"replace_tag": True, "mount_from": ["x"], "base": "none"})
    second = second_build(first)
    assert is_second(second.name)
    assert not is_second(first.name)
    assert (second.output, second.verify, second.options) == (None, False, {"base": "none"})
    assert not second.hold
    assert second.tags == ("cross-check/one:latest",)
    assert (second.plan, second.lock) == (first.plan, first.lock)


def test_digests_that_differ_fail_the_image() -> None:
    found = compared(built("one", "a"), built("one (again)", "b", "sha256:2"))
    assert (found.status, found.exit_code, found.digest) == ("failed", 10, "sha256:1")
    assert found.error == "one: a built sha256:1 and b built sha256:2 of the same plan and lock"
    assert (
        found.hint
        == "envkit cache prune --all on both, then build again; if it repeats, compare the images with envkit diff"
    )
    assert found.details == ("on a: p", "on b: p")


def test_what_two_workers_build_differently_gets_no_tag() -> None:
    executor = Prepared(built("one", "a"), built("two", "a"), second=built("x", "b", "sha256:2"))
    _, found, notes = watched(executor, [image("one"), image("two")])
    assert [(one.status, one.exit_code, one.held) for one in found] == [("failed", 10, None), ("built", 0, None)]
    assert executor.tagged == ["two sha256:1 abc"]
    assert notes == []


def test_a_second_build_that_fails_says_nothing_of_the_first() -> None:
    executor = Prepared(built("one", "a"), second=EnvironmentProblem("disk full"))
    _, found, notes = watched(executor, [image("one")])
    assert found == (built("one", "a"),)
    assert executor.tagged == ["one sha256:1 abc"]
    assert notes == ["one was not cross-checked: disk full (on none)"]


def test_a_tag_that_the_registry_refuses_fails_the_image() -> None:
    refused = EngineError("h.example/t:1 is another image already", hint="--replace-tag moves the tag")
    executor = Prepared(built("one", "a"), second=built("x", "b"), tags=refused)
    _, (found,), _ = watched(executor, [image("one")])
    assert (found.status, found.exit_code, found.worker, found.place) == ("failed", 8, "a", "p")
    assert (found.error, found.hint) == (refused.message, refused.hint)
