"""The torch and CUDA that the wheels of a page were built for, as its address names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.ground.versions import minor
from envkit.lock.abi import Page, claim_of_page
from envkit.plan.requirements import Contents, Setting, Skipped
from envkit.project import bases

if TYPE_CHECKING:
    from envkit.plan.model import BuildPlan
    from envkit.resolve.model import Resolution

_DEVICES = ("cuda", "cpu")


def decided(contents: Contents, plan_of: Callable[[Contents], BuildPlan | None]) -> Contents:
    """Return contents with the torch and CUDA that the wheels of their pages need.

    A page for a torch or CUDA that the rest does not allow is left out by name: its wheels would not load.
    """
    if plan_of(contents) is None:
        return contents  # the rest has no plan by itself; `init` says so
    for setting in contents.of("find_links"):
        claim = claim_of_page(setting.value)
        wanted = _with(contents, setting, claim)
        plan = plan_of(wanted)
        if plan is not None and _fits(plan.resolution, claim):
            contents = wanted
            continue
        why = f"its wheels are for {_shown(claim)}, which the rest does not allow"
        contents = replace(
            contents,
            settings=tuple(one for one in contents.settings if one != setting),
            skipped=(*contents.skipped, Skipped(line=setting.line, why=why)),
        )
    return contents


def _with(contents: Contents, page: Setting, claim: Page) -> Contents:
    """Return contents with what a page adds to lines that leave torch or its device open."""
    settings = contents.settings
    if claim.torch and not any(one.value.startswith("==") and "*" not in one.value for one in contents.of("torch")):
        note = f"torch {claim.torch} is taken: the wheels of {page.value} are for it"
        settings += (Setting(field="torch", value=f"=={claim.torch}.*", line=page.line, note=note),)
    if claim.device and not any(one.field in _DEVICES and not bases.of_base(one.line) for one in settings):
        settings = tuple(one for one in settings if one.field not in _DEVICES)
        cpu = claim.device == "cpu"
        settings += (Setting(field="cpu" if cpu else "cuda", value="true" if cpu else claim.device, line=page.line),)
    return replace(contents, settings=settings)


def _fits(resolution: Resolution, claim: Page) -> bool:
    if claim.torch is not None and minor(resolution.torch) != claim.torch:
        return False
    if claim.device in (None, "cpu"):
        return claim.device is None or resolution.cuda is None
    # CUDA's libraries are compatible within a major version.
    return resolution.cuda is not None and resolution.cuda.partition(".")[0] == claim.device.partition(".")[0]


def _shown(claim: Page) -> str:
    device = "" if claim.device is None else "the CPU" if claim.device == "cpu" else f"CUDA {claim.device}"
    return " and ".join(part for part in (f"torch {claim.torch}" if claim.torch else "", device) if part)
