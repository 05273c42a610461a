"""The catalog of checks: one entry per folder beside this file, read from its `check.yaml`.

A verification requests the checks of this catalog, so a check missing from an image's answer is noticed. Plug-ins add
folders of the same form, with IDs from C80 on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

import envkit.checks
from envkit.checks.model import Finding, Verdict
from envkit.checks.observed import MalformedError
from envkit.checks.sheet import Sheet, Shown
from envkit.ground import plugins, strictyaml
from envkit.ground.errors import Faults, UsageError
from envkit.ground.plugins import Plugin
from envkit.ground.records import Location

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from envkit.checks.case import Case, Judge
    from envkit.checks.reading import Tree
    from envkit.checks.sheet import Show

Result = TypeVar("Result")
TIERS = ("quick", "standard", "deep")
NEEDS = ("host", "torch", "cuda")
CARD = "check.yaml"

# Always two digits, so that IDs compare as text: in `_ordered`, and with _FIRST_ADDED.
_ID = re.compile(r"C\d{2}")
_TEXTS = ("id", "title", "tier", "needs", "verifies", "counts", "budget_s")
# A reason code, such as GPU_HANGS.
_CODE = re.compile(r"[A-Z][A-Z0-9_]*")
_FIRST_ADDED = "C80"
_OTHERS = ("topic", "budgets_s", "after", "machine", "thresholds")


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """One check. `budget_s` is its time budget in seconds; it is stopped after four times that."""

    id: str
    title: str
    tier: str
    budget_s: float
    needs: str  # 'host' | 'torch' | 'cuda'
    budgets: tuple[tuple[str, float], ...] = ()  # seconds in deeper tiers in which the check does more
    folder: str = ""  # 'c10_transfer'
    topic: str = ""  # the heading of its section in a report
    verifies: str = ""
    counts: str = ""  # 'yes' | 'informs' | when it counts
    after: tuple[str, ...] = ()  # checks that run before this one

    def seconds(self, tier: str) -> float:
        """Return the check's time budget in `tier`, in seconds."""
        return dict(self.budgets).get(tier, self.budget_s)


@cache
def catalog() -> tuple[CheckEntry, ...]:
    """Return every check in the order in which they run: by ID, but each after those listed in its `after`.

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
            if fault := _fault_of(folder, known):
                raise plugin.fault(fault)
            known.add(folder.name)
            added.append((folder, plugin))
        envkit.checks.__path__.append(str(root))  # last, so that a plug-in cannot replace a check of envkit
    for folder, plugin in added:
        _require_judge(folder.name, plugin)  # so that a broken plug-in fails before an image runs
    return tuple(added)


def _require_judge(folder: str, plugin: Plugin) -> None:
    judge = _import_of_plugin(folder, "judge", plugin)
    try:
        signature(judge).bind(None)
    except (TypeError, ValueError) as error:
        raise plugin.fault(f"checks/{folder}/judge.py cannot be called as judge(case): {error}") from error


def _fault_of(folder: Traversable, known: set[str]) -> str | None:
    """Return why a plug-in's folder is not a valid check, or None if it is valid."""
    try:
        entry = _entry(folder.name, _card(folder))
    except UsageError as error:
        return error.message
    missing = [file for file in ("__init__.py", "observe.py", "judge.py") if not (folder / file).is_file()]
    if missing:
        return f"checks/{folder.name} has no {missing[0]}"
    if not folder.name.startswith(f"{entry.id.lower()}_"):
        return f"checks/{folder.name}: the folder of check {entry.id} must be named {entry.id.lower()}_NAME"
    if entry.id < _FIRST_ADDED:
        return f"checks/{folder.name}: id: {entry.id} is below {_FIRST_ADDED}, the first ID for plug-ins"
    # A folder is named after its ID, so a second check with the ID shows without reading the other cards.
    same = [name for name in known if name.startswith(f"{entry.id.lower()}_")]
    return f"checks/{folder.name} and checks/{same[0]} have the same id {entry.id}" if same else None


