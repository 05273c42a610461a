"""A request as it is asked, by the command line or `envkit.api`: its fields on this host, and the answer to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground.clock import today
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.ground.nvidia import Driver
    from envkit.ground.settings import Settings
    from envkit.plan.definition import Definition
    from envkit.plan.model import BuildPlan
    from envkit.resolve.model import Request, Resolution

Note = Callable[[str], None]
AUTO = "auto"


def facts_of(settings: Settings) -> Facts:
    """Load the facts, with the rows of the setting `facts` laid over them.

    Raises:
        UsageError: the rows are invalid.
    """
    from envkit.facts.load import load  # noqa: PLC0415 - takes longer to import than to print a help text

    path = settings.get("facts")
    return load(Path(path) if path else None)


def fields_here(
    asked: Mapping[str, Any], facts: Facts, note: Note, *, here: bool, detail: Note | None = None
) -> dict[str, Any]:
    """Return a request's fields, with `auto` replaced by the driver and GPUs of this host, and `today`.

    Args:
        asked: by the names of `envkit.resolve.request.FIELDS`; `gpu` is a sequence.
        facts: the products that they know are named, others are told by their compute capability.
        note: hears what is wrong with the driver or a GPU.
        here: the same as `auto` for the driver and the GPUs that are not given.
        detail: hears what this host has; None = nobody.

    Raises:
        EnvironmentProblem: `auto` was asked for and this host has no NVIDIA driver or GPU.
        UsageError: SOURCE_DATE_EPOCH is not a number of seconds.
    """
    driver = asked.get("driver") or (AUTO if here else None)
    gpus = tuple(asked.get("gpu") or ((AUTO,) if here else ()))
    fields = dict(asked) | {"driver": driver, "today": today(os.environ)}
    if driver == AUTO or AUTO in gpus:
        from envkit.ground import nvidia  # noqa: PLC0415 - most requests name a machine, or none

        own = nvidia.read()
        if detail is not None:
            detail(f"this machine: {own}")
        if driver == AUTO:
            fields["driver"] = own.need_version()
        if AUTO in gpus:
            names = gpus_of(own, facts)
            gpus = tuple(name for typed in gpus for name in (names if typed == AUTO else (typed,)))
        for text in own.notes:
            note(text)
    return fields | {"gpu": tuple(dict.fromkeys(gpus))}


def gpus_of(driver: Driver, facts: Facts) -> tuple[str, ...]:
    """Return what to type for `--gpu` for each kind of GPU of this host: `A100-SXM4-80GB`, or `sm_80`.

    A product is named where the facts know it, because forward compatibility depends on the product. The capability
    that the driver tells decides where they know none or another one.

    Raises:
        EnvironmentProblem: no NVIDIA GPU is visible.
    """
    from envkit.resolve import gpus  # noqa: PLC0415 - as above

    named = []
    for gpu in driver.need_gpus():
        row = gpus.find(gpu.name, facts.gpus)
        # The packages of forward compatibility replace the driver of Linux, which WSL2 does not have.
        is_product = row is not None and gpu.capability in (None, row.capability) and not driver.is_windows
        named.append(gpu.name.removeprefix("NVIDIA ") if is_product or not gpu.capability else gpus.sm(gpu.capability))
    return tuple(dict.fromkeys(named))


def template_kind(name: str | None) -> str | None:
    """Return how a template installs, which is all that the resolver needs of it: `miniconda` or `wheels`.

    Raises:
        UsageError: no template has this name.
    """
    if name is None:
        return None
    from envkit.plan.definition import check_template, kind_of  # noqa: PLC0415 - as long to import as all the rest

    why = check_template(name)
    if why:
        raise UsageError(f"--template: {name!r:.80} {why}", hint="--template miniconda, or --template wheels")
    return kind_of(name)


def definition_of(name: str, facts: Facts, note: Note) -> Definition:
    """Return a shipped image, a definition file, or what a project's file or folder says.

    Args:
        name: a name or a path.
        facts: whether a project's request has an answer.
        note: hears of each line of the project that is not taken over.

    Raises:
        UsageError: nothing has this name, or the file has faults.
    """
    from envkit.ground.text import neutral  # noqa: PLC0415 - as below
    from envkit.project.definition import load  # noqa: PLC0415 - as long to import as all the rest

    definition, left = load(name, facts)
    for entry in left:
        note(neutral(f"{entry.line.where}: {entry.line.text} is left out: {entry.why}"))
    return definition


def plan_asked(definition: str | None, fields: Mapping[str, Any], facts: Facts, note: Note) -> BuildPlan:
    """Return the plan of a definition or a project's file (None: the default image), which the fields override.

    Raises:
        UsageError: the definition, a field or their combination is invalid.
        ConflictError: no combination satisfies the request.
    """
    from envkit.plan.planner import DEFAULT, plan_of  # noqa: PLC0415 - as long to import as all the rest

    return plan_of(definition_of(definition or DEFAULT, facts, note), fields, facts)


def resolution_of(
    definition: str | None, fields: Mapping[str, Any], facts: Facts, note: Note
) -> tuple[Resolution, Request]:
    """Return the answer to a request, and the whole request.

    Args:
        definition: as for `definition_of`, whose request the fields override; None = the fields alone.
        fields: as `fields_here` returned them.
        facts: to resolve against.
        note: as for `definition_of`.

    Raises:
        UsageError: the definition or a field is invalid.
        Unresolvable: no combination fits; it carries the conflict.
    """
    asked = {**fields, "template": template_kind(fields.get("template"))}
    if definition is None:
        from envkit.resolve.request import parse  # noqa: PLC0415 - the command's help needs none of these
        from envkit.resolve.resolver import resolve  # noqa: PLC0415 - as above

        request = parse(asked, facts)
        resolution = resolve(request, facts)
    else:
        from envkit.plan.planner import plan_of, request_of  # noqa: PLC0415 - as above

        read = definition_of(definition, facts, note)
        request, kind, _ = request_of(read, asked, facts)
        request = replace(request, template=kind)
        resolution = plan_of(read, asked, facts).resolution
    return resolution, request
