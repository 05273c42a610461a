"""The options of `envkit verify` as one frozen dataclass, and which of them exclude others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from envkit.cli.declare import Section, option
from envkit.cli.options import (
    DocumentOptions,
    ProgressOptions,
    RunnerOptions,
    applied,
    document_options,
    group,
    progress_options,
    runner_options,
    timeout_option,
)
from envkit.cli.record_output import ReportTarget, report_option, trace_option
from envkit.ground.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFlags:
    """The options of `envkit verify`."""

    images: tuple[str, ...]
    plan_file: Path | None
    run: RunnerOptions = group(RunnerOptions)
    list_checks: bool
    document: DocumentOptions = group(DocumentOptions)
    reports: tuple[ReportTarget, ...]
    trace_file: Path | None
    show_schema: bool
    judge: Path | None
    thresholds: str
    baseline: Path | None
    new_baseline: Path | None
    reason: str | None
    self_test: bool
    data: Path | None
    dataset: str | None
    observed: str | None
    questions: Path | None
    scheduler: str | None
    workers: str | None
    allow_cpu: bool
    require_gpu: bool
    timeout: float | None
    memory: str | None
    progress: ProgressOptions = group(ProgressOptions)

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

    def reason_to_change(self) -> str:
        """Return why the baseline changes; empty if it does not.

        Raises:
            UsageError: --write-baseline is given without --reason.
        """
        if self.new_baseline is not None and not self.reason:
            raise UsageError("--write-baseline needs --reason", hint='--write-baseline FILE --reason "new driver"')
        return self.reason or ""


_FILE = click.Path(path_type=Path)
verify_options = applied(
    (
        option(
            Section.INPUT,
            "--plan",
            "plan_file",
            type=_FILE,
            metavar="FILE",
            help="Plan the image was built from (plan.json).",
        ),
        runner_options(),
        option(Section.OUTPUT, "--list", "list_checks", is_flag=True, help="List the checks and exit."),
        document_options("the record (schema envkit.verify/1)"),
        report_option,
        trace_option,
        option(
            Section.OUTPUT, "--schema", "show_schema", is_flag=True, help="Print the record's JSON Schema and exit."
        ),
        option(Section.RECORDS, "--judge", type=_FILE, metavar="RECORD", help="Re-evaluate a saved record."),
        option(
            Section.RECORDS,
            "--thresholds",
            default="record",
            show_default=True,
            metavar="record|shipped|FILE",
            help="Thresholds for --judge.",
        ),
        option(
            Section.RECORDS,
            "--baseline",
            type=_FILE,
            metavar="FILE",
            help="Warn about anything slower than the runs in this baseline file.",
        ),
        option(
            Section.RECORDS,
            "--write-baseline",
            "new_baseline",
            type=_FILE,
            metavar="FILE",
            help="Add this run to this baseline file.",
        ),
        option(Section.RECORDS, "--reason", metavar="TEXT", help="Reason for the change of the baseline."),
        option(
            Section.CHECKS, "--self-test", is_flag=True, help="Test whether timings can be compared on this machine."
        ),
        option(
            Section.CHECKS,
            "--data",
            type=_FILE,
            metavar="DIR",
            help="Use the files in this folder in C12 and C22; mounted read-only.",
        ),
        option(
            Section.CHECKS, "--dataset", metavar="MODULE:CALLABLE", help="Use the Dataset that this returns in C12."
        ),
        option(
            Section.RECORDS,
            "--observed",
            metavar="LOG",
            help="Judge the payload's output in the log of an exported job; - is stdin.",
        ),
        option(
            Section.RECORDS,
            "--questions",
            type=_FILE,
            metavar="FILE",
            help="The exported file that belongs to the --observed log.",
        ),
        option(
            Section.MANY,
            "--scheduler",
            metavar="ADDRESS",
            help="Verify on the machines of a Dask cluster: tcp://HOST:PORT.",
        ),
        option(
            Section.MANY,
            "--workers",
            type=click.Choice(["gpu", "all"]),
            help="With --scheduler: workers to use. [those that declare the resource GPU]",
        ),
        option(
            Section.CHECKS,
            "--allow-cpu",
            is_flag=True,
            help="Exit 0 for a CUDA image without a GPU (still reported as NOT VERIFIED).",
        ),
        option(
            Section.CHECKS, "--require-gpu", is_flag=True, help="Exit 5 unless a GPU took part, also for CPU images."
        ),
        timeout_option(),
        option(
            Section.CONTAINER, "--memory", metavar="SIZE", help="Memory limit of the run: 16GB. [3/4 of the machine's]"
        ),
        progress_options("Show the payload's output while it runs."),
    )
)
