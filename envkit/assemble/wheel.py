"""Read a wheel as the file tree that an installer would write, without unpacking it.

Differences from `uv pip install`: INSTALLER is envkit; REQUESTED, direct_url.json and uv_cache.json, which describe a
single installation, do not exist; bytecode comes from `envkit.assemble.bytecode`; launchers have another text.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envkit.assemble import wheel_files
from envkit.assemble.layer import File, Generated, Slice, Tree, read
from envkit.ground.errors import EnvironmentProblem, IntegrityError
from envkit.image.deflate import PIECE, DamagedError, Inflater, check_crc, crc32, most_inflated
from envkit.image.zip_entries import FETCH_AGAIN, Entry, entries, refuse
from envkit.plan.model import PREFIX

INSTALLER = b"envkit\n"
_OF_ONE_INSTALLATION = ("INSTALLER", "REQUESTED", "direct_url.json")
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_MAX_METADATA = 1 << 20  # bytes of WHEEL and entry_points.txt
_MAX_RECORD = 16 << 20  # bytes, of METADATA too; torch 2.7.1 has 11,502 rows in 1.5 MB
_MORE_ROWS = 1000  # rows that RECORD may have in addition to one for each file
_MAX_SCRIPT = 16 << 20  # bytes of a script whose first line is rewritten, which is done in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The paths in the image that wheels are installed to."""

    python: str  # '3.11'
    prefix: str = PREFIX
    headers: str | None = None  # relative to the prefix; None: as in a virtual environment

    @property
    def root(self) -> str:
        """The prefix without its leading slash, as in the paths of a layer."""
        return self.prefix.strip("/")

    @property
    def site_packages(self) -> str:
        """The folder of modules, relative to the image's root."""
        return f"{self.modules}/site-packages"

    @property
    def modules(self) -> str:
        """The folder of Python's own modules and of site-packages, relative to the image's root."""
        return f"{self.root}/lib/python{self.python}"

    @property
    def headers_folder(self) -> str:
        """The parent of the packages' folders of C headers, relative to the image's root."""
        # include/site/pythonX.Y is the folder of pip and uv in a virtual environment.
        return f"{self.root}/{self.headers or f'include/site/python{self.python}'}"

    @property
    def interpreter(self) -> str:
        """The path of Python for the first line of scripts."""
        return f"/{self.root}/bin/python"


@dataclass(slots=True)
class _Building:
    """The state while a wheel is read."""

    label: str
    scheme: Scheme
    files: dict[str, File] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)  # path in the wheel -> path in RECORD
    replaced: dict[str, bytes] = field(default_factory=dict)  # path in the wheel -> new contents
    rows: list[wheel_files.Row] = field(default_factory=list)  # of the wheel's own RECORD
    is_complete: bool = False  # RECORD ends with the end of a line

    def add(self, file: File) -> None:
        """Add a file; a path that is already there is refused."""
        if file.path in self.files:
            refuse(self.label, f"it would install /{file.path} twice")
        self.files[file.path] = file


