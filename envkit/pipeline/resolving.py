"""Requests of the command line and `envkit.api`: complete their fields on this host, and resolve them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
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
    from envkit.resolve.candidates import Candidates, Limit
    from envkit.resolve.model import Request, Resolution

Note = Callable[[str], None]
AUTO = "auto"


def facts_of(settings: Settings) -> Facts:
    """Load the facts with the overrides from the setting `facts`.

    Raises:
        UsageError: the overrides are invalid.
    """
    from envkit.facts.load import load  # noqa: PLC0415 - takes longer to import than to print a help text

    path = settings.get("facts")
    return load(Path(path) if path else None)


def fields_here(
    given: Mapping[str, Any], facts: Facts, note: Note, *, here: bool, detail: Note | None = None
) -> dict[str, Any]:
    """Return a request's fields with `today`, and with `auto` replaced by the driver and GPUs of this host.

    Args:
        given: by the names of `envkit.resolve.request.FIELDS`; `gpu` is a sequence.
        facts: GPUs in these tables are named by product, others by compute capability.
        note: receives problems with the driver or a GPU.
        here: treat a missing driver or GPU as `auto`.
        detail: receives a description of this host.

    Raises:
        EnvironmentProblem: `auto` was requested and this host has no NVIDIA driver or GPU.
        UsageError: SOURCE_DATE_EPOCH is not a number of seconds.
    """
    driver = given.get("driver") or (AUTO if here else None)
    gpus = tuple(given.get("gpu") or ((AUTO,) if here else ()))
    fields = dict(given) | {"driver": driver, "today": today(os.environ)}
    if (days := _age(facts, fields["today"])) > _OLD_DAYS:
        note(
            f"the compatibility data are {days} days old; "
            "envkit matrix update --into FILE reads newer releases for --facts"
        )
    if driver == AUTO or AUTO in gpus:
        from envkit.ground import nvidia  # noqa: PLC0415 - most requests do not need it

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


_NAMED = 3  # packages in a note
_SHOWN = 300  # characters of them
_OLD_DAYS = 90
"""After so many days, a newer torch than the newest of the facts is likely: a release takes two to three months."""


def _age(facts: Facts, day: str) -> int:
    """Return how many days before `day` the facts were collected."""
    return (date.fromisoformat(day) - date.fromisoformat(facts.collected)).days


def gpus_of(driver: Driver, facts: Facts) -> tuple[str, ...]:
    """Return the value of `--gpu` for each kind of GPU of this host: `A100-SXM4-80GB`, or `sm_80`.

    It is the product name if the facts have it, because forward compatibility depends on the product. If they do not,
    or list another compute capability than the driver reports, it is the driver's compute capability.

    Raises:
        EnvironmentProblem: no NVIDIA GPU is visible.
    """
    from envkit.resolve import gpus  # noqa: PLC0415 - as above

    named = []
    for gpu in driver.need_gpus():
        row = gpus.find(gpu.name, facts.gpus)
        # Forward compatibility packages replace the Linux driver's libraries; WSL2 uses the Windows driver instead.
        # None: only nvidia-smi can be read here, and before driver R510 it prints no capability.
        is_product = row is not None and gpu.capability in (None, row.capability) and not driver.is_windows
        named.append(gpu.name.removeprefix("NVIDIA ") if is_product or not gpu.capability else gpus.sm(gpu.capability))
    return tuple(dict.fromkeys(named))


_NAME = re.compile(r"[A-Za-z0-9._-]*")
_SLIP = 0.85  # likeness from which a name is a slip of another: torchvison is, torchao and torchtnt are not
_REQUIREMENT = re.compile(r"(torch|torchvision|torchaudio|torchtext|torchcodec)\s*([<>!~=]{1,2}.*)", re.IGNORECASE)


def _requirement(text: str) -> dict[str, Any]:
    """Return the fields of a requirement in place of a definition, such as `torch==2.4`; {} for other texts."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None or Path(text).exists():
        return {}
    return {"torch": match[2]} if match[1].lower() == "torch" else {"with": (f"{match[1]}{match[2]}",)}


def template_kind(name: str | None) -> str | None:
    """Return a template's build method, `miniconda` or `wheels`, which is all that the resolver needs.

    Raises:
        UsageError: no template has this name.
    """
    if name is None:
        return None
    from envkit.plan.definition import check_template, kind_of  # noqa: PLC0415 - doubles the start-up time

    why = check_template(name)
    if why:
        raise UsageError(f"--template: {name!r:.80} {why}", hint="--template miniconda, or --template wheels")
    return kind_of(name)


