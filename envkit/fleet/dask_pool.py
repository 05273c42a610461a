"""A Dask cluster as a pool of machines, with the interface of `concurrent.futures.Executor`.

The only module that knows `distributed`. Every task runs in a child process of its worker, as on one machine, so a
build that dies takes no worker with it, and a cancelled one can be ended. A task whose worker is lost runs again on
another one; the scheduler sees to that.
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
from envkit.fleet.cluster import Machine, Placement, apart, check_address, require_same
from envkit.fleet.local import LocalPool
from envkit.fleet.model import Outcome
from envkit.fleet.verify_task import Verification
from envkit.ground.errors import EnvironmentProblem, EnvkitError
from envkit.ground.paths import cache_dir

if TYPE_CHECKING:
    from types import ModuleType

PATIENCE_S = 10.0  # for a scheduler to answer
_ALONE_S = 60.0  # for a worker to come, once none is left
_LOOK_S = 0.5  # a signal reaches this thread within that time
_WATCH_S = 1.0  # between two questions for the scheduler's workers
_AGAIN = 1  # further tries where a worker's child process dies; the loss of a worker does not count
_KEY = "envkit"
_EVENTS = "envkit-events"
_CLOSED = "closed"
Event = tuple[str, str, Any]


class DaskPool(Executor):
    """Runs functions that can be pickled by name on a cluster's workers.

    Args:
        address: `tcp://HOST:PORT` or `tls://HOST:PORT` of its scheduler.
        place: where a task may run, by the first argument of what is submitted.
        note: receives one line for each lost worker; called from any thread.
        heard: hears what tasks tell while they run, as `LocalPool` has it; called from any thread.

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
        heard: Callable[[Event], None] | None = None,
    ) -> None:
        self._address = check_address(address)
        self.place = place or (lambda _: Placement())
        self._note = note or (lambda _: None)
        self._lock = threading.Lock()
        self._waiting: dict[Future[Any], tuple[Future[Any], Placement]] = {}
        self._ending = threading.Event()
        self._run = uuid.uuid4().hex  # others may use the cluster at the same time
        self._client = _connect(self._address)
        try:
            self.machines = _machines(self._client, self._address)
            self._executor = self._client.get_executor(pure=False, retries=_AGAIN)
            if heard is not None:
                self._client.subscribe_topic(_EVENTS, lambda event: self._own(event[1], heard))
        except BaseException:
            self._client.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="envkit-cluster", daemon=True)
        self._watcher.start()

    @property
    def dashboard(self) -> str | None:
        """The address of the cluster's own page, None where it has none."""
        try:
            return str(self._client.dashboard_link)
        except (KeyError, AttributeError):
            return None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As `Executor.submit`; `place` says where it may run. Where the scheduler is gone the future says so."""
        if self._ending.is_set():
            raise RuntimeError("the pool takes no more work")
        where = self.place(args[0] if args else None)
        name = str(getattr(args[0], "name", "")) if args else ""
        outer: Future[Any] = Future()
        try:
            inner = self._executor.submit(
                _on_worker, self._run, fn, args, kwargs,
                key=(_KEY, name, uuid.uuid4().hex), workers=list(where.workers) or None,
                allow_other_workers=bool(where.workers) and not where.strict, resources=dict(where.resources) or None,
                priority=where.priority,
            )  # fmt: skip
        except Exception:
            if self._client.status != _CLOSED:
                raise
            outer.set_exception(self._dropped())
            return outer
        with self._lock:
            self._waiting[outer] = inner, where
        inner.add_done_callback(lambda done: self._settle(outer, done))
        outer.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)
        return outer

    def warm(self) -> tuple[Future[Any], ...]:
        """Have every worker start the process that it works in; done when they have."""
        original, self.place = self.place, lambda address: Placement(workers=(address,), strict=True)
        try:
            return tuple(self.submit(str, machine.address) for machine in self.machines)
        finally:
            self.place = original

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`; without `wait`, or with `cancel_futures`, the cluster drops what is not done."""
        if wait and not cancel_futures:
            self._wait()
        self.stop()

    def stop(self) -> None:
        """Cancel everything on the cluster, which ends what runs there, and leave it."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._watcher.join(_WATCH_S)  # it may wait for a scheduler that does not answer
        with self._lock:
            left = list(self._waiting)
        for future in left:
            future.cancel()
        with contextlib.suppress(Exception):  # a scheduler that went away needs no good-bye
            self._executor.shutdown(wait=False)
        with contextlib.suppress(Exception):
            self._client.close(timeout=_LOOK_S * 4)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Wait for all work, or, where an exception passes, cancel it."""
        self.shutdown(wait=error is None)

    def _wait(self) -> None:
        while True:
            with self._lock:
                left = list(self._waiting)
            if not left:
                return
            wait(left, timeout=_LOOK_S)

    def _own(self, event: tuple[str, Event], heard: Callable[[Event], None]) -> None:
        """Pass on what tasks of this pool tell."""
        if event[0] == self._run:
            heard(event[1])

    def _settle(self, outer: Future[Any], inner: Future[Any]) -> None:
        """Pass on what became of a task; called by the client's own thread."""
        with self._lock:
            self._waiting.pop(outer, None)
        try:
            result, error = inner.result(), None
        except CancelledError:
            result, error = None, self._dropped()
        except Exception as raised:  # noqa: BLE001 - the caller gets it from the future
            result, error = None, _said(raised)
        self._end(outer, result, error)

    def _end(self, outer: Future[Any], result: object, error: BaseException | None) -> None:
        # The caller that cancelled it knows; no one else uses it.
        with contextlib.suppress(Exception):
            if error is None:
                outer.set_result(result)
            elif isinstance(error, CancelledError):
                if outer.cancel():
                    outer.set_running_or_notify_cancel()
            else:
                outer.set_exception(error)

    def _dropped(self) -> BaseException:
        """Why the cluster cancelled a task that we did not cancel."""
        if self._ending.is_set():
            return CancelledError()
        return EnvironmentProblem(
            f"the connection to the scheduler {self._address} was lost, with its tasks",
            hint="start it again; envkit build --resume builds the rest",
        )

    def _watch(self) -> None:
        """Notice workers that come and go."""
        known = {machine.address: machine.name for machine in self.machines}
        alone: float | None = None
        while not self._ending.wait(_WATCH_S):
            try:
                now = set(self._client.scheduler_info(n_workers=-1)["workers"])
            except Exception:  # noqa: BLE001, S112 - the futures tell of a scheduler that went away
                continue
            for address in known.keys() - now:
                self._note(f"worker {known.pop(address)} ({address}) is lost; its tasks run again on another worker")
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
        """End what may run on certain workers alone, none of which is left."""
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
            self._end(outer, None, EnvironmentProblem(text, hint=f"dask worker {self._address}   # there, and again"))
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
            hint="pip install 'envkit[fleet]'",
        ) from error
    # What goes wrong is told by the futures; its loggers would tell it again, and with a traceback.
    for name in [
        logger_name for logger_name in logging.root.manager.loggerDict if logger_name.partition(".")[0] == "distributed"
    ]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def _connect(address: str) -> Any:
    """A client, which is `Any` here: half of its methods are untyped, the other half may be coroutines."""
    library = _library()
    secure = address.startswith("tls:")
    try:
        if secure:
            _check_certificates(library)
        return library.Client(address, timeout=PATIENCE_S, set_as_default=False, name="envkit")
    except (OSError, TimeoutError) as error:
        raise EnvironmentProblem(
            f"no Dask scheduler answers at {address} within {PATIENCE_S:.0f} s",
            hint="dask scheduler   # start it there; it prints its address",
            details=(str(error).splitlines()[0][:300],) if str(error) else (),
        ) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise EnvironmentProblem(
            f"{address} cannot be connected to: {str(error).splitlines()[0][:300]}",
            hint="set distributed.comm.tls.ca-file, .client.cert and .client.key in Dask's configuration"
            if secure
            else "check --scheduler",
        ) from error


