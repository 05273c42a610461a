"""Runs inside an image or a root file system, with its Python: compiles sources to bytecode that is always the same.

    python compile_inside.py sources FILE         the sources in FILE; results go to stdout
    python compile_inside.py folders FOLDER...    every module below the folders, into its __pycache__ folder

FILE and the results begin with one line of JSON and continue with the bytes of its rows: of a source,
[path in the image, bytes]; of a result, [bytes, null], or [null, reason] for a source that does not compile.

The header of a .pyc has the time and size of its source, as pip writes it. The time is constant, because all files of
these images have it. A file that a later layer or a running container changes has another time, so Python compiles it
again; an unchecked hash (PEP 552) would hide the change. Five things besides the source and Python's exact version
would change the bytes; each is fixed here or by the caller:

- PYTHONHASHSEED=0, which the caller sets: sets of constants are written in the order of their hashes.
- Before Python 3.11, `marshal` writes a string that only one object refers to in another way, so the order in which
  files are compiled would matter. Every object of the code is therefore referred to once more while it is written.
- Python has one object for each text of one character, and `marshal` writes it in another way once any module has
  interned it. All of them are therefore interned at the start.
- Before Python 3.11, the order of a set with anything but text and numbers depends on memory addresses. Such a source
  is left as it is.
- The stack's size, which decides whether deeply nested code compiles.
"""
# ruff: noqa: B905, SIM115

from __future__ import annotations

import json
import marshal
import os
import resource
import sys
import tempfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    Source = tuple[str, bytes]  # its path in the image, and its contents
    Result = tuple[bytes | None, str | None]  # the .pyc or None, and the reason if there is none

BY_TIME = 0  # the flags of the header
MTIME = 315532800  # seconds, of every file in the image: `envkit.image.spec.MTIME`
STACK = 8 << 20  # bytes
MOST = 8 << 20  # bytes of a source; more is data rather than code
INTERNED = [sys.intern(text) for text in ("", *map(chr, range(256)))]  # of one character, all that Python shares
SKIPPED = ("test", "tests")  # folders: nothing imports them when a program runs


def main() -> None:
    """Do what the arguments say."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("PYTHONHASHSEED must be 0")
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    if sys.argv[1] == "folders":
        compile_folders(sys.argv[2:])
        return
    with Path(sys.argv[2]).open("rb") as file:
        sources = [(path, file.read(size)) for path, size in json.loads(file.readline())]
    results = compile_all(sources)
    rows = [[None, reason] if data is None else [len(data), None] for data, reason in results]
    sys.stdout.buffer.write(json.dumps(rows).encode() + b"\n")
    for data, _ in results:
        sys.stdout.buffer.write(data or b"")


def compile_folders(folders: list[str]) -> None:
    """Compile every module below the folders, which are named as in the image, and write the .pyc files."""
    sources = []
    for top in folders:
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if is_module(name, "") or name in ("site-packages", "dist-packages")]
            paths = [Path(folder, name) for name in files if is_module(name, ".py")]
            sources += [(str(path), path.read_bytes()) for path in paths if not path.is_symlink() and is_small(path)]
    for (name, _), (data, _) in zip(sources, compile_all(sources)):
        path = Path(name)
        if data is not None:
            (path.parent / "__pycache__").mkdir(exist_ok=True)
            (path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc").write_bytes(data)


def is_small(path: Path) -> bool:
    """Return whether a source is compiled."""
    return path.stat().st_size <= MOST


def is_module(name: str, suffix: str) -> bool:
    """Return whether a file or folder can be imported, and is not one of tests."""
    stem = name[: len(name) - len(suffix)]
    return name.endswith(suffix) and stem.isidentifier() and stem not in SKIPPED


def compile_all(sources: list[Source]) -> list[Result]:
    """Return bytecode and None, or None and the reason, for each source; on all CPUs."""
    workers = max(1, min(len(os.sched_getaffinity(0)), len(sources) // 50))
    # The longest first, dealt out in turns: every worker has about the same work.
    ranked = sorted(range(len(sources)), key=lambda at: -len(sources[at][1]))
    shares = [ranked[first::workers] for first in range(workers)]
    running = [Worker(sources, share) for share in shares]
    results: dict[int, Result] = {}
    while running:
        for worker in running:
            results.update(worker.results())
        # What the sources of a crashed worker had still to be done is done by another one.
        running = [Worker(sources, worker.left) for worker in running if worker.left]
    return [results[at] for at in range(len(sources))]


class Worker:
    """A process that compiles some of the sources; a source that crashes the compiler ends only this process."""

    def __init__(self, sources: list[Source], share: list[int]) -> None:
        self.left = list(share)
        # A file and no pipe: a pipe is full after 64 KiB, and the worker would wait until the others have been read.
        self._file = tempfile.TemporaryFile()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                for at in share:
                    marshal.dump(compiled(*sources[at]), self._file)
                    self._file.flush()
                status = 0
            finally:
                os._exit(status)

    def results(self) -> Iterator[tuple[int, Result]]:
        """Wait for the process; yield position and result of each source that it did."""
        _, status = os.waitpid(self._pid, 0)
        with self._file as file:
            file.seek(0)
            while self.left:
                try:
                    result = marshal.load(file)  # noqa: S302 - the worker wrote it
                except (EOFError, ValueError, TypeError):
                    break
                yield self.left.pop(0), result
        if self.left:
            yield self.left.pop(0), (None, f"the compiler ended with status {status}")


def compiled(path: str, source: bytes) -> Result:
    """Return bytecode and None, or None and the reason."""
    try:
        # As the import system does: the bytes, whose first lines may name an encoding.
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError, AttributeError, SystemError) as error:
        return None, f"{type(error).__name__}: {error}"[:200]
    held: list[object] = []
    if sys.version_info < (3, 11) and not hold(code, held):
        return None, "a constant set with other items than text and numbers has no fixed order before Python 3.11"
    words = (BY_TIME, MTIME, len(source))
    return MAGIC_NUMBER + b"".join(word.to_bytes(4, "little") for word in words) + marshal.dumps(code), None


def hold(value: object, held: list[object]) -> bool:
    """Add one more reference to every object of a code object; return whether the order of all its sets is fixed."""
    held.append(value)
    if isinstance(value, frozenset):
        if not all(isinstance(item, (str, bytes, int, float)) for item in value):
            return False
        held.extend(value)
    elif isinstance(value, tuple):
        return all(hold(item, held) for item in value)
    elif isinstance(value, CodeType):
        held += [value.co_name, value.co_filename, value.co_code, value.co_lnotab]
        names = (value.co_consts, value.co_names, value.co_varnames, value.co_cellvars, value.co_freevars)
        return all(hold(item, held) for part in names for item in part)
    return True


if __name__ == "__main__":
    main()