def asked(
    definition: str | None, fields: Mapping[str, Any], facts: Facts, note: Note, *, allow_source: Sequence[str] = ()
) -> Asked:
    """Return what a user asks for: a definition or a project's file (None: the default image) with fields over it.

    `allow_source` has entries that are added to those of the definition. In the field `with`, packages that are not
    chosen with torch are added to the definition's `pip`.

    Raises:
        UsageError: an entry is invalid.
    """
    from envkit.plan.planner import DEFAULT  # noqa: PLC0415 - doubles the start-up time

    allow, (rest, add) = allowing(allow_source), adding(fields)
    return Asked(
        definition=definition or DEFAULT,
        fields=rest,
        facts=facts,
        note=note,
        changed=lambda definition: add(allow(definition)),
    )


def adding(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], Callable[[Definition], Definition]]:
    """Return fields whose `with` has only packages that are chosen with torch, and a function that adds the others.

    They are added to a definition's `pip`, in place of its own requirements for the same packages.

    Raises:
        UsageError: one is not a requirement.
    """
    from envkit.plan.names import pip_spec  # noqa: PLC0415 - doubles the start-up time

    typed = tuple(fields.get("with") or ())
    packages = tuple(text for text in typed if not _is_companion(text))
    if not packages:
        return fields, lambda definition: definition
    for text in packages:
        if (why := pip_spec(text)) is not None:
            raise UsageError(f"--with: {text!r:.200} {why}", hint="--with 'einops>=0.7'")
    names = {_package_of(text) for text in packages}

    def added(definition: Definition) -> Definition:
        kept = (text for text in definition.pip if _package_of(text) not in names)
        return replace(definition, pip=tuple(dict.fromkeys((*kept, *packages))))

    return {**fields, "with": tuple(text for text in typed if text not in packages)}, added


def _package_of(text: str) -> str:
    """Return the normal form of the name that a requirement begins with."""
    from envkit.image.packages import normal  # noqa: PLC0415 - as above

    match = _NAME.match(text.strip())
    return normal(match[0]) if match else ""


def _is_companion(text: str) -> bool:
    """Return whether the name is one that is chosen with torch, or nearly: a slip must not fetch another's package."""
    from envkit.ground.text import similar  # noqa: PLC0415 - as above
    from envkit.resolve.companions import COMPANION_PACKAGES  # noqa: PLC0415 - as above

    return bool(similar(_package_of(text), COMPANION_PACKAGES, n=1, cutoff=_SLIP))


def allowing(sources: Sequence[str]) -> Callable[[Definition], Definition]:
    """Return a function that adds entries to a definition's `allow_source`."""
    from envkit.plan.source_spec import merged  # noqa: PLC0415 - as above

    return lambda definition: replace(definition, allow_source=merged(definition.allow_source, sources))


def definition_of(name: str, facts: Facts, note: Note, fields: Mapping[str, Any] | None = None) -> Definition:
    """Return a shipped image, a definition file, or a definition derived from a project's file or folder.

    Args:
        name: a name or a path.
        facts: used to check that a project's request can be resolved.
        note: receives each line of the project that is not used, or not as it stands.
        fields: the flags that will override the request: markers are for their Python and platform.

    Raises:
        UsageError: nothing has this name, or the file has errors.
    """
    from envkit.ground.text import neutral  # noqa: PLC0415 - as below
    from envkit.project.definition import load  # noqa: PLC0415 - doubles the start-up time

    definition, left = load(name, facts, _with_platform(fields or {}, facts))
    for text in left:
        note(neutral(text))
    return definition


