"""Write a Dockerfile that contains its build context, for `docker build -`.

Each COPY from the context becomes instructions that write the same bytes and modes. In the classic syntax that is a
RUN that decodes Base64, which every builder supports. In the buildkit syntax it is a COPY with heredocs, which are
readable, and a RUN only for files that a heredoc cannot contain.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from envkit.ground.errors import UsageError
from envkit.ground.sizes import shown_size
from envkit.render.dockerfile import Instruction, command, parse
from envkit.render.model import BESIDE, Rendered
from envkit.render.quoting import shell

LIMIT_BYTES = 1 << 20
"""Limit for all files: the history in the image's configuration repeats every RUN, and registries limit its size."""
# Linux limits one argument of a program to 128 KiB, and a RUN is one argument of the shell; Base64 adds a third.
_STEP_BYTES = 66_000
_WIDTH = 108  # characters of Base64 on a line
_LINE_BYTES = 60_000  # Docker's parser reads lines of less than 64 KiB
_ALONE = "It contains its build context: `docker build - < Dockerfile`."
_INSTEAD = "envkit render --out DIR writes a build context for `docker build DIR`"
_SPECIAL = frozenset("\"'\\$*?[ \t")  # characters with a meaning in the arguments of a COPY


@dataclass(frozen=True, slots=True)
class _File:
    """A file that a COPY takes from the context."""

    name: str  # in the context
    target: str  # path in the image, absolute or from WORKDIR
    data: bytes
    executable: bool


def inline(rendered: Rendered, files: Mapping[str, bytes]) -> str:
    """Return the Dockerfile of a rendered context with the context in it.

    Args:
        rendered: the context.
        files: its files and those that an engine adds: `ca-bundle.pem` and wheels built from source.

    Raises:
        UsageError: the files are too large, or a template copies files in a way that cannot be written inline.
    """
    parsed = parse(rendered.dockerfile)
    lines = rendered.dockerfile.split("\n")
    written, position, size, users = [], 0, 0, set()
    for item in parsed.instructions:
        users |= {item.stage} if item.keyword == "USER" else set()
        copied = _copied(item, files, rendered.executable)
        if not copied:
            continue
        size += sum(len(file.data) for file in copied)
        if size > LIMIT_BYTES:
            raise _too_large(copied, size)
        written += [
            *lines[position : item.line - 1],
            *_writing(item, copied, rendered.syntax, as_user=item.stage in users),
        ]
        position = item.end
    return "\n".join([*written, *lines[position:]]).replace(f"# {BESIDE}\n", f"# {_ALONE}\n", 1)


def _copied(item: Instruction, files: Mapping[str, bytes], executable: frozenset[str]) -> list[_File]:
    """Return the files that an instruction copies from the context; empty for any other instruction."""
    if item.keyword == "RUN" and any(_binds(flag) for flag in item.flags):
        raise _no_form(item, "mounts the build context")
    if item.keyword not in ("COPY", "ADD") or item.heredocs or any(flag.startswith("--from=") for flag in item.flags):
        return []
    words = command(item.text) or item.text.split()
    if item.keyword == "ADD" and all("://" in word for word in words[:-1]):
        return []
    if item.keyword == "ADD" or any(_SPECIAL & set(word) for word in words):
        raise _no_form(item, f"is {item.text:.80}")
    *sources, target = words
    into = target.endswith("/") or target == "." or len(sources) > 1
    return [file for source in sources for file in _of(item, source, target, files, executable, into=into)]


def _of(
    item: Instruction, source: str, target: str, files: Mapping[str, bytes], executable: frozenset[str], *, into: bool
) -> list[_File]:
    """Return the files of one source of a COPY: a file, or all files below a folder."""
    name = str(PurePosixPath("/", source)).lstrip("/")
    if name in files:
        image_path = PurePosixPath(target, PurePosixPath(name).name) if into else PurePosixPath(target)
        return [_File(name, str(image_path), files[name], name in executable)]
    below = [file_name for file_name in files if file_name.startswith(f"{name}/")]
    if not below:
        raise _no_form(item, f"copies {source:.80}, which is not in the build context")
    return [
        _File(
            file_name,
            str(PurePosixPath(target, file_name.removeprefix(f"{name}/"))),
            files[file_name],
            file_name in executable,
        )
        for file_name in below
    ]


def _binds(flag: str) -> bool:
    # bind is the default type of a mount, and without from= its source is the build context.
    return flag.startswith("--mount=") and "type=" not in flag.replace("type=bind", "") and "from=" not in flag


