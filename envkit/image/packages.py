"""Find the packages of an image. Only this module knows where conda, Python, Debian and RPM list them.

Conda packages are those in `conda-meta`, Debian packages those in dpkg's status, RPM packages those in rpm's database,
and Python distributions the `dist-info` folders that no conda or Debian package contains. `look` reads all of them
with licenses and origins; `named` recognizes a package by the path of its file.
"""

from __future__ import annotations

import email.parser
import email.policy
import functools
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from envkit.ground.progress import counted
from envkit.image import rpm
from envkit.image.tarstream import Kind
from envkit.image.tree import Interest, Tree, scan

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.image.opening import Opened

CONDA, PYPI, DEB, RPM = "conda", "pypi", "deb", "rpm"
LOCK, PLAN = "usr/share/envkit/envkit.lock", "usr/share/envkit/plan.json"
"""The documents in images that envkit built."""
STATUS = "var/lib/dpkg/status"
# usr/lib/python3/dist-packages/six-1.16.0.dist-info/METADATA. [!-,.0-~] is printable ASCII without - and /: in these
# names a hyphen only separates the parts (PEP 427).
DIST = re.compile(
    r"(?P<folder>(?:^|.*/)(?:site|dist)-packages/(?P<name>[!-,.0-~]{1,120})-(?P<version>[!-,.0-~]{1,80})"
    r"\.dist-info)(?:/METADATA)?$"
)
_RECORD = re.compile(r"/(?:site|dist)-packages/[!-.0-~]{1,210}\.dist-info/RECORD$")
# opt/env/conda-meta/numpy-2.4.6-py311h64a7726_0.json; only the name may contain hyphens.
CONDA_META = re.compile(
    r"^(?P<prefix>|.*/)conda-meta/(?P<name>[^/]{1,200})-(?P<version>[^-/]{1,100})-(?P<build>[^-/]{1,200})\.json$"
)
DPKG = re.compile(r"^var/lib/dpkg/(?:status|status\.d/[^/]{1,200})$")
UNPACKED = re.compile(r"(?:^|/)pkgs/[^/]+/")
"""conda's package cache; packages there are not installed."""
_CONDA = re.compile(r"^(?P<prefix>|.*/)conda-meta/[^/]{1,300}\.json$")
_COPYRIGHT = re.compile(r"^usr/share/doc/(?P<name>[^/]{1,200})/copyright$")
_DOC = re.compile(r"^usr/share/doc/(?P<name>[^/]{1,200})$")
# A line of a machine-readable copyright file: `License: GPL-2+`.
_SHORT = re.compile(r"^License:[ \t]*(?P<name>[^\n]{1,120})$", re.MULTILINE)
# In a copyright file of free form: `the license can be found in /usr/share/common-licenses/GPL-2`.
_COMMON = re.compile(r"/usr/share/common-licenses/(?P<name>[A-Za-z][A-Za-z0-9.+-]{0,40}[A-Za-z0-9+])")
_LISTS = re.compile(r"^var/lib/dpkg/info/[^/]{1,200}\.list$")
_RELEASE = "usr/lib/os-release"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[a-z0-9._-]{1,60}")
_MOST_TEXT = 64 << 20  # bytes of a file; conda-meta files of the largest packages have a few MB
_MOST_NAMES = 6  # licenses of one Debian package; the first ones apply to most of its files
_MOST_LICENSE = 200  # characters; longer values are the text of a license
_MOST_DIGITS = 15  # of a number of bytes; larger numbers in an image are wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An installed package; unknown fields are None."""

    kind: str  # CONDA | PYPI | DEB | RPM
    name: str  # PYPI: normalized, see PEP 503
    version: str
    build: str | None = None  # conda's build string
    subdir: str | None = None  # conda: 'linux-64' | 'noarch'
    channel: str | None = None  # conda: 'conda-forge'
    arch: str | None = None  # of Debian and RPM packages
    url: str | None = None  # of the archive, from the lock or conda-meta
    sha256: str | None = None  # of the archive
    license: str | None = None  # from the package's own metadata
    locked: bool = False  # this archive is in the image's lock
    unpacked: int | None = None  # bytes of its files, from its own list