def _plugin_of(folder: str) -> Plugin | None:
    """Return the plug-in that adds a check, None for a check of envkit."""
    return next((plugin for added, plugin in _added() if added.name == folder), None)


def _function(folder: str, module: str) -> Any:
    """Return the function of a check that is named like its module: `judge` or `show`.

    Raises:
        EnvironmentProblem: the module of a plug-in cannot be imported or lacks the function.
    """
    plugin = _plugin_of(folder)
    if plugin is not None:
        return _import_of_plugin(folder, module, plugin)
    return getattr(import_module(f"{__package__}.{folder}.{module}"), module)


def _import_of_plugin(folder: str, module: str, plugin: Plugin) -> Any:
    try:
        return getattr(import_module(f"{__package__}.{folder}.{module}"), module)
    # A plug-in may raise anything on import, even sys.exit(); all of it is reported as the plug-in's fault.
    except (Exception, SystemExit) as error:
        raise plugin.fault(f"checks/{folder}/{module}.py: {type(error).__name__}: {error}") from error


@cache
def judges() -> Mapping[str, Judge]:
    """Return the judge of every check by its ID."""
    return {entry.id: _judge_of(entry.folder) for entry in catalog()}


def _judge_of(folder: str) -> Judge:
    judge: Judge = _function(folder, "judge")
    plugin = _plugin_of(folder)
    if plugin is None:
        return judge

    def judged(case: Case) -> Finding:
        finding = _tried(plugin, f"checks/{folder}/judge.py", judge, case, Finding)
        return Finding(Verdict.ERROR, finding, "PLUGIN_FAILED") if isinstance(finding, str) else finding

    return judged


def _tried(
    plugin: Plugin, file: str, function: Callable[[Any], Any], given: object, kind: type[Result]
) -> Result | str:
    """Return what a plug-in's function returns for `given`, or the words of its fault. The run has taken its time."""
    try:
        result = function(given)
    except MalformedError:  # the fault of the observation
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may raise anything
        fault = f"{type(error).__name__}: {error}"
    else:
        if isinstance(result, kind):
            return result
        fault = f"returned {type(result).__name__}, not a {kind.__name__}"
    return plugin.fault(f"{file}: {fault}").message


@cache
def shows() -> Mapping[str, Show]:
    """Return the `show` functions by check ID, in the order in which the checks run."""
    with_show = {folder.name for folder in folders() if (folder / "show.py").is_file()}
    return {entry.id: _show_of(entry) for entry in catalog() if entry.folder in with_show}


def _show_of(entry: CheckEntry) -> Show:
    show: Show = _function(entry.folder, "show")
    plugin = _plugin_of(entry.folder)
    if plugin is None:
        return show

    def shown(checks: Sequence[Tree]) -> Shown:
        section = _tried(plugin, f"checks/{entry.folder}/show.py", show, checks, Shown)
        if isinstance(section, Shown):
            return section
        sheet = Sheet(entry.title, ("show.py",), [["failed"]], notes=(section,))
        return Shown(ident=entry.folder, title=entry.title, sheets=(sheet,))

    return shown


@cache
def machine_codes() -> frozenset[str]:
    """Return the reason codes that blame the machine or its driver and never the image.

    A code has one meaning everywhere, so a check may also use a code that another check lists.
    """
    return frozenset(code for card in cards().values() for code in card.get("machine", ()))


