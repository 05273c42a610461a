"""Error codes of NVML, CUDA, cuDNN and NCCL, and the Xid numbers of NVIDIA's kernel module: one table each.

A code has a number, a name, the text that its library prints, and what it means. Its cause and fix are those of the
rows that it names, or those of its kind, from which a row is made. `read` finds the codes that a line names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.knowledge.failures import Row, Severity, row

TABLES = Path(__file__).parent / "tables"
NAMES = ("nvml", "cuda", "cudnn", "nccl", "xid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the codes of one kind have in common, as in a row of the failures."""

    role: str
    severity: Severity
    title: str
    check: tuple[str, ...]
    fix: tuple[str, ...]
    distinguish: str
    explains: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """An error code of one table."""

    table: str
    number: int | None  # None for codes without a fixed number
    name: str
    text: str  # what the library prints; "" if it prints the name alone
    is_alone: bool  # whether nothing else prints that text
    means: str
    driver: str  # the name in CUDA's driver interface, without CUDA_ERROR_
    kind: Kind | None
    rows: tuple[Row, ...]

    @property
    def symbol(self) -> str:
        """The whole name: `NVML_ERROR_GPU_IS_LOST`, `cudaErrorAssert`, `Xid 79`."""
        prefix = {"nvml": "NVML_ERROR_", "cudnn": "CUDNN_STATUS_"}.get(self.table, "")
        return f"Xid {self.number}" if self.table == "xid" else prefix + self.name

    @property
    def said(self) -> str:
        """One sentence: the symbol with its number and name, and what it means."""
        detail = {"xid": self.name, "cudnn": ""}.get(self.table, "" if self.number is None else f"error {self.number}")
        return f"{self.symbol}{f' ({detail})' if detail else ''}: {self.means}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The codes of one library."""

    title: str
    sources: tuple[str, ...]
    codes: tuple[Code, ...]
    actions: Mapping[str, str] = field(default_factory=dict)  # of Xid 154: the driver's name of an action, what to do
    unlisted: Row | None = None  # of the numbers that the table does not have

    def by_number(self, number: int) -> Code | None:
        """Return the code with a number; None if the table has none."""
        return next((code for code in self.codes if code.number == number), None)


@cache
def table(name: str) -> Table:
    """Return a table by its name, one of `NAMES`.

    Raises:
        UsageError: the file is invalid.
    """
    path = TABLES / f"{name}.yaml"
    tree = strictyaml.read_file(path)
    if not isinstance(tree, dict) or tree.get("schema") != "1":
        raise UsageError(f"{path}: schema: 1 is missing", hint="begin the file with 'schema: \"1\"'")
    sources = tuple(tree["sources"])
    kinds = {key: _kind(value) for key, value in tree["kinds"].items()}
    return Table(
        title=str(tree["title"]),
        sources=sources,
        codes=tuple(_code(name, entry, kinds, sources) for entry in tree["codes"]),
        actions={entry["name"]: entry["means"] for entry in tree.get("actions", ())},
        unlisted=row(tree["unlisted"]) if "unlisted" in tree else None,
    )


@cache
def literals() -> tuple[str, ...]:
    """Return the texts of which a line has to have one, in lower case, to name a code."""
    return (*_WORDS, *(text for text, _ in _alone()))


def xid(number: int) -> Code:
    """Return an Xid error; numbers that the catalog does not have get the row of such numbers."""
    others = table("xid").unlisted
    assert others is not None
    means = "NVIDIA's catalog, as of this release of envkit, does not have the number."
    return table("xid").by_number(number) or Code(
        table="xid", number=number, name="unlisted", text="", is_alone=False, means=means, driver="", kind=None,
        rows=(others,),
    )  # fmt: skip


def may_name(line: str) -> bool:
    """Return whether a line, or one that differs from it only in digits, may name a code."""
    if any(pattern.search(line) for pattern in (_XID, _SYMBOL, _CUDA, _LOCATED, _NUMBERED, _NVML, _NCCL)):
        return True
    low = _DIGIT.sub("0", line.lower())
    return any(_DIGIT.sub("0", text) in low for text, _ in _alone())


def read(line: str) -> tuple[Code, ...]:
    """Return the codes that a line names, each once."""
    return tuple({(code.table, code.name): code for code in _found(line)}.values())


def asked(line: str) -> str | None:
    """Return in one sentence the recovery action that Xid 154 asks for; None if the line has none."""
    # GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
    _, _, change = line.partition("GPU recovery action changed from ")
    action = change.partition(" to ")[2].partition("(")[2].partition(")")[0]
    means = table("xid").actions.get(action)
    return None if means is None else f"The driver asks for {action}: {means}."


_WORDS = ("nvml", "cuda e", "cuda f", "cuda r", "cuda d", "cudaerror", "cuda_error_", "cudnn_status_", "nccl", "xid (",
          "error ", "error [cuda]", " in file ", "device handle")  # fmt: skip
_DIGIT = re.compile(r"[0-9]")
_XID = re.compile(r"Xid \((?:PCI:)?[0-9a-fA-F:.]{4,20}\): (\d{1,3})\b")
# Ch 00000001 caused by previous Xid 149: the channel was torn down, and the other error is the cause.
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,3})\b")
_SYMBOL = re.compile(r"\b(?:NVML_ERROR_[A-Z_]{2,40}|cudaError[A-Z]\w{2,60}|CUDA_ERROR_[A-Z_]{3,60}"
                     r"|CUDNN_STATUS_[A-Z_]{3,60}|nccl[A-Z][A-Za-z]{4,40})\b")  # fmt: skip
