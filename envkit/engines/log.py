"""Build logs: a file of limited size with printable text, and the last lines for error messages."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import deque
from typing import IO, TYPE_CHECKING, Self

from envkit.ground.text import neutral

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from envkit.ground.progress import Reporter

LIMIT_BYTES = 64 << 20  # a command that prints endlessly must not fill the disk
TAIL = 30  # lines in an error message
_KEPT_AFTER_CUT = 500  # lines; the cause of a failure is near the end of a log
_NAMED = re.compile(r"\d{8}T\d{6}-[^/]*-\d+\.log")
_PACKAGE = (
    re.compile(r"\b(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*==[^\s;]+) from \S+"),  # pip, before the two hashes
    re.compile(r"\bfor url '?\S*/(?P<name>[^/\s']+)\.(?:conda|tar\.bz2)'?"),  # conda
)
# pip: `Expected sha256 <64 digits>`, `Got        <64 digits>`; conda: `expected sha256: ...`, `actual sha256: ...`
_EXPECTED = re.compile(r"[Ee]xpected(?:\s+|:\s*)sha256:?\s+(?P<digest>[0-9a-f]{64})")
_ACTUAL = re.compile(r"(?:\bGot|\bactual\s+sha256:?)\s+(?P<digest>[0-9a-f]{64})")


def new_log(folder: Path, name: str, *, keep: int) -> Path:
    """Return the path of a new log, `YYYYMMDDThhmmss-NAME-PID.log`, and remove the oldest logs beyond `keep`.

    The folder may have other files: only this user's regular files with such a name are removed. If the folder is a
    link, logs are removed only if this user made the link.
    """
    with contextlib.suppress(OSError):
        if folder.lstat().st_uid == os.geteuid():
            old = sorted(path for path in folder.iterdir() if _NAMED.fullmatch(path.name) and _is_own_file(path))
            for path in old[: max(0, len(old) - keep + 1)]:
                path.unlink(missing_ok=True)
    return folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{name[:80]}-{os.getpid()}.log"


def _is_own_file(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


class BuildLog:
    """Writes an engine's output to a file: everything up to 64 MiB, and after that only the last 500 lines.

    If the log cannot be written, a note says so, and the build continues.
    """

    def __init__(self, path: Path | None, reporter: Reporter, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self._reporter = reporter
        self._last: deque[str] = deque(maxlen=_KEPT_AFTER_CUT)
        self._left = limit_bytes
        self._cut = 0
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                self._give_up(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        try:
            with self._file:
                if self._cut:
                    kept = list(self._last)[-self._cut :]
                    self._file.write(f"[... {self._cut - len(kept)} lines omitted ...]\n")
                    self._file.writelines(f"{line}\n" for line in kept)
        except OSError as failure:
            self._give_up(failure)

    def write(self, line: str) -> None:
        """Record one line and pass it to the reporter."""
        safe = neutral(line)
        self._last.append(safe)
        self._reporter.log(safe)
        if self._file is None:
            return
        size = len(safe.encode(errors="backslashreplace")) + 1
        if self._cut or size > self._left:
            self._cut += 1
            return
        self._left -= size
        try:
            self._file.write(f"{safe}\n")
        except OSError as error:
            self._give_up(error)

    def tail(self) -> tuple[str, ...]:
        """Return the last 30 lines that are not blank."""
        return tuple([line for line in self._last if line.strip()][-TAIL:])

    def details(self) -> tuple[str, ...]:
        """Return the last lines and the path of the full log, for an error's details."""
        where = (f"full log: {self.path}",) if self.path is not None else ()
        return (*self.tail(), *where)

    def _give_up(self, error: OSError) -> None:
        self._reporter.note(f"no build log: {self.path}: {error.strerror or error}")
        file, self.path, self._file = self._file, None, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def hash_mismatch(lines: Sequence[str]) -> str | None:
    """Return the first hash mismatch that pip or conda reports in a build log, None if there is none.

    `torch==2.7.1: expected sha256 <64 digits>, got <64 digits>`
    """
    package = expected = None
    for line in lines:
        named = next((match["name"] for pattern in _PACKAGE if (match := pattern.search(line))), None)
        package = named or package
        match = _EXPECTED.search(line)
        expected = match["digest"] if match else expected
        actual = _ACTUAL.search(line)
        if package and expected and actual:
            return f"{package}: expected sha256 {expected}, got {actual['digest']}"
    return None
