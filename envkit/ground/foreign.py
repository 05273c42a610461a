"""The door to files and folders that someone else may have made: a checkout, a job, an image, an index.

Such a file can be anything: a link to a private file, a pipe that nobody writes, a device, two gigabytes of one line,
an integer of five thousand digits. One place opens them and writes into their folders, and `envkit.ground.trees` parses
them, so that every reader refuses the same things in the same words.

What a path may be depends on who chose it:

- The user typed it (no `root`): links are followed, since the user may link files as they like. It is still a regular
  file; a pipe is read only by a name of the shell (`/dev/stdin`, `/dev/fd/N`), which no checkout can give.
- A file, a default or a listing named it (`root`): it is inside `root`, and so is the target of each link on the way,
  relative or absolute. With `links=False`, nothing on the way may be a link. The path is opened part by part, so a link
  that appears meanwhile is not followed.

Texts are UTF-8, with or without a byte order mark, or UTF-16 with one. Messages name the file and the position, never
its contents.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envkit.ground.errors import EnvkitError, UsageError
from envkit.ground.sizes import shown_size

MAX_TEXT = 1 << 20
"""Bytes of a text that people write: far more than anyone does."""
MAX_LINES = 100_000
"""Lines of such a text."""
_SHORT = 4  # characters, of which one may be NUL by chance
_MAX_LINKS = 40  # on the way to a file, as in Linux
_CHUNK = 1 << 20
# Names that a shell gives to what it opened for this process. Nobody else can give them a meaning.
_OPENED_BY_SHELL = re.compile(r"/dev/(?:null|stdin|fd/\d+)|/proc/self/fd/\d+")
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NOTHING_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}
_PATH = getattr(os, "O_PATH", os.O_RDONLY)
_FOLDER = _PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for its writer. O_NOCTTY: nor may a terminal become this process's own.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class File:
    """A regular file that is open for reading."""

    path: Path
    descriptor: int

    @property
    def status(self) -> os.stat_result:
        """The status now; the size may change while others write."""
        return os.fstat(self.descriptor)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer if the file ends before. A file that is cut is no danger."""
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(self.descriptor, min(size, _CHUNK), offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def chunks(self, most: int) -> Iterator[bytes]:
        """Yield the contents up to `most` bytes, in parts of at most 1 MiB."""
        offset = 0
        while offset < most and (part := os.pread(self.descriptor, min(most - offset, _CHUNK), offset)):
            yield part
            offset += len(part)


class Budget:
    """What one command may read, copy or count, summed over all files: a limit for each would be none for many."""

    def __init__(self, most: int, what: str) -> None:
        """Args: `most` is the limit, and `what` names it in the message: `200 MiB of copied files`."""
        self.left = most
        self._what = what

    def spend(self, amount: int, where: str, *, hint: str | None = None) -> None:
        """Take an amount off the budget.

        Raises:
            UsageError: the budget is used up; the message begins with `where`.
        """
        self.check(amount, where, hint=hint)
        self.left -= amount

    def check(self, amount: int, where: str, *, hint: str | None = None) -> None:
        """Refuse an amount that is not left, without taking it.

        Raises:
            UsageError: as `spend`.
        """
        if amount > self.left:
            raise UsageError(f"{where}: more than {self._what}", hint=hint)


def is_file(path: Path) -> bool:
    """Return whether there is a regular file, links followed; False for a name that no file can have."""
    return (status := _status(path)) is not None and stat.S_ISREG(status.st_mode)


def check_file(path: Path) -> None:
    """Refuse a file that the user has named and that cannot be read as one.

    Raises:
        UsageError: nothing has this name, or what has it is not a regular file.
    """
    status = _status(path)
    if status is None:
        raise UsageError(f"{path}: the file does not exist", hint=f"ls {shlex.quote(str(path.parent))}")
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path}: is {_kind(status)}, not a regular file", hint=f"ls -l {shlex.quote(str(path))}")


def is_folder(path: Path) -> bool:
    """Return whether there is a folder, links followed; False for a name that no folder can have."""
    return (status := _status(path)) is not None and stat.S_ISDIR(status.st_mode)


def exists(path: Path) -> bool:
    """Return whether there is anything, links followed; False for a name that nothing can have."""
    return _status(path) is not None


def fitting(folder: Path, pattern: str) -> list[Path]:
    """Return the paths below a folder that fit a pattern, sorted; none for a pattern that no name can fit."""
    try:
        return sorted(folder.glob(pattern))
    except ValueError:
        return []
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return []
        raise


def _status(path: Path) -> os.stat_result | None:
    # A name from a file can have a NUL, or more bytes than a file system takes, where pathlib raises.
    try:
        return path.stat()
    except ValueError:
        return None
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        raise


