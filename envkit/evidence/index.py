"""The file lists of a package index: JSON if the index has it (PEP 691, 700), else HTML (PEP 503, 592)."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envkit.evidence.ranges import PATIENCE, RemoteFile, Traffic, as_environment
from envkit.ground.errors import EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.text import neutral
from envkit.lock.file_lists import Row, from_html, from_json
from envkit.lock.index_locations import authorization, without_login
from envkit.registry.retry import persist
from envkit.registry.transport import host, shown

if TYPE_CHECKING:
    from envkit.registry.transport import Answer, Transport

PACKAGES = frozenset({
    "torch", "torchvision", "torchaudio", "torchtext", "torchcodec", "triton", "cuda-toolkit",
    *(f"nvidia-{part}-cu{major}" for part in ("cudnn", "nccl") for major in (11, 12, 13)),
})  # fmt: skip
"""The only packages that are requested; names from untrusted files are never added."""
LIST_MAX = 64 << 20  # bytes; torch's has 0.4 MB
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_HINT = "envkit config shows the index; {}=URL sets another one"
_PYTHON = "ENVKIT_PYTHON_INDEX"
_OK, _NOT_FOUND, _UNAUTHORIZED = 200, 404, (401, 403)
_BUILD = re.compile(r"(\d+)(.*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DAY = timedelta(days=1)  # tolerance for clocks and time zones


class NoListError(EnvironmentProblem):
    """The index has no list of a package (404)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A wheel in a file list."""

    name: str
    url: str
    version: str
    build: str | None  # the build tag
    tag: str  # platform tags as in the name: 'manylinux_2_28_x86_64'
    pythons: tuple[str, ...]  # ('3.12',) or ('3.13t',); empty for a wheel of any Python
    sha256: str | None
    size: int | None  # bytes
    uploaded: str | None  # day, ISO
    requires_python: str | None
    yanked: bool

    @property
    def build_order(self) -> tuple[int, str]:
        """The sort key of build tags, as specified for wheels: '1a' -> (1, 'a'); no tag comes first."""
        match = _BUILD.fullmatch(self.build or "")
        return (int(match[1]), match[2]) if match else (-1, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList:
    """The wheels of a package on an index."""

    package: str
    url: str
    files: tuple[WheelFile, ...]
    today: date  # UTC; from the Date header of the index, else from this machine's clock

    def of(self, version: str) -> tuple[WheelFile, ...]:
        """Return the wheels of a release, without yanked ones."""
        return tuple(file for file in self.files if file.version == version and not file.yanked)

    @property
    def versions(self) -> tuple[str, ...]:
        """The releases with a wheel that is not yanked, in the order of the list."""
        return tuple(dict.fromkeys(file.version for file in self.files if not file.yanked))

    def first_days(self) -> dict[str, str]:
        """Return the day of the first upload of each release; a wheel for another platform may follow weeks later."""
        days: dict[str, str] = {}
        for file in self.files:
            if file.uploaded:
                days[file.version] = min(days.get(file.version, file.uploaded), file.uploaded)
        return days

    def is_future(self, day: str) -> bool:
        """Return whether an ISO day is later than today in every time zone."""
        return date.fromisoformat(day) > self.today + _DAY


@dataclass(slots=True, kw_only=True)
class Index:
    """A package index. File lists are cached for the run."""

    url: str  # of the simple index; may contain a login
    transport: Transport
    traffic: Traffic
    ca_bundle: str | None = None  # PEM file, for other clients of the same index
    variable: str = _PYTHON  # that sets another index, for hints
    _lists: dict[str, FileList] = field(default_factory=dict)

    def files(self, package: str) -> FileList:
        """Return the file list of a package.

        Raises:
            NoListError: the index has no list of the package.
            EnvironmentProblem: the index does not answer, refuses, or its answer is not a file list.
            IntegrityError: the list contradicts itself or is cut short.
        """
        if package not in PACKAGES:
            raise UsageError(f"{package!r:.80} is not a package that evidence is read from", hint="torch==2.7.1")
        if package not in self._lists:
            self._lists[package] = self._ask(package)
        return self._lists[package]

    def empty(self, package: str) -> FileList:
        """Return the list of a package that the index does not have."""
        url = f"{without_login(self.url).rstrip('/')}/{package}/"
        return FileList(package=package, url=shown(url), files=(), today=_today(None))

    def remote(self, file: WheelFile) -> RemoteFile:
        """Return a wheel of a file list as a file that can be read in parts."""
        return RemoteFile(
            transport=self.transport, name=file.name, url=file.url, traffic=self.traffic,
            led_by=without_login(self.url), authorization=authorization(file.url, self.url), expected=file.size,
        )  # fmt: skip

    def _ask(self, package: str) -> FileList:
        url = f"{self.url.rstrip('/')}/{package}/"
        plain = f"{without_login(self.url).rstrip('/')}/{package}/"
        try:
            with as_environment():
                answer, data = persist(lambda: self._once(url, plain), PATIENCE)
        except EnvironmentProblem as error:
            # A network that does not let the index through often has a mirror of it.
            if error.hint is not None and self.variable not in error.hint:
                error.hint += f"; {self.variable}=URL sets another index"
            raise
        # application/vnd.pypi.simple.v1+json, or text/html
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            rows = from_json(data, answer.url) if kind.endswith("json") else from_html(data, answer.url)
        # Not JSON, not UTF-8, nested too deeply or of another shape: the answer is untrusted.
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            raise _no_list(plain, package, self.variable) from error
        if not rows:
            raise _no_list(plain, package, self.variable)
        today = _today(answer.headers.get("date"))
        file_list = FileList(package=package, url=shown(plain), files=_wheels(package, rows, plain), today=today)
        _check_days(file_list, self.variable)
        return file_list

    def _once(self, url: str, plain: str) -> tuple[Answer, bytes]:
        self.traffic.requests += 1
        # The size of a list is not known before it is read.
        self.traffic.check(shown(plain), 0)
        headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip"}
        with self.transport.send("GET", url, headers=headers, authorization=authorization(plain, self.url)) as answer:
            # Evidence comes only from the index that is configured, not from one that it redirects to.
            if host(answer.url) != host(plain):
                raise EnvironmentProblem(
                    f"{host(plain)} redirects to {host(answer.url)}",
                    hint=f"if that is your index, set {self.variable}=URL",
                )
            if answer.status in _UNAUTHORIZED:
                raise EnvironmentProblem(
                    f"{shown(plain)} asks for a login ({answer.status})",
                    hint="put it into ~/.netrc, or into the index URL in the configuration of pip or uv",
                )
            if answer.status != _OK:
                kind = NoListError if answer.status == _NOT_FOUND else EnvironmentProblem
                raise kind(f"{shown(plain)} answers {answer.status}", hint=_HINT.format(self.variable))
            data = answer.read(LIST_MAX)
        self.traffic.received += len(data)
        if answer.headers.get("content-encoding", "").lower() == "gzip":
            data = _unzipped(data, plain, self.variable)
        return answer, data


def _unzipped(data: bytes, url: str, variable: str) -> bytes:
    engine = zlib.decompressobj(31)  # 16 for gzip's header and trailer, 15 for the largest window
    try:
        # The limit holds for the output, too: a small file can inflate to gigabytes.
        unpacked = engine.decompress(data, LIST_MAX)
    except zlib.error as error:
        raise IntegrityError(f"{shown(url)} sends damaged gzip data", hint=_HINT.format(variable)) from error
    if engine.unconsumed_tail or not engine.eof:
        raise IntegrityError(
            f"{shown(url)} sends a damaged list, or one of more than 64 MiB", hint=_HINT.format(variable)
        )
    return unpacked


def _today(sent: str | None) -> date:
    """Return the day of a Date header, else of this machine's clock."""
    try:
        return parsedate_to_datetime(sent or "").astimezone(UTC).date()
    except (ValueError, OverflowError):
        return datetime.now(UTC).date()


