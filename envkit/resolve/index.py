"""What the rules look up more than once, made from the facts in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from envkit.facts.model import Build, Cudnn, Facts, MinorCompat, ToolkitDriver
from envkit.ground.versions import is_version, key, minor
from envkit.resolve.support import torch_series

# At equal torch the sources are tried in this order.
SOURCE_ORDER = ("pytorch", "pypi", "conda-forge", "conda-pytorch")
WHEEL_SOURCES = ("pytorch", "pypi")


@dataclass(frozen=True, slots=True)
class Need:
    """What one CUDA runtime asks of the Linux driver."""

    native: str
    minimum: str
    refs: tuple[str, ...]
    inferred: bool = False  # `native` was concluded: it may warn, it refuses nothing

    def mode(self, driver: str) -> str | None:
        """`native`, `minor-compatible`, or None when this driver cannot run it."""
        if key(driver) >= key(self.native):
            return "native"
        return "minor-compatible" if key(driver) >= key(self.minimum) else None


@dataclass(frozen=True, slots=True)
class Index:
    """Facts by the keys the resolver asks for."""

    facts: Facts
    rank: dict[str, int]  # torch -> 0 for the newest
    needs: dict[str, Need]  # CUDA 'major.minor' -> driver
    siblings: dict[str, tuple[str, ...]]  # torch -> Pythons of any of its builds, oldest first
    last: dict[tuple[str, str], str]  # (source, CUDA) -> newest torch that has it
    newest: dict[str, str]  # source -> newest torch
    glibc: str | None  # highest glibc any build is known to need
    cudas: frozenset[str]  # of all builds
    cudnns: frozenset[str]
    series: tuple[str, ...]  # minor versions of torch that count as supported, oldest first
    supported: frozenset[str]  # torch versions of these
    places: dict[tuple[str, bool], tuple[Build, ...]]  # (platform, without CUDA) -> builds
    _floors: dict[tuple[str | None, str | None], tuple[str, tuple[str, ...]] | None] = field(default_factory=dict)

    def cudnn_floor(self, build: Build) -> tuple[str, tuple[str, ...]] | None:
        """Return `cudnn_floor` of a build; it is worked out once for each CUDA and cuDNN."""
        pair = (build.cuda, build.cudnn)
        if pair not in self._floors:
            self._floors[pair] = cudnn_floor(build, self.facts.cudnns)
        return self._floors[pair]

    def settled(self, torch: str) -> tuple[str, ...]:
        """Pythons the torch series before this one already had; empty for the oldest."""
        series = minor(torch)
        older = [name for name in self.siblings if key(minor(name)) < key(series)]
        if not older:
            return ()
        before = max((minor(name) for name in older), key=key)
        return tuple({p for name in older if minor(name) == before for p in self.siblings[name]})


_kept: list[Index] = []  # the last one


def index(facts: Facts) -> Index:
    """Index the facts. The last index is kept, so that a command that resolves often makes it once."""
    if not (_kept and _kept[0].facts is facts):
        _kept[:] = [_made(facts)]
    return _kept[0]


def _made(facts: Facts) -> Index:
    versions = sorted({build.torch for build in facts.builds} | set(facts.releases), key=key, reverse=True)
    last: dict[tuple[str, str], str] = {}
    newest: dict[str, str] = {}
    pythons: dict[str, set[str]] = {}
    for build in facts.builds:
        if build.cuda:
            pair = (build.source, build.cuda)
            last[pair] = max(last.get(pair, build.torch), build.torch, key=key)
            newest[build.source] = max(newest.get(build.source, build.torch), build.torch, key=key)
        pythons.setdefault(build.torch, set()).update(build.pythons or ())
    places: dict[tuple[str, bool], list[Build]] = {}
    for build in facts.builds:
        places.setdefault((build.platform, build.cuda is None), []).append(build)
    series = torch_series(facts)
    known = [build.glibc for build in facts.builds if build.glibc]
    return Index(
        facts=facts,
        rank={version: position for position, version in enumerate(versions)},
        needs=_needs(facts),
        siblings={torch: tuple(sorted(names, key=key)) for torch, names in pythons.items()},
        last=last,
        newest=newest,
        glibc=max(known, key=key) if known else None,
        cudas=frozenset(build.cuda for build in facts.builds if build.cuda),
        cudnns=frozenset(build.cudnn for build in facts.builds if build.cudnn),
        series=series,
        supported=frozenset(version for version in versions if minor(version) in series),
        places={target: tuple(builds) for target, builds in places.items()},
    )


def unsure(build: Build) -> bool:
    """Whether the build's data are incomplete: its Pythons are unknown, or everything down to its cuDNN is inferred."""
    return build.pythons is None or (build.confidence == "inferred" and build.cudnn is None)


