"""The image in which a source is built: the plan's Python, a compiler and the source's build requirements. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from envkit.facts.model import Facts
from envkit.plan import bases, variables
from envkit.plan.definition import kind_of
from envkit.plan.model import BuildPlan, Smoke
from envkit.plan.planner import COMPILERS

NAME = "builder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a source needs to be built."""

    requires: tuple[str, ...]  # requirements, as in `build-system.requires`
    torch: bool  # its setup.py imports torch, so it is compiled with the plan's torch
    nvcc: bool  # it has CUDA sources


def builder_plan(plan: BuildPlan, needs: Needs, facts: Facts) -> BuildPlan:
    """Return the plan of the builder image for a source.

    The plan's user, variables, labels and other packages are left out, so plans that differ only in these share the
    wheels that are built.

    Raises:
        UsageError: there is no nvidia/cuda image with the toolkit for this OS and CUDA.
    """
    system = bases.os_row(plan.resolution.os, facts)
    conda = kind_of(plan.template) == "miniconda"
    nvcc = needs.nvcc and plan.resolution.cuda is not None
    kind = "miniconda" if conda else "wheels"
    env = variables.image_variables(plan.resolution, kind=kind, devel=nvcc, features=())
    return replace(
        plan,
        name=NAME,
        title="Builds packages from source",
        template=kind,
        flavor="devel" if nvcc else "runtime",
        base=bases.devel_image(plan.resolution, system, facts) if nvcc else system.image,
        build_base=system.image,
        family=plan.family if needs.torch else (),
        conda=(),
        pip=tuple(needs.requires),
        constraints=(),
        allow_source=(),
        # No git: sources are fetched before the build, which has no network.
        system=_unique([*_python(plan), *(name for name in COMPILERS[system.family] if name != "git")]),
        env=tuple(sorted(env.items())),
        labels=(),
        features=(),
        user="1000:1000",
        workdir="/workspace",
        entrypoint=(),
        cmd=("python",),
        smoke=Smoke(),
        copy=(),
        ports=(),
        volumes=(),
    )


def _python(plan: BuildPlan) -> Sequence[str]:
    """Return the packages of the system's Python with its headers; none for conda, whose Python includes them."""
    if plan.interpreter is None:
        return ()
    headers = f"{plan.interpreter}-{'dev' if plan.os_family == 'deb' else 'devel'}"
    return (plan.interpreter, headers)


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
