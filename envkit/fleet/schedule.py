"""Tasks into an executor, outcomes out of it: the same on one machine and on many. A failure stops nothing else.

An executor is anything with the interface of `concurrent.futures.Executor`: `envkit.fleet.local.LocalPool`, or a
cluster's. Work comes as an iterable that may take its time, so that the first images are being built while the locks
of others are still being solved.
"""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from functools import partial

from envkit.fleet import build_task
from envkit.fleet.model import BuildTask, Outcome
from envkit.ground.errors import Ending, EnvkitError, InterruptedRun

_LOOK_S = 0.5  # a signal reaches the waiting thread within that time
_BUG = 1  # the exit code of a fault of envkit's own
Heard = Callable[[Outcome], None]
Then = Callable[[Outcome], "Outcome | Step"]
"""What comes after an outcome of a task: it stands, or there is one more step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Further work for one task, and what comes after that."""

    future: Future[Outcome]
    then: Then


def run(
    tasks: Iterable[BuildTask | Outcome],
    executor: Executor,
    heard: Heard,
    *,
    do: Callable[[BuildTask], Outcome] = build_task.build,
    then: Callable[[BuildTask, Outcome], Outcome | Step] = lambda _, outcome: outcome,
) -> tuple[Outcome, ...]:
    """Give every task to the executor and collect what became of them, in the order of the tasks.

    Args:
        tasks: what to do; an `Outcome` among them needs no work any more. The iterable may block.
        executor: who does it; `submit` has to return a `Future` of `concurrent.futures`.
        heard: called in this thread with each outcome, soon after it is known.
        do: what is done with a task; it runs wherever the executor's workers are.
        then: what comes after that; called in this thread.

    Raises:
        BaseException: what ends this thread (Ctrl-C), after all tasks that were not begun are cancelled. What ends
            those that were is the executor's: its `shutdown` or the `with` block around this call.
    """
    ended: queue.SimpleQueue[Future[Outcome]] = queue.SimpleQueue()
    given: dict[Future[Outcome], tuple[BuildTask, Then]] = {}
    order: list[str] = []
    outcomes: dict[str, Outcome] = {}

    def note(outcome: Outcome) -> None:
        outcomes[outcome.name] = outcome
        heard(outcome)

    def give(task: BuildTask, step: Step) -> None:
        given[step.future] = task, step.then
        step.future.add_done_callback(ended.put)

    def take(future: Future[Outcome]) -> None:
        task, after = given[future]
        result = after(outcome_of(task, future))
        if isinstance(result, Outcome):
            note(result)
        else:
            give(task, result)

    try:
        for task in tasks:
            order.append(task.name)
            if isinstance(task, Outcome):
                note(task)
            else:
                give(task, Step(future=executor.submit(do, task), then=partial(then, task)))
            while not ended.empty():
                take(ended.get())
        while len(outcomes) < len(order):
            try:
                take(ended.get(timeout=_LOOK_S))
            except queue.Empty:
                continue
    except BaseException:
        for future in given:
            future.cancel()
        raise
    return tuple(outcomes[name] for name in order)


def outcome_of(task: BuildTask, future: Future[Outcome]) -> Outcome:
    """What became of a task whose future is done; a worker that died or a bug is an outcome too.

    Raises:
        InterruptedRun: a signal reached this thread meanwhile; workers never pass one on.
    """
    try:
        return future.result()
    except CancelledError:
        return failed(task, InterruptedRun(2), status="stopped")
    except EnvkitError as error:
        return failed(task, error)
    except Exception as error:  # noqa: BLE001 - whatever a worker raised, the others go on
        lines = tuple(line for text in traceback.format_exception(error) for line in text.rstrip().splitlines())
        return Outcome(
            name=task.name,
            status="failed",
            exit_code=_BUG,
            worker="unknown",
            duration_s=0.0,
            error=f"this is a bug in envkit: {type(error).__name__}: {error}",
            hint="report the lines above together with the command you typed",
            details=lines,
        )


def failed(task: BuildTask, error: Ending, *, status: str = "failed") -> Outcome:
    """A task that no worker brought to an end."""
    return Outcome(
        name=task.name,
        status=status,
        exit_code=error.exit_code,
        worker="none",
        duration_s=0.0,
        error=error.message,
        hint=error.hint,
        details=error.details,
    )
