"""Cells, tasks and outcomes for the tests of fleets."""

from dataclasses import replace
from typing import Any

from envkit.engines.model import BuildOptions
from envkit.fleet.model import BuildTask, Cell, Impossible, Outcome
from envkit.fleet.tasks import task_of
from tests.support.plans import shipped_plan

IMPOSSIBLE = Impossible(
    name="train-torch1.0", axes=(("torch", "1.0"),), reason="no build matches", hint="envkit resolve"
)


def cell(name: str = "train", axes: tuple[tuple[str, str], ...] = (), also: tuple[str, ...] = (), **typed: Any) -> Cell:
    return Cell(name=name, axes=axes, also=also, plan=shipped_plan("cpu", **typed))


def task(name: str = "train", **more: Any) -> BuildTask:
    return replace(task_of(cell(name), "embedded", BuildOptions(), verify=False), **more)


def outcome(name: str = "train", status: str = "built", code: int = 0, **more: Any) -> Outcome:
    return Outcome(name=name, status=status, exit_code=code, worker="here:1", duration_s=1.5, **more)
