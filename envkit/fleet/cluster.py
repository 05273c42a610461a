"""The workers of a cluster, and which tasks may run on which of them. Pure: nothing here opens a connection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.image.name import InRegistry

if TYPE_CHECKING:
    from envkit.engines.model import BuildOptions
    from envkit.fleet.model import BuildTask

GPU, DOCKER = "GPU", "DOCKER"
_NEED_DOCKER = ("docker", "buildkit")  # not podman, which has no daemon
_LIBRARIES = ("dask", "distributed")  # Dask expects equal versions on the client, the scheduler and all workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One worker of a cluster."""

    address: str  # 'tcp://10.0.0.7:41123'; unique among running workers
    name: str  # from `dask worker --name`; else the address
    host: str  # host name
    pid: int
    threads: int  # parallel tasks
    resources: Mapping[str, float] = field(default_factory=dict)  # from `dask worker --resources`: {'GPU': 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one task may run."""

    workers: tuple[str, ...] = ()  # addresses; empty = any worker
    strict: bool = False  # False: `workers` is a preference; others may run the task
    resources: Mapping[str, float] = field(default_factory=dict)


def check_address(text: str) -> str:
    """Return the text if it is a scheduler's address.

    Raises:
        UsageError: the address is invalid.
    """
    kind, sign, rest = text.partition("://")
    host, colon, port = rest.rpartition(":")
    if not sign or kind not in ("tcp", "tls") or not host or not colon or not port.isdigit():
        target = text if not sign and text else rest
        # 8786 is the default port of `dask scheduler`.
        hint = f"--scheduler tcp://{target if ':' in target else (target or 'HOST') + ':8786'}"
        raise UsageError(f"--scheduler {text!r:.200} is not tcp://HOST:PORT or tls://HOST:PORT", hint=hint)
    return text


def check_output(options: BuildOptions) -> None:
    """Check that images go to a registry, because the workers share no disk.

    Raises:
        UsageError: `--output` is left out, or names a file or an engine.
    """
    if isinstance(options.target, InRegistry):
        return
    target = f"--output {options.output} is" if options.output else "the default output is a folder"
    raise UsageError(
        f"with --scheduler, images must go to a registry, because the workers share no disk; {target} on one machine",
        hint="--output registry:HOST/NAME",
    )


def version_differences(
    own: Mapping[str, str | None], scheduler: Mapping[str, str | None], workers: Mapping[str, Mapping[str, str | None]]
) -> tuple[str, ...]:
    """Return one line per difference from this machine's Dask versions; arguments map package names to versions."""
    rows = {"the scheduler": scheduler, **{f"worker {name}": row for name, row in workers.items()}}
    return tuple(
        f"{where}: {library} {row.get(library) or 'missing'}, here {own.get(library)}"
        for where, row in rows.items()
        for library in _LIBRARIES
        if row.get(library) != own.get(library)
    )


def require_same(lines: Sequence[str], what: str) -> None:
    """Refuse a cluster whose versions differ from this machine's.

    Args:
        lines: the differences.
        what: the arguments of `pip install` for this machine's versions.

    Raises:
        EnvironmentProblem: there are differences.
    """
    if lines:
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        raise EnvironmentProblem(
            f"versions on the cluster differ from this machine ({lines[0]}{more})",
            hint=f"pip install {what}   # on the worker",
            details=tuple(lines),
        )


def with_resource(machines: Sequence[Machine], resource: str) -> tuple[Machine, ...]:
    """Return the workers that declare a resource."""
    return tuple(machine for machine in machines if machine.resources.get(resource, 0) > 0)


def needs(task: BuildTask, machines: Sequence[Machine]) -> Mapping[str, float]:
    """Return the resources that a build requests.

    An engine with a daemon needs a worker that declares DOCKER. Verifying a CUDA image needs GPU if any worker declares
    it; if none does, any worker may build, and its record says that no GPU was found.
    """
    resources: dict[str, float] = {}
    if task.engine in _NEED_DOCKER:
        resources[DOCKER] = 1
    cuda = (json.loads(task.plan).get("resolution") or {}).get("cuda")
    if task.verify and cuda is not None and with_resource(machines, GPU):
        resources[GPU] = 1
    return resources


def require_engine(engine: str, machines: Sequence[Machine], scheduler: str) -> None:
    """Refuse an engine that no worker can run.

    Raises:
        EnvironmentProblem: no worker declares DOCKER, and the engine needs its daemon.
    """
    if engine in _NEED_DOCKER and not with_resource(machines, DOCKER):
        raise EnvironmentProblem(
            f"--engine {engine} needs a worker with a Docker daemon, and none of the {len(machines)} workers of "
            f"{scheduler} declares DOCKER",
            hint=f'dask worker {scheduler} --resources "DOCKER=1"   # on a machine with Docker, or --engine embedded',
        )


class Affinity:
    """Sends images with the same largest package to the same worker, which then makes its layer once.

    This is a preference: an idle worker takes tasks that wait for a busy one.

    Args:
        machines: the workers.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = tuple(machines)
        self._chosen: dict[str, Machine] = {}
        self._load = {machine.address: 0.0 for machine in machines}

    def place(self, task: BuildTask) -> Placement:
        """Return the placement of a build."""
        required = needs(task, self._machines)
        able = [
            machine
            for machine in self._machines
            if all(machine.resources.get(key, 0) >= n for key, n in required.items())
        ]
        if not able:
            return Placement(resources=required)  # the task waits for a worker that has them
        name, size = heaviest(task.lock)
        chosen = self._chosen.get(name)
        # The worker that was chosen for this package may lack a resource of this task, such as a GPU.
        if chosen not in able:
            chosen = min(able, key=lambda machine: self._load[machine.address] / machine.threads)
            self._chosen[name] = chosen
            self._load[chosen.address] += size
        assert chosen is not None
        self._load[chosen.address] += 1  # spreads images whose locks have no sizes
        return Placement(workers=(chosen.address,), resources=required)


def heaviest(lock: str | None) -> tuple[str, int]:
    """Return the SHA-256 and the size in bytes of the largest artifact in a lock; `("", 0)` without a lock."""
    tree = json.loads(lock) if lock is not None else {}
    rows = [*(tree.get("conda") or ()), *(tree.get("wheels") or ())]
    largest: dict[str, Any] = max(rows, key=lambda row: row.get("size") or 0, default={})
    return str(largest.get("sha256") or ""), int(largest.get("size") or 0)
