"""A Dask cluster as a pool of machines, with the interface of `concurrent.futures.Executor`.

The only module that imports `distributed`. Every task runs in a child process of its worker, so that a crashing build
does not kill the worker and a cancelled one can be ended. When a worker is lost, the scheduler runs its tasks again on
another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, cast

from envkit import __version__
from envkit.fleet.cluster import Machine, Placement, check_address, require_same, version_differences
from envkit.fleet.local import LocalPool
from envkit.fleet.model import Outcome
from envkit.fleet.verify_task import Verification
from envkit.ground import installation
from envkit.ground.errors import EnvironmentProblem, EnvkitError

if TYPE_CHECKING:
    from types import ModuleType

PATIENCE_S = 10.0  # until a scheduler answers
_ALONE_S = 60.0  # until a worker joins, after the last one was lost
_LOOK_S = 0.5  # longest delay until a signal is handled: waiting without a limit would block it
_WATCH_S = 1.0  # between two queries for the scheduler's workers
_RETRIES = 1  # of a task whose child process dies; lost workers are not counted
_KEY = "envkit"
_EVENTS = "envkit-events"
_CLOSED = "closed"
Event = tuple[str, str, Any]


class DaskPool(Executor):
    """Runs functions that can be pickled by name on a cluster's workers.

    Args:
        address: `tcp://HOST:PORT` or `tls://HOST:PORT` of its scheduler.
        place: returns where a task may run; called with the first argument of the submitted function.
        note: receives one line for each lost worker; called from any thread.
        on_event: receives the progress events of tasks as in `LocalPool`; called from any thread.

    Raises:
        UsageError: the address is invalid.
        EnvironmentProblem: the library is missing, no scheduler answers, it has no worker, or the versions differ.
    """

    def __init__(
        self,
        address: str,
        *,
        place: Callable[[Any], Placement] | None = None,
        note: Callable[[str], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._address = check_address(address)
        self.place = place or (lambda _: Placement())
        self._note = note or (lambda _: None)
        self._lock = threading.Lock()
        self._waiting: dict[Future[Any], tuple[Future[Any], Placement]] = {}
        self._ending = threading.Event()
        self._run = uuid.uuid4().hex  # separates our events from those of other users of the cluster
        self._client = _connect(self._address)
        try:
            self.machines = _machines(self._client, self._address)
            self._executor = self._client.get_executor(pure=False, retries=_RETRIES)
            if on_event is not None:
                # Dask passes a tuple of the time and the message.
                self._client.subscribe_topic(_EVENTS, lambda event: self._own(event[1], on_event))
        except BaseException:
            self._client.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="envkit-cluster", daemon=True)
        self._watcher.start()

    @property
    def dashboard(self) -> str | None:
        """The URL of the cluster's dashboard; None without one."""
        try:
            return str(self._client.dashboard_link)
        # KeyError: the scheduler runs without a dashboard.
        except (KeyError, AttributeError):
            return None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit as `Executor.submit`, placed by `place`. Without a scheduler, the future gets the error."""
        if self._ending.is_set():
            raise RuntimeError("the pool is shut down")
        where = self.place(args[0] if args else None)
        name = str(getattr(args[0], "name", "")) if args else ""
        outer: Future[Any] = Future()
        try:
            inner = self._executor.submit(
                _on_worker, self._run, fn, args, kwargs,
                # For a key that it knows, Dask would return the earlier result.
                key=(_KEY, name, uuid.uuid4().hex), workers=list(where.workers) or None,
                allow_other_workers=bool(where.workers) and not where.strict, resources=dict(where.resources) or None,
            )  # fmt: skip
        except Exception:
            if self._client.status != _CLOSED:
                raise
            outer.set_exception(self._dropped())
            return outer
        # Before the callbacks, one of which runs at once if the task is done already.
        with self._lock:
            self._waiting[outer] = inner, where
        inner.add_done_callback(lambda done: self._settle(outer, done))
        outer.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)
        return outer

    def warm(self) -> tuple[Future[Any], ...]:
        """Let every worker start its child process; the futures are done when it runs."""
        # `str` can be pickled by name and has no effect; its argument is the address to place it on.
        original, self.place = self.place, lambda address: Placement(workers=(address,), strict=True)
        try:
            return tuple(self.submit(str, machine.address) for machine in self.machines)
        finally:
            self.place = original

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `Executor.shutdown`; without `wait`, or with `cancel_futures`, unfinished work is cancelled."""
        if wait and not cancel_futures:
            self._wait()
        self.stop()

    def stop(self) -> None:
        """Cancel all tasks, which ends their processes on the workers, and disconnect."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._watcher.join(_WATCH_S)  # not longer: it may be waiting for a scheduler that does not answer
        with self._lock:
            left = list(self._waiting)
        for future in left:
            future.cancel()
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._executor.shutdown(wait=False)
        with contextlib.suppress(Exception):
            self._client.close(timeout=_LOOK_S * 4)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Wait for all work; after an exception, cancel it."""
        self.shutdown(wait=error is None)

    def _wait(self) -> None:
        while True:
            with self._lock:
                left = list(self._waiting)
            if not left:
                return
            wait(left, timeout=_LOOK_S)

    def _own(self, event: tuple[str, Event], on_event: Callable[[Event], None]) -> None:
        """Pass on an event of a task of this pool."""
        if event[0] == self._run:
            on_event(event[1])

    def _settle(self, outer: Future[Any], inner: Future[Any]) -> None:
        """Pass on the result of a task; called in the client's thread."""
        with self._lock:
            self._waiting.pop(outer, None)
        try:
            result, error = inner.result(), None
        except CancelledError:
            result, error = None, self._dropped()
        except Exception as raised:  # noqa: BLE001 - the caller gets it from the future
            result, error = None, _translated(raised)
        self._end(outer, result, error)

    def _end(self, outer: Future[Any], result: object, error: BaseException | None) -> None:
        with contextlib.suppress(Exception):  # the caller may have cancelled the future in the meantime
            if error is None:
                outer.set_result(result)
            elif isinstance(error, CancelledError):
                if outer.cancel():
                    outer.set_running_or_notify_cancel()  # without it, `wait` would not see the cancellation
            else:
                outer.set_exception(error)

    def _dropped(self) -> BaseException:
        """Return the error of a task that the cluster cancelled although we did not."""
        if self._ending.is_set():
            return CancelledError()
        return EnvironmentProblem(
            f"the connection to the scheduler {self._address} was lost, and with it the tasks",
            hint="start it again; envkit build --resume builds the rest",
        )

    def _watch(self) -> None:
        """Watch for workers that join or are lost."""
        known = {machine.address: machine.name for machine in self.machines}
        alone: float | None = None
        while not self._ending.wait(_WATCH_S):
            try:
                now = set(self._client.scheduler_info(n_workers=-1)["workers"])
            except Exception:  # noqa: BLE001, S112 - if the scheduler is gone, the futures get the error
                continue
            for address in known.keys() - now:
                self._note(f"worker {known.pop(address)} ({address}) was lost; its tasks run again on another worker")
            known |= {address: address for address in now - known.keys()}
            self._end_strict(now)
            if now:
                alone = None
            elif alone is None:
                alone = time.monotonic()
                self._note(f"no workers left: waiting {_ALONE_S:.0f} s for one (dask worker {self._address})")
            elif time.monotonic() - alone > _ALONE_S:
                self._give_up()

    def _end_strict(self, now: set[str]) -> None:
        """Fail the tasks that are bound to workers of which none is left."""
        with self._lock:
            lost = [
                (outer, inner, where)
                for outer, (inner, where) in self._waiting.items()
                if where.strict and where.workers and not now.intersection(where.workers)
            ]
            for outer, _, _ in lost:
                self._waiting.pop(outer)
        for outer, inner, where in lost:
            text = f"worker {', '.join(where.workers)} was lost, and this task had to run there"
            hint = f"start it again there with `dask worker {self._address}`, then run the command again"
            self._end(outer, None, EnvironmentProblem(text, hint=hint))
            inner.cancel()

    def _give_up(self) -> None:
        with self._lock:
            left = dict(self._waiting)
            self._waiting.clear()
        for outer, (inner, _) in left.items():
            text = f"all workers of {self._address} were lost, and none joined within {_ALONE_S:.0f} s"
            self._end(outer, None, EnvironmentProblem(text, hint=f"dask worker {self._address}"))
            inner.cancel()


