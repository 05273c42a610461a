"""Submit tasks to an executor and collect the outcomes, on one machine or on many. A failure does not stop the others.

An executor has the interface of `concurrent.futures.Executor`: `envkit.fleet.local.LocalPool`, or a cluster's pool.
Tasks come from an iterable that may block, so that the first images are built while the locks of others are solved.
"""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Executor, Future

from envkit.fleet import build_task
from envkit.fleet.model import BuildTask, Outcome
from envkit.ground.errors import Ending, EnvkitError, InterruptedRun

_LOOK_S = 0.5  # a signal reaches the waiting thread within that time
_BUG = 1  # the exit code of a bug in envkit
OnOutcome = Callable[[Outcome], None]


def run(
    tasks: Iterable[BuildTask | Outcome],
    executor: Executor,
    on_outcome: OnOutcome,
    *,
    do: Callable[[BuildTask], Outcome] = build_task.build,
) -> tuple[Outcome, ...]:
    """Run every task in the executor and return the outcomes in the order of the tasks.

    Args:
        tasks: the tasks; an `Outcome` among them needs no work. The iterable may block.
        executor: its `submit` has to return a `Future` of `concurrent.futures`.
        on_outcome: called in this thread with each final outcome, soon after it is known.
        do: the function of a task; it runs on the executor's workers.

    Raises:
        BaseException: this thread was ended (Ctrl-C); tasks that had not begun are cancelled. Running ones are ended by
            the executor's `shutdown` or the `with` block around this call.
    """
    ended: queue.SimpleQueue[Future[Outcome]] = queue.SimpleQueue()
    submitted: dict[Future[Outcome], BuildTask] = {}
    order: list[str] = []
    outcomes: dict[str, Outcome] = {}

    def note(outcome: Outcome) -> None:
        outcomes[outcome.name] = outcome
        on_outcome(outcome)

    try:
        for task in tasks:
            order.append(task.name)
            if isinstance(task, Outcome):
                note(task)
            else:
                future = executor.submit(do, task)
                submitted[future] = task
                future.add_done_callback(ended.put)
            # The next task may have to wait for its lock for minutes; builds that ended are reported before.
            while not ended.empty():
                future = ended.get()
                note(outcome_of(submitted[future], future))
        while len(outcomes) < len(order):
            try:
                future = ended.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            note(outcome_of(submitted[future], future))
    except BaseException:
        for future in submitted:
            future.cancel()
        raise
    return tuple(outcomes[name] for name in order)


def outcome_of(task: BuildTask, future: Future[Outcome]) -> Outcome:
    """Return the outcome of a task whose future is done; a dead worker or a bug is an outcome, too.

    Raises:
        InterruptedRun: a signal reached this thread; a worker's future never raises it.
    """
    try:
        return future.result()
    except CancelledError:
        return failed(task, InterruptedRun(2), status="stopped")  # 2 = SIGINT
    except EnvkitError as error:
        return failed(task, error)
    except Exception as error:  # noqa: BLE001 - a bug in one task does not stop the others
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
    """Return the outcome of a task that no worker finished."""
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
