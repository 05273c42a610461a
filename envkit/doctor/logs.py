"""Find known failures in a build or training log, which of them came first, and what the log says of its job.

A job failed for a cause that a row names, or for one that no row knows; it ended well only if the log says so. A row of
the role `end` or `effect` explains nothing alone.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from io import BufferedReader
from typing import TYPE_CHECKING

from envkit.doctor import locales, shapes, tracebacks
from envkit.doctor.faults import Faults
from envkit.doctor.logtext import Piece, pieces, plain
from envkit.doctor.model import RANK, Diagnosis, Evidence, Finding, Section, Severity, Verdict
from envkit.ground.errors import NotVerifiedError
from envkit.ground.sizes import shown_size
from envkit.ground.text import LINE_LIMIT
from envkit.knowledge import codes, contexts, programs, variables
from envkit.knowledge.failures import ROLES, Reading, Row, rows
from envkit.knowledge.readings import Values
from envkit.knowledge.signatures import NEAR, Signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SHOWN = 400  # characters of a line in a finding
_MOST_EVIDENCE = 3  # lines shown per failure
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)  # of bytes, since translating a text takes ten times as long
_END = 12  # the last lines of a log, of which one may say how the job ended
_MOST_LOOKED = 200  # lines that are looked at for these, since some are empty
_QUOTE = 60  # characters of that line in the conclusion
# Lines that may follow the end of a job: separators, prompts, clean-up of runners, times, remarks of pip and torch.
_AFTER = re.compile(
    r"^(?:[-=*_~ .|+#]{1,200}$|\$|Post job cleanup|Cleaning up|Cleanup|Complete job name|wandb:"
    r"|(?:real|user|sys)\s{1,4}\d"
    r"|\[notice\]|WARNING: Running pip as|View build details|What's next|section_end|#\d{1,6} DONE |.{0,80}Warning: "
    r"|Total Test time|Best (?:val|valid|test)\b|[+~-] [\w.-]{1,80}==)"  # the last: what uv installed
)
_WARNED = re.compile(r"Warning: |\bWARNING\b|^\[W")  # NCCL WARN is about an error
_CODES = ("exit", "code", "status", "rc=", *locales.EXIT_CODE)
_MOST_SHAPES = 20_000
_LONG_SHAPE = 300  # bytes
_GRAM = 3  # characters at the start of a literal
_SHORT = ()  # in its place for a shorter literal, which is searched in every text
_ERRORS = "surrogatepass"  # of a log that is cut in the middle of a character of UTF-16


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


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    """One signature of a row; two are equal only if they are the same."""

    row: Row
    signature: Signature


@dataclass(slots=True)
class _Around:
    """What was read around the lines of one signature that needs a context."""

    near: int | None = None  # number of the last line with one of `near`
    waiting: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=NEAR))


@dataclass(frozen=True, slots=True)
class _Clue:
    """What a row needs in its log, what refutes it, or a line with values for its cause."""

    row: str
    signature: Signature
    refutes: bool = False
    reading: Reading | None = None


@dataclass(slots=True)
class ScanResult:
    """The failures found in a log."""

    hits: dict[str, _Hit] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)  # rows whose needs the log meets
    refuted: set[str] = field(default_factory=set)  # rows that a line of the log refutes
    contexts: set[str] = field(default_factory=set)  # what made the log
    values: dict[str, Values] = field(default_factory=dict)  # by row
    faults: Faults = field(default_factory=Faults)  # what looks like a failure and matches no row
    end: list[_RawLine] = field(default_factory=list)  # the last lines that have text
    around: dict[_Watch, _Around] = field(default_factory=dict)
    lines: int = 0
    skipped: int = 0  # characters in the middle of very long lines

    def unknown(self) -> list[Evidence]:
        """Return the lines that look like failures and match no row, in order."""
        # A signature that waited for its context may have matched a line that was kept.
        known = {evidence.line for hit in self.hits.values() for evidence in hit.lines}
        return [
            Evidence(text=plain(line)[:SHOWN], line=number)
            for number, line in self.faults.lines()
            if number not in known
        ]

    def drop_unsupported(self) -> None:
        """Remove the rows that the log does not bear out; their lines are those of an unknown failure."""
        for hit in list(self.hits.values()):
            is_borne_out = hit.row.id not in self.refuted and (not hit.row.needs or hit.row.id in self.needed)
            if not is_borne_out or not hit.row.is_possible(self.contexts):
                del self.hits[hit.row.id]
                if hit.row.severity is Severity.ERROR:
                    self.faults.add(hit.lines)

    def last_line(self) -> Evidence | None:
        """Return the last line that says something of the job."""
        texts = [(number, plain(line)) for number, line in self.end]
        said = [(number, text) for number, text in texts if text and not _AFTER.match(text)]
        return Evidence(text=said[-1][1][:SHOWN], line=said[-1][0]) if said else None


_RawLine = tuple[int, str]  # number and text


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is known of all lines that differ only in their digits."""

    literals: tuple[str, ...]  # literals that such a line may contain
    sign: shapes.Sign
    may_have_code: bool  # an exit code
    may_name: bool  # an error code of a library, or a variable that hides GPUs
    joins: bool = False  # two tracebacks