@dataclass(slots=True)
class ScanResult:
    """The packages and documents of an image."""

    packages: tuple[Installed, ...] = ()  # sorted by kind, name and version
    lock: bytes | None = None  # of envkit's images
    plan: bytes | None = None
    rpm: bool = False  # there are RPM packages in a database that cannot be read
    system: tuple[str, str | None] = ("debian", None)  # ID and VERSION_CODENAME of os-release(5)


@dataclass(frozen=True, slots=True)
class Debian:
    """An installed Debian package in dpkg's status."""

    name: str
    version: str  # empty if the list has none
    arch: str | None
    provides: tuple[str, ...]  # names of virtual packages
    unpacked: int | None = None  # bytes


def debian(text: bytes) -> Iterator[Debian]:
    """Yield the installed packages of dpkg's status, or of a file in status.d, which distroless images have instead."""
    for stanza in text.decode(errors="replace").split("\n\n"):
        # A line that starts with a blank continues the field above it.
        rows = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and not line[0].isspace())
        # Files in status.d have no Status. In dpkg's status, its last word is the state: `install ok installed`.
        name, status = rows.get("Package", "").strip(), rows.get("Status", "installed").split()
        if _NAME.fullmatch(name) and status[-1:] == ["installed"]:
            # Entries can have a version: `python3-abi (= 3.11), mail-transport-agent`.
            provides = tuple(part.split()[0] for part in rows.get("Provides", "").split(",") if part.strip())
            # Source: Debian Policy 5.6.20, Installed-Size is in KiB.
            size = _digits(rows.get("Installed-Size", ""))
            unpacked = None if size is None else size << 10
            yield Debian(name, rows.get("Version", "").strip(), rows.get("Architecture"), provides, unpacked)


def named(path: str) -> Installed | None:
    """Return the package of a `conda-meta` file or `dist-info` folder, with the fields that its path contains."""
    if UNPACKED.search(path):
        return None
    if match := CONDA_META.match(path):
        return Installed(kind=CONDA, name=match["name"], version=match["version"], build=match["build"])
    if match := DIST.match(path):
        return Installed(kind=PYPI, name=normal(match["name"]), version=match["version"])
    return None