def _library() -> ModuleType:
    try:
        import distributed  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise EnvironmentProblem(
            f"--scheduler needs the package distributed, which is not installed ({error})",
            hint=installation.libraries("fleet"),
        ) from error
    # Errors arrive through the futures; the library's loggers would print them again with tracebacks.
    for name in [
        logger_name for logger_name in logging.root.manager.loggerDict if logger_name.partition(".")[0] == "distributed"
    ]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def _connect(address: str) -> Any:
    """Return a client. It is typed `Any`: half of its methods are untyped, the others may be coroutines."""
    library = _library()
    secure = address.startswith("tls:")
    try:
        if secure:
            _check_certificates(library)
        # Not the default client, so Dask code of a program that uses `envkit.api` keeps its own.
        return library.Client(address, timeout=PATIENCE_S, set_as_default=False, name="envkit")
    except (OSError, TimeoutError) as error:
        raise EnvironmentProblem(
            f"no Dask scheduler answers at {address} within {PATIENCE_S:.0f} s",
            hint="dask scheduler   # start it there; it prints its address",
            details=(str(error).splitlines()[0][:300],) if str(error) else (),
        ) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise EnvironmentProblem(
            f"cannot connect to {address}: {str(error).splitlines()[0][:300]}",
            hint="set distributed.comm.tls.ca-file, .client.cert and .client.key in Dask's configuration"
            if secure
            else "check --scheduler",
        ) from error


