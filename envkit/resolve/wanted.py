"""A request joined with the rows of the facts that it names: the input of the rules.

Every field may be left out: the search for a clash removes constraints one by one, and relies on every build that fits
still fitting afterward (see `envkit.resolve.explain`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from envkit.facts.model import Facts, Os
from envkit.ground.errors import ConflictError, UsageError
from envkit.ground.sizes import parse_size
from envkit.ground.text import similar
from envkit.ground.versions import Constraint, key
from envkit.resolve import forward, gpus
from envkit.resolve.gpus import Card
from envkit.resolve.model import Request, WantedPackage
from envkit.resolve.support import day_of

DEFAULT_OS = "debian12"
DEFAULT_PLATFORM = "linux-64"
WHEELS_TEMPLATE = "wheels"

NO_AMD = "AMD GPUs are not supported"
NO_AMD_HINT = "use an NVIDIA GPU, or --cpu for a build without CUDA"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The constraints with their rows. None, () and False mean no constraint."""

    torch: Constraint | None = None
    cuda: Constraint | None = None
    cudnn: Constraint | None = None
    python: Constraint | None = None
    driver: str | None = None
    cards: tuple[Card, ...] = ()
    os: Os | None = None
    platform: str | None = None
    source: str | None = None
    scope: frozenset[str] | None = None  # the sources that `auto` stands for; see envkit.resolve.rules.scoped
    cpu: bool | None = None
    max_size: int | None = None  # bytes
    supported_on: str | None = None  # ISO date on which torch and Python must still get fixes
    forward: frozenset[str] = frozenset()  # CUDA runtimes that the driver runs with a cuda-compat package
    packages: tuple[WantedPackage, ...] = ()  # that go with the build's torch
    wheels: bool = False  # a venv on the OS's own Python: wheels only


def wanted(request: Request, facts: Facts) -> Wanted:
    """Look up the rows that a request names.

    Raises:
        UsageError: the facts have no such GPU or OS.
    """
    cards = tuple(card(typed, facts) for typed in request.gpus)
    return Wanted(
        torch=request.torch,
        cuda=request.cuda,
        cudnn=request.cudnn,
        python=request.python,
        driver=request.driver,
        cards=cards,
        os=operating_system(request.os or DEFAULT_OS, facts),
        platform=request.platform,
        source=None if request.source == "auto" else request.source,
        cpu=request.cpu,
        max_size=None if request.max_size is None else parse_size(request.max_size, "--max-size"),
        supported_on=day_of(request.today, facts) if request.supported_only else None,
        forward=forward.allowed(request.driver, cards, facts) if request.allow_forward_compat else frozenset(),
        packages=request.packages,
        wheels=request.template == WHEELS_TEMPLATE,
    )


def card(typed: str, facts: Facts, flag: str = "--gpu") -> Card:
    """Return the GPU that a user typed.

    Raises:
        UsageError: no row has it; the hint has the nearest names.
        ConflictError: it is a GPU of AMD.
    """
    gpu = gpus.find(typed, facts.gpus, short=True)
    if gpu is None and gpus.is_amd(typed):
        raise ConflictError(f"{flag}: {typed!r} is an AMD GPU. {NO_AMD}", hint=NO_AMD_HINT)
    if gpu is None:
        near = gpus.nearest(typed, facts.gpus)
        named = f"did you mean {' or '.join(near)}? Or " if near else ""
        raise UsageError(f"{flag}: unknown GPU {typed!r}", hint=f"{named}give the compute capability, such as sm_86")
    return Card(typed, gpu)


def operating_system(typed: str, facts: Facts, flag: str = "--os") -> Os:
    """Return the OS that a user typed: `debian12`, `debian:12`, a codename (`bookworm`) or a name alone (`ubuntu`).

    A name alone means its newest version.

    Raises:
        UsageError: no row has it; the hint has the nearest name.
    """
    text = typed.strip().lower()
    squeezed = re.sub(r"[:\s_-]", "", text)
    for row in facts.oses:
        if squeezed in (row.id, *row.aliases) or (row.codename and text == row.codename):
            return row
    versions = [(key(name.removeprefix(squeezed)), row) for row in facts.oses for name in _versions(row, squeezed)]
    if versions:
        return max(versions, key=lambda pair: pair[0])[1]
    # `debian9` is Debian, so the error lists the versions of Debian that exist.
    kind = squeezed.rstrip("0123456789.")
    family = [row for row in facts.oses for name in (row.id, *row.aliases) if name.rstrip("0123456789.") == kind]
    if family:
        named = ", ".join(dict.fromkeys(row.id for row in family))
        raise UsageError(f"{flag}: unsupported operating system version {typed!r}", hint=f"supported: {named}")
    ids = [row.id for row in facts.oses]
    close = similar(squeezed, ids)
    hint = f"did you mean {close[0]}?" if close else f"supported: {', '.join(ids)}"
    raise UsageError(f"{flag}: unknown operating system {typed!r}", hint=hint)


