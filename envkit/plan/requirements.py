"""Requirements files: their constraints for the resolver, their packages, and the lines that cannot be used.

`read` splits a file into lines with their line numbers, `sort` classifies each line. A line that cannot be used is an
error in an image definition (`envkit.plan.listed`); `envkit init` lists it.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envkit.ground import foreign
from envkit.ground.errors import UsageError, masked
from envkit.ground.platforms import PLATFORMS
from envkit.ground.platforms import platform as platform_named
from envkit.ground.sizes import shown_size
from envkit.ground.versions import parse_constraint
from envkit.plan import names, other_systems

FAMILY = ("torch", "torchvision", "torchaudio")
FILE = "requirements"
"""The field of `Setting` that names a requirements file."""
UNDECIDED = "whether it is installed depends on the Python version"
_MAX_DEPTH = 8  # files that name one another with -r
_MOST_BYTES = 4 << 20  # of all files of a command; the SHA-256 of a thousand packages' wheels need one or two
MOST_LINES = 20_000
"""The most requirements of all files of a command, continuation lines joined: each is parsed, in 0.1 ms."""
_MOST_CHARS = 100_000  # of one such line: that of a package with a thousand hashes
_MOST_COMPARED = 20  # different constraints of one package that later ones are compared with
_FEWER = "remove -r lines, or name fewer files"
PYTHONS = tuple(f"3.{minor}" for minor in range(8, 16))
"""The minor versions of Python that a marker is decided for."""
# As in pip, a comment begins only after a blank, so the `#egg=NAME` of a URL is not one.
_COMMENT = re.compile(r"(?:^|\s)#.*$")
# The value of a short option may follow it without a space: -rbase.txt
_OPTION = re.compile(r"(--[A-Za-z][A-Za-z-]*(?=\s|=|$)|-[A-Za-z])\s*=?\s*(.*)")
# The end of an index of PyTorch (`whl/cu118`), or a local version (`2.1.0+cu118`).
_VARIANT = re.compile(r"cu(\d{2,3})|cpu")
# A mirror of such an index: `pytorch-cu128/simple`.
_MIRRORED = re.compile(r"(?:[\w.]+[-_])*(?P<variant>cu\d{2,3}|cpu)")
# The Python index, which has a host of two words, and public mirrors of all of it.
_WHOLE_INDEX = re.compile(
    r"https?://(?:pypi\.[a-z]+|(?:[a-z0-9-]+\.)*(?:tsinghua|aliyun|ustc|huaweicloud|tencent|sjtu|bfsu)\.[a-z.]+)"
    r"(?:/[a-z-]+)*/simple/?"
)
# Only the kernel of the machine that will run the image has these.
_OF_MACHINES = re.compile(r"\bplatform_(?:release|version)\b")
# `2.10.0.dev20251011`
_NIGHTLY = re.compile(r"(\d+\.\d+(?:\.\d+)?)\.dev\d{8}")
_HASH = re.compile(r"\s--hash[= ]\S+")
_NOT_NAMED = "it is a path or URL, and only names with versions can be locked"
# `certifi @ file:///croot/certifi_1671487769961/...`, as `pip freeze` names a package of conda.
_OF_CONDA = re.compile(r"/(?:croot|feedstock_root|build_artifacts|ci_[a-z0-9_]+|opt/conda/conda-bld|conda-bld|build)/")
_FROZEN = "conda installed it, and the line has no version; `pip list --format=freeze` there writes it"
_FILES, _CONSTRAINTS = ("-r", "--requirement"), ("-c", "--constraint")
_INDEXES = ("--index-url", "-i", "--extra-index-url")
_PAGES = ("--find-links", "-f")
LINKS = ("find_links", "indexes")
"""The fields of `Setting` whose value is the URL of a page with wheels, or of an index."""
SOURCES = (*LINKS, "package_indexes")
"""`LINKS`, and the field whose value is `NAME=URL`: the only index that a package comes from."""
# The login of a URL; a file may take it from variables: `https://${USER}:${TOKEN}@host/simple`.
_LOGIN = re.compile(r"(?<=://)[^/@]*@")
_WITHOUT_EFFECT = {"--prefer-binary", "--only-binary", "--no-cache-dir", "--require-hashes", "--upgrade", "-U"}
_PATHS = ("git+", "hg+", "svn+", "bzr+", "http://", "https://", "file:", "./", "../", "/", "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a file, with continuation lines joined and without its comment."""

    where: str  # 'requirements.txt:3'
    text: str
    constraint: bool = False  # of a constraints file: it limits versions, but installs nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A constraint for the resolver, or another setting of the definition."""

    field: str  # 'torch', 'torchvision', 'torchaudio', 'cuda', 'cpu', 'python', 'cudnn', 'source', ...
    value: str  # '==2.1.0', '11.8', 'true'
    line: Line
    note: str = ""  # how the value follows from the line, if the line does not have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package to install besides the torch family."""

    spec: str  # 'einops[extra]>=0.7'
    line: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A line that cannot be used, or that a definition does not need."""

    line: Line
    why: str
    harmless: bool = False  # nothing is lost: the image is the same without it, or it is for another target
    elsewhere: bool = False  # its marker is false for the platform, Python and extras; `harmless` is true, too
    tolerated: bool = False  # a definition may name a requirements file with such a line
    excluded: bool = False  # another line of the same files excludes every version that it allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a project's files, line by line."""

    settings: tuple[Setting, ...] = ()
    packages: tuple[Package, ...] = ()
    constraints: tuple[Package, ...] = ()  # versions of packages that other packages require
    skipped: tuple[Skipped, ...] = ()

    def __add__(self, other: Contents) -> Contents:
        return Contents(
            settings=(*self.settings, *other.settings),
            packages=(*self.packages, *other.packages),
            constraints=(*self.constraints, *other.constraints),
            skipped=(*self.skipped, *other.skipped),
        )

    def of(self, name: str) -> tuple[Setting, ...]:
        """Return the entries for one field."""
        return tuple(entry for entry in self.settings if entry.field == name)


