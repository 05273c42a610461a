"""Find known failures in a build or training log, and which of them came first."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from io import BufferedReader
from typing import TYPE_CHECKING

from envkit.doctor.knowledge import NEAR, ROLES, Row, Signature, rows
from envkit.doctor.logtext import Piece, pieces, plain
from envkit.doctor.model import RANK, Diagnosis, Evidence, Finding, Section, Severity
from envkit.ground.errors import NotVerifiedError
from envkit.ground.text import LINE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SHOWN = 400  # characters of a line in a finding
_MOST_EVIDENCE = 3  # lines shown per failure
_UNKNOWN_KEPT = 4  # error lines that match no row: this many first ones and as many last ones are kept
_FAULT_WORDS = (
    "error", "exception", "fatal", "panic", "killed", "aborted", "traceback", "command not found", "terminate called",
    "critical",
)  # fmt: skip
_HEAD = "Traceback (most recent call last)"
# Engines quote errors in informational lines of their own logs.
_INFORMATIONAL = re.compile(r"\blevel=(?:info|debug)\b")
# A fast first test of the raw line; `_FAULT` then tests the line without its prefixes.
_FAULTY = re.compile(
    r"Error|Exception|ERROR|FATAL|E: |fatal: |error: |panic: |CRITICAL|Killed|Aborted|Traceback"
    r"|command not found|terminate called"
)
_FAULT = re.compile(
    r"^(?:[A-Za-z_][\w.]{0,80})?(?:Error|Exception)(?::|$)|^(?:E: |ERROR\b|FATAL\b|fatal: |error: |panic: )"
    r"|^(?:Killed|Aborted)\b|^(?:docker: )?Error response from daemon"
    # These may be anywhere in the line: not every exception ends in Error, and not every prefix is known.
    r"| [-|] (?:ERROR|CRITICAL|FATAL) {1,4}[-|] |\[(?:ERROR|CRITICAL|FATAL)\]|Traceback \(most recent call last\)"
    r"|: command not found$|\bterminate called "
    r"|:\d{1,7}(?::\d{1,7})?: (?:fatal )?error: |^make(?:\[\d{1,4}\])?: \*\*\* "
)


_DIGITS = str.maketrans("123456789", "0" * 9)
_MOST_SHAPES = 20_000
_LONG_SHAPE = 300  # characters
_CUDA_NUMBER = re.compile(r"\(found version (\d{4,5})\)")


@dataclass(slots=True)
class _Hit:
    """The lines that show one known failure."""

    row: Row
    lines: list[Evidence] = field(default_factory=list)
    times: int = 0
    last: int = 0

    @property
    def first(self) -> int:
        return min(evidence.line or 0 for evidence in self.lines)


@dataclass(slots=True)
class _Watch:
    """The state of one signature while the log is read."""

    row: Row
    signature: Signature
    near: int | None = None  # number of the last line with one of `near`
    waiting: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=NEAR))


@dataclass(slots=True)
class ScanResult:
    """The failures found in a log."""

    hits: dict[str, _Hit] = field(default_factory=dict)
    unknown: list[_RawLine] = field(default_factory=list)  # the first lines that look like errors
    last: deque[_RawLine] = field(default_factory=lambda: deque(maxlen=_UNKNOWN_KEPT))
    lines: int = 0
    skipped: int = 0  # characters in the middle of very long lines

    @property
    def faults(self) -> tuple[Evidence, ...]:
        """The first and the last lines that look like errors and match no row."""
        return tuple(Evidence(text=plain(line)[:SHOWN], line=number) for number, line in (*self.unknown, *self.last))


_RawLine = tuple[int, str]  # number and text


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is known of all lines that differ only in their digits."""

    literals: tuple[str, ...]  # literals that such a line may contain
    is_fault: bool