@contextlib.contextmanager
def open_wheel(path: Path, scheme: Scheme, name: str | None = None) -> Iterator[Tree]:
    """Yield the tree of a wheel. Its contents can be read until the context ends.

    `name` is the file name of the wheel if the path has another one.

    Raises:
        IntegrityError: the file is damaged or not a wheel, or its contents do not match its name.
        EnvironmentProblem: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    try:
        yield _tree(descriptor, name or path.name, scheme)
    finally:
        os.close(descriptor)


def data_of(file: File) -> bytes:
    """Return the contents of a file of an open wheel.

    Raises:
        IntegrityError: they do not match the zip file's directory or the package's own list.
    """
    return b"".join(
        _contents(part, None) if isinstance(part, Slice) else part.data if isinstance(part, Generated) else part
        for part in file.parts
    )


def _tree(descriptor: int, label: str, scheme: Scheme) -> Tree:
    listed = entries(descriptor, label)
    total = sum(entry.size for entry in listed)
    if total > most_inflated(os.fstat(descriptor).st_size):
        refuse(label, f"it unpacks to {total} bytes, more than 100 times its size")
    members = {entry.name: _slice(descriptor, label, entry) for entry in listed if not entry.is_folder}
    name, version, info = _identity(label, members)
    _check_version(label, _text(label, members, f"{info}/WHEEL"))
    building = _Building(label, scheme)
    _read_record(building, members, info)
    _check_metadata(label, _text(label, members, f"{info}/METADATA", _MAX_RECORD), name, version)
    dropped = frozenset(f"{info}/{file}" for file in _OF_ONE_INSTALLATION)
    for entry in listed:
        if entry.name not in dropped and entry.name != f"{info}/RECORD":
            _place(building, entry, members.get(entry.name), name, info)
    added = _generated(building, members, info, name)
    _add_record(building, members, info, dropped, added)
    files = tuple(building.files[path] for path in sorted(building.files))
    return Tree(name=name, version=version, files=files, folders=tuple(sorted(building.folders)))


def _slice(descriptor: int, label: str, entry: Entry) -> Slice:
    return Slice(
        descriptor=descriptor, origin=f"{label}: {entry.name}", offset=entry.offset, packed=entry.packed,
        size=entry.size, crc=entry.crc, deflated=entry.deflated,
    )  # fmt: skip


def _identity(label: str, members: Mapping[str, Slice]) -> tuple[str, str, str]:
    """Return the normalized name, the version and the metadata folder; they have to match the file name."""
    try:
        name, version, _, _ = parse_wheel_filename(label)
    except InvalidWheelFilename as error:
        refuse(label, f"it is not a valid wheel name ({error})")
    folders = sorted({top for top, slash, _ in (key.partition("/") for key in members) if slash and _is_info(top)})
    if len(folders) != 1:
        refuse(label, f"it has {len(folders)} .dist-info folders instead of one")
    stem = folders[0].removesuffix(".dist-info")
    inner_name, _, inner_version = stem.rpartition("-")
    try:
        same = canonicalize_name(inner_name) == name and Version(inner_version) == version
    except InvalidVersion:
        same = False
    if not same:
        refuse(label, f"it contains {stem!r}")
    return canonicalize_name(name), str(version), folders[0]


def _is_info(top: str) -> bool:
    return top.endswith(".dist-info")


def _check_version(label: str, text: str) -> None:
    version = HeaderParser().parsestr(text).get("Wheel-Version", "")
    if version.partition(".")[0].strip() != "1":
        refuse(label, f"its format version is {version!r:.40}, not 1.x")


def _check_metadata(label: str, text: str, name: str, version: str) -> None:
    """Compare the name and the version in METADATA, which is what programs in the image read, with the file name."""
    headers = HeaderParser().parsestr(text)
    own_name, own_version = headers.get("Name", "").strip(), headers.get("Version", "").strip()
    try:
        same = canonicalize_name(own_name) == name and Version(own_version) == Version(version)
    except InvalidVersion:
        same = False
    if not same:
        refuse(label, f"its METADATA is that of {f'{own_name} {own_version}'!r:.100}")


def _place(building: _Building, entry: Entry, member: Slice | None, package: str, info: str) -> None:
    """Add one entry of the zip at its path in the image."""
    scheme, label = building.scheme, building.label
    data = info.removesuffix(".dist-info") + ".data/"
    executable = entry.executable
    if not entry.name.startswith(data):
        target = f"{scheme.site_packages}/{entry.name}"
    else:
        key, slash, rest = entry.name.removeprefix(data).partition("/")
        roots = {
            "purelib": scheme.site_packages, "platlib": scheme.site_packages, "data": scheme.root,
            "scripts": f"{scheme.root}/bin", "headers": f"{scheme.headers_folder}/{package}",
        }  # fmt: skip
        # The .data folder itself, or one of its subfolders.
        if not key or (entry.is_folder and not rest):
            return
        if key not in roots or not slash:
            refuse(label, f"{entry.name!r} is in an unknown folder of {data}")
        target = f"{roots[key]}/{rest}"
        executable = executable or key == "scripts"  # wheels made on Windows have no executable bits
        building.moved[entry.name] = posixpath.relpath(f"/{target}", f"/{scheme.site_packages}")
        if key == "scripts" and member is not None:
            script = _script(label, entry.name, member, scheme.interpreter)
            if script is not None:
                building.replaced[entry.name] = script
                building.add(File(path=target, size=len(script), executable=True, parts=(script,)))
                return
    if member is None:
        building.folders.add(target.removesuffix("/"))
        return
    building.add(File(path=target, size=member.size, executable=executable, parts=(member,)))


def _script(label: str, name: str, member: Slice, interpreter: str) -> bytes | None:
    """Return the script with the interpreter in its first line; None if the line does not have to change."""
    # The beginning is read without its CRC-32, which is checked when the whole member is copied or rewritten.
    if not wheel_files.needs_interpreter(_contents(member, wheel_files.PEEK)):
        return None
    if member.size > _MAX_SCRIPT:
        refuse(label, f"the script {name!r} has {member.size} bytes, more than {_MAX_SCRIPT}")
    return wheel_files.with_interpreter(_contents(member, None), interpreter)


def _generated(
    building: _Building, members: Mapping[str, Slice], info: str, package: str
) -> tuple[wheel_files.Row, ...]:
    """Add the files that an installer generates, INSTALLER and launchers; return their rows for RECORD."""
    scheme = building.scheme
    files = {f"{scheme.site_packages}/{info}/INSTALLER": (INSTALLER, False)}
    if f"{info}/entry_points.txt" in members:
        try:
            launchers = wheel_files.launchers(_text(building.label, members, f"{info}/entry_points.txt"))
        except ValueError as error:
            refuse(building.label, f"entry_points.txt: {error}")
        for launcher in launchers:
            content = wheel_files.launcher_text(launcher, scheme.interpreter)
            files[f"{scheme.root}/bin/{launcher.name}"] = (content, True)
            if (package, launcher.name) == ("pip", "pip"):  # installers add pip3.X for the Python version
                files[f"{scheme.root}/bin/pip{scheme.python}"] = (content, True)
    rows = []
    for path, (data, executable) in files.items():
        building.add(File(path=path, size=len(data), executable=executable, parts=(data,)))
        rows.append(wheel_files.record_row(posixpath.relpath(f"/{path}", f"/{scheme.site_packages}"), data))
    return tuple(rows)


def _read_record(building: _Building, members: dict[str, Slice], info: str) -> None:
    """Read the rows of RECORD, and give every member the digest that it has there."""
    label = building.label
    text = _text(label, members, f"{info}/RECORD", _MAX_RECORD)
    rows: list[wheel_files.Row] = []
    try:
        for row in wheel_files.parse_record(text):
            path, digest, size = row
            if len(rows) == len(members) + _MORE_ROWS:
                refuse(label, f"RECORD has more than {len(rows)} rows for {len(members)} files")
            rows.append(row)
            member = members.get(path)
            if member is None:
                if wheel_files.leads_out(path):
                    refuse(label, f"RECORD: {path!r:.200} points out of site-packages")
                continue
            if size and size != str(member.size):
                refuse(label, f"{path!r:.200} has {member.size} bytes, and {size:.30} in RECORD")
            members[path] = replace(member, recorded=wheel_files.recorded(digest))
    except ValueError as error:
        refuse(label, f"RECORD: {error}")
    building.rows, building.is_complete = rows, text.endswith("\n")


def _add_record(
    building: _Building,
    members: Mapping[str, Slice],
    info: str,
    dropped: frozenset[str],
    added: tuple[wheel_files.Row, ...],
) -> None:
    """Add RECORD: the wheel's own data followed by the added rows, or a new file if one of its rows changes."""
    record = f"{info}/RECORD"
    # RECORD never lists the signatures, which are made after it ("Signed wheel files").
    listed = {*dropped, *(f"{info}/{name}" for name in _SIGNATURES), *(row[0] for row in building.rows)}
    new = [
        wheel_files.installed_row(row, moved=building.moved, replaced=building.replaced, dropped=dropped)
        for row in building.rows
    ]
    # Uninstallers remove only the files in RECORD. A hash may be missing there.
    unlisted = [(building.moved.get(name, name), "", "") for name in sorted(members) if name not in listed]
    tail = wheel_files.render_record((*unlisted, *added))
    parts: tuple[bytes | Slice, ...]
    # Rows can be appended to the wheel's own data only if its last line is complete.
    if new == building.rows and building.is_complete:
        parts = (members[record], tail)
        size = members[record].size + len(tail)
    else:
        data = wheel_files.render_record(row for row in new if row is not None) + tail
        parts, size = (data,), len(data)
    building.add(File(path=f"{building.scheme.site_packages}/{record}", size=size, executable=False, parts=parts))