_PLAIN_SHAPE = _Shape((), shapes.Sign.NONE, may_have_code=False, may_name=False)


def diagnose_log(file: BufferedReader, name: str) -> Diagnosis:
    """Diagnose a log of any size in bounded memory.

    The exit code is 0 if a cause is named, or if the log says that the job ended well or runs; otherwise 5.

    Raises:
        OSError: the file cannot be read.
        EOFError: a compressed log is cut off.
    """
    result = scan(file)
    findings = tuple(_findings(result))
    unknown = result.unknown()
    last = result.last_line()
    verdict = _verdict(result, findings, unknown, last)
    if verdict is Verdict.CLEAR:
        # What other errors may lead to led to none here.
        findings = tuple(
            replace(found, severity=Severity.WARN) if found.severity is Severity.ERROR else found for found in findings
        )
    facts = [("lines", f"{result.lines:,}")]
    if result.skipped:
        facts.append(("not read", f"{shown_size(result.skipped)} in the middle of very long lines"))
    facts += [(f"line {evidence.line}", evidence.text) for evidence in unknown]
    if verdict is Verdict.UNKNOWN:
        facts += _raised(result, unknown)
        facts += _printed_by([*unknown, *(evidence for found in findings for evidence in found.evidence)])
    elif verdict is Verdict.NAMED:
        facts += _origins(result, findings[0].evidence)
    if result.faults.left_out:
        facts.append(("more lines", f"{result.faults.left_out:,} other lines that look like failures are not shown"))
    if verdict is Verdict.OPEN and result.end:
        facts.append(("last line", plain(result.end[-1][1])[:SHOWN]))
    section = Section(id="log", title="Log", facts=tuple(facts), findings=findings)
    return Diagnosis(
        subject="log",
        name=name,
        sections=(section,),
        exit_code=0 if verdict in (Verdict.NAMED, Verdict.CLEAR) else NotVerifiedError.exit_code,
        conclusion=_conclusion(verdict, findings, unknown, result, last),
        verdict=verdict,
    )


def _first(result: ScanResult, unknown: Sequence[Evidence]) -> Evidence:
    """Return the first line that surely shows the failure, or the first one."""
    numbers = set(result.faults.sure())
    sure = [evidence for evidence in unknown if evidence.line in numbers]
    return next((evidence for evidence in sure if not tracebacks.is_passed_on(evidence.text)), (sure or unknown)[0])


