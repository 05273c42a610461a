"""What is really installed in an image, with licences and origins: every layer is read once, nothing is unpacked.

Conda packages are what `conda-meta` says, Python distributions every `dist-info` that no conda or Debian package
brought, Debian packages what dpkg's status says. What the image holds counts; a lock adds hashes and addresses.
"""

from __future__ import annotations

import email.parser
import email.policy
import functools
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from envkit.attest.packages import LOCK, PLAN, RPM, normal
from envkit.ground.errors import IntegrityError
from envkit.ground.progress import counted
from envkit.image.tarstream import Kind, entries

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.image.opening import Opened
    from envkit.image.tarstream import Source
    from envkit.lock.model import Lock

CONDA, PYPI, DEB = "conda", "pypi", "deb"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_DIST = re.compile(
    r"(?P<folder>(?:^|.*/)(?:site|dist)-packages/(?P<name>[!-,.0-~]{1,120})-(?P<version>[!-,.0-~]{1,80})"
    r"\.dist-info)/METADATA$"
)
_CONDA = re.compile(r"^(?P<prefix>|.*/)conda-meta/[^/]{1,300}\.json$")
_CACHE = re.compile(r"(?:^|/)pkgs/[^/]+/")  # conda's archives, unpacked: nothing there is installed
_DPKG = re.compile(r"^var/lib/dpkg/(?:status|status\.d/[^/]{1,200})$")
_LISTS = re.compile(r"^var/lib/dpkg/info/[^/]{1,200}\.list$")
_RELEASE = "usr/lib/os-release"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[a-z0-9._-]{1,60}")
_MOST_TEXT = 64 << 20  # bytes; conda-meta of the largest packages has a few MB
_AGAIN = "build the image again, and push it"
_MOST_LICENCE = 200  # characters; longer ones are the licence's own text


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One installed package; what is not known is None."""

    kind: str  # CONDA | PYPI | DEB
    name: str  # PYPI: normalised as PEP 503 has it
    version: str
    build: str | None = None  # conda's build string
    subdir: str | None = None  # conda: 'linux-64' | 'noarch'
    channel: str | None = None  # conda: 'conda-forge'
    arch: str | None = None  # Debian's
    url: str | None = None  # of the archive, as the lock or conda-meta has it
    sha256: str | None = None  # of the archive
    licence: str | None = None  # as the package says it
    locked: bool = False  # the image's lock names this very archive


@dataclass(slots=True)
class Found:
    """What one pass over the layers gave."""

    packages: tuple[Installed, ...] = ()  # sorted by kind, name and version
    lock: bytes | None = None  # the file that envkit put into the image
    plan: bytes | None = None
    rpm: bool = False  # there are RPM packages, which are not listed
    system: tuple[str, str | None] = ("debian", None)  # ID and VERSION_CODENAME of os-release(5)


@dataclass(slots=True)
class _Seen:
    """What matters of the paths that are left after so many layers, bottom first."""

    rows: dict[str, Any] = field(default_factory=dict)

    def add(self, tar: Callable[[], AbstractContextManager[Source]]) -> None:
        """Take in the next layer up; `tar` opens it, and once more where what matters is a hard link to other files.

        Raises:
            IntegrityError: it is no tar, or says what no layer can mean.
        """
        layer: dict[str, Any] = {}
        gone, opaque, links = set[str](), set[str](), dict[str, str]()
        with tar() as source:
            for entry in entries(source):
                name = _path(entry.name)
                folder, base = posixpath.split(name)
                if base == _OPAQUE:
                    opaque.add(folder)
                elif base.startswith(_WHITEOUT):
                    gone.add(_removed(folder, base.removeprefix(_WHITEOUT)))
                elif entry.kind is not Kind.FOLDER:
                    gone.add(name)  # nothing shows of what lower layers have there, nor below it
                    layer.pop(name, None)
                    links.pop(name, None)
                    if RPM.match(name):
                        layer[name] = b""  # that it is there is enough, however large
                    elif entry.kind is Kind.HARD_LINK:
                        links[name] = _path(entry.target)
                    elif entry.kind is Kind.FILE and _matters(name) and entry.size <= _MOST_TEXT:
                        row = _row(name, source.exactly(entry.size))
                        layer |= {} if row is None else {name: row}
        wanted = {name: _end(name, links) for name in links if _matters(name)}
        if wanted:
            with tar() as source:
                layer |= _linked(source, wanted)
        self.rows = {path: row for path, row in self.rows.items() if not _hidden(path, gone, opaque)} | layer


def look(opened: Opened, reporter: Reporter) -> Found:
    """Read every layer of an image.

    Raises:
        As `envkit.image.opening.Opened.tar`.
    """
    seen = _Seen()
    reporter.step(f"read {counted(len(opened.layers), 'layer')}")
    for place in range(len(opened.layers)):
        seen.add(functools.partial(opened.tar, place))
    return gather(seen.rows)


def gather(rows: Mapping[str, Any]) -> Found:
    """The packages that the rows of an image's paths tell of."""
    conda = [(path, row) for path, row in sorted(rows.items()) if isinstance(row, _Meta)]
    brought = {f"{_prefix(path)}{folder}" for path, row in conda for folder in row.folders}
    brought |= {folder for row in rows.values() if isinstance(row, frozenset) for folder in row}
    wheels = [
        row
        for path, row in rows.items()
        if isinstance(row, Installed) and (match := _DIST.match(path)) and match["folder"] not in brought
    ]
    debian = [one for path, row in sorted(rows.items()) if _DPKG.match(path) for one in _debian(row)]
    every = {_order(one): one for one in (*(row.package for _, row in conda), *wheels, *debian)}
    return Found(
        packages=tuple(every[key] for key in sorted(every)),
        lock=rows.get(LOCK),
        plan=rows.get(PLAN),
        rpm=any(RPM.match(path) for path in rows),
        system=_system(rows.get(_RELEASE) or b""),
    )


