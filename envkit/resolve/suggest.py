"""Suggest single changes of a request that make it resolve, cheapest first, or that give a newer answer.

Every suggestion was resolved before it is offered. The cost of a change depends on the field (CUDA is easier to change
than torch, and torch easier than the machine), then on how near the new value is to the requested one. Of the CUDA
versions that are offered, the one with the newest torch comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from envkit.facts.model import Os
from envkit.ground.platforms import PLATFORMS
from envkit.ground.versions import Constraint, key
from envkit.resolve import forward
from envkit.resolve.choice import choose, python
from envkit.resolve.gpus import arm_host
from envkit.resolve.index import SOURCE_ORDER, Index
from envkit.resolve.model import Request, Suggestion
from envkit.resolve.request import changed, words
from envkit.resolve.rules import Sieve, candidates, scoped
from envkit.resolve.wanted import DEFAULT_OS, Ask, flag, operating_system, wanted

MOST = 3  # as many as can be compared at a glance
# Cheapest to change first.
COST = (
    "cuda", "torch", "python", "with", "cudnn", "source", "max_size", "supported_only", "template", "os", "platform",
    "allow_forward_compat", "driver", "gpu", "cpu",
)  # fmt: skip
_NEAR = 8  # values of one field that are compared with what packages require
_STEP = 100_000_000  # bytes: limits are suggested in tenths of a GB
GIVEN_UP_LAST = ("gpu", "cpu")  # without them it is a different request, and they have no other value to suggest


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that resolves, with its cost, and of another CUDA the torch that it gives."""

    cost: tuple[int, int]
    torch: tuple[int, ...]
    suggestion: Suggestion

    @property
    def place(self) -> tuple[int, tuple[int, ...], int]:
        """The place in the list: the cheaper field first, then the newer torch, then the nearer value."""
        field, distance = self.cost
        return field, tuple(-part for part in self.torch), distance


def suggestions(request: Request, clash: tuple[Ask, ...], index: Index) -> tuple[Suggestion, ...]:
    """Return at most three changes: the best of each field, then second bests, then constraints to leave out.

    A change can help only if it is to a constraint of the clash, or to a default that contributes to it (the OS, wheels
    only). A build whose code for the GPUs is unknown is suggested, with a note, only if no other change resolves.
    """
    return _suggestions(request, clash, index, sure=True) or _suggestions(request, clash, index, sure=False)


def _suggestions(request: Request, clash: tuple[Ask, ...], index: Index, *, sure: bool) -> tuple[Suggestion, ...]:
    firsts: list[_Change] = []
    seconds: list[_Change] = []
    lasts: list[_Change] = []
    for ask in sorted({*clash, *_defaults(request, index)}, key=lambda item: (COST.index(item.field), item.position)):
        # A generator: a change is resolved only when it is taken.
        changes = _changes(request, ask, index, sure=sure)
        if ask.field in GIVEN_UP_LAST:
            lasts += islice(changes, 1)
            continue
        firsts += islice(changes, 1)
        if len(firsts) >= MOST:
            break
        seconds += islice(changes, MOST - 1)
    seconds.sort(key=lambda change: (change.cost[1], change.cost[0]))
    chosen = [*firsts, *seconds, *lasts][:MOST]
    return tuple(change.suggestion for change in sorted(chosen, key=lambda change: change.place))


def alternatives(request: Request, ask: Ask, index: Index) -> Iterator[tuple[str, tuple[str, ...], Request]]:
    """Yield other values of one constraint that resolve, nearest first: in words, as options, and as a request."""
    for value in islice(_values(request, ask, index), _NEAR):
        other = changed(request, ask.field, value, ask.position)
        if _answer(other, index, sure=True) is not None:
            yield _described(request, ask, value), () if value is None else (flag(ask.field), value), other


