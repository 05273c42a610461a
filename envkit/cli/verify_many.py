"""`envkit verify` with several images, on this machine or on those of a cluster: a matrix of images and machines."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.options import STDOUT, load_settings
from envkit.cli.output import aligned, write_document
from envkit.cli.record_output import write_pages
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.cli.record_output import ReportTarget
    from envkit.cli.verify_flags import VerifyFlags
    from envkit.fleet.verify_matrix import Matrix
    from envkit.fleet.verify_task import Machine, Verification, VerifyTask
    from envkit.ground.progress import Reporter

_Done = tuple["Sequence[VerifyTask]", "tuple[Verification, ...]"]


def verify_many(flags: VerifyFlags, document: str | None) -> int:
    """Verify every image, show the matrix, keep the records; return the most severe exit code.

    Args:
        flags: an image that is named several times is verified once.
        document: file for the matrix as JSON; `-` is stdout.

    Raises:
        EnvironmentProblem: the cluster does not respond or has no machine to verify on, or a file cannot be written.
        UsageError: no image is named, or with a cluster, an image is not in a registry.
    """
    from envkit.fleet.verify_matrix import Matrix
    from envkit.ground.paths import state_dir

    if not flags.images:
        raise UsageError(
            "--scheduler needs the names of images",
            hint=f"envkit verify registry:HOST/NAME:TAG --scheduler {flags.scheduler}",
        )
    images, state = tuple(dict.fromkeys(flags.images)), state_dir()
    with closing(flags.progress.reporter()) as reporter:
        if flags.scheduler is None:
            tasks, done = _here(images, flags, reporter)
        else:
            tasks, done = _on_cluster(images, flags, flags.scheduler, reporter)
    matrix = Matrix(
        images=images,
        machines=tuple(dict.fromkeys(task.machine for task in tasks)),
        verifications=done,
        kept=tuple(_keep(verification, state) for verification in done),
    )
    _show(matrix, document, flags.scheduler, flags.reports)
    return matrix.exit_code


def _task(flags: VerifyFlags, image: str, machine: Machine, target: str, plan: str | None = None) -> VerifyTask:
    from envkit.fleet.verify_task import VerifyTask

    return VerifyTask(
        image=image,
        target=target,
        machine=machine,
        plan=plan,
        runner=flags.run.runner,
        gpus=flags.run.gpus,
        tier=flags.run.tier,
        allow_cpu=flags.allow_cpu,
        require_gpu=flags.require_gpu,
        timeout_s=flags.timeout,
        memory=flags.memory,
        only=flags.run.only,
        skip=flags.run.skip,
        argv=tuple(sys.argv),
    )


def _here(images: Sequence[str], flags: VerifyFlags, reporter: Reporter) -> _Done:
    from envkit.fleet.verify_task import Machine, verify

    machine = Machine(name=socket.gethostname(), host=socket.gethostname())
    tasks, done = [_task(flags, image, machine, image) for image in images], []
    for task in tasks:
        reporter.step(f"verify {task.image}")
        done.append(verify(task, reporter))
        _report(reporter, done[-1])
    return tasks, tuple(done)


def _on_cluster(images: Sequence[str], flags: VerifyFlags, scheduler: str, reporter: Reporter) -> _Done:
    from envkit.fleet.dask_pool import DaskPool
    from envkit.fleet.verify_task import machines_of, placed, subject_of, verify_all
    from envkit.ground.paths import cache_dir, state_dir
    from envkit.ground.settings import ca_file
    from envkit.registry.remote import Remote

    remote = Remote(cache_dir(), ca_bundle=ca_file(load_settings().get("ca_bundle")))
    subjects = [subject_of(image, remote, state_dir()) for image in images]
    reporter.step(f"connect to {scheduler}")

    def heard(event: tuple[str, str, Any]) -> None:
        name, kind, arguments = event
        if kind == "step":
            reporter.log(f"{name}: {arguments[0]}")
        elif kind == "note":
            reporter.note(f"{name}: {arguments[0]}")

    with DaskPool(scheduler, place=placed, note=reporter.note, on_event=heard) as pool:
        machines = machines_of(pool.machines, flags.workers, scheduler, allow_cpu=flags.allow_cpu)
        if pool.dashboard:
            reporter.note(f"dashboard: {pool.dashboard}")
        tasks = [
            _task(flags, subject.image, machine, subject.target, subject.plan)
            for subject in subjects
            for machine in machines
        ]
        reporter.step(f"verify {len(subjects)} images on {len(machines)} machines")
        return tasks, verify_all(tasks, pool, lambda done: _report(reporter, done))


def _report(reporter: Reporter, done: Verification) -> None:
    from envkit.fleet.verify_matrix import cell

    reporter.note(f"{done.image} on {done.machine}: {cell(done)} ({done.duration_s:.0f} s)")


def _keep(done: Verification, state: Path) -> str | None:
    from envkit.pipeline.verification import keep_record
    from envkit.verify.record import Record

    return None if done.record is None else keep_record(Record(done.record), state)


def _show(matrix: Matrix, document: str | None, scheduler: str | None, reports: Sequence[ReportTarget]) -> None:
    from envkit.ground.text import neutral

    to_stderr = STDOUT in (document, *(report.file for report in reports))

    lines = [*aligned([[neutral(cell) for cell in row] for row in matrix.table()])]
    lines += ["", *map(neutral, matrix.remarks())] if matrix.remarks() else []
    folder = next((str(Path(path).parent) for path in matrix.kept if path), None)
    lines += ["", f"exit code {matrix.exit_code}; {f'records: {folder}' if folder else 'no record was kept'}"]
    for line in lines:
        click.echo(line, err=to_stderr)
    tree = matrix.to_json(scheduler)
    write_document(tree, document)
    write_pages(tree, reports, done="the images were verified")