class Reading:
    """The requirements files that one command reads: each of them once, and all of them within one limit."""

    def __init__(self) -> None:
        """Begin with the whole limit, and no file read."""
        self._read: set[tuple[Path, bool]] = set()
        self._bytes = foreign.Budget(_MOST_BYTES, f"{shown_size(_MOST_BYTES, 'MiB')} of requirements files")
        self._lines = foreign.Budget(MOST_LINES, f"{MOST_LINES} requirements in all files")

    def lines(
        self, name: str, folder: Path, *, constraint: bool = False, _from: tuple[str, ...] = ()
    ) -> tuple[Line, ...]:
        """Return the lines of a file as `read`; a file that was read before has none left."""
        if "://" in name:
            raise UsageError(
                f"{masked(name)!r:.200} is a URL, and only files are read", hint="save it as a file in the folder"
            )
        if "\0" in name:
            raise UsageError(f"{name!r:.200} is not a file name", hint="remove the NUL character")
        path = folder / name
        if Path(name).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{name!r:.200} is outside the folder {folder}", hint="copy the file into the folder")
        if len(_from) > _MAX_DEPTH:
            raise UsageError(
                f"{name}: files include one another more than {_MAX_DEPTH} levels deep", hint="remove -r and -c lines"
            )
        # The same file as requirements and as constraints has two meanings.
        if self.has_read(name, folder, constraint=constraint):
            return ()
        self._read.add((path, constraint))
        text = foreign.text(path, root=folder)
        self._bytes.spend(len(text), name, hint=_FEWER)
        lines: list[Line] = []
        for line in _logical(name, text):
            self._lines.spend(1, line.where, hint=_FEWER)
            option = _OPTION.fullmatch(line.text)
            if option and option[1] in (*_FILES, *_CONSTRAINTS):
                lines += self._included(line, option, name, folder, _from)
            else:
                lines.append(replace(line, constraint=constraint))
        return tuple(lines)

    def has_read(self, name: str, folder: Path, *, constraint: bool = False) -> bool:
        """Return whether a file was read before, in the same role."""
        return (folder / name, constraint) in self._read

    def _included(
        self, line: Line, option: re.Match[str], name: str, folder: Path, _from: tuple[str, ...]
    ) -> tuple[Line, ...]:
        file = option[2].strip()
        target = file if "://" in file else posixpath.normpath(posixpath.join(posixpath.dirname(name), file))
        if target in (*_from, name):
            raise UsageError(f"{line.where}: {target} includes itself", hint=f"remove the line {line.where}")
        try:
            return self.lines(target, folder, constraint=option[1] in _CONSTRAINTS, _from=(*_from, name))
        except UsageError as error:
            message = error.message if _from else f"{line.where}: {error.message}"
            raise UsageError(message, hint=error.hint) from error