def _check_certificates(library: ModuleType) -> None:
    """Look whether Dask's configuration has what a client needs for TLS.

    A client that fails without them is closed by its finalizer: 20 s later, with a traceback.

    Raises:
        OSError, TypeError, ValueError: it has not.
    """
    if library.Security().get_connection_args("client").get("ssl_context") is None:
        raise TypeError("Dask's configuration names no certificates")


def _machines(client: Any, address: str) -> tuple[Machine, ...]:
    """The cluster's workers, after a look whether its versions are ours.

    Raises:
        EnvironmentProblem: there is no worker, or versions differ.
    """
    listed = client.scheduler_info(n_workers=-1)["workers"]
    if not listed:
        raise EnvironmentProblem(f"the cluster {address} has no worker", hint=f"dask worker {address}")
    versions = client.get_versions(check=False)
    # A name may be the number 0.
    names = {where: str(where if row.get("name") is None else row["name"]) for where, row in listed.items()}
    own = versions["client"]["packages"]
    lines = apart(
        own,
        versions["scheduler"]["packages"],
        {names.get(where, where): row["packages"] for where, row in versions["workers"].items()},
    )
    require_same(lines, f"dask=={own['dask']} distributed=={own['distributed']}")
    here = facts()
    answers: dict[str, Any] = client.run(facts, on_error="return")
    reports = {where: cast("Facts", row) for where, row in answers.items() if isinstance(row, dict)}
    require_same(
        tuple(
            f"worker {names.get(where, where)}: envkit {reports[where]['envkit'] if where in reports else 'missing'}, "
            f"here {here['envkit']}"
            for where in answers
            if where not in reports or reports[where]["envkit"] != here["envkit"]
        ),
        f"'envkit[fleet]=={here['envkit']}'",
    )
    try:
        client.run_on_scheduler(facts)
    except Exception as error:
        raise EnvironmentProblem(
            f"the scheduler {address} cannot read the tasks because envkit is not installed there ({error})",
            hint=f"pip install 'envkit[fleet]=={here['envkit']}'   # where the scheduler runs",
        ) from error
    return tuple(
        Machine(
            address=where,
            name=names[where],
            host=reports[where]["host"],
            pid=reports[where]["pid"],
            threads=int(row["nthreads"]),
            resources=dict(row.get("resources") or {}),
            cache=reports[where]["cache"],
        )
        for where, row in sorted(listed.items(), key=lambda item: names[item[0]])
        if where in reports
    )