def _raised(result: ScanResult, unknown: Sequence[Evidence]) -> Iterator[tuple[str, str]]:
    """Yield where the exceptions come from in the user's code, and what exceptions of Python mean."""
    yield from _origins(result, unknown)
    found = {one.name: one.means for evidence in unknown if (one := programs.exception_in(evidence.text)) is not None}
    yield from found.items()


def _origins(result: ScanResult, lines: Iterable[Evidence]) -> Iterator[tuple[str, str]]:
    """Yield where in the user's code the exceptions of these lines come from."""
    for evidence in lines:
        origin = result.faults.origins.get(evidence.line or 0)
        if origin is not None:
            yield f"line {evidence.line} raised", origin


def _printed_by(lines: Iterable[Evidence]) -> Iterator[tuple[str, str]]:
    """Yield what the tools are whose lines these are, and what the states in them mean."""
    texts = [evidence.text for evidence in lines]
    yield from ((tool.prefix, tool.what) for tool in programs.tools_of(texts))
    states = {state.name: state.said for text in texts for state in programs.states_in(text)}
    yield from states.items()


def _verdict(
    result: ScanResult, findings: Sequence[Finding], unknown: Sequence[Evidence], last: Evidence | None
) -> Verdict:
    """Return what a log says of its job; a failure without a cause is never a good end."""
    errors = [found for found in findings if found.severity is Severity.ERROR]
    causes = [found for found in errors if result.hits[found.id].row.role == "cause"]
    kept = set(result.faults.sure())
    sure = [evidence for evidence in unknown if evidence.line in kept]
    if causes and not all(_is_overtaken(found, sure) for found in causes):
        return Verdict.NAMED
    ended_well = last is not None and (shapes.is_good_end(last.text) or _is_answered(result, last))
    # An effect explains nothing alone, but a crash stays one; others, such as a missing GPU, may be what was meant.
    crashed = any(shapes.sign(evidence.text) is shapes.Sign.SURE for found in errors for evidence in found.evidence)
    if causes or sure or crashed or any(result.hits[found.id].row.role == "end" for found in errors):
        return Verdict.UNKNOWN
    if ended_well:
        return Verdict.CLEAR
    return Verdict.UNKNOWN if errors or unknown else Verdict.OPEN


def _is_answered(result: ScanResult, last: Evidence) -> bool:
    """Return whether the last line is what a command above it prints if a GPU can be used."""
    return any(number < (last.line or 0) and shapes.is_good_answer(line, last.text) for number, line in result.end)


def _is_overtaken(found: Finding, sure: Sequence[Evidence]) -> bool:
    """Return whether a cause was only warned of, and something else failed later: a warning ends no job."""
    if not all(_WARNED.search(evidence.text) for evidence in found.evidence):
        return False
    last = found.evidence[-1].line or 0
    # An exit code is not something else.
    return any((evidence.line or 0) > last and not shapes.has_exit_code(evidence.text) for evidence in sure)


def _conclusion(
    verdict: Verdict,
    findings: Sequence[Finding],
    unknown: Sequence[Evidence],
    result: ScanResult,
    last: Evidence | None,
) -> str:
    if verdict is Verdict.NAMED:
        return f"{findings[0].title} (line {findings[0].evidence[0].line})"
    if verdict is Verdict.UNKNOWN:
        return _unrecognized(findings, unknown, result) if unknown else _unexplained(findings[0])
    if verdict is Verdict.CLEAR and last is not None:
        return f"no sign of failure: the log ends with {last.text[:_QUOTE]!r} (line {last.line})"
    if not result.lines:
        return "the log is empty"
    warned = next((found for found in findings if found.severity is Severity.WARN), None)
    seen = "no sign of failure" if warned is None else f"{warned.title} (line {warned.evidence[0].line}, a warning)"
    return f"{seen}, but the log does not say how the job ended"


