"""Images verified on machines: one on one machine, and many on many.

A task travels as text and numbers alone. Runners, GPUs and caches are those of the machine that works on it.
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
from envkit.image.reference import PREFIX, is_file_reference, is_remote, parse_remote
from envkit.pipeline import verification
from envkit.plan.store import load_plan, plan_from_json
from envkit.registry.remote import Remote
from envkit.verify.driver import Options
from envkit.verify.record import Record
from envkit.verify.static import PLAN_LABEL

if TYPE_CHECKING:
    from envkit.fleet import cluster

_LOOK_S = 0.5  # a wait without limit would hold signals back
Heard = Callable[["Verification"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A column of the matrix."""

    name: str  # unique among the machines
    host: str  # host name; verifications on one host take turns
    address: str | None = None  # of the worker; None = this machine
    gpus: float = 0  # that the worker declares; a verification takes all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTask:
    """One image to verify on one machine."""

    image: str  # as it was typed
    target: str  # as the runner is asked for it, by digest if known: 'registry:host/name:tag@sha256:...'
    machine: Machine
    plan: str | None = None  # canonical JSON; None = as the image's labels say
    runner: str | None = None  # None = the machine's own setting
    gpus: str | None = None  # as --gpus has it
    tier: str | None = None
    allow_cpu: bool = False
    require_gpu: bool = False
    timeout_s: float | None = None
    memory: str | None = None  # as --memory has it
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For progress output."""
        return f"{self.image} on {self.machine.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome: a record, or the error that prevented one."""

    image: str
    machine: str
    verdict: str  # as in a record; ERROR without one
    exit_code: int
    duration_s: float
    worker: str | None = None  # 'host:pid'
    record: Mapping[str, Any] | None = None  # envkit.verify/1
    error: str | None = None
    hint: str | None = None
    details: tuple[str, ...] = ()


@with_reporter
def verify(task: VerifyTask, reporter: Reporter | None = None) -> Verification:
    """Verify one image on this machine. Every failure that a user can cause is in what is returned.

    Raises:
        InterruptedRun: a signal ends this process, and with it the verifications that would follow.
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
    settings = verification.settings_here(task.runner, task.memory)
    plan = None if task.plan is None else plan_from_json(json.loads(task.plan), f"the plan of {task.image}")
    options = Options(
        allow_cpu=task.allow_cpu,
        require_gpu=task.require_gpu,
        timeout_s=task.timeout_s,
        only=task.only,
        skip=task.skip,
        argv=task.argv,
    )
    request = verification.VerifyRequest(image=task.target, options=options, plan=plan, gpus=task.gpus, tier=task.tier)
    with ExitStack() as until:
        return verification.verify(verification.subject_of(request, settings, reporter, until), reporter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image that is the same on every machine."""

    image: str  # as it was typed
    target: str
    plan: str | None = None


def subject_of(image: str, remote: Remote, state: Path) -> Subject:
    """Return a registry's image by the current digest of its tag, with its plan if that was kept here.

    Raises:
        UsageError: it is not in a registry.
        EngineError: the registry has no such image.
        EnvironmentProblem: the registry cannot be reached.
    """
    if not is_remote(image):
        ways = "envkit push sends it there" if is_file_reference(image) else f"{PREFIX}{image}"
        raise UsageError(
            f"{image!r:.200} is not in a registry, and machines share images through a registry",
            hint=f"name it by its registry, {PREFIX}HOST/NAME:TAG ({ways})",
        )
    reference = remote.resolve(parse_remote(image))
    labels = remote.read(reference).settings.get("Labels")
    digest = labels.get(PLAN_LABEL) if isinstance(labels, dict) else None
    plan = load_plan(state, digest) if isinstance(digest, str) else None
    return Subject(image=image, target=f"{PREFIX}{reference}", plan=None if plan is None else plan.canonical().decode())


def machines_of(
    workers: Sequence[cluster.Machine], which: str | None, scheduler: str, *, allow_cpu: bool
) -> tuple[Machine, ...]:
    """Return the machines that verify.

    Args:
        workers: of the cluster.
        which: `gpu`, `all`, or None: those with a GPU, or with `allow_cpu` all of them if none has one.
        scheduler: for the message.
        allow_cpu: whether a verification without a GPU is wanted.

    Raises:
        EnvironmentProblem: none has a GPU.
    """
    chosen = tuple(workers) if which == "all" else with_resource(workers, GPU)
    if not chosen and allow_cpu and which is None:
        chosen = tuple(workers)
    if not chosen:
        raise EnvironmentProblem(
            f"none of the {len(workers)} workers of {scheduler} declares a GPU",
            hint=f'dask worker {scheduler} --resources "GPU=1"   # on a machine that has one, or --workers all',
        )
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
    """Place a task on its machine only, with all of its GPUs, so that no other work disturbs the measurements."""
    resources = {GPU: task.machine.gpus} if task.machine.gpus else {}
    return Placement(workers=(task.machine.address,) if task.machine.address else (), strict=True, resources=resources)


def verify_all(tasks: Sequence[VerifyTask], executor: Executor, heard: Heard) -> tuple[Verification, ...]:
    """Verify everything, one task at a time per host because they measure; return results in the order of the tasks.

    Raises:
        BaseException: what ends this thread (Ctrl-C); the executor's `with` block ends the work.
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
            future = ended.get(timeout=_LOOK_S)  # a signal reaches this thread within that time
        except queue.Empty:
            continue
        number = running.pop(future)
        begin(chains[tasks[number].machine.host])
        verifications[number] = verification_of(tasks[number], future)
        heard(verifications[number])
    return tuple(verifications[number] for number in range(len(tasks)))


def verification_of(task: VerifyTask, future: Future[Verification]) -> Verification:
    """Return the outcome of a task whose future is done.

    Raises:
        InterruptedRun: a signal reached this thread meanwhile; workers never pass one on.
        Exception: a bug of ours on the worker.
    """
    try:
        return future.result()
    except CancelledError:
        return not_made(task, InterruptedRun(2))
    except EnvkitError as error:
        return not_made(task, error)
