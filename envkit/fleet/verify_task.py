"""Verify one image on one machine, or many images on many machines.

A task contains text and numbers only, so that it can be sent. Runners, GPUs and caches are those of the worker.
"""

from __future__ import annotations

import json
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.checks.model import Verdict
from envkit.fleet.cluster import GPU, Placement, with_resource
from envkit.fleet.local import with_reporter
from envkit.fleet.model import refused, worker_name
from envkit.ground.errors import Ending, EnvironmentProblem, EnvkitError, InterruptedRun, UsageError
from envkit.ground.progress import Reporter, Silent
from envkit.image.name import PREFIX, ImageName, InArchive, InLayout, InRegistry, image_name
from envkit.pipeline import machine, verification
from envkit.plan.store import load_plan, plan_from_json
from envkit.registry.remote import Remote
from envkit.verify.driver import Options
from envkit.verify.record import Record
from envkit.verify.static import PLAN_LABEL

if TYPE_CHECKING:
    from envkit.fleet import cluster

_LOOK_S = 0.5  # longest delay until a signal is handled: waiting without a limit would block it
OnResult = Callable[["Verification"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that verifies images: a column of the matrix."""

    name: str  # unique among the machines
    host: str  # host name; verifications on one host run one after the other
    address: str | None = None  # of the worker; None = this machine
    gpus: float = 0  # the worker's GPU resource; a verification takes all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTask:
    """One image to verify on one machine."""

    image: str  # as it was typed
    target: str  # for the runner, by digest if known: 'registry:host/name:tag@sha256:...'
    machine: Machine
    plan: str | None = None  # canonical JSON; None = the plan named by the image's labels
    runner: str | None = None  # None = the machine's own setting
    gpus: str | None = None  # the value of --gpus
    tier: str | None = None
    allow_cpu: bool = False
    require_gpu: bool = False
    timeout_s: float | None = None
    memory: str | None = None  # the value of --memory
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The label in progress output."""
        return f"{self.image} on {self.machine.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome of a task: a record, or the error that prevented one."""

    image: str
    machine: str
    verdict: str  # the record's; ERROR without a record
    exit_code: int
    duration_s: float
    worker: str | None = None  # 'host:pid'
    record: Mapping[str, Any] | None = None  # envkit.verify/1
    error: str | None = None
    hint: str | None = None
    details: tuple[str, ...] = ()


@with_reporter
def verify(task: VerifyTask, reporter: Reporter | None = None) -> Verification:
    """Verify one image on this machine. Failures that a user can cause are returned, not raised.

    Raises:
        InterruptedRun: a signal ends this process.
    """
    began = time.monotonic()
    try:
        record = _record(task, reporter or Silent())
    except (EnvkitError, OSError) as error:
        problem = error if isinstance(error, EnvkitError) else refused(error)
        return replace(not_made(task, problem), worker=worker_name(), duration_s=time.monotonic() - began)
    return Verification(
        image=task.image,
        machine=task.machine.name,
        verdict=record.verdict,
        exit_code=record.exit_code,
        duration_s=time.monotonic() - began,
        worker=worker_name(),
        record=dict(record.tree),
    )


def not_made(task: VerifyTask, error: Ending) -> Verification:
    """Return a verification that ended without a record."""
    return Verification(
        image=task.image,
        machine=task.machine.name,
        verdict=str(Verdict.ERROR),
        exit_code=error.exit_code,
        duration_s=0.0,
        error=error.message,
        hint=error.hint,
        details=error.details,
    )


def _record(task: VerifyTask, reporter: Reporter) -> Record:
    settings = machine.settings_here(task.runner, task.memory)
    plan = None if task.plan is None else plan_from_json(json.loads(task.plan), f"the plan of {task.image}")
    options = Options(
        allow_cpu=task.allow_cpu,
        require_gpu=task.require_gpu,
        timeout_s=task.timeout_s,
        only=task.only,
        skip=task.skip,
        argv=task.argv,
    )
    request = verification.VerifyRequest(
        image=image_name(task.target), options=options, plan=plan, gpus=task.gpus, tier=task.tier
    )
    with ExitStack() as until:
        return verification.verify(verification.subject_of(request, settings, reporter, until), reporter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image pinned by digest, so that every machine verifies the same one."""

    image: str  # as it was typed
    target: str
    plan: str | None = None


def subject_of(name: ImageName, remote: Remote, state: Path) -> Subject:
    """Pin an image in a registry to the current digest of its tag, and add its plan if the state folder has it.

    Raises:
        UsageError: it is not in a registry.
        EngineError: the registry has no such image.
        EnvironmentProblem: the registry cannot be reached.
    """
    if not isinstance(name, InRegistry):
        hint = "push it with `envkit push`, then name" if isinstance(name, InLayout | InArchive) else "name"
        raise UsageError(
            f"{name.typed!r:.200} is not in a registry; --scheduler verifies images from a registry only",
            hint=f"{hint} it as {PREFIX}HOST/NAME:TAG, such as {PREFIX}registry.example.com/team/train:1",
        )
    reference = remote.resolve(name.reference)
    labels = remote.read(reference).settings.get("Labels")
    # An image without labels has null here, and an untrusted one may have anything.
    digest = labels.get(PLAN_LABEL) if isinstance(labels, dict) else None
    plan = load_plan(state, digest) if isinstance(digest, str) else None
    return Subject(
        image=name.typed, target=f"{PREFIX}{reference}", plan=None if plan is None else plan.canonical().decode()
    )


def machines_of(
    workers: Sequence[cluster.Machine], which: str | None, scheduler: str, *, allow_cpu: bool
) -> tuple[Machine, ...]:
    """Return the machines to verify on.

    Args:
        workers: of the cluster.
        which: `gpu`, `all`, or None for the workers with a GPU; with `allow_cpu`, all workers if none has one.
        scheduler: its address, for the error.
        allow_cpu: whether verification without a GPU is allowed.

    Raises:
        EnvironmentProblem: no worker declares a GPU.
    """
    chosen = tuple(workers) if which == "all" else with_resource(workers, GPU)
    if not chosen and allow_cpu and which is None:
        chosen = tuple(workers)
    if not chosen:
        raise EnvironmentProblem(
            f"none of the {len(workers)} workers of {scheduler} declares a GPU",
            hint=f'dask worker {scheduler} --resources "GPU=1"   # on a machine that has one, or --workers all',
        )
    # A worker that was started without a name has its address as the name.
    names = [worker.name if worker.name != worker.address else worker.host for worker in chosen]
    return tuple(
        Machine(
            name=name if names.count(name) == 1 else f"{name} {worker.address.partition('://')[2]}",
            host=worker.host,
            address=worker.address,
            gpus=worker.resources.get(GPU, 0),
        )
        for name, worker in zip(names, chosen, strict=True)
    )


def placed(task: VerifyTask) -> Placement:
    """Bind a task to its machine and all of its GPUs, so that no other task disturbs the measurements."""
    resources = {GPU: task.machine.gpus} if task.machine.gpus else {}
    return Placement(workers=(task.machine.address,) if task.machine.address else (), strict=True, resources=resources)


def verify_all(tasks: Sequence[VerifyTask], executor: Executor, on_result: OnResult) -> tuple[Verification, ...]:
    """Run all tasks, one at a time per host because they measure, and return the results in the order of the tasks.

    Raises:
        BaseException: this thread was ended (Ctrl-C); the executor's `with` block ends the work.
    """
    chains: dict[str, deque[int]] = {}
    for number, task in enumerate(tasks):
        chains.setdefault(task.machine.host, deque()).append(number)
    ended: queue.SimpleQueue[Future[Verification]] = queue.SimpleQueue()
    running: dict[Future[Verification], int] = {}
    verifications: dict[int, Verification] = {}

    def begin(chain: deque[int]) -> None:
        if chain:
            number = chain.popleft()
            future = executor.submit(verify, tasks[number])
            running[future] = number
            future.add_done_callback(ended.put)

    for chain in chains.values():
        begin(chain)
    while running:
        try:
            future = ended.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
        number = running.pop(future)
        begin(chains[tasks[number].machine.host])
        verifications[number] = verification_of(tasks[number], future)
        on_result(verifications[number])
    return tuple(verifications[number] for number in range(len(tasks)))


def verification_of(task: VerifyTask, future: Future[Verification]) -> Verification:
    """Return the outcome of a task whose future is done.

    Raises:
        InterruptedRun: a signal reached this thread; a worker's future never raises it.
        Exception: a bug in envkit on the worker.
    """
    try:
        return future.result()
    except CancelledError:
        return not_made(task, InterruptedRun(2))  # 2 = SIGINT
    except EnvkitError as error:
        return not_made(task, error)
