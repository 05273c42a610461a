"""What a verification reads from this machine: its GPUs, and the plans that were kept here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envkit.plan.store import load_plan
from envkit.verify.static import PLAN_LABEL, image_facts

if TYPE_CHECKING:
    from envkit.plan.model import BuildPlan
    from envkit.run.model import Runner

_DEVICES = Path("/dev")


def gpus_here(given: str | None, plan: BuildPlan | None, devices: Path = _DEVICES) -> str | None:
    """Return the GPUs to ask a runner for. Default: every GPU of this machine, unless the image is made for CPUs."""
    if given is not None:
        return None if given == "none" else given
    if plan is not None and plan.resolution.cuda is None:
        return None
    here = any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()
    return "all" if here else None


def plan_by_label(state: Path, runner: Runner, image: str) -> BuildPlan | None:
    """The plan that was kept when the image was built here; its digest is on the image's label."""
    digest = image_facts(runner.inspect(image)).labels.get(PLAN_LABEL)
    return load_plan(state, digest) if digest else None
