"""The images of a matrix built by three Dask workers, compared with three processes of this machine without Dask.

    python -m benchmarks.fleet_dask [--kill] [PYTHONS TORCHES BASES]

On a machine with two cores three workers cannot be faster than three processes, so this measures the overhead of Dask:
the scheduler, the workers next to the build processes, the messages between them, and the assignment of tasks. Both
sides have the same tasks with the same locks, solved before; three build processes (`LocalPool`, of which each Dask
worker has one too); a separate cache per process, empty at first; a repository each in a registry that starts empty;
and the same rule for assigning tasks (`Affinity`, and an idle process takes from the one with most tasks left). A local
pool of three processes with one cache, as in `envkit build --matrix`, would do less work, not the same work faster.

Scaling is the time of one worker over that of three, divided by the number of cores that can work at once. With
separate caches three workers may make a layer three times that one worker makes once, so scaling is well below 1 if the
images share most of their bytes.

The matrix is 2 Pythons x 2 versions of torch x 2 bases unless other numbers are given; its content is that of
`benchmarks.fleet`. The sides run alternately, each twice, and the better time counts. With `--kill` a worker is killed
when a third of the images is done. In every run the digests must be those of the local side.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

from benchmarks import _sides, _variety
from benchmarks._report import Figure, finish, tell
from benchmarks.fleet import DEFINITION, _served
from envkit.engines.model import BuildOptions
from envkit.facts.load import load as load_facts
from envkit.fleet import build_task, expand
from envkit.fleet.cluster import Affinity, Machine
from envkit.fleet.cluster_run import ClusterRun
from envkit.fleet.local import LocalPool
from envkit.fleet.matrix import read_matrix
from envkit.fleet.model import BuildTask, Outcome
from envkit.fleet.schedule import outcome_of
from envkit.fleet.tasks import in_order, task_of
from envkit.ground import settings
from envkit.ground.host import cores
from envkit.ground.progress import Silent
from envkit.lock.store import to_text
from envkit.pipeline.locking import Locks
from envkit.plan.definition import load as load_definition
from tests.engines.dask_cluster import cluster

NAMES = ("one", "two", "three")
ROUNDS = 2
Digests = dict[str, str | None]


def main() -> int:
    """Run the benchmark; return 0 if every goal holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("sizes", nargs="*", type=int, default=[2, 2, 2])
    options = parser.parse_args()
    with _sides.workspace("registry", "base", "channel") as here:
        tasks = _tasks(here, options.sizes)
        tell(f"{len(tasks)} images, {cores()} cores, {len(NAMES)} workers")
        local, dask = [], []
        digests: Digests = {}
        for number in range(ROUNDS):
            with _scratch(here, f"local{number}") as folder:
                seconds, digests = _local(_to(tasks, here, folder.name), folder)
            local.append(seconds)
            with _scratch(here, f"dask{number}") as folder:
                dask.append(_dask(_to(tasks, here, folder.name), folder, here, NAMES, digests))
            tell(f"round {number + 1}: {local[-1]:.1f} s without Dask, {dask[-1]:.1f} s over Dask")
        with _scratch(here, "alone") as folder:
            alone = _dask(_to(tasks, here, "alone"), folder, here, NAMES[:1], digests)
        tell(f"one worker: {alone:.1f} s")
        if options.kill:
            with _scratch(here, "killed") as folder:
                killed = _dask(_to(tasks, here, "killed"), folder, here, NAMES, digests, kill=True)
            tell(f"one of three workers killed halfway: {killed:.1f} s, all images built, digests equal")
    best, overhead = min(dask), min(dask) / min(local)
    workers = min(len(NAMES), cores())
    tell(f"scaling: {alone / best:.2f} times as fast as one worker, efficiency {alone / best / workers:.2f}")
    return finish(
        "fleet_dask",
        [
            Figure(
                name="wall time over Dask",
                figure=overhead,
                unit="x",
                better="lower",
                goal=1.1,
                against=f"{len(tasks)} images, {min(local):.1f} s in as many processes without Dask, {best:.1f} s with",
            ),
        ],
    )