def _text(label: str, members: Mapping[str, Slice], name: str, most: int = _MAX_METADATA) -> str:
    """Return a metadata file of the wheel, which may have at most `most` bytes."""
    if name not in members:
        refuse(label, f"it has no {name}")
    if members[name].size > most:
        refuse(label, f"{name} has {members[name].size} bytes, more than {most}")
    try:
        return _contents(members[name], None).decode()
    except UnicodeDecodeError:
        refuse(label, f"{name} is not UTF-8")


def _contents(member: Slice, limit: int | None) -> bytes:
    """Return the first `limit` bytes of a member, or all of them; in that case the CRC-32 and the digest are checked.

    Raises:
        IntegrityError: the data does not match the zip file's directory.
    """
    out = bytearray()
    digest = member.digest()
    inflater = Inflater(member.size) if member.deflated else None
    try:
        for data in read(member, PIECE):
            for piece in (data,) if inflater is None else inflater.feed(data):
                out += piece
                if limit is not None and len(out) >= limit:
                    return bytes(out[:limit])
        if inflater is not None:
            inflater.finish(member.crc)
        else:
            check_crc(crc32(out), member.crc)
        if digest is not None:
            digest.update(bytes(out))
            member.check(digest)
    except DamagedError as error:
        raise IntegrityError(f"{member.origin} is damaged: {error}", hint=FETCH_AGAIN) from error
    return bytes(out)
