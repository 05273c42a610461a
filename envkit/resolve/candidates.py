"""The torch releases and Pythons that the facts allow, for a solver that chooses among them by what packages require.

The facts know hardware and torch; what other packages require of torch is only in their own metadata. So the facts give
candidates, best first, and a solver takes the first that the packages allow. `Limit` brings its choice back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from envkit.facts.model import Build, Facts
from envkit.ground.versions import key, parse_constraint
from envkit.resolve.choice import best_per_torch, choose
from envkit.resolve.index import index
from envkit.resolve.model import Request
from envkit.resolve.rules import Sieve, candidates, scoped
from envkit.resolve.wanted import wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A torch and a Python that were chosen among the candidates of a request."""

    torch: str
    python: str | None = None  # None: the resolver chooses it for this torch
    reasons: Mapping[str, str] = field(default_factory=dict)  # field of the resolution -> why it is so

    def fits(self, request: Request) -> bool:
        """Return whether a request allows these versions."""
        pairs = ((request.torch, self.torch), (request.python, self.python))
        return all(asked is None or version is None or asked.allows(version) for asked, version in pairs)

    def of(self, request: Request) -> Request:
        """Return a request that allows only these versions."""
        python = request.python if self.python is None else parse_constraint(f"=={self.python}", "python")
        return replace(request, torch=parse_constraint(f"=={self.torch}", "torch"), python=python)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The builds of torch that a request allows with one Python: the best of each torch, the newest torch first.

    A torch that is newer than the resolver's own answer for this Python is not among them: it is passed over for a
    reason that holds whatever packages require (its driver, incomplete data).
    """

    python: str
    builds: tuple[Build, ...]
    others: tuple[str, ...] = ()  # further versions of torch that exist

    @property
    def torches(self) -> tuple[str, ...]:
        """The versions of torch, newest first."""
        return tuple(build.torch for build in self.builds)

    def without(self, torches: Iterable[str]) -> Candidates:
        """Return the candidates but for some versions of torch."""
        removed = set(torches)
        kept = tuple(build for build in self.builds if build.torch not in removed)
        return replace(self, builds=kept, others=(*self.others, *removed))


def candidates_of(request: Request, facts: Facts, python: str) -> tuple[Candidates, ...]:
    """Return the candidates of a request by Python; empty if nothing is compatible.

    Args:
        request: the request, with the build method as its template.
        facts: to resolve against.
        python: that of the resolver's answer. Its candidates come first, then those of older Pythons, the newest first,
            then those of newer ones.

    Raises:
        UsageError: the request names a GPU or an OS that is not in the facts.
    """
    known = index(facts)
    full = scoped(wanted(request, facts), known)
    sieve = Sieve(full, known)
    builds = candidates(sieve)
    names = {name for build in builds for name in sieve.known_pythons(build) if sieve.may_be(name)}
    older = sorted((name for name in names if key(name) < key(python)), key=key, reverse=True)
    newer = sorted((name for name in names if key(name) > key(python)), key=key)
    found = (_with_python(name, builds, sieve) for name in (python, *older, *newer))
    return tuple(some for some in found if some.builds)


def _with_python(python: str, builds: list[Build], sieve: Sieve) -> Candidates:
    own = replace(sieve.wanted, python=parse_constraint(f"=={python}", "python"))
    narrow = Sieve(own, sieve.index)
    some = [build for build in builds if python in narrow.known_pythons(build) and narrow.complete(build, python)]
    if not some or not narrow.may_be(python):
        return Candidates(python=python, builds=())
    answer = choose(some, narrow).build
    rank = sieve.index.rank
    best = best_per_torch([build for build in some if rank[build.torch] >= rank[answer.torch]], narrow)
    torches = {build.torch for build in best}
    return Candidates(
        python=python,
        builds=tuple(answer if build.torch == answer.torch else build for build in best),
        others=tuple(torch for torch in rank if torch not in torches),
    )