def select(tier: str, only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[CheckEntry, ...]:
    """Return the checks of a tier and of every cheaper one, in order.

    `only` selects checks of any tier instead, `skip` leaves checks out.

    Raises:
        UsageError: an unknown tier or check ID, or no check is left.
    """
    if tier not in TIERS:
        raise UsageError(f"unknown tier {tier!r}", hint=f"use one of {', '.join(TIERS)}")
    wanted, unwanted = [item.upper() for item in only], [item.upper() for item in skip]
    known = {entry.id for entry in catalog()}
    unknown = [item for item in (*wanted, *unwanted) if item not in known]
    if unknown:
        raise UsageError(f"unknown check {', '.join(unknown)}", hint="envkit verify --list")
    allowed = TIERS[: TIERS.index(tier) + 1]
    chosen = [entry for entry in catalog() if (entry.id in wanted if wanted else entry.tier in allowed)]
    left = tuple(entry for entry in chosen if entry.id not in unwanted)
    if not left:
        raise UsageError("no checks left to run", hint="envkit verify --list")
    return left


def budget_s(entries: Sequence[CheckEntry], tier: str = "quick") -> float:
    """Return the time budget of all these checks together in `tier`, in seconds."""
    return sum(entry.seconds(tier) for entry in entries)


def _card(folder: Traversable) -> Mapping[str, Any]:
    name = f"checks/{folder.name}/{CARD}"
    tree = strictyaml.read((folder / CARD).read_text(encoding="utf-8"), name)
    if not isinstance(tree, dict):
        raise UsageError(f"{name}: not a mapping of keys")
    return tree


def _entry(folder: str, card: Mapping[str, Any]) -> CheckEntry:
    faults = Faults()
    at = Location(f"checks/{folder}/{CARD}", faults)
    for key in _TEXTS:
        if not isinstance(card.get(key), str):
            at.add(key, "missing or not text")
    for key in card:
        if key not in (*_TEXTS, *_OTHERS):
            at.add(key, "unknown key")
    faults.refuse(most=sys.maxsize)
    if not _ID.fullmatch(card["id"]):
        at.add("id", f"{card['id']!r} is not C and two digits")
    if card["tier"] not in TIERS:
        at.add("tier", f"{card['tier']!r} is not one of {', '.join(TIERS)}")
    for code in _not_codes(card.get("machine", ())):
        at.add("machine", f"{code!r} is not a reason code")
    if card["needs"] not in NEEDS:
        at.add("needs", f"{card['needs']!r} is not one of {', '.join(NEEDS)}")
    budgets, after = card.get("budgets_s", {}), card.get("after", [])
    if not _is_seconds(card["budget_s"]):
        at.add("budget_s", f"{card['budget_s']!r:.80} is not a number of seconds")
    if not isinstance(budgets, dict) or not all(map(_is_seconds, budgets.values())):
        at.add("budgets_s", f"{budgets!r:.80} is not a mapping of tiers to seconds")
    if not isinstance(after, list) or not all(isinstance(name, str) for name in after):
        at.add("after", f"{after!r:.80} is not a list of checks")
    faults.refuse(most=sys.maxsize)
    return CheckEntry(
        card["id"],
        card["title"],
        card["tier"],
        float(card["budget_s"]),
        card["needs"],
        tuple((tier, float(seconds)) for tier, seconds in budgets.items()),
        folder,
        str(card.get("topic", "")),
        card["verifies"],
        card["counts"],
        tuple(after),
    )


def _is_seconds(value: Any) -> bool:
    try:
        return float(value) >= 0
    except (TypeError, ValueError):
        return False


def _not_codes(codes: Any) -> list[Any]:
    if not isinstance(codes, list | tuple):
        return [codes]
    return [code for code in codes if not isinstance(code, str) or _CODE.fullmatch(code) is None]


def _ordered(entries: Iterable[CheckEntry]) -> tuple[CheckEntry, ...]:
    """Return the checks by ID, but each after those listed in its `after`."""
    waiting: dict[str, CheckEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.id):
        if entry.id in waiting:
            raise UsageError(f"checks/{waiting[entry.id].folder} and checks/{entry.folder} have the same id {entry.id}")
        waiting[entry.id] = entry
    ordered: dict[str, CheckEntry] = {}

    def add(entry: CheckEntry, dependents: tuple[str, ...]) -> None:
        for name in entry.after:
            if name in dependents or name not in waiting:
                fault = "is circular" if name in dependents else "is not a check"
                raise UsageError(f"checks/{entry.folder}/{CARD}: after: {name} {fault}")
            add(waiting[name], (*dependents, name))
        ordered.setdefault(entry.id, entry)

    for entry in waiting.values():
        add(entry, (entry.id,))
    return tuple(ordered.values())
