"""Lookup tables for the rules, made from the facts in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from envkit.facts.model import Build, Companion, Cudnn, Facts, MinorCompat, ToolkitDriver
from envkit.ground.versions import is_version, key, minor
from envkit.resolve.support import torch_series

# The order of preference among builds of the same torch.
SOURCE_ORDER = ("pytorch", "pypi", "conda-forge", "conda-pytorch")
WHEEL_SOURCES = ("pytorch", "pypi")


@dataclass(frozen=True, slots=True)
class Need:
    """The Linux driver versions that one CUDA runtime needs."""

    native: str
    minimum: str
    refs: tuple[str, ...]
    inferred: bool = False  # no source states `native`: it may cause a warning, but refuses no build

    def mode(self, driver: str) -> str | None:
        """Return `native`, `minor-compatible`, or None if this driver cannot run it."""
        if key(driver) >= key(self.native):
            return "native"
        return "minor-compatible" if key(driver) >= key(self.minimum) else None


@dataclass(frozen=True, slots=True)
class Index:
    """The facts by the keys that the resolver looks up."""

    facts: Facts
    rank: dict[str, int]  # torch -> 0 for the newest
    needs: dict[str, Need]  # CUDA 'major.minor' -> driver
    siblings: dict[str, tuple[str, ...]]  # torch -> Pythons of any of its builds, oldest first
    last: dict[tuple[str, str], str]  # (source, CUDA) -> newest torch built for it
    newest: dict[str, str]  # source -> newest torch
    glibc: str | None  # highest glibc that any build is known to need
    cudas: frozenset[str]  # of all builds
    cudnns: frozenset[str]
    series: tuple[str, ...]  # minor versions of torch that count as supported, oldest first
    supported: frozenset[str]  # torch versions of these
    by_target: dict[tuple[str, bool], tuple[Build, ...]]  # (platform, without CUDA) -> builds
    companions: dict[tuple[str, str, str], list[Companion]]  # (package, index, platform) -> its wheels
    _floors: dict[tuple[str | None, str | None], tuple[str, tuple[str, ...]] | None] = field(default_factory=dict)

    def cudnn_floor(self, build: Build) -> tuple[str, tuple[str, ...]] | None:
        """Return `cudnn_floor` of a build, computed once for each CUDA and cuDNN."""
        pair = (build.cuda, build.cudnn)
        if pair not in self._floors:
            self._floors[pair] = cudnn_floor(build, self.facts.cudnns)
        return self._floors[pair]

    def settled(self, torch: str) -> tuple[str, ...]:
        """Return the Pythons that the torch series before this one had; empty for the oldest series."""
        series = minor(torch)
        older = [name for name in self.siblings if key(minor(name)) < key(series)]
        if not older:
            return ()
        before = max((minor(name) for name in older), key=key)
        return tuple({p for name in older if minor(name) == before for p in self.siblings[name]})


_last_index: list[Index] = []  # at most one


def index(facts: Facts) -> Index:
    """Return the index of the facts; the last one is kept, so a command that resolves many requests builds it once."""
    # By identity: a comparison of equal facts would go through all their rows.
    if not (_last_index and _last_index[0].facts is facts):
        _last_index[:] = [_build_index(facts)]
    return _last_index[0]


def _build_index(facts: Facts) -> Index:
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
    by_target: dict[tuple[str, bool], list[Build]] = {}
    for build in facts.builds:
        by_target.setdefault((build.platform, build.cuda is None), []).append(build)
    companions: dict[tuple[str, str, str], list[Companion]] = {}
    for row in facts.companions:
        companions.setdefault((row.package, row.index, row.platform), []).append(row)
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
        by_target={target: tuple(builds) for target, builds in by_target.items()},
        companions=companions,
    )


def unsure(build: Build) -> bool:
    """Return whether the build's data are incomplete: its Pythons are unknown, or it is inferred, without a cuDNN."""
    return build.pythons is None or (build.confidence == "inferred" and build.cudnn is None)


def cudnn_floor(build: Build, cudnns: tuple[Cudnn, ...]) -> tuple[str, tuple[str, ...]] | None:
    """Return the lowest capability that the build's cuDNN supports, with its sources; None if no sourced row has it.

    It is that of the newest row for the same CUDA major that is not newer than the build's cuDNN. cuDNN never adds
    support for an older GPU again, so an older row still applies if the newest one is only inferred.
    """
    sourced = tuple(row for row in cudnns if row.confidence is None)
    return _floor(build.cuda, build.cudnn, sourced)


def doubted_floor(build: Build, cudnns: tuple[Cudnn, ...]) -> str | None:
    """Return the lowest capability that the build's cuDNN probably supports, from inferred rows too; None if unknown.

    If the build's cuDNN is unknown, the newest one for its CUDA major is assumed. Use it for warnings only.
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
    """Return the driver needs of each CUDA 'major.minor'.

    A driver runs a minor version natively from the driver of its first release on: PTX changes only with the minor
    number.
    """
    first: dict[str, ToolkitDriver] = {}
    known = [(row, row.linux_min) for row in facts.toolkits if row.linux_min is not None]
    drivers = {row.toolkit: driver for row, driver in known}
    # Sourced rows come first, so an inferred row is used only for a minor version without a sourced one.
    for row, _ in sorted(known, key=lambda pair: (pair[0].confidence is not None, key(pair[1]), key(pair[0].toolkit))):
        first.setdefault(minor(row.toolkit), row)
    floors: dict[int, MinorCompat] = {row.cuda_major: row for row in facts.compat}
    needs: dict[str, Need] = {}
    for name, row in first.items():
        native, inferred = drivers[row.toolkit], row.confidence is not None
        floor = floors.get(key(name)[0])
        # If the floor of this major is unknown, a sourced row refuses older drivers and an inferred row refuses none.
        if floor is None or floor.linux_min is None:
            needs[name] = Need(native, "0" if inferred else native, row.refs, inferred)
        else:
            lowest = min(native, floor.linux_min, key=key)
            needs[name] = Need(native, lowest, tuple(dict.fromkeys(row.refs + floor.refs)), inferred)
    return needs


def _majors(row: Cudnn) -> set[int]:
    return {int(part) for part in row.cuda_major.split("/") if part.isdigit()}


def _first(row: Cudnn) -> tuple[int, ...]:
    """Return the sort key of a row, which may be for a range: `9.5.0-9.5.1`."""
    return key(row.cudnn.split("-")[0])


def _lowest(row: Cudnn) -> str | None:
    # `7.5+`: from this capability on.
    plain = [text.rstrip("+") for text in row.capabilities]
    versions = [text for text in plain if is_version(text) and "." in text]
    return min(versions, key=key) if versions else None
