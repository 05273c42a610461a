"""The checks that exist: one entry per folder beside this file, read from its `check.yaml`.

A verification asks for the checks of this catalog, so a check that an image leaves out is noticed. Plug-ins add folders
of the same form, with ids from C80 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any

import envkit.checks
from envkit.checks.model import Judge
from envkit.checks.shown import Show
from envkit.ground import plugins, strictyaml
from envkit.ground.errors import UsageError
from envkit.ground.plugins import Plugin

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

TIERS = ("quick", "standard", "deep")
NEEDS = ("host", "torch", "cuda")
CARD = "check.yaml"

_ID = re.compile(r"C\d{2}")
_TEXTS = ("id", "title", "tier", "needs", "verifies", "counts", "budget_s")
_CODE = re.compile(r"[A-Z][A-Z0-9_]*")
_FIRST_ADDED = "C80"
_OTHERS = ("topic", "budgets_s", "after", "machine", "thresholds")


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """One check. `budget_s` is the time it is meant to take in seconds; it is stopped at four times that."""

    id: str
    title: str
    tier: str
    budget_s: float
    needs: str  # 'host' | 'torch' | 'cuda'
    budgets: tuple[tuple[str, float], ...] = ()  # seconds in the deeper tiers, where a check does more there
    folder: str = ""  # 'c10_transfer'
    topic: str = ""  # the heading of a report under which it stands
    verifies: str = ""
    counts: str = ""  # 'yes' | 'informs' | when it counts
    after: tuple[str, ...] = ()  # checks that run before this one

    def seconds(self, tier: str) -> float:
        """Return the time the check is meant to take in `tier`."""
        return dict(self.budgets).get(tier, self.budget_s)


@cache
def catalog() -> tuple[CheckEntry, ...]:
    """Return every check in the order they run: by id, but each after those that its `after` names.

    Raises:
        UsageError: a `check.yaml` is invalid.
    """
    entries = [_entry(folder, cards()[folder]) for folder in cards()]
    return _ordered(entries)


@cache
def cards() -> Mapping[str, Mapping[str, Any]]:
    """Return the `check.yaml` of every check by its folder, in the order of the folders.

    Raises:
        UsageError: one is not strict YAML, or not a mapping.
    """
    return {folder.name: _card(folder) for folder in folders()}


def folders() -> list[Traversable]:
    """Return the folders of all checks, by name."""
    return [*_folders(resources.files(__package__)), *(folder for folder, _ in _added())]


def _folders(root: Traversable) -> list[Traversable]:
    return sorted((item for item in root.iterdir() if (item / CARD).is_file()), key=lambda item: item.name)


@cache
def _added() -> tuple[tuple[Traversable, Plugin], ...]:
    """Return the folders of checks that plug-ins add, each with its plug-in; they become part of this package.

    Raises:
        EnvironmentProblem: a plug-in cannot be loaded, or one of its checks is invalid.
    """
    known = {folder.name for folder in _folders(resources.files(__package__))}
    added: list[tuple[Traversable, Plugin]] = []
    for plugin in plugins.of(plugins.CHECKS):
        root = plugin.path(folder=True)
        for folder in _folders(root):
            if why := _why_not(folder, known):
                raise plugin.fault(why)
            known.add(folder.name)
            added.append((folder, plugin))
        envkit.checks.__path__.append(str(root))  # behind the own folders, which it cannot replace
    for folder, plugin in added:
        _part(folder.name, "judge", plugin)  # what fails does so before an image runs, not after
    return tuple(added)


def _why_not(folder: Traversable, known: set[str]) -> str | None:
    """Return why a plug-in's folder is not a check; None where it is one."""
    try:
        entry = _entry(folder.name, _card(folder))
    except UsageError as error:
        return error.message
    missing = [file for file in ("__init__.py", "observe.py", "judge.py") if not (folder / file).is_file()]
    if missing:
        return f"checks/{folder.name} has no {missing[0]}"
    if not folder.name.startswith(f"{entry.id.lower()}_"):
        return f"checks/{folder.name}: the folder of the check {entry.id} is named {entry.id.lower()}_NAME"
    if entry.id < _FIRST_ADDED:
        return f"checks/{folder.name}: id: {entry.id} is below {_FIRST_ADDED}, where the ids of plug-ins begin"
    same = [name for name in known if name.startswith(f"{entry.id.lower()}_")]
    return f"checks/{folder.name} and checks/{same[0]} have the same id {entry.id}" if same else None


def _imported(folder: str, part: str) -> Any:
    """Return the function of a check's module that has the module's name.

    Raises:
        EnvironmentProblem: it is a plug-in's, and it fails or lacks its function.
    """
    plugin = {added.name: plugin for added, plugin in _added()}.get(folder)
    if plugin is not None:
        return _part(folder, part, plugin)
    return getattr(import_module(f"{__package__}.{folder}.{part}"), part)


