"""Solve wheels: first the torch family from its own index, then the rest from the Python index."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envkit.ground.errors import ConflictError, EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.versions import key, minor
from envkit.lock import file_lists, offers, sizes, uv, variants
from envkit.lock.index_locations import IndexLocations, without_login
from envkit.lock.known_pages import Found, KnownPages, image_of
from envkit.lock.model import PAGE, Wheel
from envkit.lock.previous import NOTHING, Previous
from envkit.lock.uv import Target
from envkit.lock.values import last_part
from envkit.lock.variants import Image
from envkit.lock.wheel_choice import IndexWheel, parse_pylock, ranks_of
from envkit.plan.model import BuildPlan
from envkit.plan.source_spec import parse

_CUDA_WHEELS = ("nvidia-", "cuda-")
_CUDA_INSIDE = "1.12"  # the last minor version of torch whose wheels on the Python index contain CUDA
# A requirement that only one version satisfies.
_MOST_EXPLAINED = 5  # packages of a conflict whose files are looked up
_EXACT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*==\s*[A-Za-z0-9.+!]+")


def solve(
    plan: BuildPlan,
    target: Target,
    indexes: IndexLocations,
    *,
    torch: Sequence[str],
    chosen: Mapping[str, str],
    as_of: str | None = None,
    previous: Previous = NOTHING,
    built: Mapping[Path, Wheel] = MappingProxyType({}),
    known: KnownPages | None = None,
) -> tuple[Wheel, ...]:
    """Return the wheels of a plan, sorted by name.

    Args:
        plan: for its other requirements, its source of torch and its CUDA.
        target: the interpreter that runs them.
        indexes: where packages are downloaded from.
        torch: requirements of the torch family; none if it comes from conda.
        chosen: distribution -> version of conda's Python packages: respected, but not installed again.
        as_of: RFC 3339; newer files are not considered.
        previous: the old lock's versions, preferred to others, and the names of the packages to update.
        built: wheels that were built from source, by file. All are used, and their dependencies are solved too.
        known: reads the pages with prebuilt wheels that the facts know.

    Raises:
        UsageError: a requirement is invalid.
        ConflictError: no wheels satisfy the requirements, or only a CPU build does and CUDA is requested.
        EnvironmentProblem: uv is missing, or an index does not answer or has no SHA-256.
        TimeLimitError: uv did not finish in time.
    """
    places_of = partial((known or KnownPages()).found, plan, image_of(plan.resolution), target, indexes)

    def solved(found: Found) -> tuple[Wheel, ...]:
        request = _Request(plan=plan, target=target, indexes=indexes, torch=torch, chosen=chosen, as_of=as_of)
        return _solve(request, previous, built, found)

    found = places_of()
    try:
        return solved(found)
    except ConflictError as error:
        # A package that others require may have a page, too.
        name = uv.source_only(error)
        again = places_of(more=[name]) if name is not None else found
        if again.links == found.links:
            raise
    return solved(again)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What to solve; see `solve`."""

    plan: BuildPlan
    target: Target
    indexes: IndexLocations
    torch: Sequence[str]
    chosen: Mapping[str, str]
    as_of: str | None