def read(name: str, folder: Path, *, constraint: bool = False) -> tuple[Line, ...]:
    """Return the lines of a requirements file; the lines of an included file (`-r`, `-c`) replace the line with it.

    A file that is included again has no lines there: pip reads them again, to the same effect.

    Args:
        name: of the file, relative to `folder`.
        folder: every file must be inside this folder.
        constraint: whether it is a constraints file. As with pip, a file that it includes with `-r` is not one.

    Raises:
        UsageError: a file is missing, not a file, not UTF-8, a URL, outside the folder, or includes itself; or all
            files together are too long.
    """
    return Reading().lines(name, folder, constraint=constraint)


def _logical(name: str, text: str) -> Iterable[Line]:
    start, joined = 0, ""
    # Editors on Windows may begin a file with a byte order mark.
    lines = text.removeprefix("\ufeff").splitlines()
    for number, raw in enumerate(lines, 1):
        start = start or number
        if raw.rstrip().endswith("\\") and number < len(lines):
            joined += raw.rstrip()[:-1] + " "
            continue
        whole = _COMMENT.sub("", joined + raw).strip()
        if len(whole) > _MOST_CHARS:
            raise UsageError(f"{name}:{start}: a requirement of {len(whole)} characters", hint="split the line")
        if whole:
            yield Line(where=f"{name}:{start}", text=whole)
        start, joined = 0, ""


_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)


@contextlib.contextmanager
def reading_once() -> Iterator[None]:
    """Within a `with`, `included` reads each file once, and all of them within one limit.

    For a reader of a file that may name thousands of others, and whose parts do not know of each other.
    """
    token = _reading.set(Reading())
    try:
        yield
    finally:
        _reading.reset(token)


def included(line: Line, name: str, folder: Path, *, constraint: bool = False) -> Contents:
    """Return the contents of a requirements or constraints file that a line of another file names.

    A file that was read before (`reading_once`) has no contents left.
    """
    reading = _reading.get() or Reading()
    if reading.has_read(name, folder, constraint=constraint):
        return Contents()
    try:
        contents = sort(reading.lines(name, folder, constraint=constraint))
    except UsageError as error:
        return skip(line, error.message)
    return contents if constraint else take(line, FILE, name) + contents


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What markers are evaluated for; None decides a marker only if it is the same for every value."""

    python: str | None = None  # minor version
    platform: str | None = None  # 'linux-64'

    def holds(self, marker: Marker) -> bool | None:
        """Return whether a marker is true; None if that depends on what is not known.

        Raises:
            ValueError: the marker cannot be evaluated.
        """
        if _OF_MACHINES.search(str(marker)):
            raise ValueError("the marker asks for the kernel of a machine")
        answers = {
            marker.evaluate(_environment(python, platform))
            for python in ((self.python,) if self.python else PYTHONS)
            for platform in ((self.platform,) if self.platform else PLATFORMS)
        }
        return answers.pop() if len(answers) == 1 else None


_ANY = Target()


def _environment(python: str, platform: str) -> dict[str, str]:
    """Return the values of markers; those of the host that runs envkit decide nothing."""
    return {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": platform_named(platform).machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        # Only the minor version is known; .0 stands for any patch release.
        "implementation_version": f"{python}.0",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "extra": "",
    }


def sort(lines: Iterable[Line], target: Target = _ANY) -> Contents:
    """Classify each line of requirements files, as `read` returns them; `target` decides the markers."""
    parts = [_option(line) if line.text.startswith("-") else _requirement(line, target) for line in lines]
    contents = Contents(
        settings=tuple(setting for part in parts for setting in part.settings),
        packages=tuple(package for part in parts for package in part.packages),
        constraints=tuple(package for part in parts for package in part.constraints),
        skipped=tuple(row for part in parts for row in part.skipped),
    )
    return replace(contents, skipped=(*contents.skipped, *_contradictions(contents)))


def take(line: Line, key: str, value: str) -> Contents:
    """Return the contents of a line that is a setting."""
    return Contents(settings=(Setting(field=key, value=value, line=line),))


def skip(line: Line, why: str, *, harmless: bool = False) -> Contents:
    """Return the contents of a line that is not used."""
    return Contents(skipped=(Skipped(line=line, why=why, harmless=harmless),))


def _option(line: Line) -> Contents:
    option = _OPTION.fullmatch(line.text)
    name, value = (option[1], option[2].strip()) if option else (line.text, "")
    if name in (*_INDEXES, *_PAGES):
        return index(line, value, page=name in _PAGES)
    if name in ("-e", "--editable"):
        return skip(line, "an editable install is not locked; add the folder under copy")
    if name in _WITHOUT_EFFECT:
        return skip(line, "it has no effect: envkit installs wheels by their SHA-256", harmless=True)
    return skip(line, f"the option {name} is not supported")


def index(line: Line, url: str, *, page: bool = False) -> Contents:
    """Classify an index, or a page that links to wheels: the path of a PyTorch index ends with its CUDA version."""
    # PyTorch's former flat pages: `whl/torch_stable.html`, `whl/cu118/torch_stable.html`.
    last = url.rstrip("/").removesuffix("/torch_stable.html").removesuffix("/simple").rpartition("/")[2]
    mirrored = _MIRRORED.fullmatch(last)
    variant = _VARIANT.fullmatch(mirrored["variant"]) if mirrored else None
    if variant:
        return Contents(settings=(_device(line, variant),))
    if "torch_stable" in url:
        return skip(line, "the CUDA version follows from the torch line", harmless=True)
    if _WHOLE_INDEX.fullmatch(url):
        return skip(line, "packages come from this index, or from the one of ENVKIT_PYTHON_INDEX", harmless=True)
    return _named_source(line, url, "find_links" if page else "indexes")


def index_of(line: Line, package: str, url: str) -> Contents:
    """Classify the only index that a package comes from, as `index` does; torch's own index is known."""
    contents, name = index(line, url), canonicalize_name(package)
    named = _named_source(line, url, "package_indexes")
    own = Contents(settings=tuple(replace(one, value=f"{name}={one.value}") for one in named.settings))
    if contents.of("indexes"):
        why = f"{name} comes from the PyTorch index, or from the one of ENVKIT_PYTORCH_INDEX"
        return skip(line, why) if name in FAMILY else own
    # The CUDA of an index of PyTorch is that of torch, and the index may have the package, too.
    return contents + own if contents.settings and name not in FAMILY else contents


