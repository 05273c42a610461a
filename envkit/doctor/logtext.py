"""Read a log of any size in pieces of whole lines; strip terminal escapes and the prefixes of engines.

Memory is bounded: a piece has at most `PIECE` characters plus one line, and a line longer than `LONGEST` is split. Of a
line longer than `WHOLE`, the middle is skipped: no program writes a message there, and each MB costs time.
Lines are counted by line feeds; the redraws of a progress bar (carriage returns) belong to the line they are on.
Logs compressed with gzip or encoded in UTF-16 (PowerShell) are decoded. Typographic quotes become straight ones.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envkit.ground.text import LINE_LIMIT, neutral

PIECE = 1 << 18
LONGEST = 4 * LINE_LIMIT
WHOLE = 8 * PIECE
_START = 8  # bytes that tell the encoding
# Here and below all repetitions are bounded, so that a hostile line takes no longer than others.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
# Prefixes that engines and launchers put before a line, possibly several of them.
_PREFIXES = re.compile(
    r"\s{0,8}(?:"
    r"\{\"log\":\""  # Docker's own log files
    rf"|\[?{_STAMP}\]?[ \t]{{1,4}}"  # docker logs -t, kubectl --timestamps, GitHub Actions, journals
    r"|(?:stdout|stderr) [FP] "  # containerd's log files
    r"|\#\d{1,5} (?:\[[^\]\n]{1,80}\] )?\d{1,7}\.\d{1,6} "  # BuildKit's plain progress
    r"|\d{1,7}\.\d{3} "  # the lines of the failed step that BuildKit repeats
    r"|\#\#\[(?:error|warning)\]"  # GitHub Actions
    r"|\[pod/[^\]\n]{1,200}\] "  # kubectl logs --prefix
    r"|[A-Za-z0-9_.-]{1,60} {1,30}\| "  # docker compose
    r"|\[(?:rank|default|Rank )\d{1,5}\]:? ?"  # torchrun
    r"|\d{1,5}: (?=[A-Za-z\[(/])"  # srun -l
    r"|\[\d{1,5},\d{1,6}\]<std(?:out|err)>: ?"  # mpirun --tag-output
    rf"|\[\w{{1,20}} {_STAMP}\] "  # Taskcluster
    r"|\d\d[OE][+ ]"  # GitLab, after its time
    r"|section_(?:start|end):\d{1,12}:[\w.\[\]=,-]{1,80}\s?"  # GitLab
    r"|\([A-Za-z_][\w.:()-]{0,80} pid=\d{1,10}(?:, ip=[\d.]{1,40})?\) ?"  # Ray
    r"|kernel: (?=NVRM|\[)"  # the kernel's log without a time
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d [A-Za-z0-9_.-]{1,60} "  # syslog
    r"(?:[\w./-]{1,60}\[\d{1,10}\]: |kernel: )?"
    r"|\[ {0,5}\d{1,9}\.\d{6}\] "  # the kernel's own log
    r")"
)
_MOST_PREFIXES = 4  # of a launcher, an engine and a rank, and a time
# Programs, and editors that a message went through, write either; the rows know one.
_QUOTES = (("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"'))


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of a log; `first` is the number of the first line, counted from 1."""

    first: int
    text: str
    skipped: int = 0  # characters before it that were not read, in the middle of a long line

    def lines(self) -> tuple[Sequence[int], list[str]]:
        """Return the numbers and texts of the lines; the redraws of a progress bar are lines with the same number."""
        lines = self.text.split("\n")
        if "\r" not in self.text:
            return range(self.first, self.first + len(lines)), lines
        numbers: list[int] = []
        texts: list[str] = []
        done = 0  # lines; those between two progress bars are taken at once
        for bar in [at for at, line in enumerate(lines) if "\r" in line]:
            parts = lines[bar].split("\r")
            numbers += range(self.first + done, self.first + bar)
            numbers += [self.first + bar] * len(parts)
            texts += lines[done:bar]
            texts += parts
            done = bar + 1
        numbers += range(self.first + done, self.first + len(lines))
        texts += lines[done:]
        return numbers, texts


def pieces(file: io.BufferedReader) -> Iterator[Piece]:
    """Yield the log in order; bytes that are invalid in its encoding are replaced.

    Raises:
        OSError: the file cannot be read, or is a damaged gzip file.
        EOFError: a gzip file is cut off.
    """
    # Not read, because the file may be a pipe, which cannot be rewound.
    start = file.peek(_START)[:_START]
    packed = start.startswith(b"\x1f\x8b")
    stream: io.BufferedReader | gzip.GzipFile = gzip.GzipFile(fileobj=file) if packed else file
    decoder = codecs.getincrementaldecoder(_encoding(start))("replace")
    rest, number = "", 1
    long = _LongLine()
    while data := _read(stream):
        text = rest + decoder.decode(data)
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        text = straight(text)
        whole, feed, rest = text.rpartition("\n")
        # A part of a line: the number stays, because no line feed was read.
        if not feed and len(rest) > LONGEST:
            if long.takes(rest):
                yield Piece(number, rest)
            rest = ""
        if feed:
            yield from long.end(number)
            yield Piece(number, whole)
            number += whole.count("\n") + 1
    yield from long.end(number)
    rest += decoder.decode(b"", final=True)
    if rest:
        yield Piece(number, _ESCAPES.sub("", rest))


class _LongLine:
    """The parts of a line that have no line break: the first ones are read at once, then only the last one."""

    def __init__(self) -> None:
        self._length = self._skipped = 0
        self._kept = ""

    def takes(self, part: str) -> bool:
        """Return whether a part is to be read now."""
        # The redraws of a progress bar are lines of their own.
        if "\r" in part:
            return True
        self._length += len(part)
        if self._length <= WHOLE:
            return True
        self._skipped += len(self._kept)
        self._kept = part
        return False

    def end(self, number: int) -> Iterator[Piece]:
        """Yield the last part, if it was kept back."""
        if self._kept:
            yield Piece(number, self._kept, self._skipped)
        self._length = self._skipped = 0
        self._kept = ""


def _read(stream: io.BufferedReader | gzip.GzipFile) -> bytes:
    try:
        return stream.read(PIECE)
    except zlib.error as error:  # gzip raises its own class for all other kinds of damage
        raise gzip.BadGzipFile(str(error)) from error


def straight(text: str) -> str:
    """Return a text with straight apostrophes and quotes, so that each message has one spelling."""
    if text.isascii():
        return text
    for curved, straight in _QUOTES:
        text = text.replace(curved, straight)
    return text


def plain(line: str) -> str:
    """Return a line without the prefixes of engines and launchers, safe to print on a terminal."""
    return neutral(unprefixed(line)).strip()


def unprefixed(line: str) -> str:
    """Return a line without the prefixes of engines and launchers; its indentation is kept."""
    for _ in range(_MOST_PREFIXES):
        match = _PREFIXES.match(line)
        # A line that is nothing but a prefix is kept.
        if match is None or match.end() == len(line):
            break
        line = line[match.end() :]
    return line


def _encoding(start: bytes) -> str:
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Without a mark, as appended by PowerShell: every other byte of a Latin text is zero.
    if len(start) == _START and not any(start[1::2]) and all(start[::2]):
        return "utf-16-le"
    if len(start) == _START and not any(start[::2]) and all(start[1::2]):
        return "utf-16-be"
    return "utf-8-sig"
