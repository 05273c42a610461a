"""Pins of packages that torch's wheels bring (CUDA libraries, triton), and the torch and CUDA that have them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envkit.ground.versions import key
from envkit.plan.names import distribution
from envkit.plan.requirements import Contents, Line, Package, Setting
from envkit.project import bases
from envkit.resolve.index import WHEEL_SOURCES

if TYPE_CHECKING:
    from envkit.facts.model import Build, Facts
    from envkit.plan.model import BuildPlan

# The version of these is that of their toolkit: nvidia-cuda-runtime-cu12 12.4.127 is of CUDA 12.4. cuBLAS has it in
# CUDA 12 only.
_OF_TOOLKIT = re.compile(r"nvidia-(?:cuda-(?:runtime|nvrtc|cupti)(?:-cu\d+)?|cublas-cu12)")
_CUDNN = re.compile(r"nvidia-cudnn-cu\d+")
_TRITON = "triton"
_DEVICES = ("cuda", "cpu")


def decided(contents: Contents, facts: Facts, plan_of: Callable[[Contents], BuildPlan | None]) -> Contents:
    """Return contents with the CUDA, cuDNN and torch that their exact pins belong to, where a combination has them.

    Torch requires one version of each of these packages, so another torch or CUDA would contradict the pins when the
    image is locked. What a line of the contents says of torch and CUDA itself counts before them.
    """
    named = (*contents.packages, *contents.constraints)
    pins = {distribution(package.spec): package for package in named if _version(package)}
    for setting in _settings(pins, contents, facts):
        wanted = _with(contents, setting)
        # The pins may be of packages that have nothing to do with this torch; the lock says what contradicts what.
        if plan_of(wanted) is not None:
            contents = wanted
    return contents


def _settings(pins: dict[str, Package], contents: Contents, facts: Facts) -> list[Setting]:
    settings = []
    toolkit = next((package for name, package in pins.items() if _OF_TOOLKIT.fullmatch(name)), None)
    if toolkit is not None and all(bases.of_base(one.line) for key in _DEVICES for one in contents.of(key)):
        cuda = ".".join(_version(toolkit).split(".")[:2])
        settings.append(_setting("cuda", cuda, toolkit.line, f"CUDA {cuda} is taken: {toolkit.spec} is of it"))
    cudnn = next((package for name, package in pins.items() if _CUDNN.fullmatch(name)), None)
    if cudnn is not None and not contents.of("cudnn"):
        settings.append(_setting("cudnn", _version(cudnn), cudnn.line, ""))
    triton = pins.get(_TRITON)
    torches = _with_triton(_version(triton), facts) if triton else []
    if triton and torches:
        span = f"=={torches[0]}" if len(torches) == 1 else f">={torches[0]},<={torches[-1]}"
        settings.append(_setting("torch", span, triton.line, f"torch {span} is taken: it requires {triton.spec}"))
    return settings


def _setting(field: str, value: str, line: Line, note: str) -> Setting:
    return Setting(field=field, value=value, line=line, note=note)


def _with(contents: Contents, setting: Setting) -> Contents:
    # Constraints on torch are joined; the CUDA of a base image yields to that of the wheels.
    others = tuple(one for one in contents.settings if not (setting.field == "cuda" and one.field in _DEVICES))
    return replace(contents, settings=(*others, setting))


def _version(package: Package) -> str:
    """Return the exact version of a pin; an empty text if it has none."""
    clauses = list(Requirement(package.spec).specifier)
    exact = len(clauses) == 1 and clauses[0].operator == "==" and not clauses[0].version.endswith("*")
    return clauses[0].version.partition("+")[0] if exact else ""


def _with_triton(version: str, facts: Facts) -> list[str]:
    """Return the versions of torch whose wheels require a triton, oldest first."""

    def fits(build: Build) -> bool:
        required = build.triton if build.source in WHEEL_SOURCES else None
        return required is not None and version in SpecifierSet(f"=={required}")

    return sorted({build.torch for build in facts.builds if fits(build)}, key=key)
