"""`envkit verify` with several images, on this machine or on those of a cluster: one matrix image x machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.documents import STDOUT, write_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from envkit.fleet.proof import Proof, ProofTask
    from envkit.fleet.verify_matrix import Matrix
    from envkit.ground.progress import Reporter

_SINGLE = {
    "plan_file": "--plan",
    "reports": "--report",
    "trace_file": "--trace",
    "judge": "--judge",
    "baseline": "--baseline",
    "new_baseline": "--write-baseline",
    "self_test": "--self-test",
}


def many_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of this module to `envkit verify`."""
    options = (
        click.option("--scheduler", metavar="ADDRESS", help="Verify on a Dask cluster's machines: tcp://HOST:PORT."),
        click.option(
            "--workers",
            type=click.Choice(["gpu", "all"]),
            help="With --scheduler: on which workers. [those that declare the resource GPU]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def check_single(typed: Mapping[str, Any]) -> None:
    """Refuse what is said of one image on one machine.

    Raises:
        UsageError: such a flag was given.
    """
    from envkit.ground.errors import UsageError

    flag = next((flag for name, flag in _SINGLE.items() if typed.get(name)), None)
    if flag is not None:
        raise UsageError(
            f"{flag} is for one image on one machine",
            hint="leave it out: every record is kept, and envkit verify --judge RECORD makes reports of one",
        )


def check_workers(scheduler: str | None, workers: str | None) -> None:
    """Refuse --workers without a cluster, and an address that is none.

    Raises:
        UsageError: so it is.
    """
    from envkit.ground.errors import UsageError

    if scheduler is not None:
        from envkit.fleet.cluster import check_address

        check_address(scheduler)
    if workers is not None and scheduler is None:
        raise UsageError("--workers chooses among a cluster's machines", hint="--scheduler tcp://HOST:PORT")


def verify_many(
    images: Sequence[str],
    asked: Mapping[str, Any],
    talk: Reporter,
    *,
    scheduler: str | None,
    workers: str | None,
    document: str | None,
) -> int:
    """Verify every image, show the matrix, keep the records; gives the gravest exit code.

    Args:
        images: as typed; equal ones count once.
        asked: further fields of `ProofTask`.
        talk: hears which proof ended how; it is closed before the matrix is shown.
        scheduler: of the cluster; None = this machine.
        workers: `gpu`, `all` or None.
        document: where the matrix goes as JSON; `-` is stdout.

    Raises:
        SurroundingsError: the cluster does not answer, or has no machine to verify on; or a file cannot be written.
        UsageError: with a cluster, an image is no registry's.
    """
    from envkit.fleet.verify_matrix import Matrix
    from envkit.ground import paths
    from envkit.ground.errors import UsageError

    if not images:
        raise UsageError(
            "--scheduler verifies images by name, and none is named",
            hint=f"envkit verify registry:HOST/NAME:TAG --scheduler {scheduler}",
        )
    named, state = tuple(dict.fromkeys(images)), paths.state_dir()
    try:
        if scheduler is None:
            tasks, proofs = _here(named, asked, talk)
        else:
            tasks, proofs = _there(named, asked, talk, scheduler, workers)
    finally:
        talk.close()
    matrix = Matrix(
        images=named,
        machines=tuple(dict.fromkeys(task.machine for task in tasks)),
        proofs=proofs,
        kept=tuple(_keep(proof, state) for proof in proofs),
    )
    _show(matrix, document, scheduler)
    return matrix.exit_code


def _here(images: Sequence[str], asked: Mapping[str, Any], talk: Reporter) -> tuple[list[ProofTask], tuple[Proof, ...]]:
    from envkit.fleet import work
    from envkit.fleet.proof import Machine, ProofTask, prove

    machine = Machine(name=socket.gethostname(), host=socket.gethostname())
    tasks = [ProofTask(image=one, target=one, machine=machine, **asked) for one in images]
    proofs = []
    work.listen(lambda _: talk)
    try:
        for task in tasks:
            talk.step(f"verify {task.image}")
            proofs.append(prove(task))
            _tell(talk, proofs[-1])
    finally:
        work.listen(None)
    return tasks, tuple(proofs)


def _there(
    images: Sequence[str], asked: Mapping[str, Any], talk: Reporter, scheduler: str, workers: str | None
) -> tuple[list[ProofTask], tuple[Proof, ...]]:

    from envkit.cli import configured
    from envkit.fleet.dask_pool import DaskPool
    from envkit.fleet.proof import ProofTask
    from envkit.fleet.proving import machines_of, placed, prove_all, subject_of
    from envkit.ground import paths, settings
    from envkit.ground.paths import cache_dir
    from envkit.registry.remote import Remote

    here = configured.load()
    remote = Remote(cache_dir(), ca_bundle=settings.ca_file(here.get("ca_bundle")))
    subjects = [subject_of(image, remote, paths.state_dir()) for image in images]
    talk.step(f"connect to {scheduler}")
    with DaskPool(scheduler, place=placed, note=talk.note, heard=_Steps(talk)) as pool:
        machines = machines_of(pool.machines, workers, scheduler, allow_cpu=bool(asked.get("allow_cpu")))
        if pool.dashboard:
            talk.note(f"dashboard: {pool.dashboard}")
        tasks = [
            ProofTask(image=one.image, target=one.target, plan=one.plan, machine=machine, **asked)
            for one in subjects
            for machine in machines
        ]
        talk.step(f"verify {len(subjects)} images on {len(machines)} machines")
        return tasks, prove_all(tasks, pool, lambda proof: _tell(talk, proof))


class _Steps:
    """Passes on the steps that proofs tell of."""

    def __init__(self, talk: Reporter) -> None:
        self._talk = talk

    def __call__(self, event: tuple[str, str, Any]) -> None:
        name, kind, arguments = event
        if kind == "step":
            self._talk.log(f"{name}: {arguments[0]}")
        elif kind == "note":
            self._talk.note(f"{name}: {arguments[0]}")


def _tell(talk: Reporter, proof: Proof) -> None:
    from envkit.fleet.verify_matrix import cell

    talk.note(f"{proof.image} on {proof.machine}: {cell(proof)} ({proof.duration_s:.0f} s)")


def _keep(proof: Proof, state: Path) -> str | None:
    from envkit.cli.publish import keep
    from envkit.verify.record import Record

    return None if proof.record is None else keep(Record(proof.record), state)


def _show(matrix: Matrix, document: str | None, scheduler: str | None) -> None:
    from envkit.cli.table import aligned
    from envkit.ground.text import neutral

    to_stderr = document == STDOUT
    lines = [*aligned([[neutral(one) for one in row] for row in matrix.table()])]
    lines += ["", *map(neutral, matrix.remarks())] if matrix.remarks() else []
    lines += ["", f"exit code {matrix.exit_code}; the records are kept: {_folder(matrix)}"]
    for line in lines:
        click.echo(line, err=to_stderr)
    write_document(matrix.to_json(scheduler), document)


def _folder(matrix: Matrix) -> str:
    return next((str(Path(place).parent) for place in matrix.kept if place), "none of them could be")