def unlocks(request: Request, index: Index) -> tuple[Suggestion, ...]:
    """Return changes of the machine that give a newer torch or CUDA: newer drivers, and GPUs to leave out.

    Each driver is the lowest with its answer. A GPU is listed if no driver gives with it what one gives without it.

    Args:
        request: a request that resolves.
        index: of the facts.
    """
    steps = _by_driver(request, index)
    unlocked = [_unlock(other, request, index) for other in steps[1:]]
    best = _newness(steps[-1], index)
    for position in range(len(request.gpus)):
        without = _by_driver(changed(request, "gpu", None, position), index)
        if _newness(without[-1], index) > best:
            unlocked.append(_unlock(without[-1], request, index, without=request.gpus[position]))
    return tuple(unlocked)


def _by_driver(request: Request, index: Index) -> list[Request]:
    """Return the request, then a copy for each newer driver whose answer is newer than the previous one's."""
    requests = [request]
    for version in _drivers(request.driver, index) if request.driver else ():
        other = changed(request, "driver", version)
        if key(version) > key(request.driver or "0") and _newness(other, index) > _newness(requests[-1], index):
            requests.append(other)
    return requests


def _unlock(request: Request, before: Request, index: Index, without: str | None = None) -> Suggestion:
    parts = [f"leave out --gpu {without}"] if without else []
    if request.driver != before.driver:
        parts.append(f"--driver {request.driver} instead of {before.driver}")
    field, value = ("gpu", None) if without else ("driver", request.driver)
    answer = _answer(request, index, sure=True)
    gives = answer[1] if answer else ""
    return Suggestion(change=", ".join(parts), field=field, value=value, gives=gives, words=words(request))


def _newness(request: Request, index: Index) -> tuple[tuple[int, ...], ...]:
    """Return the torch and CUDA versions of the answer as a sort key; empty if there is no answer."""
    sieve = Sieve(scoped(wanted(request, index.facts), index), index)
    builds = candidates(sieve)
    if not builds:
        return ()
    build = choose(builds, sieve).build
    return key(build.torch), key(build.cuda or "0")


def _defaults(request: Request, index: Index) -> Iterator[Ask]:
    if request.os is None:
        yield Ask("os", ())
    if request.source == "auto":
        yield Ask("source", ())
    cards = wanted(request, index.facts).cards
    if not request.allow_forward_compat and forward.allowed(request.driver, cards, index.facts):
        yield Ask("allow_forward_compat", ())
    if any(card.gpu.integrated for card in cards):  # a Jetson module's host is linux-aarch64
        yield Ask("platform", ())


def _changes(request: Request, ask: Ask, index: Index, *, sure: bool) -> Iterator[_Change]:
    for near, value in enumerate(_values(request, ask, index)):
        other = changed(request, ask.field, value, ask.position)
        answer = _answer(other, index, sure=sure)
        if answer is None:
            continue
        text = _described(request, ask, value)
        suggestion = Suggestion(change=text, field=ask.field, value=value, gives=answer[1], words=words(other))
        newness = key(answer[0]) if ask.field == "cuda" else ()
        yield _Change((COST.index(ask.field), near), newness, suggestion)


def _answer(request: Request, index: Index, *, sure: bool) -> tuple[str, str] | None:
    """Return the torch that a request resolves to, and it with CUDA and Python in words; None if it does not resolve.

    Args:
        request: with one change.
        index: of the facts.
        sure: whether the build has to be known to have code for the GPUs.
    """
    sieve = Sieve(scoped(wanted(request, index.facts), index), index)
    builds = candidates(sieve)
    if not builds:
        return None
    build = choose(builds, sieve).build
    if sure and sieve.guessed(build):
        return None
    runtime = f"CUDA {build.cuda}" if build.cuda else "CPU"
    doubt = "; no source lists its GPUs" if sieve.guessed(build) else ""
    return build.torch, f"torch {build.torch}, {runtime}, Python {python(build, sieve)}{doubt}"