def _writing(item: Instruction, files: list[_File], syntax: str, *, as_user: bool) -> Iterator[str]:
    """Yield the lines of the instructions that write these files."""
    texts = [file for file in files if syntax == "buildkit" and _is_text(file)]
    for folder in dict.fromkeys(PurePosixPath(file.target).parent for file in texts):
        group = [file for file in texts if PurePosixPath(file.target).parent == folder]
        yield from _heredocs(item, group)
    encoded = [file for file in files if file not in texts]
    if encoded and (item.flags or as_user):
        raise _no_form(item, "has flags" if item.flags else "follows USER, so a RUN would not write as root")
    yield from _decoded(encoded)


def _is_text(file: _File) -> bool:
    """Return whether a heredoc preserves a file and every Dockerfile parser, hadolint included, can read it."""
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        return False
    name = PurePosixPath(file.name).name
    return (
        not file.executable  # hadolint cannot parse --chmod before a heredoc
        and name.replace(".", "").replace("_", "").replace("-", "").isalnum()
        and name.isascii()
        and not _SPECIAL & set(file.target)
        and text.endswith("\n")
        and all(letter.isprintable() or letter in "\t\n" for letter in text)
        and all(line != name and len(line.encode()) < _LINE_BYTES for line in text.split("\n"))
    )


def _heredocs(item: Instruction, files: list[_File]) -> Iterator[str]:
    """Yield a COPY of files into one folder; each heredoc has its file's name, which the target then gets."""
    first = files[0]
    names = [PurePosixPath(file.name).name for file in files]
    renamed = len(files) == 1 and PurePosixPath(first.target).name != names[0]
    target = first.target if renamed else f"{PurePosixPath(first.target).parent}/".replace("//", "/")
    yield " ".join(["COPY", *item.flags, *(f"<<'{name}'" for name in names), target])
    for name, document in zip(names, files, strict=True):
        yield from (*document.data.decode().removesuffix("\n").split("\n"), name)
    yield ""  # hadolint ends a heredoc at an empty line


def _decoded(files: list[_File]) -> Iterator[str]:
    """Yield RUN steps that decode these files, each within the size limit of an argument."""
    step: list[str] = []
    size = 0
    for file in files:
        # An empty file is written, too.
        for begin in range(0, max(1, len(file.data)), _STEP_BYTES):
            piece = file.data[begin : begin + _STEP_BYTES]
            if step and size + len(piece) > _STEP_BYTES:
                yield from _step(step)
                step, size = [], 0
            step += _writes(file, piece, first=begin == 0)
            size += len(piece)
    if step:
        yield from _step(step)


def _step(commands: list[str]) -> Iterator[str]:
    folders = [line for line in dict.fromkeys(commands) if line.startswith("mkdir ")]
    rest = [line for line in commands if not line.startswith("mkdir ")]
    yield "; \\\n    ".join(["RUN set -eu", "umask 022", *folders, *rest])


def _writes(file: _File, piece: bytes, *, first: bool) -> Iterator[str]:
    """Yield the shell commands that write a piece of a file, without a pipe: POSIX shells ignore failures in pipes."""
    target, encoded = shell(file.target), shell(f"{file.target}.base64")
    folder = str(PurePosixPath(file.target).parent)
    if first and folder != ".":
        yield f"mkdir -p {shell(folder)}"
    text = base64.b64encode(piece).decode()
    lines = [text[begin : begin + _WIDTH] for begin in range(0, len(text), _WIDTH)] or ["''"]
    yield " \\\n      ".join(["printf %s", *lines, f"> {encoded}"])
    yield f"base64 -d {encoded} {'>' if first else '>>'} {target}"
    yield f"rm {encoded}"
    if first:
        yield f"chmod {755 if file.executable else 644} {target}"


def _too_large(files: list[_File], size: int) -> UsageError:
    largest = max(files, key=lambda file: len(file.data))
    return UsageError(
        f"{largest.target} ({shown_size(len(largest.data), 'MiB', 1)}) is too large for --inline: the build context "
        f"has {shown_size(size, 'MiB', 1)} up to here, and the limit is {shown_size(LIMIT_BYTES, 'MiB')}",
        hint=_INSTEAD,
    )


def _no_form(item: Instruction, why: str) -> UsageError:
    return UsageError(f"Dockerfile:{item.line}: {item.keyword} {why}; --inline does not support this", hint=_INSTEAD)