def _unrecognized(findings: Sequence[Finding], unknown: Sequence[Evidence], result: ScanResult) -> str:
    sure = set(result.faults.sure())
    first = _first(result, unknown)
    origin = result.faults.origins.get(first.line or 0)
    if origin is not None:
        raised = first.text[:_QUOTE]
        return f"the program raised {raised} {origin}, and envkit knows no further cause (line {first.line})"
    effect = _effect(findings, result)
    # An exit code adds nothing to what is known; another error may be the reason.
    if effect is not None and all(one.line not in sure or shapes.has_exit_code(one.text) for one in unknown):
        return _unexplained(effect)
    verb = "shows" if first.line in sure else "may show"
    known = "" if effect is None else f"{effect.title} (line {effect.evidence[0].line}), and "
    return f"{known}the log {verb} a failure that envkit does not recognize (line {first.line})"


def _effect(findings: Sequence[Finding], result: ScanResult) -> Finding | None:
    """Return the first error that is known and says what happened, though not why; a final message says nothing."""
    errors = (found for found in findings if found.severity is Severity.ERROR)
    return next((found for found in errors if result.hits[found.id].row.role == "effect"), None)


def _unexplained(found: Finding) -> str:
    return f"{found.title} (line {found.evidence[0].line}), but the log does not show why"


def scan(file: BufferedReader) -> ScanResult:
    """Read a log to its end."""
    result, index = ScanResult(), _index()
    known = _Shapes(index, result)
    for piece in pieces(file):
        if piece.text:
            result.lines = piece.first + piece.text.count("\n")
        result.skipped += piece.skipped
        for number, line, shape in known.of(piece):
            is_known = index.read(number, line, shape, result)
            sign = shape.sign
            if shape.may_have_code and shapes.has_exit_code(plain(line)):
                sign = shapes.Sign.SURE
            if sign or shape.joins or result.faults.heads:
                result.faults.read(number, line, sign, known=is_known)
    result.faults.finish()
    result.drop_unsupported()
    return result


class _Index:
    """The signatures of all rows by the literal that a line must have to be tested."""

    def __init__(self) -> None:
        self._starts: dict[str, list[_Watch]] = {}
        self._contexts: dict[str, list[_Watch]] = {}
        self._clues: dict[str, list[_Clue]] = {}
        self._codes = frozenset((*codes.literals(), *variables.literals()))
        for row in rows():
            for watch in (_Watch(row, signature) for signature in row.signatures):
                self._starts.setdefault(watch.signature.has, []).append(watch)
                for text in watch.signature.near:
                    self._contexts.setdefault(text, []).append(watch)
            for refutes, signatures in ((False, row.needs), (True, row.refuted_by)):
                for signature in signatures:
                    self._clues.setdefault(signature.has, []).append(_Clue(row.id, signature, refutes))
            for reading in row.reads:
                clue = _Clue(row.id, reading.signature, reading=reading)
                self._clues.setdefault(clue.signature.has, []).append(clue)

        words = (*shapes.WORDS, *shapes.STATE_WORDS, *locales.EXIT_CODE)
        own = dict.fromkeys((*self._starts, *self._contexts, *self._clues, *self._codes, *words))
        self.literals = frozenset(own)  # and the words of failures; without those of `contexts`, no other line matters
        among = dict.fromkeys((*own, *contexts.literals()))  # in the order of the rows
        self._masked = tuple((text, _masked(text).decode()) for text in among)
        self._starting: dict[tuple[str, ...], list[int]] = {}
        for place, (_, masked) in enumerate(self._masked):
            self._starting.setdefault(tuple(masked[:_GRAM]) if len(masked) >= _GRAM else _SHORT, []).append(place)

    def present(self, text: str) -> list[tuple[str, str]]:
        """Return the literals in a text with all its digits equal, each as it is and so masked, in their order."""
        # A text has few of the literals: each is searched only if the characters that it starts with are there.
        grams = {_SHORT, *zip(*(text[start:] for start in range(_GRAM)), strict=False)}
        places = sorted(place for gram in grams & self._starting.keys() for place in self._starting[gram])
        return [self._masked[place] for place in places if self._masked[place][1] in text]

    def tests(self, literals: Iterable[str]) -> bool:
        """Return whether a line is tested for one of these literals alone; the others need an error code besides."""
        return any(text in self._starts or text in self._contexts or text in self._clues for text in literals)

    def read(self, number: int, line: str, shape: _Shape, result: ScanResult) -> bool:
        """Test a line with the signatures of its literals, and return whether it shows a row's failure."""
        low = line.lower()
        matched = [text for text in shape.literals if text in low]
        for text in matched:
            for watch in self._contexts.get(text, ()):
                _context(watch, number, result)
        if not any(text in self._starts or text in self._clues for text in matched) and not shape.may_name:
            return False
        # `plain` cuts a long line, and would cut off a message far out in it.
        is_short = len(line) <= LINE_LIMIT
        clean = plain(line) if is_short else ""
        clues: list[tuple[_Clue, str]] = []
        starts: list[tuple[_Watch, str]] = []
        coded: list[str] = []
        for text in matched:
            around = clean if is_short else plain(_around(line, low.find(text)))
            clues += [(clue, around) for clue in self._clues.get(text, ()) if clue.signature.fits(around)]
            starts += [(watch, around) for watch in self._starts.get(text, ()) if watch.signature.fits(around)]
            coded += [around] if shape.may_name and text in self._codes else []
        # Last, because most lines fit nothing.
        if not (clues or starts or coded) or shapes.quoted(clean):
            return False
        for clue, around in clues:
            if clue.reading is not None:
                result.values.setdefault(clue.row, Values()).read(clue.reading, around)
            else:
                (result.refuted if clue.refutes else result.needed).add(clue.row)
        hits = [_start(watch, number, around, result) for watch, around in starts]
        hits += [_codes(number, around, result) for around in coded]
        return any(hits)