def normal(name: str) -> str:
    """Return the normalized name of a Python distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def look(opened: Opened, reporter: Reporter) -> ScanResult:
    """Read every layer of an image.

    Raises:
        As `envkit.image.opening.Opened.tar`.
    """
    tree = Tree()
    interest = Interest(
        keeps=lambda path: _matters(path) or bool(rpm.PLACE.match(path) or _DOC.match(path)),
        reads=lambda path, _mode: _matters(path),
        value=_row,
        most=_MOST_TEXT,
    )
    reporter.step(f"read {counted(len(opened.layers), 'layer')}")
    for index in range(len(opened.layers)):
        tree.lay(scan(functools.partial(opened.tar, index), interest))
    # RPM's files stay without a value, too: they show that there are packages even if the database is too large or
    # unreadable.
    rows = {path: node.value for path, node in tree.nodes.items() if node.value is not None or rpm.PLACE.match(path)}
    # Packages of the same source share documentation: the folder of one is a link to that of another.
    links = {
        match["name"]: posixpath.basename(node.target)
        for path, node in tree.nodes.items()
        if node.kind is Kind.LINK and (match := _DOC.match(path))
    }
    return gather(rows, links)


def gather(rows: Mapping[str, Any], links: Mapping[str, str]) -> ScanResult:
    """Return the packages of an image.

    Args:
        rows: path -> the value of `_row` for the file.
        links: links in /usr/share/doc -> the names of their targets.
    """
    conda = [(path, row) for path, row in sorted(rows.items()) if isinstance(row, _Meta)]
    owned = {f"{_prefix(path)}{folder}" for path, row in conda for folder in row.folders}
    owned |= {folder for row in rows.values() if isinstance(row, frozenset) for folder in row}
    wheels = [
        replace(row, unpacked=rows.get(f"{match['folder']}/RECORD"))
        for path, row in rows.items()
        if isinstance(row, Installed) and (match := DIST.match(path)) and match["folder"] not in owned
    ]
    debs = [
        Installed(
            kind=DEB,
            name=package.name,
            version=package.version,
            arch=package.arch,
            license=rows.get(f"usr/share/doc/{links.get(package.name, package.name)}/copyright"),
            unpacked=package.unpacked,
        )
        for path, row in sorted(rows.items())
        if DPKG.match(path)
        for package in debian(row)
        if package.version
    ]
    listed, unlisted = _rpms(rows)
    every = {_order(package): package for package in (*(row.package for _, row in conda), *wheels, *debs, *listed)}
    return ScanResult(
        packages=tuple(every[key] for key in sorted(every)),
        lock=rows.get(LOCK),
        plan=rows.get(PLAN),
        rpm=unlisted,
        system=_system(rows.get(_RELEASE) or b""),
    )


def rpms(data: bytes) -> tuple[Installed, ...] | None:
    """Return the packages of an rpm database; None if it cannot be read."""
    packages = rpm.packages(data)
    if packages is None:
        return None
    return tuple(
        Installed(
            kind=RPM,
            name=package.name,
            version=package.version,
            arch=package.arch,
            license=_license(package.license),
            unpacked=package.unpacked,
        )
        for package in packages
    )


def _rpms(rows: Mapping[str, Any]) -> tuple[list[Installed], bool]:
    """Return the RPM packages, and whether there are others whose database cannot be read."""
    databases = {path: row for path, row in rows.items() if path in rpm.FILES}
    read = [rpms(row) if isinstance(row, bytes) else None for row in databases.values()]
    # SUSE's database, Packages.db (ndb), is one of the files that only PLACE matches.
    unlisted = None in read or (not databases and any(rpm.PLACE.match(path) for path in rows))
    return [package for packages in read for package in packages or ()], unlisted


@dataclass(frozen=True, slots=True)
class _Meta:
    """A file of conda-meta: the package and its `dist-info` folders, relative to the prefix."""

    package: Installed
    folders: tuple[str, ...]


def _row(name: str, text: bytes) -> Any:
    """Return what is needed of a file; None if it is damaged."""
    if name in (LOCK, PLAN, _RELEASE) or DPKG.match(name) or name in rpm.FILES:
        return text
    if _COPYRIGHT.match(name):
        return copyright_license(text)
    if _LISTS.match(name):
        return _dist_folders(text)
    if _RECORD.search(name):
        return _recorded(text)
    if match := DIST.match(name):
        return _wheel(match, text)
    return _conda(text)


def _matters(name: str) -> bool:
    # Cheap comparisons come before regular expressions: this is called for every path of an image.
    if name in (LOCK, PLAN, _RELEASE):
        return True
    if name.startswith("var/lib/dpkg/"):
        return bool(DPKG.match(name) or _LISTS.match(name))
    if name.endswith("/copyright") or "/rpm/" in name:
        return name in rpm.FILES or bool(_COPYRIGHT.match(name))
    return not UNPACKED.search(name) and bool(
        (name.endswith("/METADATA") and DIST.match(name))
        or (name.endswith("/RECORD") and _RECORD.search(name))
        or (name.endswith(".json") and _CONDA.match(name))
    )


def _conda(text: bytes) -> _Meta | None:
    try:
        tree = json.loads(text)
        name, version, build = str(tree["name"]), str(tree["version"]), str(tree["build"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not _NAME.fullmatch(name) or not f"{version}{build}".isprintable():
        return None
    files = tree.get("files")
    folders = dict.fromkeys(
        posixpath.dirname(file) for file in (files if isinstance(files, list) else ())
        if isinstance(file, str) and file.endswith(".dist-info/METADATA")
    )  # fmt: skip
    package = Installed(
        kind=CONDA,
        name=name,
        version=version,
        build=build,
        subdir=_text(tree.get("subdir")),
        channel=_channel(tree.get("channel")),
        url=_address(tree.get("url")),
        sha256=digits if _SHA256.fullmatch(digits := str(tree.get("sha256"))) else None,
        license=_license(tree.get("license")),
        unpacked=_listed(tree.get("paths_data")),
    )
    return _Meta(package, tuple(folders))


def _wheel(match: re.Match[str], text: bytes) -> Installed:
    rows = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(text, headersonly=True)
    classified = [
        str(classifier).rpartition("::")[2].strip()
        for classifier in rows.get_all("Classifier") or ()
        if str(classifier).startswith("License ::")
    ]
    # Newest form first: the expression of PEP 639, the free text, the classifiers.
    licenses = [_license(rows.get("License-Expression")), _license(rows.get("License")), *map(_license, classified)]
    name = _text(rows.get("Name")) or ""
    return Installed(
        kind=PYPI,
        name=normal(name if _NAME.fullmatch(name) else match["name"]),
        version=_text(rows.get("Version")) or match["version"],
        license=next((known for known in licenses if known), None),
    )


def _recorded(text: bytes) -> int:
    """Return the total size of the files in a RECORD (PATH,HASH,SIZE). Generated files have no size."""
    # The size is the last column, so commas and quotes in the path do not matter.
    return sum(_digits(line.rpartition(b",")[2].decode("ascii", "replace")) or 0 for line in text.splitlines())


def _listed(paths: object) -> int | None:
    """Return the total size of the files that conda-meta lists with sizes; None if there are none."""
    rows = paths.get("paths") if isinstance(paths, dict) else None
    sizes = [row.get("size_in_bytes") for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict)]
    known = [size for size in sizes if isinstance(size, int) and 0 <= size < 10**_MOST_DIGITS]
    return sum(known) if known else None


def _digits(text: str) -> int | None:
    """Return a number of bytes or KiB; None if the text is not a number."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def copyright_license(text: bytes) -> str | None:
    """Return the licenses of a Debian copyright file: its `License` fields, else its references to common licenses.

    Source: Debian's "Machine-readable debian/copyright file", version 1.0.
    """
    decoded = text.decode(errors="replace")
    names = [match["name"].strip() for match in _SHORT.finditer(decoded)]
    names = names or [match["name"].rstrip(".") for match in _COMMON.finditer(decoded)]
    return _license(" and ".join(dict.fromkeys(names[:_MOST_NAMES])))