def _solve(request: _Request, previous: Previous, built: Mapping[Path, Wheel], found: Found) -> tuple[Wheel, ...]:
    plan, target, indexes = request.plan, request.target, request.indexes
    own_index = plan.resolution.source == "pytorch" and bool(request.torch)
    rest = (*plan.pip, *_by_name(plan, built), *(f"{wheel.name}=={wheel.version}" for wheel in built.values()))
    names = frozenset(wheel.name for wheel in built.values())
    added = _added(plan, target, indexes, found)
    solver = _Solver(
        target=target,
        constraints=(*plan.constraints, *added.constraints()),
        chosen=request.chosen,
        as_of=request.as_of,
        update=previous.update - names,
        built=names,
    )
    index = found.with_lists(python_index(plan, indexes))
    # One index for each solve: with both in one, a package of the same name in the other index could be chosen.
    stages = [
        # Built wheels are requirements of `rest`, which the first solve includes only without an own index.
        _Stage(wanted=tuple(request.torch), index=_torch_index(indexes), own=True),
        _Stage(wanted=rest, index=index, built=tuple(built)),
    ]
    if not own_index:
        stages = [_Stage(wanted=(*request.torch, *rest), index=index, built=tuple(built))]
    stages = [stage for stage in stages if stage.wanted]
    kept = {name: version for name, version in previous.wheels.items() if name not in names}
    try:
        solved = _solved(solver, stages, kept)
    except ConflictError as error:
        raise added.explained(error) from error
    wheels = [
        _wheel(row, indexes, own=stage.own, paged=found.has(row.url))
        for stage, rows in zip(stages, solved, strict=True)
        for row in rows
    ]
    _no_cpu_build(plan, wheels)
    return tuple(sorted([*wheels, *built.values()], key=lambda wheel: wheel.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One run of the solver."""

    wanted: tuple[str, ...]
    index: uv.Index
    built: tuple[Path, ...] = ()
    own: bool = False  # the index of the torch family


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solver:
    """What all stages have in common."""

    target: Target
    constraints: Sequence[str]
    chosen: Mapping[str, str]  # conda's packages
    as_of: str | None
    update: frozenset[str]
    built: frozenset[str]

    def all(self, stages: Sequence[_Stage], kept: Sequence[Mapping[str, str]]) -> list[tuple[IndexWheel, ...]]:
        """Return the files of each stage. Packages of one stage are installed for the next ones.

        Args:
            stages: the stages, in order.
            kept: for each stage the versions that are preferred, those of packages to update included.
        """
        solved: list[tuple[IndexWheel, ...]] = []
        for stage, old in zip(stages, kept, strict=True):
            earlier = {row.name: row.version for rows in solved for row in rows}
            solved.append(self._one(stage, {**self.chosen, **earlier}, old))
        return solved

    def _one(self, stage: _Stage, installed: Mapping[str, str], old: Mapping[str, str]) -> tuple[IndexWheel, ...]:
        free = uv.Limits(chosen=installed, constraints=self.constraints, built=stage.built)
        # The old version of a package that is installed already would contradict its new one.
        old = {name: version for name, version in old.items() if name not in installed}
        limits = replace(
            free,
            preferred={name: version for name, version in old.items() if name not in self.update},
            pins=self._newest(stage, free, {name: old[name] for name in self.update if name in old}),
        )
        return _sized(self._compiled(stage, limits), stage.index)

    def _newest(self, stage: _Stage, free: uv.Limits, old: Mapping[str, str]) -> list[str]:
        """Return a pin for each package to update whose version without the old lock is newer.

        With the old versions of the others, the solver might prefer an old version of these, too.
        """
        exact = {canonicalize_name(match[1]) for match in map(_EXACT.fullmatch, stage.wanted) if match is not None}
        names = old.keys() - exact
        if not names:
            return []
        return [
            f"{row.name}=={row.version}"
            for row in self._compiled(stage, free)
            if row.name in names and _is_newer(row.version, old[row.name])
        ]

    def _compiled(self, stage: _Stage, limits: uv.Limits) -> tuple[IndexWheel, ...]:
        text, known = uv.compile_wheels(stage.wanted, self.target, limits, stage.index, as_of=self.as_of)
        ranks = ranks_of(self.target.platform, self.target.glibc, self.target.python)
        return parse_pylock(text, ranks, without=known | self.built)


def _is_newer(version: str, old: str) -> bool:
    try:
        return Version(version) > Version(old)
    except InvalidVersion:  # of a lock that was edited
        return True


def _solved(solver: _Solver, stages: Sequence[_Stage], kept: Mapping[str, str]) -> list[tuple[IndexWheel, ...]]:
    try:
        return solver.all(stages, [kept] * len(stages))
    except ConflictError:
        # The first solve does not know what the second one requires of the packages that it kept.
        if len(stages) == 1 or not kept:
            raise
        return solver.all(stages, [{}, kept])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Added:
    """The files of the indexes and pages that the definition adds, and the image that they have to fit."""

    plan: BuildPlan
    indexes: IndexLocations
    target: Target
    image: Image
    files: Sequence[str]  # names

    def constraints(self) -> list[str]:
        """Return constraints that exclude wheels for other torches, CUDAs and ABIs."""
        ranks = ranks_of(self.target.platform, self.target.glibc, self.target.python)
        # A build that the user names is checked afterwards: `abi.faults` says what is wrong with it.
        wanted = map(Requirement, self.plan.pip)
        pinned = {canonicalize_name(one.name) for one in wanted if "+" in str(one.specifier)}
        lines = variants.constraints(self.files, self.image, ranks)
        return [line for line in lines if line.partition("!")[0] not in pinned]

    def explained(self, error: ConflictError) -> ConflictError:
        """Return an error that names the Python or torch for which a package of a conflict has wheels, if any."""
        text = "\n".join((error.message, *error.details))
        source_only = uv.source_only(error)
        wanted = {source_only: SpecifierSet()} if source_only else {}
        wanted |= {canonicalize_name(one.name): one.specifier for one in map(Requirement, self.plan.pip)}
        named = [name for name in wanted if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text)]
        for name in named[:_MOST_EXPLAINED]:
            offer = offers.other(name, wanted[name], [*self.files, *self._of(name)], self.target, self.image)
            if offer is not None:
                hint = f"add {offer.option} to the command"
                return ConflictError(offer.why, details=(error.message, *error.details), hint=hint)
        return error

    def _of(self, name: str) -> list[str]:
        """Return the files of a package on its own index, or the Python index."""
        own = dict(self.plan.package_indexes).get(name)
        try:
            index = self.indexes.fetch_url(own) if own else self.indexes.python_index or uv.default_index()
            rows = file_lists.ask(f"{index.rstrip('/')}/{name}/", ca_bundle=self.indexes.ca_bundle)
        except (EnvironmentProblem, IntegrityError, UsageError, ValueError):
            return []  # the error of the solver counts
        return [str(row["name"]) for row in rows]


def _added(plan: BuildPlan, target: Target, indexes: IndexLocations, found: Found) -> _Added:
    """Read the pages and the lists of the indexes that the definition adds, besides what the facts' pages list.

    Raises:
        EnvironmentProblem: a page does not answer, or is none.
        IntegrityError: a page is cut short.
    """
    names = {canonicalize_name(Requirement(text).name) for text in plan.pip}
    lists = [(page, True) for page in plan.find_links]
    lists += [(f"{index.rstrip('/')}/{name}/", False) for index in plan.indexes for name in sorted(names)]
    lists += [(f"{indexes.fetch_url(url).rstrip('/')}/{name}/", False) for name, url in plan.package_indexes]
    files = list(found.files)
    for url, is_page in lists:
        try:
            files += [str(row["name"]) for row in file_lists.ask(url, ca_bundle=indexes.ca_bundle)]
        except EnvironmentProblem as error:
            # uv reports an index that does not answer; one without the package is as it should be.
            if is_page:
                hint = "check the address, or remove the page from find_links"
                raise EnvironmentProblem(error.message, hint=hint) from error
        except ValueError as error:
            if is_page:
                hint = "check the address, or remove the page from find_links"
                raise EnvironmentProblem(f"{without_login(url)} is not a page of links", hint=hint) from error
    return _Added(plan=plan, indexes=indexes, target=target, image=image_of(plan.resolution), files=files)


def _by_name(plan: BuildPlan, built: Mapping[Path, Wheel]) -> list[str]:
    """Return the packages that may be built from source but have a wheel, as requirements."""
    specs = [parse(text) for text in plan.allow_source]
    done = {wheel.name for wheel in built.values()}
    return [spec.requirement for spec in specs if spec.requirement is not None and spec.name not in done]


def _torch_index(indexes: IndexLocations) -> uv.Index:
    # A flat page has only the torch family; its dependencies are in the Python index.
    url = indexes.python_index if indexes.torch_pages else indexes.torch_index
    return uv.Index(url=url, pages=indexes.torch_pages, ca_bundle=indexes.ca_bundle)


def python_index(plan: BuildPlan, indexes: IndexLocations) -> uv.Index:
    """Return where the packages of a plan are searched that are not of the torch family."""
    return uv.Index(
        url=indexes.python_index,
        links=plan.find_links,
        first=plan.indexes,
        own={name: indexes.fetch_url(url) for name, url in plan.package_indexes},
        ca_bundle=indexes.ca_bundle,
    )


def _sized(rows: Sequence[IndexWheel], index: uv.Index) -> tuple[IndexWheel, ...]:
    # Split by the index that lists the file: its login and the addresses it may lead to depend on that index.
    unknown = [row.url for row in rows if row.size is None]
    known: dict[str, int] = {}
    for place in (index.pages, *index.links, *index.first, *index.own.values()):
        listed = [url for url in unknown if url not in known and _is_near(url, place)]
        known |= sizes.ask(listed, index=place, ca_bundle=index.ca_bundle) if listed else {}
    others = [url for url in unknown if url not in known]
    known |= sizes.ask(others, index=index.url, ca_bundle=index.ca_bundle)
    return tuple(replace(row, size=row.size or known[row.url]) for row in rows)


def _is_near(url: str, place: str | None) -> bool:
    """Return whether a file is on the server of an index or page."""
    return place is not None and urlsplit(url).netloc == urlsplit(place).netloc.rpartition("@")[2]


def _is_listed(url: str, pages: str | None) -> bool:
    return pages is not None and url.startswith(pages)


def _wheel(row: IndexWheel, indexes: IndexLocations, *, own: bool, paged: bool) -> Wheel:
    assert row.size is not None
    is_torch = own and (indexes.torch_pages is None or _is_listed(row.url, indexes.torch_pages))
    return Wheel(
        name=row.name,
        version=row.version,
        file=last_part(row.url),
        url=indexes.public(row.url),
        sha256=row.sha256,
        size=row.size,
        source="pytorch" if is_torch else PAGE if paged else "pypi",
    )


def _no_cpu_build(plan: BuildPlan, wheels: Sequence[Wheel]) -> None:
    torch = next((wheel for wheel in wheels if wheel.name == "torch"), None)
    if torch is None or plan.resolution.cuda is None:
        return
    # The index of a CUDA version has files without a local version, such as torch-2.4.0-cp38-cp38-linux_aarch64.whl.
    stated = torch.source == "pytorch" and torch.version == plan.resolution.files.get("torch")
    # A wheel of the Python index does not name its variant, but one with CUDA depends on NVIDIA's wheels.
    depends = any(wheel.name.startswith(_CUDA_WHEELS) for wheel in wheels)
    inside = torch.source == "pypi" and key(minor(torch.version)) <= key(_CUDA_INSIDE)
    plain = "+" not in torch.version and not (stated or depends or inside)
    if torch.version.endswith("+cpu") or plain:
        raise ConflictError(
            f"CUDA {plan.resolution.cuda} was requested, but the index returned a CPU build of "
            f"torch {torch.version} ({torch.file})",
            hint="use --source pytorch, whose wheel versions name their CUDA, or --cpu for a CPU image",
        )