def _part(folder: str, part: str, plugin: Plugin) -> Any:
    try:
        return getattr(import_module(f"{__package__}.{folder}.{part}"), part)
    except (Exception, SystemExit) as error:
        raise plugin.fault(f"checks/{folder}/{part}.py: {type(error).__name__}: {error}") from error


@cache
def judges() -> Mapping[str, Judge]:
    """Return the judge of every check by its id."""
    return {entry.id: _imported(entry.folder, "judge") for entry in catalog()}


@cache
def shows() -> Mapping[str, Show]:
    """Return what a report shows of each check by its id, in the order the checks run."""
    with_one = {folder.name for folder in folders() if (folder / "show.py").is_file()}
    return {entry.id: _imported(entry.folder, "show") for entry in catalog() if entry.folder in with_one}


@cache
def machine_codes() -> frozenset[str]:
    """Return the reason codes of every check that blame the machine or its driver, and never the image.

    A code means the same wherever it occurs, so a check also blames the machine with a code of another check.
    """
    return frozenset(code for card in cards().values() for code in card.get("machine", ()))


def select(tier: str, only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[CheckEntry, ...]:
    """Return the checks of a tier and of every cheaper one, in order.

    `only` picks among all tiers, `skip` leaves out.

    Raises:
        UsageError: an unknown tier or check id, or nothing is left.
    """
    if tier not in TIERS:
        raise UsageError(f"{tier!r} is not a tier", hint=f"use one of {', '.join(TIERS)}")
    wanted, unwanted = [item.upper() for item in only], [item.upper() for item in skip]
    known = {entry.id for entry in catalog()}
    unknown = [item for item in (*wanted, *unwanted) if item not in known]
    if unknown:
        raise UsageError(f"no check {', '.join(unknown)}", hint="envkit verify --list")
    allowed = TIERS[: TIERS.index(tier) + 1]
    chosen = [entry for entry in catalog() if (entry.id in wanted if wanted else entry.tier in allowed)]
    left = tuple(entry for entry in chosen if entry.id not in unwanted)
    if not left:
        raise UsageError("no check is left to run", hint="envkit verify --list")
    return left


def budget_s(entries: Sequence[CheckEntry], tier: str = "quick") -> float:
    """Return the seconds the checks are meant to take together in `tier`."""
    return sum(entry.seconds(tier) for entry in entries)


def _card(folder: Traversable) -> Mapping[str, Any]:
    name = f"checks/{folder.name}/{CARD}"
    tree = strictyaml.read((folder / CARD).read_text(encoding="utf-8"), name)
    if not isinstance(tree, dict):
        raise UsageError(f"{name}: not a mapping of keys")
    return tree


def _entry(folder: str, card: Mapping[str, Any]) -> CheckEntry:
    faults = [f"{key}: missing or not text" for key in _TEXTS if not isinstance(card.get(key), str)]
    faults += [f"{key}: unknown key" for key in card if key not in (*_TEXTS, *_OTHERS)]
    if not faults:
        faults += [] if _ID.fullmatch(card["id"]) else [f"id: {card['id']!r} is not C and two digits"]
        faults += [] if card["tier"] in TIERS else [f"tier: {card['tier']!r} is not one of {', '.join(TIERS)}"]
        faults += [f"machine: {code!r} is not a reason code" for code in _not_codes(card.get("machine", ()))]
        faults += [] if card["needs"] in NEEDS else [f"needs: {card['needs']!r} is not one of {', '.join(NEEDS)}"]
    if faults:
        name = f"checks/{folder}/{CARD}"
        raise UsageError(f"{name}: {faults[0]}", details=tuple(f"{name}: {fault}" for fault in faults[1:]))
    return CheckEntry(
        card["id"],
        card["title"],
        card["tier"],
        float(card["budget_s"]),
        card["needs"],
        tuple((tier, float(seconds)) for tier, seconds in card.get("budgets_s", {}).items()),
        folder,
        str(card.get("topic", "")),
        card["verifies"],
        card["counts"],
        tuple(card.get("after", ())),
    )


def _not_codes(codes: Any) -> list[Any]:
    if not isinstance(codes, list | tuple):
        return [codes]
    return [code for code in codes if not isinstance(code, str) or _CODE.fullmatch(code) is None]


def _ordered(entries: Iterable[CheckEntry]) -> tuple[CheckEntry, ...]:
    """Return the checks by id, each with those it comes after in front of it."""
    waiting: dict[str, CheckEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.id):
        if entry.id in waiting:
            raise UsageError(f"checks/{waiting[entry.id].folder} and checks/{entry.folder} have the same id {entry.id}")
        waiting[entry.id] = entry
    placed: dict[str, CheckEntry] = {}

    def place(entry: CheckEntry, below: tuple[str, ...]) -> None:
        for name in entry.after:
            if name in below or name not in waiting:
                fault = "is a circle" if name in below else "is not a check"
                raise UsageError(f"checks/{entry.folder}/{CARD}: after: {name} {fault}")
            place(waiting[name], (*below, name))
        placed.setdefault(entry.id, entry)

    for entry in waiting.values():
        place(entry, (entry.id,))
    return tuple(placed.values())