@cache
def _index() -> _Index:
    """Return the index, which no log changes."""
    return _Index()


def _masked(line: str) -> bytes:
    """Return a line as bytes with all its digits equal."""
    return line.encode(errors=_ERRORS).translate(_DIGITS)


class _Shapes:
    """Lines by their shape: a log of millions of lines has few, so each shape is searched for the literals once."""

    def __init__(self, index: _Index, result: ScanResult) -> None:
        self._result = result
        self._index = index
        self._contexts = frozenset(contexts.literals())
        self._known: dict[bytes, _Shape | None] = {}

    def of(self, piece: Piece) -> Iterator[tuple[int, str, _Shape]]:
        """Yield the lines of a piece that may matter, each with its number and shape."""
        numbers, lines = piece.lines()
        masked = _masked("\n".join(lines)).split(b"\n")  # all at once: most of the time goes into such steps
        if len(self._known) > _MOST_SHAPES:
            self._known.clear()
        known = self._known
        unknown = set(masked).difference(known)
        new = {shape: line for shape, line in zip(masked, lines, strict=True) if shape in unknown} if unknown else {}
        if new:
            # Once for all new ones: most literals are in none, so each is searched for few of them.
            texts = {shape: shape.decode(errors=_ERRORS).lower() for shape in new}
            whole = "\n".join(texts.values())
            present = self._index.present(whole)
            known.update((shape, self._shape(texts[shape], line, present)) for shape, line in new.items())
        heads = self._result.faults.heads
        for number, line, shape in zip(numbers, lines, map(known.__getitem__, masked), strict=True):
            if shape is not None:
                yield number, line, shape
            # The exception that ends a traceback may have any name.
            elif heads and line:
                yield number, line, _PLAIN_SHAPE
        end = zip(numbers[-_MOST_LOOKED:], lines[-_MOST_LOOKED:], strict=True)
        said = [(number, line) for number, line in end if line.strip()]
        self._result.end = [*self._result.end, *said][-_END:]
        # Long ones are as good as never repeated, and would fill the memory.
        for text in new:
            if len(text) > _LONG_SHAPE:
                del self._known[text]

    def _shape(self, low: str, line: str, present: Sequence[tuple[str, str]]) -> _Shape | None:
        """Return what is known of a shape; None if its lines say nothing. Digits decide no prefix and no sign."""
        all_literals = [literal for literal, masked in present if masked in low]
        if found := self._contexts.intersection(all_literals):
            # Once for each shape is enough: digits decide no context.
            self._result.contexts.update(contexts.shown(plain(line), found))
        literals = tuple(literal for literal in all_literals if literal in self._index.literals)
        if not literals and not shapes.may_name_exception(line):
            return None
        shape = _Shape(
            literals,
            shapes.sign(plain(line)),
            may_have_code=any(word in low for word in _CODES),
            may_name=codes.may_name(line) or any(word in low for word in variables.literals()),
            joins=tracebacks.joins(low),
        )
        says = shape.sign or shape.may_have_code or shape.may_name or shape.joins or self._index.tests(literals)
        return shape if says else None


