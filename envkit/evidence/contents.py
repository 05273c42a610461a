"""Extract facts from the files of a wheel. Python files are parsed, never executed."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envkit.ground.errors import IntegrityError
from envkit.ground.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSION_PY = "torch/version.py"
CUDA_INIT = "torch/cuda/__init__.py"
PYTHON_LIBRARY = "torch/lib/libtorch_python.so"
CUDA_LIBRARY = "torch/lib/libtorch_cuda.so"
ARCH_TABLE = "PYTORCH_RELEASES_CODE_CC"
_FLAG = rb"(?:sm|compute)_[0-9]{2,3}[a-z]?"
# In 2.8.0 the string follows another constant without a byte between them: "ipc_hsm_70 sm_75 ...".
# A flag after a space belongs to a sentence ("needs sm_90"); a C string ends with a null byte.
_FLAGS = re.compile(rb"(?<! )" + _FLAG + rb"(?: " + _FLAG + rb")*(?=\0)")
_FLAGS_MAX = 1024  # bytes; the lists of torch have about 60
_REQUIREMENTS_MAX = 1000  # torch has some dozens; the file is untrusted
_HINT = "the wheel is invalid; use the file of another index"


@dataclass(frozen=True, slots=True)
class Quoted:
    """A value and the bytes that it was read from."""

    value: Any
    quote: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of METADATA that the facts need."""

    name: str
    version: str
    requires_python: str | None
    requires: tuple[Requirement, ...]
    lines: dict[str, str]  # name of a requirement -> its text in the file

    def requirement(self, name: str) -> Requirement | None:
        """Return the first requirement of a distribution that is not part of an extra; None if there is none."""
        return next(
            (
                requirement
                for requirement in self.requires
                if canonicalize_name(requirement.name) == name and "extra" not in str(requirement.marker)
            ),
            None,
        )

    def matching(self, pattern: str) -> list[Requirement]:
        """Return the requirements whose whole name matches a pattern."""
        return [
            requirement for requirement in self.requires if re.fullmatch(pattern, canonicalize_name(requirement.name))
        ]


def metadata(label: str, data: bytes) -> Metadata:
    """Read METADATA.

    Raises:
        IntegrityError: a needed field is missing, given twice or not UTF-8, or a requirement is invalid.
    """
    # Only the fields: the description after the first blank line may be in any encoding.
    head = data.replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    # Parsers disagree on whether a lone CR ends a line, so some would see a field that others do not.
    if b"\r" in head:
        raise _refused(label, "METADATA has a carriage return inside a line")
    raw, left = parse_email(data)
    for field in ("name", "version", "requires-python", "requires-dist"):
        if field in left:
            raise _refused(label, f"METADATA: {field} is given twice or is not UTF-8")
    name, version = raw.get("name"), raw.get("version")
    if not name or not version:
        raise _refused(label, "METADATA has no name or no version")
    texts = raw.get("requires_dist", [])
    if len(texts) > _REQUIREMENTS_MAX:
        raise _refused(label, f"METADATA has {len(texts)} requirements")
    requirements: list[Requirement] = []
    lines: dict[str, str] = {}
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise _refused(label, f"METADATA: {clean(text)!r:.120} is not a requirement") from error
        requirements.append(requirement)
        lines.setdefault(canonicalize_name(requirement.name), clean(text))
    return Metadata(canonicalize_name(name), version, raw.get("requires_python"), tuple(requirements), lines)


def constants(label: str, member: str, data: bytes, names: Iterable[str]) -> dict[str, Quoted]:
    """Return the literal values that a Python file assigns to names at its top level.

    Raises:
        IntegrityError: the file is not valid Python.
    """
    names = frozenset(names)
    try:
        text = data.decode()
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(label, f"{member} is not a Python file that parses") from error
    values: dict[str, Quoted] = {}
    for node in tree.body:
        name, value = _assigned(node)
        if name not in names or value is None:
            continue
        try:
            literal = ast.literal_eval(value)
        # Not a literal, or nested too deeply; the file is untrusted.
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        quote = ast.get_source_segment(text, node) or ""
        values[name] = Quoted(
            literal, clean(quote)[:2000], len("".join(text.splitlines(True)[: node.lineno - 1]).encode())
        )
    return values


def _assigned(node: ast.stmt) -> tuple[str, ast.expr | None]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    return "", None


def arch_flags(label: str, member: str, stream: Iterator[bytes]) -> Quoted:
    """Return the list of compute capabilities that torch was compiled for: 'sm_75 sm_80 ... compute_90'.

    The library is read only as far as the piece with the list.

    Raises:
        IntegrityError: the library has no list, or two different ones.
    """
    start, tail = 0, b""
    for piece in stream:
        data = tail + piece
        offsets = {match.group(): start + match.start() for match in _FLAGS.finditer(data)}
        if offsets:
            flags, at = next(iter(offsets.items()))
            if len(offsets) > 1:
                raise _refused(label, f"{member} has {len(offsets)} different lists of compute capabilities")
            if len(flags) > _FLAGS_MAX:
                raise _refused(label, f"{member} has a list of compute capabilities of {len(flags)} bytes")
            return Quoted(flags.decode(), flags.decode(), at)
        # The end is kept, because a list may continue in the next piece.
        start, tail = start + len(data) - min(len(data), _FLAGS_MAX), data[-_FLAGS_MAX:]
    raise _refused(label, f"{member} has no list of compute capabilities")


def capabilities(flags: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a flags string into machine code and PTX: 'sm_80 sm_90a compute_90' -> (('8.0', '9.0'), ('9.0',))."""
    words = flags.split()
    return _dotted(words, "sm_"), _dotted(words, "compute_")


def _dotted(words: list[str], prefix: str) -> tuple[str, ...]:
    # The last digit is the minor version: sm_100 is 10.0. The suffix of sm_90a is left out.
    numbers = {int(re.sub(r"\D", "", word)) for word in words if word.startswith(prefix)}
    return tuple(f"{number // 10}.{number % 10}" for number in sorted(numbers))


def arch_table(quoted: Quoted) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the table of compute capabilities by (CUDA, machine); entries of another shape are left out."""
    table: dict[tuple[str, str], tuple[str, ...]] = {}
    if not isinstance(quoted.value, dict):
        return table
    # {'12.6': {'x86_64': {50, 80, 90}, 'aarch64': {80, 90}}, ...}
    for cuda, machines in quoted.value.items():
        if not isinstance(machines, dict) or not re.fullmatch(r"\d+\.\d+", str(cuda)):
            continue
        for machine, numbers in machines.items():
            if isinstance(numbers, (set, list, tuple)) and all(type(number) is int for number in numbers):
                table[cuda, str(machine)] = tuple(f"{number // 10}.{number % 10}" for number in sorted(numbers))
    return table


def _refused(label: str, why: str) -> IntegrityError:
    return IntegrityError(f"{label} is refused: {why}", hint=_HINT)