def _named_source(line: Line, url: str, key: str) -> Contents:
    """Return an index or page as a setting; its login, which no definition may contain, is read from ~/.netrc."""
    plain = _LOGIN.sub("", url)
    if why := names.package_source(plain):
        why = f"packages that only it has are not found: it {why}"
        return Contents(skipped=(Skipped(line=line, why=why, tolerated=True),))
    note = "its login is not taken over; put it into ~/.netrc" if plain != url else ""
    return Contents(settings=(Setting(field=key, value=plain, line=line, note=note),))


def _device(line: Line, variant: re.Match[str]) -> Setting:
    if variant[1] is None:
        return Setting(field="cpu", value="true", line=line)
    return Setting(field="cuda", value=f"{variant[1][:-1]}.{variant[1][-1]}", line=line)


def _requirement(line: Line, target: Target) -> Contents:
    text = _HASH.sub("", f" {line.text}").strip()
    # A URL for another system is not lost: its marker counts before it.
    _, sign, condition = text.partition(" ; " if "://" in text else ";")
    return (_not_for_here(line, condition, target) if sign else None) or _parsed(line, text)


def _parsed(line: Line, text: str) -> Contents:
    if "${" in text:
        return skip(line, "variables are not expanded; write the value")
    if text == "." or text.startswith(_PATHS) or text.endswith((".whl", ".tar.gz", ".zip")):
        return _wheel(line, text) or skip(line, _NOT_NAMED)
    try:
        wanted = Requirement(text)
    except InvalidRequirement as error:
        return skip(line, f"is not a requirement: {str(error).splitlines()[0]}")
    if wanted.url:
        is_conda = wanted.url.startswith("file:") and _OF_CONDA.search(wanted.url)
        return _wheel(line, wanted.url) or skip(line, _FROZEN if is_conda else _NOT_NAMED)
    return _named(line, wanted)


def _wheel(line: Line, url: str) -> Contents | None:
    """Return the contents of a wheel's path or URL if its name says enough; otherwise None.

    The URL of a wheel of torch names a version and a CUDA, which the index has, too.
    """
    file = unquote(url.partition("#")[0].rpartition("/")[2])
    if not file.endswith(".whl"):
        return None
    if system := other_systems.of_wheel(file):
        return not_for(line, system)
    name, _, rest = file.partition("-")
    version = rest.partition("-")[0]
    device = _VARIANT.fullmatch(version.partition("+")[2])
    if canonicalize_name(name) not in FAMILY or not device:
        return None
    try:
        return _family(line, canonicalize_name(name), SpecifierSet(f"=={version}"))
    except InvalidSpecifier:
        return None


