"""Find prebuilt wheels where the facts know that there are some: on pages and indexes besides the Python index.

The facts have addresses, not names of files. A page is read when an image needs it; only what it lists can be chosen,
by the torch, CUDA, C++ ABI and Python of the image (`variants`). What a page does not say excludes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from envkit.facts.model import folder_of
from envkit.ground.errors import EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.versions import minor
from envkit.lock import abi, file_lists, offers, uv
from envkit.lock.sizes import NoPageError
from envkit.lock.variants import Image
from envkit.plan import source_spec

if TYPE_CHECKING:
    from envkit.facts.model import Build, PackageNeeds
    from envkit.lock.index_locations import IndexLocations
    from envkit.lock.uv import Target
    from envkit.plan.model import BuildPlan
    from envkit.resolve.model import Resolution

_MOST_RELEASES = 10  # of one package, the newest first: each has its own page
_VERSION = "{version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where the wheels of an image are that the Python index does not have."""

    links: tuple[str, ...] = ()  # pages
    own: Mapping[str, str] = field(default_factory=dict)  # package -> its index
    files: tuple[str, ...] = ()  # names of all files of these pages
    urls: frozenset[str] = frozenset()  # of these files, without percent-encoding
    missing: tuple[str, ...] = ()  # packages with known pages of which neither these nor the index have a wheel

    def of_page(self, url: str, rows: Iterable[file_lists.Row]) -> Found:
        """Return what is found with a page."""
        links = self.links if url in self.links else (*self.links, url)
        return self._with(rows, links=links)

    def of_index(self, name: str, url: str, rows: Iterable[file_lists.Row]) -> Found:
        """Return what is found with the index of a package."""
        return self._with(rows, own={**self.own, name: url})

    def _with(self, rows: Iterable[file_lists.Row], **more: Any) -> Found:
        rows = list(rows)
        files = tuple(dict.fromkeys((*self.files, *(str(row["name"]) for row in rows))))
        return replace(self, files=files, urls=self.urls | {unquote(str(row["url"])) for row in rows}, **more)

    def has(self, url: str) -> bool:
        """Return whether a file is on one of the pages or indexes."""
        return unquote(url) in self.urls

    def with_lists(self, index: uv.Index) -> uv.Index:
        """Return an index with these pages and indexes besides its own."""
        return uv.Index(
            url=index.url,
            pages=index.pages,
            links=(*index.links, *self.links),
            first=index.first,
            own={**self.own, **index.own},
            ca_bundle=index.ca_bundle,
        )


NOTHING_FOUND = Found()