def diagnose_log(file: BufferedReader, name: str) -> Diagnosis:
    """Diagnose a log of any size in bounded memory.

    The exit code is 0 if a cause was found or nothing looks like an error, and 5 if none of the errors is known.

    Raises:
        OSError: the file cannot be read.
        EOFError: a compressed log is cut off.
    """
    result = scan(file)
    findings = tuple(_findings(result))
    known = [finding for finding in findings if finding.severity is Severity.ERROR]
    faults = result.faults
    facts = [("lines", f"{result.lines:,}")]
    if result.skipped:
        facts.append(("not read", f"{result.skipped / 1e6:,.1f} MB in the middle of very long lines"))
    code = 0
    if known:
        conclusion = f"{known[0].title} (line {known[0].evidence[0].line})"
    elif faults:
        conclusion = "errors found, but none that envkit knows"
        facts += [(f"line {evidence.line}", evidence.text) for evidence in faults]
        code = NotVerifiedError.exit_code
    else:
        conclusion = "no errors found in the log" if not findings else "no errors"
    section = Section(id="log", title="Log", facts=tuple(facts), findings=findings)
    return Diagnosis(subject="log", name=name, sections=(section,), exit_code=code, conclusion=conclusion)


def scan(file: BufferedReader) -> ScanResult:
    """Read a log to its end."""
    result = ScanResult()
    watches = [_Watch(row, signature) for row in rows() for signature in row.signatures]
    starts: dict[str, list[_Watch]] = {}
    contexts: dict[str, list[_Watch]] = {}
    for watch in watches:
        starts.setdefault(watch.signature.has, []).append(watch)
        for text in watch.signature.near:
            contexts.setdefault(text, []).append(watch)
    shapes = _Shapes((*dict.fromkeys((*starts, *contexts, *_FAULT_WORDS)),))
    for piece in pieces(file):
        result.lines = piece.first + piece.text.count("\n")
        result.skipped += piece.skipped
        for number, line, shape in shapes.of(piece):
            low = line.lower()
            matched = [text for text in shape.literals if text in low]
            for text in matched:
                for watch in contexts.get(text, ()):
                    _context(watch, number, result)
            started = [(text, watch) for text in matched for watch in starts.get(text, ())]
            if started:
                # `plain` cuts a long line, and would cut off a message far out in it.
                is_short = len(line) <= LINE_LIMIT
                clean = plain(line) if is_short else ""
                for text, watch in started:
                    _start(watch, number, clean if is_short else plain(_around(line, low.find(text))), result)
            if shape.is_fault:
                _fault(number, line, result)
    return result


class _Shapes:
    """Lines by their shape: a log of millions of lines has few, so each shape is searched for the literals once."""

    def __init__(self, literals: Sequence[str]) -> None:
        self._literals = [(text, text.translate(_DIGITS)) for text in literals]
        self._known: dict[str, _Shape | None] = {}

    def of(self, piece: Piece) -> Iterator[tuple[int, str, _Shape]]:
        """Yield the lines of a piece that may matter, each with its number and shape."""
        rows = [(number, line, line.translate(_DIGITS)) for number, line in piece.lines()]
        if len(self._known) > _MOST_SHAPES:
            self._known.clear()
        new = {shape: line for _, line, shape in rows if shape not in self._known}
        if new:
            # Once for all new ones: most literals are in none, so each is searched for few of them.
            whole = "\n".join(new).lower()
            present = [pair for pair in self._literals if pair[1] in whole]
            for shape, line in new.items():
                self._known[shape] = _shape(shape, line, present)
        for number, line, text in rows:
            shape_of_line = self._known[text]
            if shape_of_line is not None:
                yield number, line, shape_of_line
        # Long ones are as good as never repeated, and would fill the memory.
        for text in new:
            if len(text) > _LONG_SHAPE:
                del self._known[text]


def _shape(text: str, line: str, present: Sequence[tuple[str, str]]) -> _Shape | None:
    """Return what is known of a shape; None if it has no literal. Digits decide neither prefixes nor errors."""
    low = text.lower()
    literals = tuple(literal for literal, shape in present if shape in low)
    if not literals:
        return None
    return _Shape(literals, _FAULTY.search(line) is not None and _FAULT.search(plain(line)) is not None)


def _fault(number: int, line: str, result: ScanResult) -> None:
    """Keep a line that looks like an error; an exception replaces the head of its own traceback."""
    recent = result.last or result.unknown
    if recent and _HEAD in recent[-1][1] and number - recent[-1][0] <= NEAR:
        recent[-1] = (number, line)
        return
    (result.unknown if len(result.unknown) < _UNKNOWN_KEPT else result.last).append((number, line))