def _dist_folders(text: bytes) -> frozenset[str]:
    """Return the `dist-info` folders of a Debian package."""
    if b".dist-info/METADATA" not in text:
        return frozenset()
    lines = text.decode(errors="replace").splitlines()
    return frozenset(posixpath.dirname(line).lstrip("/") for line in lines if line.endswith(".dist-info/METADATA"))


def _system(text: bytes) -> tuple[str, str | None]:
    """Return the distribution of the Debian packages: `ID` and `VERSION_CODENAME`."""
    rows = dict(line.partition("=")[::2] for line in text.decode(errors="replace").splitlines())
    values = [rows.get(name, "").strip("\"'") for name in ("ID", "VERSION_CODENAME")]
    name, codename = (value if _WORD.fullmatch(value) else None for value in values)
    return name or "debian", codename


def _prefix(path: str) -> str:
    match = _CONDA.match(path)
    return match["prefix"] if match else ""


def _license(value: Any) -> str | None:
    """Return the name of a license on one line; None for the text of a license or a placeholder."""
    text = " ".join(str(value).split()) if value else ""
    # UNKNOWN: setuptools wrote it for packages that state no license.
    is_name = 0 < len(text) <= _MOST_LICENSE and text.isprintable() and text.upper() not in ("UNKNOWN", "OTHER")
    return text if is_name else None


def _channel(value: Any) -> str | None:
    """Return the name of a channel; conda-meta may have its URL instead."""
    text = (_text(value) or "").rstrip("/")
    parts = [part for part in text.split("/") if part not in ("linux-64", "linux-aarch64", "noarch")]
    return parts[-1] if parts and parts[-1] else None


def _address(value: Any) -> str | None:
    """Return the URL of an archive without its query; None if it contains a login."""
    text = (_text(value) or "").partition("?")[0].partition("#")[0]
    if not text.startswith(("https://", "http://")) or "@" in text.split("/")[2]:
        return None
    return None if "/t/" in text else text  # conda puts tokens into the path: HOST/t/TOKEN/CHANNEL


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) and value.isprintable() else None


def _order(package: Installed) -> tuple[str, ...]:
    return (package.kind, package.name, package.version, package.build or "", package.arch or "", package.subdir or "")
