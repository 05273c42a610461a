"""Many images on many machines: which tasks there are, and who works on them when."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.fleet.cluster import GPU, Placement, with_resource
from envkit.fleet.proof import Machine, Proof, ProofTask, prove, unproved
from envkit.ground.errors import EnvkitError, InterruptedRun, SurroundingsError, UsageError
from envkit.image.reference import PREFIX, is_file_reference, is_remote, parse_remote
from envkit.plan.store import load_plan
from envkit.registry.remote import Remote
from envkit.verify.static import PLAN_LABEL

if TYPE_CHECKING:
    from envkit.fleet import cluster

_LOOK_S = 0.5
Heard = Callable[[Proof], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image that is the same on every machine."""

    image: str  # as it was typed
    target: str
    plan: str | None = None


def subject_of(image: str, remote: Remote, state: Path) -> Subject:
    """An image of a registry by the digest that its tag has now, with its plan where that was kept here.

    Raises:
        UsageError: it is no registry's.
        EngineError: the registry has no such image.
        SurroundingsError: the registry cannot be reached.
    """
    if not is_remote(image):
        ways = "envkit push sends it to one" if is_file_reference(image) else f"{PREFIX}{image}"
        raise UsageError(
            f"{image!r:.200} is on this machine alone, or is called so on each: machines share images through a "
            "registry",
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
    """The machines on which to prove.

    Args:
        workers: of the cluster.
        which: `gpu`, `all`, or None: those with a GPU, or with `allow_cpu` all of them where none has one.
        scheduler: for the message.
        allow_cpu: whether a proof without a GPU is wanted.

    Raises:
        SurroundingsError: none has a GPU.
    """
    chosen = tuple(workers) if which == "all" else with_resource(workers, GPU)
    if not chosen and allow_cpu and which is None:
        chosen = tuple(workers)
    if not chosen:
        raise SurroundingsError(
            f"none of the {len(workers)} workers of {scheduler} declares a GPU",
            hint=f'dask worker {scheduler} --resources "GPU=1"   # on a machine that has one, or --workers all',
        )
    names = [one.name if one.name != one.address else one.host for one in chosen]
    return tuple(
        Machine(
            name=name if names.count(name) == 1 else f"{name} {one.address.partition('://')[2]}",
            host=one.host,
            address=one.address,
            gpus=one.resources.get(GPU, 0),
        )
        for name, one in zip(names, chosen, strict=True)
    )


def placed(task: ProofTask) -> Placement:
    """On its machine and nowhere else, with all of its GPUs: nobody else shall disturb what is measured."""
    resources = {GPU: task.machine.gpus} if task.machine.gpus else {}
    return Placement(workers=(task.machine.address,) if task.machine.address else (), strict=True, resources=resources)


def prove_all(tasks: Sequence[ProofTask], executor: Executor, heard: Heard) -> tuple[Proof, ...]:
    """Have every task done; on one host one after another, since they measure. In the order of the tasks.

    Raises:
        BaseException: what ends this thread (Ctrl-C); the executor's `with` block ends the work.
    """
    chains: dict[str, deque[int]] = {}
    for number, task in enumerate(tasks):
        chains.setdefault(task.machine.host, deque()).append(number)
    ended: queue.SimpleQueue[Future[Proof]] = queue.SimpleQueue()
    running: dict[Future[Proof], int] = {}
    found: dict[int, Proof] = {}

    def begin(chain: deque[int]) -> None:
        if chain:
            number = chain.popleft()
            future = executor.submit(prove, tasks[number])
            running[future] = number
            future.add_done_callback(ended.put)

    for chain in chains.values():
        begin(chain)
    while running:
        try:
            future = ended.get(timeout=_LOOK_S)  # so soon a signal reaches this thread
        except queue.Empty:
            continue
        number = running.pop(future)
        begin(chains[tasks[number].machine.host])
        found[number] = proof_of(tasks[number], future)
        heard(found[number])
    return tuple(found[number] for number in range(len(tasks)))


def proof_of(task: ProofTask, future: Future[Proof]) -> Proof:
    """What became of a task whose future is done.

    Raises:
        InterruptedRun: a signal reached this thread meanwhile; workers never pass one on.
        Exception: a bug of ours on the worker.
    """
    try:
        return future.result()
    except CancelledError:
        return unproved(task, InterruptedRun(2))
    except EnvkitError as error:
        return unproved(task, error)