def _said(error: Exception) -> Exception:
    """What an exception of the cluster means."""
    if isinstance(error, EnvkitError) or type(error).__name__ != "KilledWorker":
        return error
    return EnvironmentProblem(
        "every worker that ran this task was lost, usually because memory ran out",
        hint="give the workers more memory: dask worker --memory-limit, or fewer --nthreads",
        details=(str(error).splitlines()[0][:500],),
    )


# What follows runs on a worker.

_idle: list[LocalPool] = []
_idle_lock = threading.Lock()


def _on_worker(run: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do one task in a child process of this worker; where the task is cancelled, end the process."""
    from distributed import get_worker  # noqa: PLC0415

    worker = get_worker()
    key = worker.get_current_task()

    def tell(event: Event) -> None:
        with contextlib.suppress(Exception):  # lost progress does no harm
            worker.log_event(_EVENTS, (run, event))

    def wanted() -> bool:
        state = worker.state.tasks.get(key)
        return state is not None and state.state == "executing"

    with _idle_lock:
        pool = _idle.pop() if _idle else LocalPool(1)
    pool.heard = tell
    try:
        result = _done(pool.submit(fn, *args, **kwargs), wanted)
    except BaseException:
        pool.stop()
        raise
    with _idle_lock:
        _idle.append(pool)
    # Outcomes name the process that did it; who reads them knows the cluster's workers, not their children.
    return replace(result, worker=str(worker.name)) if isinstance(result, Outcome | Verification) else result


def _done(future: Future[Any], wanted: Callable[[], bool]) -> Any:
    """What a future gives.

    Raises:
        CancelledError: the task was cancelled.
    """
    while not wait([future], timeout=_LOOK_S).done:
        if not wanted():
            raise CancelledError
    return future.result()


class Facts(TypedDict):
    """Plain values: what is asked may be of another version."""

    envkit: str
    host: str
    pid: int
    cache: str  # 'host:/path'


def facts() -> Facts:
    """This process's version, host name, process id and cache folder."""
    host = socket.gethostname()
    return {"envkit": __version__, "host": host, "pid": os.getpid(), "cache": f"{host}:{cache_dir()}"}
