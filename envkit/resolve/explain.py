"""Explain a conflict: the smallest set of the user's own constraints that clash, why, and changes that resolve.

`Grounds` explains a clash: for each of its constraints, the values that the other constraints allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations

from envkit.facts.model import Build
from envkit.ground.sizes import shown_size
from envkit.ground.versions import Constraint, is_version, key, minor
from envkit.resolve.companions import companions
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.forward import refused, unlisted
from envkit.resolve.gpus import Card, sm
from envkit.resolve.index import WHEEL_SOURCES, Index
from envkit.resolve.model import Conflict, Request
from envkit.resolve.rules import Sieve, candidates, code, cudnn_runs, driven, satisfiable, scoped
from envkit.resolve.suggest import suggestions
from envkit.resolve.support import TORCH_REF, python_row, python_sentence, supported_pythons, torch_sentence
from envkit.resolve.wanted import Ask, Wanted, asks, keep, permissions

# All sets up to this size are tried. For larger clashes, one is first found by removing constraints one by one, because
# the number of sets grows fast; that one's size is then the upper bound of the search.
SMALL = 3
# Constraints that describe the machine and not the software on it.
MACHINE = ("gpu", "driver", "os")


def unresolvable(request: Request, full: Wanted, index: Index) -> Unresolvable:
    """Return the error for a request that no build satisfies."""
    stated = asks(request)
    clash = smallest(stated, full, index)
    grounds = Grounds(request, stated=stated, clash=clash, full=full, index=index)
    because = grounds.sentences()
    changes = suggestions(request, clash, index)
    if stated and not changes:
        because += (_second(stated, clash, full, index),)
    return Unresolvable(
        Conflict(
            clash=tuple(str(ask) for ask in clash),
            because=because,
            suggestions=changes,
            sources=tuple(dict.fromkeys(grounds.refs)),
        ),
        () if changes else (*_possible(stated, full, index), *permissions(request)),
    )


def smallest(
    stated: tuple[Ask, ...], full: Wanted, index: Index, among: tuple[Ask, ...] | None = None
) -> tuple[Ask, ...]:
    """Return a smallest set of constraints that no build satisfies together: no clash has fewer members.

    `among` limits the search to some of the stated constraints, which must clash.
    """
    searched = stated if among is None else among

    def clashes(kept: tuple[Ask, ...]) -> bool:
        return not satisfiable(keep(full, stated, kept), index)

    # Size 0 comes first: perhaps no build fits even the defaults.
    for size in range(min(SMALL, len(searched)) + 1):
        for kept in combinations(searched, size):
            if clashes(kept):
                return kept
    needed = searched
    # From the end of FIELDS, so that a clash of versions stays rather than one of limits and sources.
    for ask in reversed(searched):
        fewer = tuple(other for other in needed if other != ask)
        if clashes(fewer):
            needed = fewer
    # Every member of this set is needed for its clash; a different clash may still be smaller.
    for size in range(SMALL + 1, len(needed)):
        for kept in combinations(searched, size):
            if clashes(kept):
                return kept
    return needed


def _second(stated: tuple[Ask, ...], clash: tuple[Ask, ...], full: Wanted, index: Index) -> str:
    """Return the sentence for a request that no single change makes resolve, with the second clash if there is one."""
    others = tuple(ask for ask in stated if ask not in clash)
    if satisfiable(keep(full, stated, others), index):
        return "no single change is enough"
    second = smallest(stated, full, index, among=others)
    named = " and ".join(map(str, second))
    return f"no single change is enough; {named} {'also clash' if second[1:] else 'matches no build either'}"


def _possible(stated: tuple[Ask, ...], full: Wanted, index: Index) -> tuple[str, ...]:
    """Return the arguments of the constraints that resolve together, taken greedily in the order they are stated."""
    kept: tuple[Ask, ...] = ()
    for ask in stated:
        tried = replace(keep(full, stated, (*kept, ask)), scope=None)
        if satisfiable(scoped(tried, index), index):
            kept = (*kept, ask)
    return tuple(word for ask in kept for word in ask.words)


class Grounds:
    """The sentences that explain one clash, and the ids of their sources (`refs`)."""

    def __init__(
        self, request: Request, *, stated: tuple[Ask, ...], clash: tuple[Ask, ...], full: Wanted, index: Index
    ) -> None:
        self.request = request
        self.stated = stated
        self.clash = clash
        self.full = full
        self.index = index
        self.refs: list[str] = []

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence for each constraint of the clash, then those about the machine."""
        if not self.clash:
            return (f"the compatibility data of {self.index.facts.collected} has no such build",)
        sentences: list[str] = []
        for ask in self.clash:
            others = tuple(other for other in self.clash if other != ask)
            builds = self._builds(others)
            self._note(builds)
            sentences += self._alone(ask) if not others else [self._sentence(ask, others, builds)]
        sentences += self._machine() if len(self.clash) > 1 else ()
        sentences += self._forward()
        # Conda packages may need a lower glibc, so these sentences are about wheels only.
        among = "among wheels, " if self.full.scope and any(ask.field == "os" for ask in self.clash) else ""
        return tuple(dict.fromkeys(among + sentence for sentence in sentences))

    def _builds(self, kept: tuple[Ask, ...]) -> list[Build]:
        return candidates(Sieve(keep(self.full, self.stated, kept), self.index))

    def _note(self, builds: list[Build]) -> None:
        if builds:
            self.refs += max(builds, key=_newest).refs

    def _machine(self) -> Iterator[str]:
        """Yield where a constraint of the machine, outside the clash, leaves fewer versions to change to."""
        for ask in self.clash:
            if ask.field not in ("torch", "cuda"):
                continue
            others = tuple(other for other in self.clash if other != ask)
            before = _values(ask.field, self._builds(others))
            for constraint in self.stated:
                if constraint in self.clash or constraint.field not in MACHINE:
                    continue
                after = _values(ask.field, self._builds((*others, constraint)))
                if after and after != before:
                    yield f"{self._available((*others, constraint), ask.field, after)} only"

    def _available(self, others: tuple[Ask, ...], field: str, values: set[str]) -> str:
        """Return which values of a field the other constraints allow: `torch 2.12 is available for CUDA 12.6`."""
        listed = _span(field, values, self.index)
        if field in ("source", "platform"):
            return f"{self._named(others)} is available {'from' if field == 'source' else 'for'} {listed}"
        verb = "is available for" if field == "python" else _VERB.get(others[0].field, "is available for")
        return f"{self._named(others)} {verb} {_TITLE[field]} {listed}"

    def _named(self, asks: Iterable[Ask]) -> str:
        return " with ".join(self._name(ask) for ask in asks)

    def _name(self, ask: Ask) -> str:
        match ask.field:
            case "gpu":
                return str(self.full.cards[ask.position])
            case "os" | "platform" | "with":
                return ask.words[1]
            case "cpu":
                return "a CPU build"
            case "supported_only":
                return "a supported version"
            case "template":
                return "a venv on the system Python"
            case _:
                return f"{_TITLE[ask.field]} {ask.words[1]}"

    def _alone(self, ask: Ask) -> list[str]:
        """Return why no build satisfies this constraint, even without the others."""
        facts = self.index.facts
        match ask.field:
            case "torch":
                near = [_row(name, self.index) for name in _nearest(self.request.torch, self.index)]
                return [
                    f"torch {ask.words[1]} is not in the compatibility data of {facts.collected}",
                    f"the nearest versions are {'; '.join(near)}",
                    *self._later(ask.words[1]),
                ]
            case "cuda":
                traps = [trap for trap in facts.traps if trap.when.get("cuda") == ask.words[1]]
                self.refs += [ref for trap in traps for ref in trap.refs]
                known = _span("cuda", {build.cuda for build in facts.builds if build.cuda}, self.index)
                return [
                    *(f"{trap.title}: {trap.effect}" for trap in traps),
                    f"no build is available for CUDA {ask.words[1]}; available: {known}",
                    *self._printed(ask.words[1]),
                ]
            case "driver":
                lowest = min(self.index.needs.values(), key=lambda need: key(need.minimum))
                return [f"no CUDA build runs on driver {ask.words[1]}; the oldest needs {lowest.minimum}"]
            case "with":
                return [self._unlisted(ask)]
            case "gpu" | "max_size" | "supported_only":
                alone = {"gpu": self._gpu, "max_size": self._size, "supported_only": self._support}
                return [alone[ask.field](ask, "", self._builds(()))]
            case _:
                known = _span(ask.field, _values(ask.field, self._builds(())), self.index)
                return [f"no build is available for {self._name(ask)}" + (f"; available: {known}" if known else "")]

    def _later(self, torch: str) -> Iterator[str]:
        """Yield how to get the data of a torch that is newer than all known ones."""
        newest = max(self.index.rank, key=key)
        numbers = self.request.torch.clauses if self.request.torch else ()
        if numbers and all(key(number) > key(newest) for _, number in numbers):
            yield (
                f"a later release may exist: envkit matrix update --into newer.yaml reads it from the Python "
                f"index, and --facts newer.yaml --torch {torch} uses it"
            )

    def _printed(self, cuda: str) -> Iterator[str]:
        """Yield what the driver runs that prints this CUDA version in nvidia-smi, the usual origin of such a number."""
        need = self.index.needs.get(minor(cuda)) if is_version(cuda) else None
        if need is None:
            return
        wheels = {build.cuda for build in self.index.facts.builds if build.cuda and build.source in WHEEL_SOURCES}
        modes = {name: self.index.needs[name].mode(need.native) for name in wheels}
        native = _span("cuda", {name for name, mode in modes.items() if mode == "native"}, self.index)
        other = _span("cuda", {name for name, mode in modes.items() if mode == "minor-compatible"}, self.index)
        compatible = f", and wheels with CUDA {other} by minor-version compatibility" if other else ""
        self.refs += need.refs
        yield (
            f"nvidia-smi prints CUDA {minor(cuda)} for driver branch R{key(need.native)[0]}, which runs wheels with "
            f"CUDA {native} natively{compatible}; use --driver {need.native} instead of --cuda"
        )

    def _sentence(self, ask: Ask, others: tuple[Ask, ...], builds: list[Build]) -> str:
        rest = self._named(others)
        special = {
            "gpu": self._gpu,
            "driver": self._driver,
            "os": self._os,
            "template": self._template,
            "max_size": self._size,
            "supported_only": self._support,
            "with": self._package,
            "cpu": lambda *_: f"{rest} has no CPU build",
        }
        if ask.field == "python" and self.full.wheels:
            return self._system_python()
        if ask.field in special:
            return special[ask.field](ask, rest, builds)
        values = self._supported(ask.field, _values(ask.field, builds))
        if not values:
            return f"the {_TITLE[ask.field]} for {rest} is unknown"
        return self._available(others, ask.field, values)

    def _supported(self, field: str, values: set[str]) -> set[str]:
        """Return the values without the Pythons past their end of life, if the clash includes `--supported-only`."""
        day = self.full.supported_on
        if field != "python" or day is None or all(ask.field != "supported_only" for ask in self.clash):
            return values
        return values & supported_pythons(day, self.index.facts)

    def _package(self, ask: Ask, rest: str, builds: list[Build]) -> str:
        """Return which versions of a package the rest of the clash has."""
        name = self.full.packages[ask.position].package
        versions = {row.version for build in builds for row in companions(build, name, None, self.index)}
        return f"{rest} has {name} {_span(name, versions, self.index)}" if versions else f"{rest} has no {name}"

    def _unlisted(self, ask: Ask) -> str:
        """Return that no build has a requested version of a package, and which versions there are."""
        name, facts = self.full.packages[ask.position].package, self.index.facts
        ordered = sorted({row.version for row in facts.companions if row.package == name}, key=key)
        known = f"{ordered[0]} to {ordered[-1]}" if ordered else "none"
        return f"{ask.words[1]} is not in the compatibility data of {facts.collected}; available: {known}"

    def _template(self, ask: Ask, rest: str, builds: list[Build]) -> str:
        del ask
        sources = {build.source for build in builds}
        if sources.isdisjoint(WHEEL_SOURCES):
            return f"{rest} is available from {_span('source', sources, self.index)} only, not as a wheel"
        return self._system_python()

    def _size(self, ask: Ask, rest: str, builds: list[Build]) -> str:
        del ask
        sizes = [size for build in builds if (size := build.download_size) is not None]
        if not sizes:
            return f"the download size of {rest or 'every build'} is unknown, so it cannot be compared with the limit"
        others = len(builds) - len(sizes)
        unknown = f"; the size of {others} other builds is unknown" if others else ""
        return f"{rest or 'the smallest build'} needs a download of at least {shown_size(min(sizes))}{unknown}"

    def _support(self, ask: Ask, rest: str, builds: list[Build]) -> str:
        """Return why no build that satisfies the others is supported: every torch is too old, or else every Python."""
        del rest
        facts, supported = self.index.facts, [build for build in builds if build.torch in self.index.supported]
        if not supported:
            self.refs.append(TORCH_REF)
            return torch_sentence(max((build.torch for build in builds), key=key), self.index.series)
        others = tuple(other for other in self.clash if other != ask)
        allowed = Sieve(keep(self.full, self.stated, others), self.index)
        pythons = {name for build in supported for name in allowed.known_pythons(build)}
        newest = max(pythons if allowed.pythons is None else pythons & allowed.pythons, key=key)
        row = python_row(newest, facts)
        self.refs += row.refs if row else ()
        return python_sentence(newest, row, self.full.supported_on or facts.collected)

    def _forward(self) -> Iterator[str]:
        """Yield why forward compatibility, if the request allows it, does not help with this driver."""
        driver = self.full.driver
        ask = next((candidate for candidate in self.clash if candidate.field == "driver"), None)
        if driver is None or ask is None or not self.request.allow_forward_compat:
            return
        builds = self._builds(tuple(other for other in self.clash if other != ask))
        newer = {build.cuda for build in builds if build.cuda and self.index.needs[build.cuda].mode(driver) is None}
        if not newer or newer & self.full.forward:  # the driver is refused for another reason
            return
        self.refs += [ref for row in self.index.facts.forward[-1:] for ref in row.refs]
        yield refused(self.full.cards) or unlisted(driver, newer, self.index.facts)

    def _system_python(self) -> str:
        system = self.full.os
        if system is None:
            return "a venv on the system Python has only that version"
        default = "" if self.request.os else " (the default OS)"
        return f"{system.title}{default} has Python {', '.join(system.pythons)}"

    def _gpu(self, ask: Ask, rest: str, builds: list[Build]) -> str:
        card = self.full.cards[ask.position]
        self.refs += card.gpu.refs
        subject = rest or "every build for it"
        driver = self.full.driver
        if driver and any(other.field == "driver" for other in self.clash) and not driven(card.gpu, driver):
            return self._branch(ask)
        coded = [build for build in builds if code(build, card.gpu)]
        if not coded:
            return self._uncoded(card, rest, builds)
        if any(not cudnn_runs(build, card.gpu, self.index) for build in coded):
            versions = _span("cudnn", _values("cudnn", coded), self.index)
            return f"{subject} has code for {card}, but its cuDNN {versions} no longer supports it"
        return f"{subject} has only PTX for {card}, which an older driver cannot compile"

    def _uncoded(self, card: Card, rest: str, builds: list[Build]) -> str:
        """Return why builds have no code for a GPU."""
        why = self._unsupported_family(card, rest, builds)
        archs = {arch for build in builds for arch in build.archs or ()}
        if why is not None:
            return why
        if not archs:
            return f"it is unknown which GPUs {rest or 'every build for it'} has code for, so {card} may not work"
        low, high = sm(min(archs, key=key)), sm(max(archs, key=key))
        if not rest:
            return f"compiled code exists for {low} to {high}; none of it runs on {card}"
        return f"{rest} has compiled code for {low} to {high}; none of it runs on {card}"

    def _unsupported_family(self, card: Card, rest: str, builds: list[Build]) -> str | None:
        """Return why no build can have code for a GPU's whole family; None where only the arch lists rule it out."""
        gpu = card.gpu
        if gpu.integrated:
            subject = f"{rest} has no code" if rest else f"no build for {self.request.platform} has code"
            note = f". {gpu.note}" if gpu.note else ""
            return f"{subject} for {card}, and a Jetson module runs only code built for it{note}"
        majors = sorted({key(build.cuda)[0] for build in builds if build.cuda})
        if gpu.last_cuda is None or not majors or majors[0] <= key(gpu.last_cuda)[0]:
            return None
        named, have = " and ".join(f"CUDA {major}" for major in majors), "have" if majors[1:] else "has"
        if any(other.field == "cuda" for other in self.clash):
            return f"{named} {have} no code for {gpu.family} ({card.sm})"
        return f"{rest or 'every build'} comes with {named} only, which {have} no code for {gpu.family} ({card.sm})"

    def _driver(self, ask: Ask, rest: str, builds: list[Build]) -> str:
        for other in self.clash:
            if other.field == "gpu" and not driven(self.full.cards[other.position].gpu, ask.words[1]):
                return self._branch(other)
        needs = [self.index.needs[build.cuda] for build in builds if build.cuda]
        if not needs:
            return f"{rest} does not run on driver {ask.words[1]}"
        easiest = min(needs, key=lambda need: (key(need.minimum), key(need.native)))
        self.refs += easiest.refs
        older = f"{ask.words[1]} is older"
        if key(easiest.minimum) <= key(ask.words[1]):
            return f"{rest} needs driver {easiest.native} or newer to compile its PTX; {older}"
        natively = "" if easiest.native == easiest.minimum else f" ({easiest.native} to run natively)"
        return f"{rest} needs driver {easiest.minimum} or newer{natively}; {older}"

    def _branch(self, ask: Ask) -> str:
        card = self.full.cards[ask.position]
        first, last = card.gpu.min_driver_branch, card.gpu.last_driver_branch
        if last is not None and key(self.full.driver or "0")[0] > last:
            return f"driver branch R{last} is the last that supports {card}; driver {self.full.driver} is newer"
        return f"{card} needs driver branch R{first} or newer; driver {self.full.driver} is older"

    def _os(self, ask: Ask, rest: str, builds: list[Build]) -> str:
        del ask
        system = self.full.os
        needs = {build.glibc for build in builds if build.glibc}
        if system is None:
            return f"{rest} needs another OS"
        asked = self.full.python if any(other.field == "python" for other in self.clash) else None
        own = self._supported("python", {name for name in system.pythons if asked is None or asked.allows(name)})
        if self.full.wheels and not any(own & set(build.pythons or ()) for build in builds):
            return self._system_python()
        if builds and all(build.platform not in system.platforms for build in builds):
            return f"{system.id} is available for {', '.join(system.platforms)} only"
        if not needs:
            return f"the glibc version that {rest} needs is unknown; {system.id} has {system.glibc}"
        return f"{rest} needs glibc {min(needs, key=key)} or newer; {system.id} has {system.glibc}"