@contextlib.contextmanager
def opened(
    path: Path, *, root: Path | None = None, links: bool = True, error: type[EnvkitError] = UsageError
) -> Iterator[File]:
    """Open a regular file for the length of a `with`.

    Args:
        path: the file.
        root: the folder that the file and the links on the way to it must not leave; None: the user typed the name.
        links: whether links inside `root` are followed.
        error: the class of the error for a refused file.

    Raises:
        EnvkitError: it is not a regular file, or a link leads out of `root`.
        OSError: it is missing or unreadable, or a folder.
    """
    if root is None:
        _check_kind(path.stat(), path, error)
        # A link is followed, and what it leads to may have changed since.
        descriptor = os.open(path, _FILE & ~os.O_NOFOLLOW)
    else:
        with _parent(path, root, links=links, error=error) as (folder, name):
            _check_kind(os.stat(name, dir_fd=folder, follow_symlinks=False), path, error)
            descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        _check_kind(os.fstat(descriptor), path, error)
        yield File(path, descriptor)
    finally:
        os.close(descriptor)


def read(
    path: Path,
    most: int = MAX_TEXT,
    *,
    root: Path | None = None,
    links: bool = True,
    error: type[EnvkitError] = UsageError,
    hint: str | None = None,
) -> bytes:
    """Return the bytes of a file of at most `most` bytes. `root`, `links` and `error` are as for `opened`.

    Raises:
        EnvkitError: it is missing, unreadable, no regular file, too large, or outside of `root`. The system's error is
            the cause (`__cause__`).
    """
    try:
        if root is None and _OPENED_BY_SHELL.fullmatch(os.fspath(path)):
            with path.open("rb") as stream:
                data = stream.read(most + 1)
        else:
            with opened(path, root=root, links=links, error=error) as file:
                if file.status.st_size > most:
                    raise _too_large(path, most, error, hint)
                data = b"".join(file.chunks(most + 1))  # it may grow, and files of /proc have no size
    except OSError as problem:
        raise unreadable(path, problem, error=error, hint=hint) from problem
    if len(data) > most:
        raise _too_large(path, most, error, hint)
    return data


def _too_large(path: Path, most: int, error: type[EnvkitError], hint: str | None) -> EnvkitError:
    return error(f"{path}:1:1: larger than {most} bytes", hint=hint or f"envkit reads at most {_size(most)} of it")