def _described(request: Request, ask: Ask, value: str | None) -> str:
    if ask.field == "allow_forward_compat":
        return f"add {flag(ask.field)}"
    if value is None:
        return f"leave out {ask}"
    match ask.field:
        case "os":
            before = request.os or f"{DEFAULT_OS} (the default)"
        case "source":
            before = "auto (wheels)" if request.source == "auto" else request.source
        case "template" | "platform":
            before = str(getattr(request, ask.field))
        case _:
            before = ask.words[1]
    return f"{flag(ask.field)} {value} instead of {before}"


def _values(request: Request, ask: Ask, index: Index) -> Iterator[str | None]:
    """Yield other values of one field, nearest first; None leaves the constraint out."""
    facts = index.facts
    match ask.field:
        case "torch":
            yield from _near(request.torch, index.rank, 3)
        case "cuda":
            # Of two equally near CUDA runtimes, the older one runs on more drivers.
            yield from _near(request.cuda, {build.cuda for build in facts.builds if build.cuda}, 2, newer_first=False)
        case "python":
            yield from _near(request.python, {name for names in index.siblings.values() for name in names}, 2)
        case "cudnn":
            yield from _near(request.cudnn, {build.cudnn for build in facts.builds if build.cudnn}, 4)
        case "driver":
            yield from _drivers(request.driver or "0", index)
        case "source":
            yield from (name for name in ("auto", *SOURCE_ORDER) if name != request.source)
        case "platform":
            # A product with an Arm CPU of its own is in no other machine.
            arm = any(arm_host(own.typed, own.gpu) for own in wanted(request, facts).cards)
            yield from (name for name in PLATFORMS if name != request.platform and not arm)
        case "os":
            system = operating_system(request.os or DEFAULT_OS, facts)
            others = [row for row in facts.oses if row.id != system.id]
            today = facts.collected
            yield from (row.id for row in sorted(others, key=lambda row: _os_distance(row, system, today)))
        case "template":
            yield "miniconda"
        case "max_size":
            yield from _larger(request, index)
        case "allow_forward_compat":
            yield "true"
        case _:
            yield None


def _near(
    constraint: Constraint | None, known: set[str] | dict[str, int], most: int, *, newer_first: bool = True
) -> Iterator[str]:
    """Yield the known versions that a constraint does not allow, nearest first, with as many parts as it has."""
    if constraint is None:
        return
    written = constraint.clauses[0][1]
    # At least major and minor: `--cuda 12` gets a suggestion such as 12.6.
    parts = min(max(2, len(written.split("."))), most)
    texts = {".".join(version.split(".")[:parts]) for version in known}
    # The distance is counted in known versions, not in numbers.
    line = sorted({*texts, written}, key=key)
    position = line.index(written)
    others = [text for text in texts if not constraint.allows(text)]
    yield from sorted(
        others, key=lambda text: (abs(line.index(text) - position), (line.index(text) < position) == newer_first)
    )


def _drivers(given: str, index: Index) -> Iterator[str]:
    """Yield the driver versions that can change an answer: newer ones first, because drivers are seldom downgraded."""
    # "0", without a dot, stands for a minimum that is not known.
    known = {text for need in index.needs.values() for text in (need.native, need.minimum) if "." in text}
    yield from sorted((version for version in known if key(version) > key(given)), key=key)
    yield from sorted((version for version in known if key(version) < key(given)), key=key, reverse=True)


def _larger(request: Request, index: Index) -> Iterator[str | None]:
    """Yield the limits within which the rest of the request has builds, smallest first; then None for no limit."""
    rest = wanted(changed(request, "max_size", None), index.facts)
    builds = candidates(Sieve(scoped(rest, index), index))
    # Rounded up, so that the build is within its own limit.
    steps = {-(-size // _STEP) for build in builds if (size := build.download_size) is not None}
    yield from (f"{step / 10:.1f}GB" for step in sorted(steps))
    yield None


def _os_distance(row: Os, system: Os, today: str) -> tuple[bool, bool, bool, tuple[int, ...]]:
    ended = row.eol is not None and row.eol <= today
    older = key(row.glibc) < key(system.glibc)
    return row.family != system.family, ended, older, key(row.glibc)