def _named(line: Line, wanted: Requirement) -> Contents:
    name = canonicalize_name(wanted.name)
    if system := other_systems.of_pip(name):
        return not_for(line, system)
    if name in FAMILY:
        return _family(line, name, wanted.specifier)
    extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
    spec = f"{wanted.name}{extras}{','.join(map(str, ordered(wanted.specifier)))}"
    why = names.constraint(spec) if line.constraint else names.pip_spec(spec)
    if why:
        # pip ignores a constraint without a version.
        return skip(line, why, harmless=line.constraint and not wanted.specifier)
    package = Package(spec=spec, line=line)
    return Contents(constraints=(package,)) if line.constraint else Contents(packages=(package,))


def _not_for_here(line: Line, condition: str, target: Target) -> Contents | None:
    """Return the line as skipped unless its marker is true; None also for what is no marker, which is told later."""
    try:
        marker = Marker(condition.strip())
    except InvalidMarker:
        return None
    try:
        holds = target.holds(marker)
    # Of a version with thousands of digits, or of a comparison without a meaning.
    except ValueError:
        return skip(line, "its marker cannot be evaluated")
    if holds is None:
        return skip(line, f"{UNDECIDED}: {marker}")
    return None if holds else not_for(line, f"it is not for this system: {marker}")


def not_for(line: Line, why: str) -> Contents:
    """Return the contents of a line that is for another target."""
    return Contents(skipped=(Skipped(line=line, why=why, harmless=True, elsewhere=True),))


def _family(line: Line, name: str, wanted: SpecifierSet) -> Contents:
    """Split a version of the torch family: `==2.1.0+cu118` is torch 2.1.0 with CUDA 11.8."""
    settings: list[Setting] = []
    clauses: list[str] = []
    note = ""
    for clause in ordered(wanted):
        public, _, local = clause.version.partition("+")
        if clause.operator in ("==", "===") and (release := _NIGHTLY.fullmatch(public)):
            clauses.append(f">={release[1]}")
            note = f"{name} >={release[1]} is taken: {public} is a nightly build, and the data has releases only"
            settings += [_device(line, variant)] if (variant := _VARIANT.fullmatch(local)) else []
            continue
        # `===` compares texts; parse_constraint has only `==`.
        clauses.append(f"{'==' if clause.operator == '===' else clause.operator}{public}")
        variant = _VARIANT.fullmatch(local)
        if variant:
            settings.append(_device(line, variant))
        elif local:
            return skip(line, f"the build {local} is neither a CUDA build nor the CPU build of PyTorch")
    text = ",".join(clauses)
    try:
        if text:
            parse_constraint(text, name)
    except UsageError:
        return skip(line, f"{text} is not a version of {name}")
    return Contents(settings=(Setting(field=name, value=text, line=line, note=note), *settings))


def ordered(wanted: SpecifierSet) -> list[Specifier]:
    """Return the clauses of a specifier set, which has no order, as people write them: lower bounds first."""
    return sorted(wanted, key=lambda clause: (clause.operator.startswith("<"), str(clause)))


def _contradictions(contents: Contents) -> Iterable[Skipped]:
    """Yield lines that exclude an earlier one: a second CUDA version, or a pin outside another line's range."""
    devices: list[Setting] = [entry for entry in contents.settings if entry.field in ("cuda", "cpu")]
    for device in devices[1:]:
        if (device.field, device.value) != (devices[0].field, devices[0].value):
            yield Skipped(line=device.line, why=f"contradicts {devices[0].line.where}: {devices[0].line.text}")
    earlier: dict[str, dict[SpecifierSet, Line]] = {}
    for line, name, wanted in _constraints(contents):
        others = earlier.setdefault(name, {})
        for theirs, other in others.items():
            if excludes(wanted, theirs):
                yield Skipped(line=line, why=f"contradicts {other.where}: {other.text}", excluded=True)
                break
        # Equal constraints are compared once. Beyond a few different ones, the solver finds what contradicts.
        if len(others) < _MOST_COMPARED:
            others.setdefault(wanted, line)


def _constraints(contents: Contents) -> Iterable[tuple[Line, str, SpecifierSet]]:
    for package in (*contents.packages, *contents.constraints):
        wanted = Requirement(package.spec)
        yield package.line, canonicalize_name(wanted.name), wanted.specifier
    for entry in contents.settings:
        if entry.field in FAMILY:
            yield entry.line, entry.field, SpecifierSet(entry.value)


def excludes(first: SpecifierSet, second: SpecifierSet) -> bool:
    """Return whether one of two constraints is a single version that the other does not allow."""
    for pinned, other in ((first, second), (second, first)):
        for clause in pinned:
            if clause.operator in ("==", "===") and not clause.version.endswith(".*"):
                try:
                    version = Version(clause.version)
                except InvalidVersion:
                    continue
                if not other.contains(version, prereleases=True):
                    return True
    return False