def cudnn_floor(build: Build, cudnns: tuple[Cudnn, ...]) -> tuple[str, tuple[str, ...]] | None:
    """Return the lowest capability the build's cuDNN runs on, with its sources; None where no sourced row says it.

    The row that counts is the newest one for the same CUDA major that is not newer than the build's cuDNN. A newer
    cuDNN never runs on an older GPU again, so an older row still applies if the newest one is only inferred.
    """
    sourced = tuple(row for row in cudnns if row.confidence is None)
    return _floor(build.cuda, build.cudnn, sourced)


def doubted_floor(build: Build, cudnns: tuple[Cudnn, ...]) -> str | None:
    """Return the lowest capability the build's cuDNN is believed to run on, inferred rows and neighbors included.

    Where the build's cuDNN is not known, the newest one for its CUDA major stands for it. Only warnings may use this.
    """
    floor = _floor(build.cuda, build.cudnn or "999", cudnns)
    return floor[0] if floor else None


def _floor(cuda: str | None, cudnn: str | None, cudnns: tuple[Cudnn, ...]) -> tuple[str, tuple[str, ...]] | None:
    if cudnn is None or cuda is None:
        return None
    rows = [row for row in cudnns if _majors(row) & {key(cuda)[0]} and _first(row) <= key(cudnn)]
    if not rows:
        return None
    top = max(_first(row) for row in rows)
    chosen = [row for row in rows if _first(row) == top]
    lows = [low for row in chosen if (low := _lowest(row)) is not None]
    if not lows:
        return None
    return min(lows, key=key), tuple(sorted({ref for row in chosen for ref in row.refs}))


def _needs(facts: Facts) -> dict[str, Need]:
    """A toolkit minor is native from the driver of its first release on: PTX changes with the minor number only."""
    first: dict[str, ToolkitDriver] = {}
    known = [(row, row.linux_min) for row in facts.toolkits if row.linux_min is not None]
    drivers = {row.toolkit: driver for row, driver in known}
    # Sourced rows come first: an inferred one is used only for a minor version without another row.
    for row, _ in sorted(known, key=lambda pair: (pair[0].confidence is not None, key(pair[1]), key(pair[0].toolkit))):
        first.setdefault(minor(row.toolkit), row)
    floors: dict[int, MinorCompat] = {row.cuda_major: row for row in facts.compat}
    needs: dict[str, Need] = {}
    for name, row in first.items():
        native, inferred = drivers[row.toolkit], row.confidence is not None
        floor = floors.get(key(name)[0])
        # Without a known floor for this major a sourced row refuses older drivers, and an inferred one refuses none.
        if floor is None or floor.linux_min is None:
            needs[name] = Need(native, "0" if inferred else native, row.refs, inferred)
        else:
            lowest = min(native, floor.linux_min, key=key)
            needs[name] = Need(native, lowest, tuple(dict.fromkeys(row.refs + floor.refs)), inferred)
    return needs


def _majors(row: Cudnn) -> set[int]:
    return {int(part) for part in row.cuda_major.split("/") if part.isdigit()}


def _first(row: Cudnn) -> tuple[int, ...]:
    """Sort key of a row that may stand for a range: `9.5.0-9.5.1`."""
    return key(row.cudnn.split("-")[0])


def _lowest(row: Cudnn) -> str | None:
    plain = [text.rstrip("+") for text in row.capabilities]
    versions = [text for text in plain if is_version(text) and "." in text]
    return min(versions, key=key) if versions else None
