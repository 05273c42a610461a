"""One image proved on one machine, wherever that is: its runner, its GPUs, its caches."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from envkit.fleet import build_task
from envkit.ground.errors import Ending, EnvkitError
from envkit.pipeline import verification
from envkit.plan.store import plan_from_json
from envkit.verify.driver import Options
from envkit.verify.model import Verdict
from envkit.verify.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A column of the matrix."""

    name: str  # unique among the machines
    host: str  # host name; proofs of one host take turns
    address: str | None = None  # of the worker; None = this machine
    gpus: float = 0  # what the worker declares, all of which a proof takes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTask:
    """One image on one machine, as text and numbers alone: it travels."""

    image: str  # as it was typed
    target: str  # what the runner is asked for, by digest where that is known: 'registry:host/name:tag@sha256:...'
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
        """For those who watch."""
        return f"{self.image} on {self.machine.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What became of it: a record, or the error that kept one from being made."""

    image: str
    machine: str
    verdict: str  # as in a record; ERROR where there is none
    exit_code: int
    duration_s: float
    worker: str | None = None  # 'host:pid'
    record: Mapping[str, Any] | None = None  # envkit.verify/1
    error: str | None = None
    hint: str | None = None
    details: tuple[str, ...] = ()


def prove(task: ProofTask) -> Proof:
    """Prove one image on this machine. Every failure that a user can cause is in what is returned.

    Raises:
        InterruptedRun: a signal ends this process, and with it the proofs that would follow.
    """
    began = time.monotonic()
    try:
        record = _record(task)
    except (EnvkitError, OSError) as error:
        found = error if isinstance(error, EnvkitError) else build_task.refused(error)
        return replace(unproved(task, found), worker=build_task.worker_name(), duration_s=time.monotonic() - began)
    return Proof(
        image=task.image,
        machine=task.machine.name,
        verdict=record.verdict,
        exit_code=record.exit_code,
        duration_s=time.monotonic() - began,
        worker=build_task.worker_name(),
        record=dict(record.tree),
    )


def unproved(task: ProofTask, error: Ending) -> Proof:
    """A proof that came to nothing."""
    return Proof(
        image=task.image,
        machine=task.machine.name,
        verdict=str(Verdict.ERROR),
        exit_code=error.exit_code,
        duration_s=0.0,
        error=error.message,
        hint=error.hint,
        details=error.details,
    )


def _record(task: ProofTask) -> Record:
    here, reporter = verification.settings_here(task.runner, task.memory), build_task.talk_of(task.name)
    plan = None if task.plan is None else plan_from_json(json.loads(task.plan), f"the plan of {task.image}")
    options = Options(
        allow_cpu=task.allow_cpu,
        require_gpu=task.require_gpu,
        timeout_s=task.timeout_s,
        only=task.only,
        skip=task.skip,
        argv=task.argv,
    )
    subject = verification.subject_of(task.target, here, reporter, options, plan=plan, gpus=task.gpus, tier=task.tier)
    return verification.verify(subject, reporter)
