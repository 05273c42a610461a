"""What a cluster's machines tell of themselves, and what work may be given to them. Nothing here connects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from envkit.fleet.model import BuildTask

GPU, DOCKER = "GPU", "DOCKER"
ALL = "all"
_NEED_DOCKER = ("docker", "buildkit")
_LIBRARIES = ("dask", "distributed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One worker of a cluster."""

    address: str  # 'tcp://10.0.0.7:41123': its identity as long as it lives
    name: str  # of the worker, as it was started; the address unless it was given one
    host: str  # host name
    pid: int
    threads: int  # so many tasks at once
    resources: Mapping[str, float] = field(default_factory=dict)  # what it was started with: {'GPU': 1}
    cache: str = ""  # 'host:/path' of its cache; equal for workers that share one

    @property
    def worker(self) -> str:
        """`host:pid`, as outcomes name it."""
        return f"{self.host}:{self.pid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one task may run."""

    workers: tuple[str, ...] = ()  # addresses; none = anywhere
    strict: bool = False  # False: elsewhere where these are gone or busy
    resources: Mapping[str, float] = field(default_factory=dict)
    priority: int = 0  # higher ones go first


def check_address(text: str) -> str:
    """A scheduler's address.

    Raises:
        UsageError: the address is invalid.
    """
    kind, sign, rest = text.partition("://")
    host, colon, port = rest.rpartition(":")
    if not sign or kind not in ("tcp", "tls") or not host or not colon or not port.isdigit():
        wanted = text if not sign and text else rest
        hint = f"--scheduler tcp://{wanted if ':' in wanted else (wanted or 'HOST') + ':8786'}"
        raise UsageError(f"--scheduler {text!r:.200} is not tcp://HOST:PORT or tls://HOST:PORT", hint=hint)
    return text


def check_output(output: str | None) -> None:
    """Builders on many machines share no disk, so what they build goes to a registry.

    Raises:
        UsageError: `--output` is left out, or names a file or an engine.
    """
    if output is not None and output.startswith("registry:"):
        return
    target = f"--output {output} is a place" if output else "the default output is a folder"
    raise UsageError(
        f"with --scheduler, images are built on several machines that share a registry but no disk; {target} of one "
        "machine alone",
        hint="--output registry:HOST/NAME",
    )


def parse_share(text: str) -> int | None:
    """How many images are built twice; None = all.

    Raises:
        UsageError: it is not a number or `all`.
    """
    if text == ALL:
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--cross-check {text!r:.80} is not a number or {ALL}", hint="--cross-check 1")
    return int(text)


def apart(
    own: Mapping[str, str | None], scheduler: Mapping[str, str | None], workers: Mapping[str, Mapping[str, str | None]]
) -> tuple[str, ...]:
    """Which versions of Dask differ from this machine's, a line for each. Python packages by name -> version."""
    rows = {"the scheduler": scheduler, **{f"worker {name}": row for name, row in workers.items()}}
    return tuple(
        f"{where}: {library} {row.get(library) or 'missing'}, here {own.get(library)}"
        for where, row in rows.items()
        for library in _LIBRARIES
        if row.get(library) != own.get(library)
    )


def require_same(lines: Sequence[str], what: str) -> None:
    """Refuse a cluster whose versions are not this machine's.

    Raises:
        EnvironmentProblem: `lines` name differences of `what`, which is also what pip would install.
    """
    if lines:
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        raise EnvironmentProblem(
            f"versions on the cluster differ from this machine ({lines[0]}{more})",
            hint=f"pip install {what}   # on the worker",
            details=tuple(lines),
        )


def with_resource(machines: Sequence[Machine], resource: str) -> tuple[Machine, ...]:
    """Those that were started with a resource."""
    return tuple(machine for machine in machines if machine.resources.get(resource, 0) > 0)


def needs(task: BuildTask, machines: Sequence[Machine]) -> Mapping[str, float]:
    """The resources that a build asks for.

    An engine with a daemon needs a worker that declares it. Verifying a CUDA image needs a GPU, if any worker
    declares one; where none does, every worker tries, and tells what it lacks.
    """
    resources: dict[str, float] = {}
    if task.engine in _NEED_DOCKER:
        resources[DOCKER] = 1
    cuda = (json.loads(task.plan).get("resolution") or {}).get("cuda")
    if task.verify and cuda is not None and with_resource(machines, GPU):
        resources[GPU] = 1
    return resources


def require_engine(engine: str, machines: Sequence[Machine], scheduler: str) -> None:
    """Refuse an engine that no worker has.

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
    """Gives images that share their largest package to the same worker, which then makes its layer once.

    A preference: an idle worker takes over what waits for a busy one.

    Args:
        machines: the workers.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = tuple(machines)
        self._chosen: dict[str, Machine] = {}
        self._load = {machine.address: 0.0 for machine in machines}

    def place(self, task: BuildTask) -> Placement:
        """Where a build runs best."""
        wanted = needs(task, self._machines)
        able = [
            machine
            for machine in self._machines
            if all(machine.resources.get(key, 0) >= n for key, n in wanted.items())
        ]
        if not able:
            return Placement(resources=wanted)
        name, size = heaviest(task.lock)
        chosen = self._chosen.get(name)
        if chosen not in able:
            chosen = min(able, key=lambda machine: self._load[machine.address] / machine.threads)
            self._chosen[name] = chosen
            self._load[chosen.address] += size
        assert chosen is not None
        self._load[chosen.address] += 1
        return Placement(workers=(chosen.address,), resources=wanted)


def heaviest(lock: str | None) -> tuple[str, int]:
    """The largest artifact that a lock names, by its hash, and its size in bytes; nothing for no lock."""
    tree = json.loads(lock) if lock is not None else {}
    rows = [*(tree.get("conda") or ()), *(tree.get("wheels") or ())]
    largest: dict[str, Any] = max(rows, key=lambda row: row.get("size") or 0, default={})
    return str(largest.get("sha256") or ""), int(largest.get("size") or 0)