def _around(line: str, position: int) -> str:
    """Return the part of a very long line around a position."""
    return line[max(0, position - LINE_LIMIT // 4) : position + LINE_LIMIT // 2]


def _codes(number: int, line: str, result: ScanResult) -> bool:
    """Return whether a line has an error code, or hides GPUs with a variable; its rows are hit."""
    found = [*(row for code in codes.read(line) for row in code.rows), *variables.read(line)]
    for row in found:
        _hit(row, number, line, result)
    return any(row.severity is Severity.ERROR for row in found)


def _start(watch: _Watch, number: int, line: str, result: ScanResult) -> bool:
    """Return whether a line that fits a signature shows its failure."""
    signature = watch.signature
    # Engines quote errors in informational lines of their own logs.
    if watch.row.severity is Severity.ERROR and not signature.info and shapes.is_informational(line):
        return False
    if signature.near:
        around = result.around.setdefault(watch, _Around())
        if around.near is None or number - around.near > NEAR:
            around.waiting.append((number, line))
            return False
    _hit(watch.row, number, line, result)
    return True


def _context(watch: _Watch, number: int, result: ScanResult) -> None:
    around = result.around.setdefault(watch, _Around())
    around.near = number
    while around.waiting:
        first, line = around.waiting.popleft()
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
    present = {hit.row.id for hit in roots}
    roots.sort(key=lambda hit: (RANK.index(weights[hit.row.id]), bool(present.intersection(hit.row.after))))
    return [_finding(hit, weights[hit.row.id], followers[hit.row.id], result) for hit in roots]


def _finding(hit: _Hit, severity: Severity, followers: Sequence[_Hit], result: ScanResult) -> Finding:
    row = hit.row.seen_in(result.contexts)
    values = result.values.get(row.id)
    read = () if values is None else values.sentences()
    return Finding(
        id=row.id,
        severity=severity,
        title=row.title,
        evidence=tuple(sorted(hit.lines, key=lambda evidence: evidence.line or 0)),
        cause=" ".join(dict.fromkeys(filter(None, (row.cause, *_read(hit, followers), *read)))),
        check=row.check,
        fix=row.fix,
        distinguish=row.distinguish,
        sources=row.sources,
        consequences=tuple(f"{other.row.seen_in(result.contexts).title} (line {other.first})" for other in followers),
        times=hit.times,
    )


def _read(hit: _Hit, followers: Sequence[_Hit]) -> Iterator[str]:
    """Explain what lines say in numbers: error codes, and the action that a GPU needs."""
    for line in hit.lines:
        yield from (code.said for code in codes.read(line.text) if hit.row in code.rows)
    texts = [line.text for one in (hit, *followers) for line in one.lines]
    yield from filter(None, map(codes.asked, texts))


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
