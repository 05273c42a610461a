"""Read the evidence in a wheel, with as few bytes as possible; results are cached by the wheel's SHA-256.

A wheel with a given hash never changes, so a second run reads only file lists.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

from envkit.evidence import contents, elf
from envkit.evidence.ranges import local_file, pieces
from envkit.facts.evidence import (
    ARCH_STRING,
    ARCH_TABLE,
    MACHINE_CODE,
    METADATA,
    SYMBOL_VERSIONS,
    VERSION_PY,
    Evidence,
)
from envkit.ground.cache import EVIDENCE
from envkit.ground.errors import IntegrityError
from envkit.image.deflate import DamagedError, Inflater, check_crc, crc32
from envkit.image.zip_entries import Listed, Source, listed, located

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

SCHEMA = "envkit.wheel-evidence/3"
PARTNERS = ("torchvision", "torchaudio")
"""Packages of the same project that are released with torch."""
CUDNN_LIBRARY = "nvidia/cudnn/lib/libcudnn_cnn.so.9"
_BINARIES = 13  # fat binaries of libtorch_cuda.so to read; each has the code of one source file
_MEMBER_MAX = 1 << 20  # bytes of a text member; METADATA of torch has 30 kB
_INIT_MAX = 4 << 20  # bytes of torch/cuda/__init__.py


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel's directory; members are read one by one, without the rest of the file."""

    name: str  # the file name
    source: Source
    members: Mapping[str, Listed]

    def text(self, member: str, limit: int = _MEMBER_MAX) -> bytes:
        """Return the contents of a small member, checked against its CRC-32.

        Raises:
            IntegrityError: the member is missing, damaged or larger than `limit` bytes.
            EnvironmentProblem: the file cannot be read.
        """
        row = self.members.get(member)
        if row is None:
            self._refuse(f"it has no {member}")
        if row.entry.size > limit:
            self._refuse(f"{member} has {row.entry.size} bytes")
        return b"".join(self.inflated(member))

    def inflated(self, member: str) -> Iterator[bytes]:
        """Yield the contents of a member in pieces of at most 1 MiB; the caller may stop early.

        Raises:
            IntegrityError: the member is missing or damaged, or inflates past its size.
            EnvironmentProblem: the file cannot be read.
        """
        row = self.members.get(member)
        if row is None:
            self._refuse(f"it has no {member}")
        entry = located(self.source, self.name, row)
        packed = pieces(self.source, entry.offset, entry.packed)
        try:
            if not entry.deflated:
                crc = 0
                for piece in packed:
                    crc = crc32(piece, crc)
                    yield piece
                check_crc(crc, entry.crc)
                return
            inflater = Inflater(entry.size)
            for piece in packed:
                yield from inflater.feed(piece)
            inflater.finish(entry.crc)  # not reached if the caller stops early
        except DamagedError as error:
            self._refuse(f"{member} is damaged: {error}", error)

    def metadata(self) -> tuple[str, bytes]:
        """Return the name and the contents of METADATA. Raises as `text`."""
        # Only at the top: a package that is bundled in the wheel may have its own.
        names = [name for name in self.members if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        if len(names) != 1:
            self._refuse(f"it has {len(names)} METADATA files, not one")
        return names[0], self.text(names[0])

    def _refuse(self, why: str, cause: Exception | None = None) -> NoReturn:
        raise IntegrityError(
            f"{self.name} is refused: {why}", hint="the wheel is invalid; use the file of another index"
        ) from cause


def open_wheel(name: str, source: Source) -> Wheel:
    """Read the directory of a wheel.

    Raises:
        IntegrityError: the file is truncated, is not a zip file, or has names that a package must not have.
        EnvironmentProblem: the file cannot be read.
    """
    rows = listed(source, name)
    return Wheel(name, source, {row.entry.name: row for row in rows})


@dataclass(frozen=True, slots=True)
class Level:
    """How much of a wheel to read."""

    libraries: bool = True  # the architecture string and the symbol versions
    deep: bool = False  # the machine code

    @property
    def name(self) -> str:
        """The name of the level in cache keys."""
        return "deep" if self.deep else "libraries" if self.libraries else "metadata"


METADATA_ONLY = Level(libraries=False)


@dataclass(frozen=True, slots=True)
class Proofs:
    """The evidence in a wheel; not yet assigned to rows."""

    name: str
    sha256: str | None
    items: tuple[Evidence, ...]

    def first(self, field: str, kind: str | None = None) -> Evidence | None:
        """Return the first evidence for a field; None if there is none."""
        return next((item for item in self.items if item.field == field and kind in (None, item.kind)), None)

    def text(self, field: str) -> str | None:
        """Return the value of a field if it is text, else None."""
        evidence = self.first(field)
        return evidence.value if evidence is not None and isinstance(evidence.value, str) else None

    @property
    def metadata(self) -> contents.Metadata:
        """The metadata with the requirements, rebuilt from the evidence."""
        requires = self.first("requires")
        lines = "".join(f"Requires-Dist: {line}\n" for line in (requires.value if requires else ()))
        head = f"Metadata-Version: 2.1\nName: {self.text('name')}\nVersion: {self.text('version')}\n"
        return contents.metadata(self.name, (head + lines).encode())


def read_wheel(
    name: str, source: Source, level: Level, *, sha256: str | None, date: str | None = None, cache: Path | None = None
) -> Proofs:
    """Read the evidence in a wheel.

    Args:
        name: the file name.
        source: the file.
        level: how much to read.
        sha256: SHA-256 of the file according to the index; None: unknown, so the result proves nothing.
        date: the day of publication, for the evidence.
        cache: XDG_CACHE_HOME/envkit, for the results; None: not cached.

    Raises:
        IntegrityError: the wheel or a member is damaged or inconsistent.
        EnvironmentProblem: the file cannot be read.
    """
    key = f"{sha256}-{level.name}"
    if cache is not None and sha256 is not None:
        cached = EVIDENCE.read(cache, key, SCHEMA)
        if cached is not None:
            return _proofs(name, sha256, date, (_from_json(tree) for tree in cached))
    wheel = open_wheel(name, source)
    items = list(_items(wheel, level))
    if cache is not None and sha256 is not None:
        EVIDENCE.write(cache, key, SCHEMA, [item.to_json() for item in items])
    return _proofs(name, sha256, date, items)


def read_local(path: Path, level: Level) -> Proofs:
    """Read the evidence in a local wheel. Raises as `read_wheel`."""
    with local_file(path) as source:
        digest = hashlib.sha256()
        for piece in pieces(source, 0, source.size):
            digest.update(piece)
        return read_wheel(path.name, source, level, sha256=digest.hexdigest())


def _proofs(name: str, sha256: str | None, date: str | None, items: Iterable[Evidence]) -> Proofs:
    return Proofs(name, sha256, tuple(replace(item, file=name, sha256=sha256, date=date) for item in items))


def _from_json(tree: dict[str, object]) -> Evidence:
    value = tree["value"]
    return Evidence(**{**tree, "value": tuple(value) if isinstance(value, list) else value})  # type: ignore[arg-type]


def _items(wheel: Wheel, level: Level) -> Iterator[Evidence]:
    member, data = wheel.metadata()
    metadata = contents.metadata(wheel.name, data)
    yield _item("name", metadata.name, METADATA, member, f"Name: {metadata.name}")
    yield _item("version", metadata.version, METADATA, member, f"Version: {metadata.version}")
    yield _item(
        "requires_python", metadata.requires_python, METADATA, member, f"Requires-Python: {metadata.requires_python}"
    )
    yield _item("requires", tuple(str(requirement) for requirement in metadata.requires), METADATA, member, None)
    if metadata.name == "torch":
        yield from _torch(wheel, level, metadata.version)
    elif metadata.name in PARTNERS:
        yield from _partner(wheel, metadata.name, metadata.version)
    elif metadata.name.startswith("nvidia-cudnn-") and level.deep and CUDNN_LIBRARY in wheel.members:
        yield from _code(wheel, CUDNN_LIBRARY)


def _torch(wheel: Wheel, level: Level, release: str) -> Iterator[Evidence]:
    versions = contents.constants(
        wheel.name, contents.VERSION_PY, wheel.text(contents.VERSION_PY), ("__version__", "cuda", "hip")
    )
    _check_version(wheel, contents.VERSION_PY, versions.get("__version__"), release)
    # torch/version.py of a wheel: `__version__ = '2.7.1+cu126'`, `cuda = '12.6'`, `hip = None`.
    for name, field in (("__version__", "local_version"), ("cuda", "cuda"), ("hip", "hip")):
        if name in versions and (versions[name].value is None or isinstance(versions[name].value, str)):
            quoted = versions[name]
            yield _item(field, quoted.value, VERSION_PY, contents.VERSION_PY, quoted.quote, offset=quoted.offset)
    cuda = versions["cuda"].value if "cuda" in versions else None
    if contents.CUDA_INIT in wheel.members and cuda:
        text = wheel.text(contents.CUDA_INIT, _INIT_MAX)
        table = contents.constants(wheel.name, contents.CUDA_INIT, text, (contents.ARCH_TABLE,))
        for (other, machine), archs in _table(table).items():
            quoted = table[contents.ARCH_TABLE]
            yield _item(
                f"archs {other} {machine}", archs, ARCH_TABLE, contents.CUDA_INIT, quoted.quote, offset=quoted.offset
            )
    if not level.libraries or contents.PYTHON_LIBRARY not in wheel.members:
        return
    begin, library = list[bytes](), wheel.inflated(contents.PYTHON_LIBRARY)
    segment = elf.first_segment(wheel.name, _recorded(library, begin))
    glibc, glibcxx = elf.symbol_versions(segment)
    for field, prefix, version in (("glibc_symbols", "GLIBC", glibc), ("glibcxx_symbols", "GLIBCXX", glibcxx)):
        if version is not None:
            yield _item(field, version, SYMBOL_VERSIONS, contents.PYTHON_LIBRARY, f"{prefix}_{version}")
    if not cuda:
        return
    flags = contents.arch_flags(wheel.name, contents.PYTHON_LIBRARY, chain(begin, library))
    machine_code, ptx = contents.capabilities(flags.value)
    yield _item("archs", machine_code, ARCH_STRING, contents.PYTHON_LIBRARY, flags.quote, offset=flags.offset)
    yield _item("ptx", ptx, ARCH_STRING, contents.PYTHON_LIBRARY, flags.quote, offset=flags.offset)
    if level.deep:
        yield from _code(wheel, contents.CUDA_LIBRARY, machine_code)


def _partner(wheel: Wheel, name: str, version: str) -> Iterator[Evidence]:
    """Yield the local version of a package that goes with torch, which names the CUDA it was compiled for."""
    member = f"{name}/version.py"
    if member not in wheel.members:
        return
    # torchaudio/version.py of the wheel 2.11.0 on the Python index: `__version__ = '2.11.0+cu130'`.
    quoted = contents.constants(wheel.name, member, wheel.text(member), ("__version__",)).get("__version__")
    _check_version(wheel, member, quoted, version)
    if quoted is not None and isinstance(quoted.value, str):
        yield _item("local_version", quoted.value, VERSION_PY, member, quoted.quote, offset=quoted.offset)


def _check_version(wheel: Wheel, member: str, quoted: contents.Quoted | None, version: str) -> None:
    """Check that version.py has the version of METADATA; METADATA may leave out the local version.

    Raises:
        IntegrityError: they disagree, so the CUDA of one of them is not that of the wheel.
    """
    if quoted is None or not isinstance(quoted.value, str):
        return
    own = quoted.value if "+" in version else quoted.value.partition("+")[0]
    if own != version:
        raise IntegrityError(
            f"{wheel.name} is refused: METADATA has version {version}, and {member} has {quoted.value}",
            hint="the wheel is invalid; use the file of another index",
        )


def _recorded(stream: Iterable[bytes], record: list[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a stream and also append them to a list, so that they need not be downloaded again."""
    for piece in stream:
        record.append(piece)
        yield piece


def _table(constants: dict[str, contents.Quoted]) -> dict[tuple[str, str], tuple[str, ...]]:
    return contents.arch_table(constants[contents.ARCH_TABLE]) if contents.ARCH_TABLE in constants else {}


def _code(wheel: Wheel, member: str, stated: tuple[str, ...] = ()) -> Iterator[Evidence]:
    """Yield the machine code of a library, unless only some of the stated capabilities were read."""
    if member not in wheel.members:
        return
    code = elf.gpu_code(wheel.name, wheel.inflated(member), least=_BINARIES, wanted=frozenset(stated))
    if not code.binaries:
        raise IntegrityError(
            f"{wheel.name} is refused: {member} has no fat binary", hint="read less of it: without --deep"
        )
    if not set(stated) <= set(code.machine) and set(code.machine) <= set(stated):
        return
    quote = f"{code.binaries} fat binaries: machine code {' '.join(code.machine)}; PTX {' '.join(code.ptx) or 'none'}"
    yield _item("archs", code.machine, MACHINE_CODE, member, quote, offset=code.offset)
    yield _item("ptx", code.ptx, MACHINE_CODE, member, quote, offset=code.offset)


def _item(
    field: str, value: object, kind: str, member: str, quote: str | None, *, offset: int | None = None
) -> Evidence:
    return Evidence(row="", field=field, value=value, kind=kind, member=member, offset=offset, quote=quote)