_TITLE = {
    "torch": "torch",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "python": "Python",
    "driver": "driver",
    "source": "source",
    "platform": "platform",
    "template": "template",
    "os": "OS",
    "cpu": "CPU",
    "max_size": "a download of at most",
}
# What the first of some constraints does with versions of torch, CUDA or cuDNN; any other one "is available for" them.
_VERB = {"gpu": "is supported by", "os": "is supported by", "python": "is supported by", "driver": "runs"}


def _newest(build: Build) -> tuple[object, ...]:
    return key(build.torch), key(build.cuda or "0"), build.source, build.platform


def _values(field: str, builds: list[Build]) -> set[str]:
    if field == "python":
        return {name for build in builds for name in build.pythons or ()}
    return {value for build in builds if isinstance(value := getattr(build, field, None), str)}


def _span(field: str, values: set[str], index: Index) -> str:
    """Return the values, oldest first: consecutive torch releases as `2.1.0 to 2.5.1`, anything else one by one."""
    if field in ("source", "platform"):
        return ", ".join(sorted(values))
    ordered = sorted(values, key=key)
    if field != "torch":
        return ", ".join(ordered)
    runs: list[list[str]] = []
    for name in ordered:
        if runs and index.rank[runs[-1][-1]] - index.rank[name] == 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _nearest(constraint: Constraint | None, index: Index) -> list[str]:
    written = key(constraint.clauses[0][1]) if constraint else ()
    line = sorted({*(key(name) for name in index.rank), written})
    position = line.index(written)
    # The distance is counted in releases: 2.0.0 is next to 1.13.1.
    return sorted(index.rank, key=lambda name: (abs(line.index(key(name)) - position), index.rank[name]))[:3]


def _row(torch: str, index: Index) -> str:
    builds = [build for build in index.facts.builds if build.torch == torch]
    return f"torch {torch} with CUDA {_span('cuda', _values('cuda', builds), index)}"
