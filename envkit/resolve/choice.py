"""Which of the builds that fit is the answer, and which of its Pythons.

Order: rows that are known to exist before rows that are only inferred; then the newest torch; then the source
(the PyTorch index, the Python index, conda-forge, the pytorch channel); then builds upstream advertises; then a CUDA
the driver runs natively; then the newest CUDA. One thing stands above the newest torch: a native build wins over a
minor-compatible one when it costs at most one torch series (2.14 instead of 2.15), because minor-version
compatibility cannot compile PTX. It does not win when it costs more: a driver 535 gets today's torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from envkit.facts.model import Build, Release
from envkit.resolve.index import SOURCE_ORDER, Index, unsure
from envkit.resolve.rules import Sieve
from envkit.versions import key, minor


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer among the builds that fit."""

    build: Build
    fitting: int
    strained: Build | None = None  # newer torch passed over because the driver does not run it natively
    unproven: Build | None = None  # newer torch passed over because nobody is known to have seen it


def choose(found: list[Build], sieve: Sieve) -> Choice:
    """The best of at least one build."""
    best = min(found, key=lambda build: _order(build, sieve))
    doubtful = [build for build in found if unsure(build) and key(build.torch) > key(best.torch)]
    unproven = min(doubtful, key=lambda build: _order(build, sieve)) if doubtful else None
    if sieve.wanted.driver is None or _mode(best, sieve) == "native":
        return Choice(best, len(found), unproven=unproven)
    near = _series_before(best.torch, sieve.index)
    native = [
        build
        for build in found
        if _mode(build, sieve) == "native" and unsure(build) == unsure(best) and minor(build.torch) in near
    ]
    if not native:
        return Choice(best, len(found), unproven=unproven)
    return Choice(min(native, key=lambda build: _order(build, sieve)), len(found), strained=best)


def python(build: Build, sieve: Sieve) -> str:
    """The newest allowed Python that torch.compile is known to support and that has settled.

    Settled means that the torch series before this one had it too: a Python that arrives with a release is called
    experimental there, and much else does not support it yet.
    """
    index = sieve.index
    allowed = [name for name in sieve.known_pythons(build) if sieve.pythons is None or name in sieve.pythons]
    compiles = [name for name in allowed if compile_supported(name, index.facts.releases.get(build.torch))]
    settled = set(index.settled(build.torch))
    pools = ([name for name in compiles if name in settled], compiles, [name for name in allowed if name in settled])
    return max(next((pool for pool in pools if pool), allowed), key=key)


def compile_supported(python: str, release: Release | None) -> bool:
    """Whether torch.compile is not known to refuse this Python."""
    limit = release.compile_max_python if release else None
    return limit is None or key(python) <= key(limit)


def _order(build: Build, sieve: Sieve) -> tuple[object, ...]:
    newest_cuda = tuple(-number for number in (*key(build.cuda or "0"), 0))
    return (
        unsure(build),
        sieve.index.rank[build.torch],
        SOURCE_ORDER.index(build.source),
        not build.advertised,
        _mode(build, sieve) != "native",
        newest_cuda,
        build.platform,
        build.selector or "",
        build.index or "",
        build.local_version or "",
    )


def _mode(build: Build, sieve: Sieve) -> str | None:
    return "native" if build.cuda is None else sieve.modes.get(build.cuda)


def _series_before(torch: str, index: Index) -> tuple[str, ...]:
    """The series of a torch and the one before: ('2.15', '2.14')."""
    series = sorted({minor(name) for name in index.rank}, key=key)
    place = series.index(minor(torch))
    return tuple(series[max(0, place - 1) : place + 1])