class KnownPages:
    """Reads the pages of the facts, each once.

    Args:
        rows: packages and their pages.
    """

    def __init__(self, rows: Iterable[PackageNeeds] = ()) -> None:
        self._rows = {row.package: row for row in rows if row.pages or row.indexes}
        self._lists: dict[str, tuple[file_lists.Row, ...]] = {}  # URL -> files; none if it cannot be read
        self._dead: set[str] = set()  # hosts that did not answer

    def found(
        self, plan: BuildPlan, image: Image, target: Target, indexes: IndexLocations, *, more: Collection[str] = ()
    ) -> Found:
        """Return where the wheels of a plan's packages are for an image.

        Args:
            plan: a package to which the definition gives its own index, or that may be built from source, is left out.
            image: torch, CUDA and C++ ABI. They may be those of another candidate than the plan's.
            target: the interpreter.
            indexes: where packages are downloaded from.
            more: further packages, which those of the plan require.
        """
        found = NOTHING_FOUND
        for name, versions in self._wanted(plan, more).items():
            wanted = _Wanted(name=name, versions=versions, image=image, target=target, plan=plan, indexes=indexes)
            if any(self._usable(wanted, page) for page in plan.find_links):
                continue
            place = next((url for url in self._indexes(wanted) if self._usable(wanted, f"{url}/{name}/")), None)
            if place is not None:
                found = found.of_index(name, place, self._list(f"{place}/{name}/", indexes))
                continue
            place = next((url for url in self._pages(wanted) if self._usable(wanted, url)), None)
            if place is not None:
                found = found.of_page(place, self._list(place, indexes))
            elif self._rows[name].pages and not self._usable(wanted, wanted.listing):
                found = replace(found, missing=(*found.missing, name))
        return found

    def knows(self, name: str) -> bool:
        """Return whether the facts have a page of a package."""
        return name in self._rows

    def read(self, name: str) -> list[tuple[str, tuple[str, ...]]]:
        """Return the pages of a package that were read, in this order, with the names of their files.

        A page that does not exist has none.
        """
        prefixes = [pattern.partition("{")[0] for pattern in self._rows[name].pages] if name in self._rows else []
        return [
            (url, tuple(str(row["name"]) for row in rows))
            for url, rows in self._lists.items()
            if any(url.startswith(prefix) for prefix in prefixes)
        ]

    def _wanted(self, plan: BuildPlan, more: Collection[str]) -> dict[str, SpecifierSet]:
        """Return the versions of each package with known pages that a plan names."""
        if not self._rows:
            return {}
        left_out = {name for name, _ in plan.package_indexes}
        left_out |= {source_spec.parse(text).name for text in plan.allow_source}
        wanted = {name: SpecifierSet() for name in more if name in self._rows and name not in left_out}
        for line in (*plan.pip, *plan.constraints):
            one = Requirement(line)
            name = canonicalize_name(one.name)
            named = name in wanted or line in plan.pip
            if named and name in self._rows and name not in left_out:
                wanted[name] = wanted.get(name, SpecifierSet()) & one.specifier
        return wanted

    def _indexes(self, wanted: _Wanted) -> Iterator[str]:
        """Yield the indexes for a CUDA that PyTorch's own indexes stand beside."""
        if wanted.plan.resolution.source == "pytorch":
            for pattern in self._rows[wanted.name].indexes:
                yield wanted.indexes.fetch_url(pattern.format(cu=folder_of(wanted.image.cuda))).rstrip("/")

    def _pages(self, wanted: _Wanted) -> Iterator[str]:
        for pattern in self._rows[wanted.name].pages:
            values = {"torch": minor(wanted.image.torch), "cu": folder_of(wanted.image.cuda)}
            if _VERSION not in pattern:
                yield pattern.format(**values)
                continue
            rows = self._list(wanted.listing, wanted.indexes)
            versions = {version for row in rows if (version := _version_of(str(row["name"]))) is not None}
            # Pre-releases only where the requirement names one, or there is nothing else.
            for version in sorted(wanted.versions.filter(versions), reverse=True)[:_MOST_RELEASES]:
                yield pattern.format(**values, version=version.public)

    def _usable(self, wanted: _Wanted, url: str) -> bool:
        """Return whether a page has a wheel for the image."""
        files = [str(row["name"]) for row in self._list(url, wanted.indexes)]
        return offers.is_usable(wanted.name, wanted.versions, files, wanted.target, wanted.image)

    def _list(self, url: str, indexes: IndexLocations) -> tuple[file_lists.Row, ...]:
        """Return the files of a page; none if there is no such page, or it cannot be read."""
        host = urlsplit(url).netloc
        if url not in self._lists and host not in self._dead:
            self._lists[url] = ()
            try:
                self._lists[url] = tuple(file_lists.ask(url, ca_bundle=indexes.ca_bundle, patient=False))
            except NoPageError:
                pass  # the server can have others
            except EnvironmentProblem:
                self._dead.add(host)
            except (IntegrityError, UsageError, ValueError):
                pass  # no page of links
        return self._lists.get(url, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A package and what its wheel has to fit."""

    name: str
    versions: SpecifierSet
    image: Image
    target: Target
    plan: BuildPlan
    indexes: IndexLocations

    @property
    def listing(self) -> str:
        """The list of the package on the Python index."""
        return f"{(self.indexes.python_index or uv.default_index()).rstrip('/')}/{self.name}/"


def image_of(resolution: Resolution | Build) -> Image:
    """Return what wheels have to fit in an image with a build of torch."""
    return Image(torch=resolution.torch, cuda=resolution.cuda, cxx11_abi=abi.of_torch(resolution))


def _version_of(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