def with_lock(packages: Iterable[Installed], lock: Lock) -> tuple[tuple[Installed, ...], tuple[str, ...]]:
    """The packages with what a lock knows of their archives, and what the lock names and the image lacks."""
    known: dict[tuple[str, ...], tuple[str | None, str | None, str]] = {}
    for conda in lock.conda:
        known[CONDA, conda.name, conda.version, conda.build] = (conda.sha256, conda.url, conda.channel)
    for wheel in lock.wheels:
        known[PYPI, normal(wheel.name), wheel.version, ""] = (wheel.sha256, wheel.url, "")
    for deb in lock.base.packages:
        known[DEB, deb.name, deb.version, ""] = (deb.sha256, None, "")
    found, met = [], set()
    for one in packages:
        key = (one.kind, one.name, one.version, one.build or "")
        sha256, url, channel = known.get(key, (None, None, ""))
        if key not in known or (one.sha256 and sha256 and one.sha256 != sha256):
            found.append(one)
            continue
        met.add(key)
        found.append(
            replace(one, sha256=sha256 or one.sha256, url=url or one.url, channel=channel or one.channel, locked=True)
        )
    return tuple(found), tuple(sorted(f"{key[0]} {key[1]} {key[2]}" for key in known if key not in met))


@dataclass(frozen=True, slots=True)
class _Meta:
    """One file of conda-meta: the package, and the `dist-info` folders that it brought, below its prefix."""

    package: Installed
    folders: tuple[str, ...]


def _path(name: str) -> str:
    return posixpath.normpath(name).lstrip("/")


def _removed(folder: str, name: str) -> str:
    """The path that a whiteout removes; one without a name would remove its whole folder, which no engine does."""
    if name in ("", ".", ".."):
        raise IntegrityError(f"a layer removes a file without a name, below {folder[:200]!r}", hint=_AGAIN)
    return posixpath.join(folder, name)


def _hidden(path: str, gone: set[str], opaque: set[str]) -> bool:
    """Whether a layer leaves nothing of a lower one's path."""
    if path in gone:
        return True
    while path:
        path = posixpath.dirname(path)
        if path in gone or path in opaque:
            return True
    return False


def _end(name: str, links: Mapping[str, str]) -> str:
    """The file that a hard link leads to, by way of others where it does."""
    target = links[name]
    for _ in range(len(links)):
        if target not in links:
            break
        target = links[target]
    return target


def _linked(source: Source, wanted: Mapping[str, str]) -> dict[str, Any]:
    """The rows of hard links by the contents of the files that they lead to.

    Raises:
        IntegrityError: one leads to no file of its layer.
    """
    found: dict[str, Any] = {}
    targets = set(wanted.values())
    for entry in entries(source):
        name = _path(entry.name)
        if name not in targets or entry.kind not in (Kind.FILE, Kind.LINK):
            continue
        text = source.exactly(entry.size) if entry.size <= _MOST_TEXT else b""
        for link in [one for one, target in wanted.items() if target == name]:
            found[link] = _row(link, text) if entry.kind is Kind.FILE else None  # as a symbolic link itself
    if found.keys() != wanted.keys():
        link, target = min(item for item in wanted.items() if item[0] not in found)
        raise IntegrityError(f"a layer has {link[:200]!r} linked to {target[:200]!r}, no file of it", hint=_AGAIN)
    return {link: row for link, row in found.items() if row is not None}


