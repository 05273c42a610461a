"""Read what one wheel proves, with as few bytes as possible; what was read is kept by the wheel's SHA-256.

A wheel never changes under its hash, so a second run reads only file lists.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from envkit.evidence import contents, elf
from envkit.evidence.ranges import local_file, pieces
from envkit.evidence.wheel import Wheel, open_wheel
from envkit.facts.evidence import (
    ARCH_STRING,
    ARCH_TABLE,
    MACHINE_CODE,
    METADATA,
    SYMBOL_VERSIONS,
    VERSION_PY,
    Evidence,
)
from envkit.ground import json_cache
from envkit.ground.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from envkit.image.zip_entries import Source

SCHEMA = "envkit.wheel-evidence/1"
CUDNN_LIBRARY = "nvidia/cudnn/lib/libcudnn_cnn.so.9"
_BINARIES = 13  # fat binaries of libtorch_cuda.so that are looked at; each is a source file's code for all targets
_INIT_MAX = 4 << 20  # bytes of torch/cuda/__init__.py


@dataclass(frozen=True, slots=True)
class Level:
    """How much of a wheel is read."""

    libraries: bool = True  # the architecture string and the symbol versions
    deep: bool = False  # the machine code

    @property
    def name(self) -> str:
        """What the cache calls it."""
        return "deep" if self.deep else "libraries" if self.libraries else "metadata"


METADATA_ONLY = Level(libraries=False)


@dataclass(frozen=True, slots=True)
class Proofs:
    """What one wheel says, as evidence that is not of a row yet."""

    name: str
    sha256: str | None
    items: tuple[Evidence, ...]

    def first(self, field: str, kind: str | None = None) -> Evidence | None:
        """The evidence for a field, None where the wheel says nothing."""
        return next((item for item in self.items if item.field == field and kind in (None, item.kind)), None)

    def text(self, field: str) -> str | None:
        """A value that is text."""
        evidence = self.first(field)
        return evidence.value if evidence is not None and isinstance(evidence.value, str) else None

    @property
    def metadata(self) -> contents.Metadata:
        """The requirements."""
        requires = self.first("requires")
        lines = "".join(f"Requires-Dist: {line}\n" for line in (requires.value if requires else ()))
        head = f"Metadata-Version: 2.1\nName: {self.text('name')}\nVersion: {self.text('version')}\n"
        return contents.metadata(self.name, (head + lines).encode())


def read_wheel(
    name: str, source: Source, level: Level, *, sha256: str | None, date: str | None = None, cache: Path | None = None
) -> Proofs:
    """What a wheel proves at a level.

    Args:
        name: of the file.
        source: its bytes.
        level: how much is read.
        sha256: of the file, as the index has it; None = not known, and nothing is proved.
        date: the day it was published, for the evidence.
        cache: folder where what was read is kept; None = nowhere.

    Raises:
        IntegrityError: the wheel or a member is damaged, or says what it cannot say.
        EnvironmentProblem: it cannot be read.
    """
    key = f"{sha256}-{level.name}"
    if cache is not None and sha256 is not None:
        kept = json_cache.read(cache, key, SCHEMA)
        if kept is not None:
            return _proofs(name, sha256, date, (_revived(tree) for tree in kept))
    wheel = open_wheel(name, source)
    items = list(_items(wheel, level))
    if cache is not None and sha256 is not None:
        json_cache.write(cache, key, SCHEMA, [item.to_json() for item in items])
    return _proofs(name, sha256, date, items)


def read_local(path: Path, level: Level) -> Proofs:
    """What a wheel of this machine proves. Raises as `read_wheel`."""
    with local_file(path) as source:
        digest = hashlib.sha256()
        for piece in pieces(source, 0, source.size):
            digest.update(piece)
        return read_wheel(path.name, source, level, sha256=digest.hexdigest())


def _proofs(name: str, sha256: str | None, date: str | None, items: Iterable[Evidence]) -> Proofs:
    return Proofs(name, sha256, tuple(replace(item, file=name, sha256=sha256, date=date) for item in items))


def _revived(tree: dict[str, object]) -> Evidence:
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
        yield from _torch(wheel, level)
    elif metadata.name.startswith("nvidia-cudnn-") and level.deep and CUDNN_LIBRARY in wheel.members:
        yield from _code(wheel, CUDNN_LIBRARY)


def _torch(wheel: Wheel, level: Level) -> Iterator[Evidence]:
    said = contents.constants(
        wheel.name, contents.VERSION_PY, wheel.text(contents.VERSION_PY), ("__version__", "cuda", "hip")
    )
    for name, field in (("__version__", "local_version"), ("cuda", "cuda"), ("hip", "hip")):
        if name in said and (said[name].value is None or isinstance(said[name].value, str)):
            quoted = said[name]
            yield _item(field, quoted.value, VERSION_PY, contents.VERSION_PY, quoted.quote, offset=quoted.offset)
    cuda = said["cuda"].value if "cuda" in said else None
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
    seen, library = list[bytes](), wheel.inflated(contents.PYTHON_LIBRARY)
    segment = elf.first_segment(wheel.name, _kept(library, seen))
    glibc, glibcxx = elf.symbol_versions(segment)
    for field, prefix, version in (("glibc_symbols", "GLIBC", glibc), ("glibcxx_symbols", "GLIBCXX", glibcxx)):
        if version is not None:
            yield _item(field, version, SYMBOL_VERSIONS, contents.PYTHON_LIBRARY, f"{prefix}_{version}")
    if not cuda:
        return
    flags = contents.arch_flags(wheel.name, contents.PYTHON_LIBRARY, chain(seen, library))
    machine_code, ptx = contents.capabilities(flags.value)
    yield _item("archs", machine_code, ARCH_STRING, contents.PYTHON_LIBRARY, flags.quote, offset=flags.offset)
    yield _item("ptx", ptx, ARCH_STRING, contents.PYTHON_LIBRARY, flags.quote, offset=flags.offset)
    if level.deep:
        yield from _code(wheel, contents.CUDA_LIBRARY, machine_code)


def _kept(stream: Iterable[bytes], seen: list[bytes]) -> Iterator[bytes]:
    """The pieces of a stream, which are also put into a list: what was downloaded is not asked for again."""
    for piece in stream:
        seen.append(piece)
        yield piece


def _table(constants: dict[str, contents.Quoted]) -> dict[tuple[str, str], tuple[str, ...]]:
    return contents.arch_table(constants[contents.ARCH_TABLE]) if contents.ARCH_TABLE in constants else {}


def _code(wheel: Wheel, member: str, stated: tuple[str, ...] = ()) -> Iterator[Evidence]:
    """The machine code of a library, where all of the stated capabilities were met: a part of them proves no list."""
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