def _with_platform(fields: Mapping[str, Any], facts: Facts) -> Mapping[str, Any]:
    """Return flags with the platform that follows from them: `--gpu GH200` has an Arm CPU."""
    from envkit.resolve.request import parse  # noqa: PLC0415 - doubles the start-up time

    if not fields.get("gpu") or fields.get("platform"):
        return fields
    return {**fields, "platform": parse({"gpu": fields["gpu"]}, facts).platform}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An image that a user asks for, from which plans are made: a definition or a project's file, and flags."""

    definition: str  # as for `definition_of`
    fields: Mapping[str, Any]  # from `fields_here`; they override the definition
    facts: Facts
    note: Note
    changed: Callable[[Definition], Definition] = lambda definition: definition  # what a row of a matrix changes in it
    _told: set[str] = field(default_factory=set)  # system packages that were named in a note
    _loaded: dict[str | None, Definition] = field(default_factory=dict)  # by the Python that markers are decided for

    def plan(self, limit: Limit | None = None) -> BuildPlan:
        """Return the plan; with a limit, that of its torch and Python.

        Raises:
            UsageError: the definition, a field or their combination is invalid.
            ConflictError: no combination satisfies the request.
        """
        from envkit.plan.planner import plan_of  # noqa: PLC0415 - doubles the start-up time

        definition = self.loaded(limit.python if limit else None)
        plan = plan_of(definition, self.fields, self.facts, limit)
        self._tell_needs(plan, definition)
        return plan

    def _tell_needs(self, plan: BuildPlan, definition: Definition) -> None:
        """Tell once which system packages the plan has that the definition does not name, and why."""
        from envkit.plan.planner import needs_of  # noqa: PLC0415 - as above

        own = {*definition.apt, *definition.rpm}
        for package, needed in needs_of(plan.pip, plan.os_family, self.facts).items():
            added = [name for name in needed if name not in own and name not in self._told]
            self._told.update(added)
            if added:
                self.note(f"the image gets {', '.join(added)}: {package} needs {'it' if len(added) == 1 else 'them'}")

    def loaded(self, python: str | None = None) -> Definition:
        """Return the definition, with markers decided for a Python; None: for the one that it has or chooses.

        Raises:
            UsageError: nothing has this name, or the file has errors.
        """
        if python not in self._loaded:
            again = bool(self._loaded)
            fields = self.fields if python is None else {**self.fields, "python": python}
            note = (lambda _: None) if again else self.note  # the lines that are left out have been told
            self._loaded[python] = self.changed(definition_of(self.definition, self.facts, note, fields))
        return self._loaded[python]

    def request(self, python: str | None = None) -> Request:
        """Return the request, with the build method as its template; `python` is as for `loaded`."""
        from envkit.plan.planner import request_of  # noqa: PLC0415 - as above

        request, kind, _ = request_of(self.loaded(python), self.fields, self.facts)
        return replace(request, template=kind)

    def undecided(self, plan: BuildPlan) -> tuple[str, ...]:
        """Return the packages of a plan whose own requirements may allow another torch or Python only.

        None if the request allows a single torch with a single Python.
        """
        packages = (*plan.pip, *self.loaded().conda)
        return packages if packages and sum(len(some.builds) for some in self.candidates(plan)) > 1 else ()

    def candidates(self, plan: BuildPlan) -> tuple[Candidates, ...]:
        """Return the torch releases that the request allows, by Python, those of a plan of it first."""
        from envkit.resolve.candidates import candidates_of  # noqa: PLC0415 - as above

        return candidates_of(self.request(), self.facts, plan.resolution.python)


def shown_packages(packages: Sequence[str]) -> str:
    """Return the first of some packages in words, and how many more there are."""
    more = f" and {len(packages) - _NAMED} more" if packages[_NAMED:] else ""
    return f"{', '.join(packages[:_NAMED])}{more}"[:_SHOWN]


def resolution_of(
    definition: str | None, fields: Mapping[str, Any], facts: Facts, note: Note
) -> tuple[Resolution, Request]:
    """Resolve a request; return the resolution and the complete request.

    Args:
        definition: as for `definition_of`; the fields override its request. None = only the fields.
        fields: from `fields_here`.
        facts: to resolve against.
        note: as for `definition_of`.

    Raises:
        UsageError: the definition or a field is invalid.
        Unresolvable: no versions are compatible; the exception has the conflict.
    """
    given = {**fields, "template": template_kind(fields.get("template"))}
    if definition is not None and (named := _requirement(definition)):
        definition, given = None, given | named
    if definition is None:
        from envkit.resolve.request import parse  # noqa: PLC0415 - the command's help needs none of these
        from envkit.resolve.resolver import resolve  # noqa: PLC0415 - as above

        request = parse(given, facts)
        resolution = resolve(request, facts)
    else:
        whole = asked(definition, given, facts, note)
        # Not `resolve`: a plan also names the definition as the origin of values, and its requirements files are
        # checked.
        plan = whole.plan()
        resolution, request = plan.resolution, whole.request()
        if packages := whole.undecided(plan):
            note(
                f"envkit lock chooses torch and Python with the packages that require them: {shown_packages(packages)}"
            )
    return resolution, request