def _check_days(files: FileList, variable: str) -> None:
    """Refuse a list with upload times in the future, because release dates come from it.

    Raises:
        IntegrityError: an upload time is in the future.
    """
    late = next((file for file in files.files if file.uploaded and files.is_future(file.uploaded)), None)
    if late is not None:
        raise IntegrityError(
            f"{files.url} lists {neutral(late.name)} as uploaded on {late.uploaded}, and today is {files.today}",
            # The clock of this machine is used only for an index without a Date header.
            hint=f"use another index: {variable}=URL; or correct its clock and that of this machine (date -u)",
        )


def _no_list(url: str, package: str, variable: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"{shown(url)} is not a list of {package}'s files", hint=_HINT.format(variable))


def _wheels(package: str, rows: list[Row], url: str) -> tuple[WheelFile, ...]:
    wheels: dict[str, WheelFile] = {}
    for row in rows:
        file = _wheel(package, row)
        if file is None:
            continue
        first = wheels.setdefault(file.name, file)
        if first.sha256 != file.sha256:
            raise IntegrityError(
                f"{shown(url)} lists {neutral(file.name)} twice with different hashes", hint="use another index"
            )
    return tuple(wheels.values())


def _wheel(package: str, row: Row) -> WheelFile | None:
    """Return a wheel of the package; None for other files and for names that installers ignore."""
    name = row["name"]
    if not isinstance(name, str) or not name.endswith(".whl"):
        return None
    try:
        own, version, build, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return None
    if canonicalize_name(own) != package:
        return None
    pythons = {_python(tag.interpreter, tag.abi) for tag in tags}
    sha256, size, uploaded = row["sha256"], row["size"], row["uploaded"]
    return WheelFile(
        name=name,
        url=str(row["url"]),
        version=str(version),
        build="".join(str(part) for part in build) or None,
        tag=name.removesuffix(".whl").rpartition("-")[2],
        pythons=tuple(sorted(python for python in pythons if python)),
        sha256=sha256 if isinstance(sha256, str) and _SHA256.fullmatch(sha256) else None,
        size=size if isinstance(size, int) and size > 0 else None,
        uploaded=_day(uploaded),
        requires_python=row["requires_python"] if isinstance(row["requires_python"], str) else None,
        yanked=bool(row["yanked"]),
    )


def _day(timestamp: object) -> str | None:
    """Return the day of an upload time; None if it is not a date."""
    if not isinstance(timestamp, str) or not _DATE.match(timestamp):
        return None
    try:
        return date.fromisoformat(timestamp[:10]).isoformat()
    except ValueError:
        return None


def _python(interpreter: str, abi: str) -> str | None:
    """Return '3.13t' for (cp313, cp313t); None for a wheel for any Python."""
    match = re.fullmatch(r"cp(3)(\d+)", interpreter)
    if match is None:
        return None
    return f"{match[1]}.{match[2]}" + ("t" if abi == f"{interpreter}t" else "")