def _check_certificates(library: ModuleType) -> None:
    """Check that Dask's configuration has the certificates a client needs for TLS.

    A client that fails without them is closed by its finalizer: 20 s later, with a traceback.

    Raises:
        OSError, TypeError, ValueError: certificates are missing or invalid.
    """
    if library.Security().get_connection_args("client").get("ssl_context") is None:
        raise TypeError("no certificates in Dask's configuration")


def _machines(client: Any, address: str) -> tuple[Machine, ...]:
    """Return the cluster's workers after checking that all versions equal this machine's.

    Raises:
        EnvironmentProblem: there is no worker, or versions differ.
    """
    # -1 = all: some releases of Dask return only five workers by default (dask/distributed#9045).
    listed = client.scheduler_info(n_workers=-1)["workers"]
    if not listed:
        raise EnvironmentProblem(f"the cluster {address} has no worker", hint=f"dask worker {address}")
    versions = client.get_versions(check=False)
    # A name may be the number 0, so `or` would be wrong here.
    names = {where: str(where if row.get("name") is None else row["name"]) for where, row in listed.items()}
    own = versions["client"]["packages"]
    lines = version_differences(
        own,
        versions["scheduler"]["packages"],
        {names.get(where, where): row["packages"] for where, row in versions["workers"].items()},
    )
    require_same(lines, f"dask=={own['dask']} distributed=={own['distributed']}")
    here = worker_info()
    # A worker without envkit cannot unpickle the function; its answer is then an exception.
    answers: dict[str, Any] = client.run(worker_info, on_error="return")
    reports = {where: cast("WorkerInfo", row) for where, row in answers.items() if isinstance(row, dict)}
    require_same(
        tuple(
            f"worker {names.get(where, where)}: envkit {reports[where]['envkit'] if where in reports else 'missing'}, "
            f"here {here['envkit']}"
            for where in answers
            if where not in reports or reports[where]["envkit"] != here["envkit"]
        ),
        installation.elsewhere("fleet"),
    )
    try:
        client.run_on_scheduler(worker_info)
    except Exception as error:
        raise EnvironmentProblem(
            f"the scheduler {address} cannot read the tasks because envkit is not installed there ({error})",
            hint=f"pip install {installation.elsewhere('fleet')}   # where the scheduler runs",
        ) from error
    return tuple(
        Machine(
            address=where,
            name=names[where],
            host=reports[where]["host"],
            pid=reports[where]["pid"],
            threads=int(row["nthreads"]),
            resources=dict(row.get("resources") or {}),
        )
        for where, row in sorted(listed.items(), key=lambda item: names[item[0]])
        if where in reports
    )


def _translated(error: Exception) -> Exception:
    """Translate the cluster's error for a task whose workers all died; others are returned as they are."""
    if isinstance(error, EnvkitError) or type(error).__name__ != "KilledWorker":
        return error
    return EnvironmentProblem(
        "every worker that ran this task was lost, usually because memory ran out",
        hint="give the workers more memory: dask worker --memory-limit, or fewer --nthreads",
        details=(str(error).splitlines()[0][:500],),
    )


# The functions below run on a worker.

# Child processes without a task. A worker runs tasks in several threads, which share them.
_idle: list[LocalPool] = []
_idle_lock = threading.Lock()


def _on_worker(run: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one task in a child process of this worker, and end the process if the task is cancelled."""
    from distributed import get_worker  # noqa: PLC0415

    worker = get_worker()
    key = worker.get_current_task()

    def send(event: Event) -> None:
        with contextlib.suppress(Exception):  # progress may be lost
            worker.log_event(_EVENTS, (run, event))

    def is_executing() -> bool:
        # Dask cannot stop a function that runs; after a cancellation, only the state of its task is another one.
        state = worker.state.tasks.get(key)
        return state is not None and state.state == "executing"

    with _idle_lock:
        pool = _idle.pop() if _idle else LocalPool(1)
    pool.on_event = send
    try:
        result = _result(pool.submit(fn, *args, **kwargs), is_executing)
    # After a cancellation, the child still runs its task, so it is not used again.
    except BaseException:
        pool.stop()
        raise
    with _idle_lock:
        _idle.append(pool)
    # The outcome names the child process; users know the cluster's workers by their names.
    return replace(result, worker=str(worker.name)) if isinstance(result, Outcome | Verification) else result


def _result(future: Future[Any], is_executing: Callable[[], bool]) -> Any:
    """Wait for a future and return its result.

    Raises:
        CancelledError: the task was cancelled.
    """
    while not wait([future], timeout=_LOOK_S).done:
        if not is_executing():
            raise CancelledError
    return future.result()


class WorkerInfo(TypedDict):
    """A worker's description, in plain values because its envkit may be of another version."""

    envkit: str
    host: str
    pid: int


def worker_info() -> WorkerInfo:
    """Return this process's version, host name and process id."""
    host = socket.gethostname()
    return {"envkit": __version__, "host": host, "pid": os.getpid()}