def _tasks(here: _sides.Workspace, sizes: Sequence[int]) -> list[BuildTask]:
    """Return the tasks of the matrix with their locks, in the order that shares most layers."""
    pythons, torches = _variety.PYTHONS[: sizes[0]], _variety.TORCHES[: sizes[1]]
    own = _sides._own_registry(here.folder / "bases", here.stack)  # noqa: SLF001
    bases = _variety.push_bases(own, here.folder, sizes[2])
    here.env["ENVKIT_CONDA_CHANNEL_ALIAS"] = _served(here, _variety.packed(here.folder, pythons, torches))
    # Solvers cache a channel by its address, and other channels had this address before.
    os.environ.update(here.env | _own(here.folder / "locks"))
    (here.folder / "cpu.yaml").write_text(DEFINITION)
    axes = {"python": list(pythons), "torch": list(torches), "base": bases}
    tree = {"schema": "envkit.matrix/1", "image": "./cpu.yaml", "axes": axes}
    (here.folder / "matrix.yaml").write_text(json.dumps(tree))
    expanded = expand.expand(read_matrix(here.folder / "matrix.yaml"), {}, load_facts(), load_definition)
    locks = Locks(settings.load({}, os.environ, here.folder), "embedded", Silent())
    unlocked = [task_of(cell, "embedded", BuildOptions(), verify=False) for cell in expanded.cells]
    return [
        replace(task, lock=to_text(locks.of(cell.plan, str(task.options["base"]))))
        for cell, task in in_order(expanded.cells, unlocked)
    ]


def _to(tasks: Sequence[BuildTask], here: _sides.Workspace, repository: str) -> list[BuildTask]:
    return [replace(task, output=f"registry:{here.registry}/{repository}:{task.name}") for task in tasks]


def _local(tasks: Sequence[BuildTask], folder: Path) -> tuple[float, Digests]:
    """Build without Dask, in a process per name with a queue of its own; return the seconds and the digests."""
    affinity = Affinity([Machine(address=name, name=name, host="h", pid=0, threads=1) for name in NAMES])
    queues: dict[str, deque[BuildTask]] = {name: deque() for name in NAMES}
    for task in tasks:
        queues[affinity.place(task).workers[0]].append(task)
    lock, outcomes = threading.Lock(), list[Outcome]()

    def next_task(name: str) -> BuildTask | None:
        with lock:
            if queues[name]:
                return queues[name].popleft()
            longest = max(queues.values(), key=len)
            return longest.pop() if longest else None

    def serve(name: str, pool: LocalPool) -> None:
        while (task := next_task(name)) is not None:
            outcomes.append(outcome_of(task, pool.submit(build_task.build, task)))

    with contextlib.ExitStack() as stack:
        pools = {name: stack.enter_context(_pool(folder / name)) for name in NAMES}
        threads = [threading.Thread(target=serve, args=item) for item in pools.items()]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    _require(outcomes, tasks)
    return seconds, {outcome.name: outcome.digest for outcome in outcomes}


def _pool(folder: Path) -> LocalPool:
    """Return a pool of one process that has started, with its own caches."""
    os.environ.update(_own(folder))
    pool = LocalPool(1)
    pool.submit(os.getpid).result()
    return pool


def _dask(
    tasks: Sequence[BuildTask],
    folder: Path,
    here: _sides.Workspace,
    names: Sequence[str],
    expected: Digests,
    *,
    kill: bool = False,
) -> float:
    """Build over one Dask worker per name; return the seconds from the first task to the last outcome."""
    with cluster(folder, here.env, *names) as workers:
        ended: list[Outcome] = []

        def count(outcome: Outcome) -> None:
            ended.append(outcome)
            if kill and len(ended) == max(len(tasks) // 3, 1):
                workers.kill(names[1])

        note: Callable[[str], None] = tell if kill else _nothing
        with ClusterRun(
            workers.address, engine="embedded", options=BuildOptions(output=tasks[0].output), note=note
        ) as fleet:
            wait(fleet.started)
            began = time.perf_counter()
            outcomes = fleet.run(tasks, count)
            seconds = time.perf_counter() - began
    _require(outcomes, tasks)
    differing = [outcome.name for outcome in outcomes if outcome.digest != expected[outcome.name]]
    if differing:
        raise SystemExit(f"digests differ between machines: {', '.join(differing)}")
    return seconds


def _own(folder: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}


@contextlib.contextmanager
def _scratch(here: _sides.Workspace, name: str) -> Iterator[Path]:
    """Yield a folder that is removed afterwards, because three caches of torch take much space."""
    folder = here.folder / name
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require(outcomes: Sequence[Outcome], tasks: Sequence[BuildTask]) -> None:
    bad = [
        f"{outcome.name}: {outcome.status} {outcome.error}"
        for outcome in outcomes
        if outcome.status != build_task.BUILT
    ]
    if bad or len(outcomes) != len(tasks):
        raise SystemExit(f"{len(outcomes)} outcomes of {len(tasks)} tasks; {'; '.join(bad)}")


def _nothing(text: str) -> None:
    del text


if __name__ == "__main__":
    sys.exit(main())
