"""A pool of processes on this machine, with the interface of `concurrent.futures.Executor`.

Builds need processes, not threads: each has its own umask and signals and may be killed alone. A worker that dies, for
example because memory ran out, fails only its own task and is replaced; `ProcessPoolExecutor` would fail all tasks.
Workers end when this process does, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, TypeVar

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.process import kill, tree

_GRACE_S = 10.0  # for a worker to clean up after SIGTERM
_TAIL = 10  # lines of a dead worker's output in the error
Event = tuple[str, str, Any]
"""A progress event of a task: the task's name, the method of `Reporter`, and its arguments."""

_Job = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


Function = TypeVar("Function", bound=Callable[..., Any])


def with_reporter(function: Function) -> Function:
    """Mark a function of a task with a name that takes `reporter`; workers pass one that sends events to the pool."""
    function.__dict__["takes_reporter"] = True
    return function


class LocalPool(Executor):
    """Runs functions that can be pickled by name in child processes.

    Args:
        jobs: the maximum number of processes.
        on_event: receives every event of every worker; called from any thread. May be replaced while no task runs.
    """

    def __init__(self, jobs: int, *, on_event: Callable[[Event], None] | None = None) -> None:
        self._jobs, self.on_event = jobs, on_event
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._slots: list[threading.Thread] = []
        self._workers: set[subprocess.Popen[bytes]] = set()
        self._ending = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit as `Executor.submit`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._ending:
                raise RuntimeError("the pool is shut down")
            self._waiting.put((future, fn, args, kwargs))
            if len(self._slots) < self._jobs:
                # daemon: at its exit, Python would wait for other threads.
                slot = threading.Thread(target=self._slot, name=f"envkit-slot-{len(self._slots)}", daemon=True)
                self._slots.append(slot)
                slot.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `Executor.shutdown`."""
        with self._lock:
            self._ending = True
            if cancel_futures:
                self._cancel_waiting()
            for _ in self._slots:
                self._waiting.put(None)
        if wait:
            for slot in self._slots:
                slot.join()

    def stop(self) -> None:
        """End every worker and all processes that it started: SIGTERM, so that it can clean up, then SIGKILL."""
        with self._lock:
            self._ending = True
            self._cancel_waiting()
            workers = list(self._workers)
        # Listed first: the children of a process that has ended can no longer be found.
        descendants = {pid: start for worker in workers for pid, start in tree(worker.pid).items()}
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGTERM)
        for worker in workers:
            try:
                worker.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        kill(descendants)
        self.shutdown(wait=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Wait for all work; after an exception, stop it."""
        if error is None:
            self.shutdown(wait=True)
        else:
            self.stop()

    def _cancel_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._waiting.get_nowait()
                if job is not None:
                    job[0].cancel()
                    job[0].set_running_or_notify_cancel()  # without it, `wait` would not see the cancellation

    def _slot(self) -> None:
        """Run in one thread per process: start the process, give it work, and replace it when it dies."""
        worker: _Worker | None = None
        while (job := self._waiting.get()) is not None:
            future, fn, args, kwargs = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if worker is not None and worker.process.poll() is not None:  # killed while it was idle
                    self._ended(worker)
                    worker = None
                if worker is None:
                    worker = self._started()
                future.set_result(worker.do(fn, args, kwargs, self.on_event))
            except _DiedError:
                assert worker is not None
                future.set_exception(_lost(worker))
                self._ended(worker)
                worker = None
            except BaseException as error:  # noqa: BLE001 - the caller gets it from the future
                future.set_exception(error)
        if worker is not None:
            self._ended(worker)

    def _started(self) -> _Worker:
        # `stop` ends the processes that it finds under this lock, so none may be added after it.
        with self._lock:
            if self._ending:
                raise EnvironmentProblem("the pool is shutting down", hint="run the command again")
            worker = _Worker()
            self._workers.add(worker.process)
        return worker

    def _ended(self, worker: _Worker) -> None:
        worker.close()
        with self._lock:
            self._workers.discard(worker.process)


class _DiedError(Exception):
    """The worker's process is gone."""


class _Worker:
    """One child process and the socket to it."""

    def __init__(self) -> None:
        parent, child = socket.socketpair()
        # Not a pipe: nobody reads it while the worker runs, and a full pipe would block it.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        # -P: with -m, Python would look for modules in the current folder first.
        argv = [sys.executable, "-P", "-m", "envkit.fleet.worker", str(child.fileno())]
        try:
            # In its own session: Ctrl-C on the terminal does not reach it; `LocalPool.stop` ends it in order.
            self.process = subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
                argv, pass_fds=[child.fileno()], stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
                start_new_session=True, env=os.environ | {"PYTHONPATH": _path()},
            )  # fmt: skip
        except OSError as error:
            raise EnvironmentProblem(f"cannot start a worker process: {error.strerror}", hint="--jobs 1") from error
        finally:
            child.close()
        self._connection = Connection(parent.detach())

    def do(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        on_event: Callable[[Event], None] | None,
    ) -> Any:
        """Call a function in the worker and return its result or raise its exception.

        Raises:
            _DiedError: the worker's process is gone.
        """
        try:
            self._connection.send((fn, args, kwargs))
            while True:
                kind, value = self._connection.recv()
                if kind == "event":
                    if on_event is not None:
                        on_event(value)
                elif kind == "raised":
                    raise value
                else:
                    return value
        except (EOFError, ConnectionError) as error:
            raise _DiedError from error

    def output_tail(self) -> tuple[str, ...]:
        """Return the last lines that the process printed."""
        self._output.seek(0)
        return tuple(self._output.read().decode(errors="replace").splitlines()[-_TAIL:])

    def close(self) -> None:
        """Let the process end."""
        self._connection.close()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._output.close()


def _path() -> str:
    """Return a PYTHONPATH on which a worker finds this package, also in a checkout that is not installed."""
    own, inherited = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    return os.pathsep.join([own, inherited] if inherited else [own])


def _lost(worker: _Worker) -> EnvironmentProblem:
    code = worker.process.wait()
    how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
    hint = "lower --jobs to use less memory" if code == -signal.SIGKILL else "envkit build --resume builds it again"
    return EnvironmentProblem(f"the worker process ended {how}", hint=hint, details=worker.output_tail())
