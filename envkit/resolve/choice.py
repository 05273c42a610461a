"""Choose the answer among the compatible builds, and its Python.

Builds are ordered by these criteria, most important first: known to exist before only inferred; known to have code for
the GPUs before unknown; the newest torch; CUDA
that the driver runs natively, then by minor-version compatibility, then by forward compatibility; the source (PyTorch
index, Python index, conda-forge, pytorch channel); advertised upstream; the newest CUDA.

There is one exception. Minor-version compatibility cannot compile PTX and forward compatibility needs a package, so a
native build is preferred even if its torch is one series older (2.14 instead of 2.15). If it would be older still, the
newest torch stays the answer, which then also names the native build: that is the case with a driver 535.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from envkit.facts.model import Build, Release
from envkit.ground.versions import key, minor
from envkit.resolve.companions import COMPANIONS, companion
from envkit.resolve.forward import FORWARD
from envkit.resolve.index import SOURCE_ORDER, Index, unsure
from envkit.resolve.rules import Sieve, candidates

MODES = ("native", "minor-compatible", FORWARD)
"""How a driver runs a CUDA runtime, best first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer among the builds that fit."""

    build: Build
    fitting: int
    not_native: Build | None = None  # with a newer torch, passed over because the driver does not run it natively
    incomplete: Build | None = None  # with a newer torch, passed over because its data are incomplete
    native: Build | None = None  # best build that the driver runs natively, if the answer is not native


def choose(builds: list[Build], sieve: Sieve) -> Choice:
    """Return the best of the builds, of which there is at least one."""
    best = _best(builds, sieve)
    newer = {name for name, position in sieve.index.rank.items() if position < sieve.index.rank[best.torch]}
    doubtful = [build for build in builds if build.torch in newer and unsure(build)]
    incomplete = min(doubtful, key=lambda build: _order(build, sieve)) if doubtful else None
    if sieve.wanted.driver is None or _mode(best, sieve) == "native":
        return Choice(best, len(builds), incomplete=incomplete)
    # A native build with incomplete data is no alternative to a complete one.
    native = [build for build in builds if _mode(build, sieve) == "native" and unsure(build) == unsure(best)]
    if not native:
        return Choice(best, len(builds), incomplete=incomplete, native=_native_elsewhere(sieve))
    first = min(native, key=lambda build: _order(build, sieve))
    if minor(first.torch) in _last_two_series(best.torch, sieve.index):
        return Choice(first, len(builds), not_native=best)
    return Choice(best, len(builds), incomplete=incomplete, native=first)


def _best(builds: list[Build], sieve: Sieve) -> Build:
    """Return the first build in order; the full order is computed only for builds of the newest torch."""
    rank = sieve.index.rank
    places = [(unsure(build), sieve.guessed(build), rank[build.torch]) for build in builds]
    newest = [build for build, place in zip(builds, places, strict=True) if place == min(places)]
    return min(newest, key=lambda build: _order(build, sieve))


def best_per_torch(builds: list[Build], sieve: Sieve) -> list[Build]:
    """Return the best of the builds of each torch, the newest torch first."""
    best: dict[str, Build] = {}
    for build in sorted(builds, key=lambda build: _order(build, sieve)):
        best.setdefault(build.torch, build)
    return sorted(best.values(), key=lambda build: sieve.index.rank[build.torch])


def _native_elsewhere(sieve: Sieve) -> Build | None:
    """Return the best build that the driver runs natively if the request's CUDA were left out; None without one."""
    if sieve.wanted.cuda is None:
        return None
    other = Sieve(replace(sieve.wanted, cuda=None), sieve.index)
    native = [build for build in candidates(other) if _mode(build, other) == "native" and not unsure(build)]
    return min(native, key=lambda build: _order(build, other), default=None)


def python(build: Build, sieve: Sieve) -> str:
    """Return the newest allowed Python that torch.compile is known to support and that is well supported.

    Pythons for which torchvision and torchaudio have files are preferred to all others. A Python is well supported if
    the previous torch series had it too: PyTorch calls a Python experimental in the release that adds it, and many
    other packages do not support it yet.
    """
    index = sieve.index
    allowed = [name for name in sieve.known_pythons(build) if sieve.may_be(name) and sieve.complete(build, name)]
    allowed = _most_complete(build, allowed, index)
    compiles = [name for name in allowed if compile_supported(name, index.facts.releases.get(build.torch))]
    settled = set(index.settled(build.torch))
    pools = ([name for name in compiles if name in settled], compiles, [name for name in allowed if name in settled])
    return max(next((pool for pool in pools if pool), allowed), key=key)


def _most_complete(build: Build, pythons: list[str], index: Index) -> list[str]:
    """Return the Pythons for which the most companions have a file; torchvision counts more than torchaudio."""

    def available(python: str) -> tuple[bool, ...]:
        return tuple(companion(build, name, python, index) is not None for name in COMPANIONS)

    best = max(available(python) for python in pythons)
    return [python for python in pythons if available(python) == best]


def compile_supported(python: str, release: Release | None) -> bool:
    """Return whether torch.compile supports this Python, as far as the facts tell; True if they do not."""
    limit = release.compile_max_python if release else None
    return limit is None or key(python) <= key(limit)


def _order(build: Build, sieve: Sieve) -> tuple[object, ...]:
    # Negative: the newest sorts first. key() drops trailing zeros, so without the final 0, 12.0 would sort before 12.6.
    newest_cuda = tuple(-number for number in (*key(build.cuda or "0"), 0))
    return (
        unsure(build),
        sieve.guessed(build),
        sieve.index.rank[build.torch],
        MODES.index(_mode(build, sieve) or FORWARD),
        SOURCE_ORDER.index(build.source),
        not build.advertised,
        newest_cuda,
        # From here on only for a total order: equal facts give the same answer in any order of rows.
        build.platform,
        build.selector or "",
        build.index or "",
        build.local_version or "",
    )


def _mode(build: Build, sieve: Sieve) -> str | None:
    return "native" if build.cuda is None else sieve.modes.get(build.cuda)


def _last_two_series(torch: str, index: Index) -> tuple[str, ...]:
    """Return the series of a torch and the one before it, oldest first: ('2.14', '2.15')."""
    series = sorted({minor(name) for name in index.rank}, key=key)
    position = series.index(minor(torch))
    return tuple(series[max(0, position - 1) : position + 1])