def _row(name: str, text: bytes) -> Any:
    """What to keep of a file that matters; None where it is damaged."""
    if name in (LOCK, PLAN, _RELEASE) or _DPKG.match(name):
        return text
    if _LISTS.match(name):
        return _dist_folders(text)
    if match := _DIST.match(name):
        return _wheel(match, text)
    return _conda(text)


def _matters(name: str) -> bool:
    if name in (LOCK, PLAN, _RELEASE):
        return True
    if name.startswith("var/lib/dpkg/"):
        return bool(_DPKG.match(name) or _LISTS.match(name))
    return not _CACHE.search(name) and bool(
        (name.endswith("/METADATA") and _DIST.match(name)) or (name.endswith(".json") and _CONDA.match(name))
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
        posixpath.dirname(one) for one in (files if isinstance(files, list) else ())
        if isinstance(one, str) and one.endswith(".dist-info/METADATA")
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
        licence=_licence(tree.get("license")),
    )
    return _Meta(package, tuple(folders))


def _wheel(match: re.Match[str], text: bytes) -> Installed:
    rows = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(text, headersonly=True)
    classified = [
        str(one).rpartition("::")[2].strip()
        for one in rows.get_all("Classifier") or ()
        if str(one).startswith("License ::")
    ]
    told = [_licence(rows.get("License-Expression")), _licence(rows.get("License")), *map(_licence, classified)]
    name = _text(rows.get("Name")) or ""
    return Installed(
        kind=PYPI,
        name=normal(name if _NAME.fullmatch(name) else match["name"]),
        version=_text(rows.get("Version")) or match["version"],
        licence=next((one for one in told if one), None),
    )


def _debian(text: bytes) -> Iterator[Installed]:
    """The installed packages of dpkg's status, or of the single files that small images have instead."""
    for stanza in text.decode(errors="replace").split("\n\n"):
        rows = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and not line[0].isspace())
        status = rows.get("Status", "installed").split()
        name = rows.get("Package", "").strip()
        if _NAME.fullmatch(name) and rows.get("Version") and status[-1:] == ["installed"]:
            yield Installed(kind=DEB, name=name, version=rows["Version"].strip(), arch=rows.get("Architecture"))


def _dist_folders(text: bytes) -> frozenset[str]:
    """The `dist-info` folders that a Debian package brought."""
    if b".dist-info/METADATA" not in text:
        return frozenset()
    lines = text.decode(errors="replace").splitlines()
    return frozenset(posixpath.dirname(one).lstrip("/") for one in lines if one.endswith(".dist-info/METADATA"))


def _system(text: bytes) -> tuple[str, str | None]:
    """Whose packages dpkg's are: `ID` and `VERSION_CODENAME`."""
    rows = dict(line.partition("=")[::2] for line in text.decode(errors="replace").splitlines())
    found = [rows.get(name, "").strip("\"'") for name in ("ID", "VERSION_CODENAME")]
    name, codename = (one if _WORD.fullmatch(one) else None for one in found)
    return name or "debian", codename


def _prefix(path: str) -> str:
    match = _CONDA.match(path)
    return match["prefix"] if match else ""


def _licence(value: Any) -> str | None:
    """A licence's name on one line; the text of a whole licence is none, and neither is a word for not knowing."""
    text = " ".join(str(value).split()) if value else ""
    told = 0 < len(text) <= _MOST_LICENCE and text.isprintable() and text.upper() not in ("UNKNOWN", "OTHER")
    return text if told else None


def _channel(value: Any) -> str | None:
    """The name of a channel, of which conda-meta may have the whole address."""
    text = (_text(value) or "").rstrip("/")
    parts = [one for one in text.split("/") if one not in ("linux-64", "linux-aarch64", "noarch")]
    return parts[-1] if parts and parts[-1] else None


def _address(value: Any) -> str | None:
    """The address of an archive, without login and query."""
    text = (_text(value) or "").partition("?")[0].partition("#")[0]
    if not text.startswith(("https://", "http://")) or "@" in text.split("/")[2]:
        return None
    return None if "/t/" in text else text


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) and value.isprintable() else None


def _order(one: Installed) -> tuple[str, ...]:
    return (one.kind, one.name, one.version, one.build or "", one.arch or "", one.subdir or "")