def _around(line: str, position: int) -> str:
    """Return the part of a very long line around a position."""
    return line[max(0, position - LINE_LIMIT // 4) : position + LINE_LIMIT // 2]


def _start(watch: _Watch, number: int, line: str, result: ScanResult) -> None:
    signature = watch.signature
    if not signature.fits(line) or (watch.row.severity is Severity.ERROR and _INFORMATIONAL.search(line)):
        return
    if signature.near and (watch.near is None or number - watch.near > NEAR):
        watch.waiting.append((number, line))
        return
    _hit(watch.row, number, line, result)


def _context(watch: _Watch, number: int, result: ScanResult) -> None:
    watch.near = number
    while watch.waiting:
        first, line = watch.waiting.popleft()
        if number - first <= NEAR:
            _hit(watch.row, first, line, result)


def _hit(row: Row, number: int, line: str, result: ScanResult) -> None:
    hit = result.hits.setdefault(row.id, _Hit(row))
    # Several signatures of a row may match one line, and one that waited for its context comes after later lines.
    if number in (hit.last, *(evidence.line for evidence in hit.lines)):
        return
    hit.times += 1
    hit.last = number
    if len(hit.lines) < _MOST_EVIDENCE:
        hit.lines.append(Evidence(text=line[:SHOWN], line=number))


def _findings(result: ScanResult) -> list[Finding]:
    """Return the failures, causes before effects; a failure that another one explains is listed as its consequence."""
    hits = sorted(result.hits.values(), key=lambda hit: _order(hit, hit.row.severity))
    explained: dict[str, str] = {}
    for hit in hits:
        for name in _explained(hit, hits):
            # The hits are sorted, so the most severe and earliest explanation is kept.
            explained.setdefault(name, hit.row.id)
    followers: dict[str, list[_Hit]] = {hit.row.id: [] for hit in hits}
    for hit in hits:
        if hit.row.id in explained:
            followers[_root(hit.row.id, explained)].append(hit)
    roots = [hit for hit in hits if hit.row.id not in explained]
    # A note that explains an error gets the severity of that error.
    weights = {hit.row.id: _worst([hit, *followers[hit.row.id]]) for hit in roots}
    roots.sort(key=lambda hit: _order(hit, weights[hit.row.id]))
    return [_finding(hit, weights[hit.row.id], followers[hit.row.id]) for hit in roots]


def _finding(hit: _Hit, severity: Severity, followers: Sequence[_Hit]) -> Finding:
    row = hit.row
    return Finding(
        id=row.id,
        severity=severity,
        title=row.title,
        evidence=tuple(sorted(hit.lines, key=lambda evidence: evidence.line or 0)),
        cause=" ".join(filter(None, (row.cause, _read(hit.lines)))),
        check=row.check,
        fix=row.fix,
        distinguish=row.distinguish,
        sources=row.sources,
        consequences=tuple(f"{other.row.title} (line {other.first})" for other in followers),
        times=hit.times,
    )


def _read(lines: Sequence[Evidence]) -> str:
    """Explain a CUDA version that a line prints as one number: 12080 is 12.8."""
    match = next((candidate for line in lines if (candidate := _CUDA_NUMBER.search(line.text))), None)
    if match is None:
        return ""
    number = int(match[1])
    return f"{number} means CUDA {number // 1000}.{number % 1000 // 10}, the newest version that this driver runs."


def _order(hit: _Hit, severity: Severity) -> tuple[int, int, int]:
    return RANK.index(severity), ROLES.index(hit.row.role), hit.first


def _worst(hits: Sequence[_Hit]) -> Severity:
    return min((hit.row.severity for hit in hits), key=RANK.index)


def _explained(hit: _Hit, hits: Iterable[_Hit]) -> Iterator[str]:
    """Yield the IDs of failures that follow from `hit`: those in `explains`, and final messages after an error."""
    for other in hits:
        if other.row.id in hit.row.explains:
            yield other.row.id
        ends = other.row.role == "end" and hit.row.role != "end" and hit.row.severity is Severity.ERROR
        # A final message before the error belongs to something else.
        if ends and other.first >= hit.first:
            yield other.row.id


def _root(ident: str, explained: dict[str, str]) -> str:
    """Return the failure at the start of a chain of explanations; the rows have no cycles."""
    while ident in explained:
        ident = explained[ident]
    return ident
