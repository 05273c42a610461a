"""The requirements files that an image definition lists: their packages, and what they ask of the resolution."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import Faults, UsageError
from envkit.ground.versions import parse_constraint
from envkit.plan.requirements import SOURCES, Line, Reading, Setting, Target, sort

if TYPE_CHECKING:
    from envkit.resolve.model import Resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The contents of the requirements files of a definition."""

    specs: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()

    def of(self, name: str) -> tuple[str, ...]:
        """Return the values of one field."""
        return tuple(entry.value for entry in self.settings if entry.field == name)


def listed_in(files: Sequence[str], folder: Path, *, target: Target, faults: Faults, at: str) -> Listed:
    """Return the contents of a definition's requirements files.

    Args:
        files: as the definition names them.
        folder: the definition's folder.
        target: of the definition, for markers.
        faults: receives one error for each line that cannot be used.
        at: the path of the list in the definition, for errors.
    """
    lines: list[Line] = []
    reading = Reading()
    for name in files:
        try:
            lines += reading.lines(name, folder)
        except UsageError as error:
            faults.add(at, error.message)
    contents = sort(lines, target)
    for entry in contents.skipped:
        if not (entry.harmless or entry.tolerated):
            faults.add(entry.line.where, f"{entry.line.text!r:.120} {_predicate(entry.why)}")
    return Listed(
        specs=tuple(package.spec for package in contents.packages),
        constraints=tuple(package.spec for package in contents.constraints),
        settings=contents.settings,
    )


def _predicate(why: str) -> str:
    return why if why.startswith(("is ", "contradicts ")) else f"cannot be used: {why}"


def with_listed(
    request: Mapping[str, str | tuple[str, ...] | bool], listed: Listed, faults: Faults
) -> dict[str, str | tuple[str, ...] | bool]:
    """Return a definition's request with the constraints from its requirements files added.

    Args:
        request: by field name.
        listed: the contents of the files.
        faults: receives one error for each contradiction.
    """
    merged = dict(request)
    for entry in listed.settings:
        own = merged.get(entry.field)
        if entry.field == "cpu":
            if any(merged.get(key) for key in ("cuda", "cudnn", "driver", "gpu")):
                faults.say(_clash(entry, "request", "requires CUDA"))
            merged["cpu"] = True
        elif entry.field == "cuda" and merged.get("cpu"):
            faults.say(_clash(entry, "request.cpu", "is true"))
        elif entry.field in ("torch", "cuda") and entry.value:
            if isinstance(own, str) and _disjoint(own, entry.value):
                faults.say(_clash(entry, f"request.{entry.field}", f"is {own}"))
            merged[entry.field] = _both(own, entry.value) if isinstance(own, str) else entry.value
    return merged


def _clash(entry: Setting, key: str, predicate: str) -> str:
    return f"{entry.line.where}: {entry.line.text!r:.120} contradicts the definition, whose {key} {predicate}"


def _clauses(text: str) -> str:
    """Return a constraint as clauses: `2.7` and `2.7.*` are `==2.7.*`."""
    if re.match(r"[<>=!~]", text):
        return text
    return f"=={text.partition('+')[0].removesuffix('.*')}.*"


def _disjoint(first: str, second: str) -> bool:
    return any(
        pin and not parse_constraint(other, "request").allows(pin[1])
        for text, other in ((first, second), (second, first))
        for pin in [re.fullmatch(r"(?:==\s*)?([0-9][0-9.]*[0-9])(?:\+\S*)?", text)]
    )


def _both(own: str, listed: str) -> str:
    return own if own == listed else f"{_clauses(own)},{_clauses(listed)}"


def unmet(settings: Iterable[Setting], resolution: Resolution) -> tuple[str, ...]:
    """Return one error for each constraint of requirements files that a resolution does not meet."""
    conflicts = []
    for entry in settings:
        if entry.field in SOURCES:
            continue
        if entry.field == "cpu":
            has, fits = resolution.cuda and f"CUDA {resolution.cuda}", resolution.cuda is None
        else:
            value = getattr(resolution, entry.field)
            has = f"{entry.field} {value or 'none'}"
            fits = not entry.value or (value is not None and parse_constraint(entry.value, entry.field).allows(value))
        if not fits:
            what = f"{entry.line.where}: {entry.line.text!r:.120}"
            conflicts.append(f"{what} does not allow {has}, which the rest of the request needs")
    return tuple(conflicts)