@contextlib.contextmanager
def stream(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file that the user typed, of any size, as a stream for the length of a `with`.

    Raises:
        UsageError: it is not a regular file, and no pipe of the shell.
        OSError: it is missing or unreadable, or a folder.
    """
    if _OPENED_BY_SHELL.fullmatch(os.fspath(path)):
        with path.open("rb") as file:
            yield file
        return
    with opened(path) as regular, os.fdopen(os.dup(regular.descriptor), "rb") as file:
        yield file


def text(
    path: Path,
    most: int = MAX_TEXT,
    *,
    root: Path | None = None,
    links: bool = True,
    error: type[EnvkitError] = UsageError,
) -> str:
    """Return the text of a file as `decoded`: at most `most` bytes and `MAX_LINES` lines.

    Raises:
        EnvkitError: as `read` and `decoded`.
    """
    return decoded(read(path, most, root=root, links=links, error=error), str(path), error=error)


def decoded(data: bytes, where: str, *, error: type[EnvkitError] = UsageError) -> str:
    """Return bytes as text without its byte order mark: UTF-8, or UTF-16 with a mark; at most `MAX_LINES` lines.

    `pip freeze > requirements.txt` in PowerShell writes UTF-16.

    Raises:
        EnvkitError: they have another encoding, or too many lines. The message begins with `where:line:column`.
    """
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    try:
        whole = data.decode(encoding).removeprefix("\ufeff")  # the byte order mark that editors on Windows write
    except UnicodeDecodeError as problem:
        before = data[: problem.start].decode(encoding, "replace")
        place = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        what = f"byte 0x{data[problem.start]:02x} is not {encoding.upper()}"
        hint = f"iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(where)} > NEW.txt, if a program of Windows wrote it"
        raise error(f"{where}:{place}: {what}", hint=hint) from problem
    # UTF-16 without a mark is UTF-8 with a NUL beside each Latin letter.
    if encoding == "utf-8" and len(whole) > _SHORT and whole.count("\0") > len(whole) // 4:
        order = "LE" if data[1:2] == b"\0" else "BE"
        hint = f"iconv -f UTF-16{order} -t UTF-8 {shlex.quote(where)} > NEW.txt"
        raise error(f"{where}:1:1: the file is UTF-16 without a byte order mark", hint=hint)
    if whole.count("\n") > MAX_LINES:
        raise error(f"{where}:{MAX_LINES + 1}:1: more than {MAX_LINES} lines", hint="split the file")
    return whole


def unreadable(
    path: Path, problem: OSError, *, error: type[EnvkitError] = UsageError, hint: str | None = None
) -> EnvkitError:
    """Return the error for a file that the system cannot open or read."""
    return error(f"{path}: {(problem.strerror or 'cannot be read').lower()}", hint=hint or f"ls -l {path}")


def write(
    path: Path, data: bytes, *, root: Path, is_ours: Callable[[bytes], bool] | None, hint: str | None = None
) -> bool:
    """Replace a file whose name the user did not type, below a folder that someone else may have made.

    Nothing is written through a link: neither the file nor a folder between it and `root` may be one. A run that is
    killed leaves the old file or the new one.

    Args:
        path: the file, inside `root`; folders on the way are created.
        data: its contents.
        root: the folder that the user chose, itself or by a file in it; it may be a link, and is created.
        is_ours: whether contents (the first MiB) are those of a file that envkit wrote; others are not replaced. None:
            the user allowed to replace any file.
        hint: the next step if the path is refused.

    Returns:
        whether the contents changed.

    Raises:
        UsageError: there is a link, something else than a file, or a file that envkit did not write.
        OSError: a folder cannot be written, or the disk is full; the old file is unchanged.
    """
    root.mkdir(parents=True, exist_ok=True)
    with _parent(path, root, links=False, create=True, hint=hint) as (folder, name):
        old = _replaceable(path, folder, data, is_ours, hint)
        if old is not None and old.contents == data:
            return False
        try:
            _replace(name, folder, data, old.mode if old is not None else None)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error  # names the temporary file, or none
    return True


def write_all(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    is_ours: Callable[[bytes], bool] | None,
    executable: Collection[str] = (),
    hint: str | None = None,
) -> None:
    """Write several files below a folder that the user chose, as `write`; all are checked before the first is written.

    Args:
        folder: the folder; it is created.
        files: contents by path in the folder.
        is_ours: as for `write`.
        executable: the paths of files that get the mode 0755.
        hint: as for `write`.

    Raises:
        UsageError: as `write`; nothing was written.
        OSError: as `write`.
    """
    for name, data in files.items():
        check_write(folder / name, data, root=folder, is_ours=is_ours, hint=hint)
    for name, data in files.items():
        write(folder / name, data, root=folder, is_ours=is_ours, hint=hint)
        if name in executable:
            with opened(folder / name, root=folder, links=False) as file:
                os.fchmod(file.descriptor, 0o755)


def check_write(
    path: Path,
    data: bytes = b"",
    *,
    root: Path,
    is_ours: Callable[[bytes], bool] | None,
    hint: str | None = None,
) -> bytes | None:
    """Refuse what `write` would refuse, before long work or the first of several files.

    Returns:
        the contents of the file that would be replaced, of a large one the beginning; None if there is none.

    Raises:
        UsageError: as `write`.
        OSError: a folder or the file cannot be read.
    """
    try:
        with _parent(path, root, links=False, hint=hint) as (folder, _):
            old = _replaceable(path, folder, data, is_ours, hint)
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise UsageError(
            f"{path} is a folder, not a file", hint=hint or "remove it, or choose another folder"
        ) from error
    except NotADirectoryError as error:
        raise UsageError(f"{path}: a folder on the way is a file", hint=hint or "choose another folder") from error
    return old.contents if old is not None else None


@dataclass(frozen=True, slots=True)
class _Old:
    mode: int
    contents: bytes


def _replaceable(
    path: Path, folder: int, data: bytes, is_ours: Callable[[bytes], bool] | None, hint: str | None
) -> _Old | None:
    """Return the file that is to be replaced by one with `data`; None if there is none."""
    try:
        status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is {_kind(status)}, not a file", hint=hint or "remove it, or choose another folder")
    descriptor = os.open(path.name, _FILE, dir_fd=folder)
    try:
        contents = b"".join(File(path, descriptor).chunks(max(len(data) + 1, _CHUNK)))
    finally:
        os.close(descriptor)
    if is_ours is not None and contents != data and not is_ours(contents[:_CHUNK]):
        raise UsageError(
            f"{path} was not written by envkit, so it is not replaced", hint=hint or "move it, or choose another folder"
        )
    return _Old(stat.S_IMODE(status.st_mode), contents)


def _replace(name: str, folder: int, data: bytes, mode: int | None) -> None:
    # `secrets` has the same bytes and loads OpenSSL, which every command would wait for.
    temporary = f".{name}.{os.urandom(6).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if mode is not None:
                os.fchmod(stream.fileno(), mode)  # open(2) applied the umask
            os.fsync(stream.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


class _Way:
    """The way from a folder down to a file, one open folder after the other, so that nothing on it can be exchanged."""

    def __init__(
        self, path: Path, root: Path, *, links: bool, create: bool, error: type[EnvkitError], hint: str | None
    ) -> None:
        self._path, self._root, self._links, self._create = path, root, links, create
        self._error, self._hint = error, hint
        self._base = os.path.realpath(root)
        parts = _below(os.path.abspath(path), os.path.abspath(root))  # noqa: PTH100 - resolve() would follow links
        if parts is None:
            raise error(f"{path} is outside of the folder {root}", hint=hint or "copy the file into the folder")
        self._waiting = parts[::-1]
        self._followed = 0
        self._folders: list[int] = []
        self._names: list[str] = []

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.pop())

    def descend(self) -> tuple[int, str]:
        """Return the folder of the file and its name there."""
        self._folders.append(os.open(self._base, _FOLDER))
        while self._waiting:
            part = self._waiting.pop()
            if part == "..":
                self._ascend()
            elif part not in ("", ".") and (is_last := self._enter(part)):
                return self._folders[-1], is_last
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self._path))

    def _enter(self, part: str) -> str | None:
        """Enter a folder or follow a link; return the part if it is the file."""
        is_last = not any(rest not in ("", ".") for rest in self._waiting)
        mode = self._mode(part, make=self._create and not is_last)
        if mode is None:
            return part
        if stat.S_ISLNK(mode):
            self._follow(part)
        elif is_last and (self._create or not stat.S_ISDIR(mode)):
            return part
        else:
            self._folders.append(os.open(part, _FOLDER, dir_fd=self._folders[-1]))
            self._names.append(part)
        return None

    def _mode(self, part: str, *, make: bool) -> int | None:
        """Return the mode of a name; None if it is that of a file to create."""
        try:
            return os.stat(part, dir_fd=self._folders[-1], follow_symlinks=False).st_mode
        except FileNotFoundError:
            if not make:
                if self._create:
                    return None
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=self._folders[-1])
        return os.stat(part, dir_fd=self._folders[-1], follow_symlinks=False).st_mode

    def _follow(self, part: str) -> None:
        if not self._links:
            link = self._root.joinpath(*self._names, part)
            raise self._error(f"{link} is a symbolic link", hint=self._hint or "remove it, or choose another folder")
        self._followed += 1
        if self._followed > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self._path))
        target = os.readlink(part, dir_fd=self._folders[-1])
        if not target.startswith("/"):
            self._waiting += reversed(target.split("/"))
            return
        inside = _below(os.path.realpath(target), self._base)
        if inside is None:
            raise self._leaves()
        while len(self._folders) > 1:
            self._ascend()
        self._waiting += reversed(inside)

    def _ascend(self) -> None:
        if len(self._folders) == 1:
            raise self._leaves()
        os.close(self._folders.pop())
        self._names.pop()

    def _leaves(self) -> EnvkitError:
        return self._error(
            f"{self._path} is a link out of the folder {self._root}", hint=self._hint or "copy the file into the folder"
        )


@contextlib.contextmanager
def _parent(
    path: Path,
    root: Path,
    *,
    links: bool,
    create: bool = False,
    error: type[EnvkitError] = UsageError,
    hint: str | None = None,
) -> Iterator[tuple[int, str]]:
    """Open the folder of a file below `root`, part by part; yield its descriptor and the file's name in it.

    Raises:
        EnvkitError: the path or a link on the way leaves `root`, or there is a link and `links` is False.
        OSError: a folder is missing or unreadable, or the path is a folder.
    """
    way = _Way(path, root, links=links, create=create, error=error, hint=hint)
    try:
        yield way.descend()
    finally:
        way.close()


def _below(path: str, base: str) -> list[str] | None:
    """Return the parts of an absolute path below another one; None if it is not below it."""
    if path == base:
        return []
    start = base.rstrip("/") + "/"
    return path[len(start) :].split("/") if path.startswith(start) else None


def _check_kind(status: os.stat_result, path: Path, error: type[EnvkitError]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise error(f"{path}: is {_kind(status)}, not a regular file", hint=f"ls -l {path}")


def _kind(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "a folder"
    return next((name for fits, name in _KINDS if fits(status.st_mode)), "no file")


def _size(count: int) -> str:
    return shown_size(count, "MiB") if count >= 1 << 20 else f"{count} bytes"