# CUDA error: invalid argument; CUDA failure 2 'out of memory'; cuda runtime error (59) : device-side assert triggered.
# Before CUDA 10.1 the numbers were others, so only the text decides.
# Triton Error [CUDA]: device kernel image is invalid.
_CUDA = re.compile(
    r"\bCUDA(?: runtime| driver)? (?:error|failure)(?:[ (:=]{1,3}\d{1,3}\b)?[ )':=-]{1,4}|\bTriton Error \[CUDA\]: ",
    re.IGNORECASE,
)
# Error no kernel image is available for execution on the device at line 216 in file /srv/ops.cu.
_LOCATED = re.compile(r"^Error (?P<text>)[a-z].{4,80} at line \d{1,6} in file ")
# Error 802: system not yet initialized. Other programs number their errors as well, so number and text have to agree.
_NUMBERED = re.compile(r"\bError (?P<number>\d{1,3}): ")
_NVML = re.compile(
    r"(?:\binitialize NVML|\bnvml error|\bNVMLError(?:_\w{1,60})?|\bdevice handle for GPU ?[0-9a-fA-F:.]{4,20}) ?: ?",
    re.IGNORECASE,
)
_NCCL = re.compile(r"\bNCCL (?:error|WARN)\b", re.IGNORECASE)


def _found(line: str) -> Iterator[Code]:
    low = line.lower()
    for pattern in (_XID, _PREVIOUS) if "xid (" in low else ():
        yield from (xid(int(match[1])) for match in pattern.finditer(line))
    for match in _SYMBOL.finditer(line):
        code = _by_symbol().get(match[0])
        if code is not None:
            yield code
    for name, pattern in (("cuda", _CUDA), ("cuda", _LOCATED), ("cuda", _NUMBERED), ("nvml", _NVML)):
        for match in pattern.finditer(line):
            start = match.start("text") if pattern is _LOCATED else match.end()
            yield from _by_text(name, low[start:], match.groupdict().get("number"))
    after = _NCCL.search(line)
    if after is not None:
        yield from (code for code in table("nccl").codes if code.text.lower() in low[after.end() :])
    yield from (code for text, code in _alone() if text in low)


@cache
def _alone() -> tuple[tuple[str, Code], ...]:
    """Return the texts that nothing but their library prints."""
    return tuple((code.text.lower(), code) for name in NAMES for code in table(name).codes if code.is_alone)


def _by_text(name: str, text: str, number: str | None) -> Iterator[Code]:
    for wanted, code in _texts(name).get(_first_word(text), ()):
        is_whole = text.startswith(wanted) and not text[len(wanted) : len(wanted) + 1].isalnum()
        if is_whole and (number is None or code.number == int(number)):
            yield code
            return


def _first_word(text: str) -> str:
    return text.split(" ", maxsplit=1)[0].rstrip(".,:;'\"")


@cache
def _by_symbol() -> dict[str, Code]:
    symbols: dict[str, Code] = {}
    for name in NAMES:
        for code in table(name).codes:
            symbols[code.symbol] = code
            if code.driver:
                symbols[f"CUDA_ERROR_{code.driver}"] = code
    return symbols


@cache
def _texts(name: str) -> dict[str, list[tuple[str, Code]]]:
    """Return the texts of a table by their first word, longest first."""
    words: dict[str, list[tuple[str, Code]]] = {}
    for code in sorted(table(name).codes, key=lambda code: -len(code.text)):
        if code.text:
            words.setdefault(_first_word(code.text.lower()), []).append((code.text.lower(), code))
    return words


def _kind(tree: Mapping[str, Any]) -> Kind:
    return Kind(
        role=tree["role"],
        severity=Severity(tree["severity"]),
        title=tree["title"],
        check=tuple(tree["check"]),
        fix=tuple(tree["fix"]),
        distinguish=tree["distinguish"],
        explains=tuple(tree.get("explains", ())),
    )


def _code(name: str, tree: Mapping[str, Any], kinds: Mapping[str, Kind], sources: tuple[str, ...]) -> Code:
    number = int(tree["number"]) if "number" in tree else None
    kind = kinds[tree["kind"]] if "kind" in tree else None
    named = tuple(row(ident) for ident in tree.get("rows", ()))
    code = Code(
        table=name,
        number=number,
        name=tree["name"],
        text=tree.get("text", ""),
        is_alone=tree.get("alone", False) is True,
        means=tree["means"],
        driver=tree.get("driver", ""),
        kind=kind,
        rows=named,
    )
    return code if kind is None else _with_row(code, kind, sources)


def _with_row(code: Code, kind: Kind, sources: tuple[str, ...]) -> Code:
    """Return a code with a row of its own, made from its kind."""
    words = _WORD.findall(code.name.removeprefix("cudaError").removeprefix("nccl").replace("_", " "))
    made = Row(
        id=f"xid-{code.number}" if code.table == "xid" else "-".join((code.table, *words)).lower(),
        group=code.table,
        title=f"{kind.title} ({code.symbol})",
        role=kind.role,
        severity=kind.severity,
        signatures=(),
        cause=code.said,
        check=kind.check,
        fix=kind.fix,
        distinguish=kind.distinguish,
        sources=sources,
        explains=kind.explains,
        traps=(),
        codes=(),
    )
    return replace(code, rows=(made,))


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
