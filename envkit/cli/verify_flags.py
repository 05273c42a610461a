"""The options of `envkit verify` as one frozen dataclass, and which of them exclude others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, flag, group, option
from envkit.cli.image_names import IMAGE
from envkit.cli.options import (
    PATH,
    TIERS,
    DocumentOptions,
    ProgressOptions,
    allow_cpu_option,
    document_options,
    exclude,
    progress_options,
    timeout_option,
)
from envkit.cli.record_output import ReportTarget, report_option
from envkit.ground.errors import UsageError
from envkit.ground.settings import RUNNERS

if TYPE_CHECKING:
    from envkit.image.name import ImageName

OBSERVED_EXAMPLE = "envkit verify --observed POD.log --questions verify.yaml"


def _ids(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the check IDs of a repeatable option whose values are lists separated by commas."""
    return tuple(item.strip().upper() for text in given for item in text.split(",") if item.strip())


def _checks_option(name: str, text: str) -> Any:
    return option(
        Section.CHECKS, f"{name} IDS", multiple=True, callback=_ids, shell_complete=shell_values.checks, help=text
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Where the payload runs, and which checks it runs."""

    gpus: str | None = option(
        Section.CONTAINER,
        "--gpus all|none|LIST",
        help="GPUs for the container: all, none, or device numbers. [all, if there are any]",
    )
    runner: str | None = option(
        Section.CONTAINER, "--runner", type=click.Choice(RUNNERS), help="Where the payload runs."
    )
    tier: str | None = option(
        Section.CHECKS, "--tier", type=click.Choice(TIERS), help="How much is checked. [the plan's tier]"
    )
    only: tuple[str, ...] = _checks_option("--only", "Run only these checks: C05,C06.")
    skip: tuple[str, ...] = _checks_option("--skip", "Skip these checks: C05,C06.")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFlags:
    """The options of `envkit verify`."""

    images: tuple[ImageName, ...] = argument(
        nargs=-1, metavar="[IMAGE]...", type=IMAGE, shell_complete=shell_values.images
    )
    plan_file: Path | None = option(
        Section.INPUT, "--plan FILE", type=PATH, help="Plan the image was built from (plan.json)."
    )
    run: RunnerOptions = group(RunnerOptions)
    list_checks: bool = flag(Section.OUTPUT, "--list", help="List the checks and exit.")
    document: DocumentOptions = document_options("the record (schema envkit.verify/1)")
    reports: tuple[ReportTarget, ...] = report_option()
    trace_file: Path | None = option(
        Section.OUTPUT,
        "--trace",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write a profile of a small training job, for chrome://tracing or Perfetto; compressed if FILE ends in "
        ".gz.",
    )
    show_schema: bool = flag(Section.OUTPUT, "--schema", help="Print the record's JSON Schema and exit.")
    judge: Path | None = option(Section.RECORDS, "--judge RECORD", type=PATH, help="Re-evaluate a saved record.")
    thresholds: str = option(
        Section.RECORDS,
        "--thresholds record|shipped|FILE",
        default="record",
        show_default=True,
        help="Thresholds for --judge.",
    )
    baseline: Path | None = option(
        Section.RECORDS,
        "--baseline FILE",
        type=PATH,
        help="Warn about anything slower than the runs in this baseline file.",
    )
    new_baseline: Path | None = option(
        Section.RECORDS, "--write-baseline FILE", type=PATH, help="Add this run to this baseline file."
    )
    reason: str | None = option(Section.RECORDS, "--reason TEXT", help="Reason for the change of the baseline.")
    self_test: bool = flag(Section.CHECKS, "--self-test", help="Test whether timings can be compared on this machine.")
    data: Path | None = option(
        Section.CHECKS, "--data DIR", type=PATH, help="Use the files in this folder in C12 and C22; mounted read-only."
    )
    dataset: str | None = option(
        Section.CHECKS, "--dataset MODULE:CALLABLE", help="Use the Dataset that this returns in C12."
    )
    observed: str | None = option(
        Section.RECORDS, "--observed LOG", help="Judge the payload's output in the log of an exported job; - is stdin."
    )
    questions: Path | None = option(
        Section.RECORDS, "--questions FILE", type=PATH, help="The exported file that belongs to the --observed log."
    )
    scheduler: str | None = option(
        Section.MANY, "--scheduler ADDRESS", help="Verify on the machines of a Dask cluster: tcp://HOST:PORT."
    )
    workers: str | None = option(
        Section.MANY,
        "--workers",
        type=click.Choice(["gpu", "all"]),
        help="With --scheduler: workers to use. [those that declare the resource GPU]",
    )
    allow_cpu: bool = allow_cpu_option()
    require_gpu: bool = flag(
        Section.CHECKS, "--require-gpu", help="Exit 5 unless a GPU took part, also for CPU images."
    )
    timeout: float | None = timeout_option()
    memory: str | None = option(
        Section.CONTAINER, "--memory SIZE", help="Memory limit of the run: 16GB. [3/4 of the machine's]"
    )
    progress: ProgressOptions = progress_options("Show the payload's output while it runs.")

    @property
    def runs_nothing(self) -> bool:
        """Whether the command only judges a run that has already ended."""
        return self.judge is not None or self.observed is not None or self.questions is not None

    @property
    def verifies_many(self) -> bool:
        """Whether the result is a matrix of images and machines."""
        return self.scheduler is not None or len(self.images) > 1

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: two options contradict each other, or one lacks another that it needs.
        """
        from envkit.pipeline.verification import check_gpu_rules

        check_gpu_rules(allow_cpu=self.allow_cpu, require_gpu=self.require_gpu)
        if self.scheduler is not None:
            from envkit.fleet.cluster import check_address

            check_address(self.scheduler)
        if self.self_test and (self.data or self.dataset):
            raise UsageError(
                "--self-test compares timings and does not read data", hint="leave out --data and --dataset"
            )
        if self.workers is not None and self.scheduler is None:
            raise UsageError("--workers needs --scheduler", hint="--scheduler tcp://HOST:PORT")
        if self.verifies_many:
            self._check_many()

    def _check_many(self) -> None:
        single = {
            "--plan": self.plan_file,
            "--trace": self.trace_file,
            "--judge": self.judge,
            "--baseline": self.baseline,
            "--write-baseline": self.new_baseline,
            "--self-test": self.self_test,
            "--data": self.data,
            "--dataset": self.dataset,
        }
        single |= {f"--report {report.kind}": report.file for report in self.reports if report.kind != "html"}
        flag = next((flag for flag, value in single.items() if value), None)
        if flag is not None:
            raise UsageError(
                f"{flag} is for one image on one machine",
                hint="leave it out: every record is kept, and envkit verify --judge RECORD makes reports of one;"
                " --report html=FILE shows all",
            )

    def check_ended(self) -> None:
        """Refuse options that do not apply to a run that has ended.

        Raises:
            UsageError: an option needs a run, or two options contradict each other.
        """
        exclude(judge=self.judge, observed=self.observed)
        exclude(judge=self.judge, questions=self.questions)
        exclude(allow_cpu=self.allow_cpu, require_gpu=self.require_gpu)
        running = {
            "IMAGE": self.images,
            "--plan": self.plan_file,
            "--gpus": self.run.gpus,
            "--runner": self.run.runner,
            "--tier": self.run.tier,
            "--only": self.run.only,
            "--skip": self.run.skip,
            "--timeout": self.timeout,
            "--trace": self.trace_file,
            "--self-test": self.self_test,
            "--baseline": self.baseline,
            "--write-baseline": self.new_baseline,
            "--scheduler": self.scheduler,
            "--workers": self.workers,
        }
        # A log is judged for the first time, so these apply. A record contains the options that it was judged with.
        claims = {"--allow-cpu": self.allow_cpu, "--require-gpu": self.require_gpu}
        wrong = [name for name, value in (running if self.judge is None else running | claims).items() if value]
        if not wrong:
            return
        if self.judge is not None:
            raise UsageError(f"{wrong[0]} and --judge contradict each other", hint="envkit verify --judge RECORD")
        raise UsageError(f"{wrong[0]} and --observed contradict each other", hint=OBSERVED_EXAMPLE)

    def reason_to_change(self) -> str:
        """Return why the baseline changes; empty if it does not.

        Raises:
            UsageError: --write-baseline is given without --reason.
        """
        if self.new_baseline is not None and not self.reason:
            raise UsageError("--write-baseline needs --reason", hint='--write-baseline FILE --reason "new driver"')
        return self.reason or ""
