"""Plans for the solvers, cut down to what a loopback source offers."""

from dataclasses import replace

from envkit.facts.load import load
from envkit.lock.uv import Target
from envkit.plan.model import BuildPlan
from tests.support.plans import shipped_plan

FACTS = load(None)
TARGET = Target(platform="linux-64", glibc="2.36", python="3.11")
VIRTUAL = ("__archspec=1=x86_64", "__glibc=2.36=0", "__linux=5.10=0", "__unix=0=0")


def cpu(*specs: str, channels: tuple[str, ...] = ("conda-forge",)) -> BuildPlan:
    """A conda plan of these specs."""
    plan = shipped_plan("cpu")
    return replace(plan, channels=channels, family=(), conda=specs)


def cuda(*specs: str) -> BuildPlan:
    """A conda plan that asks for CUDA 12.6."""
    plan = shipped_plan("cu126")
    resolution = replace(plan.resolution, source="conda-forge")
    return replace(plan, resolution=resolution, channels=("conda-forge",), family=specs, conda=())


def wheels(*family: str, source: str = "pypi", pip: tuple[str, ...] = (), cuda: str | None = None) -> BuildPlan:
    """A plan of the wheels template."""
    plan = shipped_plan("cu126", template="wheels")
    return replace(plan, resolution=replace(plan.resolution, source=source, cuda=cuda), family=family, pip=pip)