def bare(typed: str) -> bool:
    """Return whether an OS was typed without a version: `ubuntu`."""
    return typed.strip().isalpha()


def _versions(row: Os, name: str) -> list[str]:
    """Return the names of a row that consist of this name and a version: `ubuntu24.04` for `ubuntu`."""
    return (
        [alias for alias in (row.id, *row.aliases) if re.fullmatch(re.escape(name) + r"[0-9][0-9.]*", alias)]
        if name
        else []
    )


# --- the user's own constraints, one by one -------------------------------------------------------------------------

# The order in which constraints are named.
FIELDS = (
    "torch",
    "cuda",
    "cudnn",
    "python",
    "with",
    "gpu",
    "driver",
    "os",
    "platform",
    "source",
    "template",
    "cpu",
    "max_size",
    "supported_only",
)

SEVERAL = ("gpu", "with")
"""Fields that may be stated more than once; each statement is a constraint of its own."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One constraint of the user: the field and the arguments that state it."""

    field: str
    words: tuple[str, ...]  # ('--gpu', 'RTX 4090')
    position: int = 0  # among several GPUs, or several packages

    def __str__(self) -> str:
        return " ".join(f'"{word}"' if _needs_quotes(word) else word for word in self.words)


def _needs_quotes(word: str) -> bool:
    return any(char in word for char in " <>*!,")


def flag(field: str) -> str:
    """Return the option of a field: `--max-size` for `max_size`."""
    return f"--{field.replace('_', '-')}"


def asks(request: Request) -> tuple[Ask, ...]:
    """Return the constraints that the user stated, in the order of FIELDS, without defaults."""
    constraints: list[Ask] = []
    for field in FIELDS:
        if field == "gpu":
            constraints += [Ask("gpu", ("--gpu", typed), position) for position, typed in enumerate(request.gpus)]
        elif field == "with":
            constraints += [
                Ask("with", ("--with", str(wanted)), position) for position, wanted in enumerate(request.packages)
            ]
        elif field == "cpu":
            constraints += [Ask("cpu", ("--cpu",))] if request.cpu else []
        elif field == "supported_only":
            constraints += [Ask("supported_only", ("--supported-only",))] if request.supported_only else []
        elif field == "platform":
            # A platform that follows from a GPU is not one of the user's constraints.
            stated = request.platform != DEFAULT_PLATFORM and field not in request.understood
            constraints += [Ask("platform", ("--platform", request.platform))] if stated else []
        elif field == "source":
            constraints += [Ask("source", ("--source", request.source))] if request.source != "auto" else []
        elif field == "template":
            stated = request.template == WHEELS_TEMPLATE
            constraints += [Ask("template", ("--template", WHEELS_TEMPLATE))] if stated else []
        elif getattr(request, field) is not None:
            constraints.append(Ask(field, (flag(field), str(getattr(request, field)))))
    return tuple(constraints)


def permissions(request: Request) -> tuple[str, ...]:
    """Return the options of a request that are not constraints: they only add builds, so nothing clashes with them."""
    return ("--allow-forward-compat",) if request.allow_forward_compat else ()


def keep(full: Wanted, stated: tuple[Ask, ...], kept: tuple[Ask, ...]) -> Wanted:
    """Return `full` without the stated constraints that are not in `kept`."""
    removed = {ask.field for ask in stated if ask not in kept and ask.field not in SEVERAL}
    positions = {ask.position for ask in kept if ask.field == "gpu"}
    packages = {ask.position for ask in kept if ask.field == "with"}

    def unless_removed(field: str, value: T) -> T | None:
        return None if field in removed else value

    return Wanted(
        torch=unless_removed("torch", full.torch),
        cuda=unless_removed("cuda", full.cuda),
        cudnn=unless_removed("cudnn", full.cudnn),
        python=unless_removed("python", full.python),
        driver=unless_removed("driver", full.driver),
        cards=tuple(gpu for position, gpu in enumerate(full.cards) if position in positions),
        os=unless_removed("os", full.os),
        platform=unless_removed("platform", full.platform),
        source=unless_removed("source", full.source),
        # This and `forward` were decided from the whole request; without some of its constraints they would differ.
        scope=full.scope,
        cpu=unless_removed("cpu", full.cpu),
        max_size=unless_removed("max_size", full.max_size),
        supported_on=unless_removed("supported_only", full.supported_on),
        forward=full.forward,
        packages=tuple(wanted for position, wanted in enumerate(full.packages) if position in packages),
        wheels=full.wheels and "template" not in removed,
    )
