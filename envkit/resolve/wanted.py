"""A request joined with the fact rows that it names: the input of the rules.

Every field may be left out, which is how a conflict is narrowed down: a constraint that is taken away must never
make anything fit less (see `envkit.resolve.explain`).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TypeVar

from envkit.facts.model import Facts, Os
from envkit.ground.errors import UsageError
from envkit.ground.sizes import parse_size
from envkit.ground.versions import Constraint, key
from envkit.resolve import forward, gpus
from envkit.resolve.gpus import Card
from envkit.resolve.model import Request
from envkit.resolve.support import day_of

DEFAULT_OS = "debian12"
DEFAULT_PLATFORM = "linux-64"
WHEELS_TEMPLATE = "wheels"

NO_AMD = "AMD GPUs are not supported"
NO_AMD_HINT = "give an NVIDIA GPU, or --cpu for a build without CUDA"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The constraints with their rows. None, () and False mean that nothing is asked."""

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
    supported_on: str | None = None  # ISO date on which torch and Python have to get fixes
    forward: frozenset[str] = frozenset()  # CUDA runtimes that forward compatibility adds to those of the driver
    wheels: bool = False  # a venv on the OS's own Python: wheels only


def wanted(request: Request, facts: Facts) -> Wanted:
    """Look up the rows a request names.

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
        wheels=request.template == WHEELS_TEMPLATE,
    )


def card(typed: str, facts: Facts, flag: str = "--gpu") -> Card:
    """The GPU a user typed.

    Raises:
        UsageError: no row knows it; the hint has the nearest names.
    """
    gpu = gpus.find(typed, facts.gpus, short=True)
    if gpu is None and gpus.is_amd(typed):
        raise UsageError(f"{flag}: {typed!r} is an AMD GPU. {NO_AMD}", hint=NO_AMD_HINT)
    if gpu is None:
        near = gpus.nearest(typed, facts.gpus)
        named = f"did you mean {' or '.join(near)}? Or " if near else ""
        raise UsageError(f"{flag}: unknown GPU {typed!r}", hint=f"{named}give the compute capability, such as sm_86")
    return Card(typed, gpu)


def operating_system(typed: str, facts: Facts, flag: str = "--os") -> Os:
    """Return the OS a user typed: an id (`debian12`), a codename (`bookworm`), `debian:12`, or a name alone (`ubuntu`).

    A name alone means the newest row that has it.

    Raises:
        UsageError: no row knows it; the hint has the nearest name.
    """
    text = typed.strip().lower()
    squeezed = re.sub(r"[:\s_-]", "", text)
    for row in facts.oses:
        if squeezed in (row.id, *row.aliases) or (row.codename and text == row.codename):
            return row
    versions = [(key(name.removeprefix(squeezed)), row) for row in facts.oses for name in _versions(row, squeezed)]
    if versions:
        return max(versions, key=lambda pair: pair[0])[1]
    kind = squeezed.rstrip("0123456789.")
    family = [row for row in facts.oses for name in (row.id, *row.aliases) if name.rstrip("0123456789.") == kind]
    if family:
        named = ", ".join(dict.fromkeys(row.id for row in family))
        raise UsageError(f"{flag}: unsupported operating system version {typed!r}", hint=f"supported: {named}")
    ids = [row.id for row in facts.oses]
    close = difflib.get_close_matches(squeezed, ids, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(ids)}"
    raise UsageError(f"{flag}: unknown operating system {typed!r}", hint=hint)


def bare(typed: str) -> bool:
    """Whether an OS was typed without a version: `ubuntu`."""
    return typed.strip().isalpha()


def _versions(row: Os, name: str) -> list[str]:
    """The names of a row that are this name and a version: `ubuntu24.04` for `ubuntu`."""
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


@dataclass(frozen=True, slots=True)
class Ask:
    """One constraint of the user: the field, its place among several GPUs, and the words to type it."""

    field: str
    words: tuple[str, ...]  # ('--gpu', 'RTX 4090')
    position: int = 0

    def __str__(self) -> str:
        return " ".join(f'"{word}"' if _needs_quotes(word) else word for word in self.words)


def _needs_quotes(word: str) -> bool:
    return any(char in word for char in " <>*!,")


def flag(field: str) -> str:
    """The option of a field: `--max-size` for `max_size`."""
    return f"--{field.replace('_', '-')}"


def asks(request: Request) -> tuple[Ask, ...]:
    """The constraints the user stated, in the order of FIELDS; defaults are not among them."""
    constraints: list[Ask] = []
    for field in FIELDS:
        if field == "gpu":
            constraints += [Ask("gpu", ("--gpu", typed), position) for position, typed in enumerate(request.gpus)]
        elif field == "cpu":
            constraints += [Ask("cpu", ("--cpu",))] if request.cpu else []
        elif field == "supported_only":
            constraints += [Ask("supported_only", ("--supported-only",))] if request.supported_only else []
        elif field == "platform":
            constraints += (
                [Ask("platform", ("--platform", request.platform))] if request.platform != DEFAULT_PLATFORM else []
            )
        elif field == "source":
            constraints += [Ask("source", ("--source", request.source))] if request.source != "auto" else []
        elif field == "template":
            stated = request.template == WHEELS_TEMPLATE
            constraints += [Ask("template", ("--template", WHEELS_TEMPLATE))] if stated else []
        elif getattr(request, field) is not None:
            constraints.append(Ask(field, (flag(field), str(getattr(request, field)))))
    return tuple(constraints)


def permissions(request: Request) -> tuple[str, ...]:
    """The options of a request that are not constraints: they let more fit, so nothing clashes with them."""
    return ("--allow-forward-compat",) if request.allow_forward_compat else ()


def keep(full: Wanted, stated: tuple[Ask, ...], kept: tuple[Ask, ...]) -> Wanted:
    """`full` without the stated constraints that are not in `kept`."""
    gone = {ask.field for ask in stated if ask not in kept and ask.field != "gpu"}
    places = {ask.position for ask in kept if ask.field == "gpu"}

    def left(field: str, value: T) -> T | None:
        return None if field in gone else value

    return Wanted(
        torch=left("torch", full.torch),
        cuda=left("cuda", full.cuda),
        cudnn=left("cudnn", full.cudnn),
        python=left("python", full.python),
        driver=left("driver", full.driver),
        cards=tuple(gpu for position, gpu in enumerate(full.cards) if position in places),
        os=left("os", full.os),
        platform=left("platform", full.platform),
        source=left("source", full.source),
        scope=full.scope,
        cpu=left("cpu", full.cpu),
        max_size=left("max_size", full.max_size),
        supported_on=left("supported_only", full.supported_on),
        forward=full.forward,
        wheels=full.wheels and "template" not in gone,
    )
