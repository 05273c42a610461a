"""A Dockerfile that holds its build context: `docker build -` needs no file beside it.

Each COPY of the context becomes instructions with the same files, bytes and modes. In the classic flavour that is a RUN
that decodes Base64, which every builder knows; in the buildkit flavour a COPY with heredocs, which people can read,
and the RUN only for what a heredoc cannot carry.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from envkit.ground.errors import UsageError
from envkit.render.dockerfile import Instruction, command, parse
from envkit.render.model import BESIDE, Rendered
from envkit.render.quoting import shell

LIMIT_BYTES = 1 << 20
"""All files together: the image's history repeats every RUN, and registries limit the document that holds it."""
# Linux gives a program at most 128 KiB in one argument, and a RUN is one argument of the shell.
_STEP_BYTES = 66_000
_WIDTH = 108  # characters of Base64 on a line
_LINE_BYTES = 60_000  # Docker's parser reads lines of less than 64 KiB
_ALONE = "It holds its build context: `docker build - < Dockerfile`."
_INSTEAD = "envkit render --out DIR writes a build context for `docker build DIR`"
_MEANS_MORE = frozenset("\"'\\$*?[ \t")  # in a word of a COPY, which is not a plain name then


@dataclass(frozen=True, slots=True)
class _File:
    """A file that a COPY takes from the context."""

    name: str  # in the context
    target: str  # path in the image, absolute or from WORKDIR
    data: bytes
    executable: bool


def inline(made: Rendered, files: Mapping[str, bytes]) -> str:
    """Return the Dockerfile of a rendered context with the context in it.

    Args:
        made: the context.
        files: its files and those that an engine adds, `ca-bundle.pem` and built wheels.

    Raises:
        UsageError: the files are too large, or a template takes files in a way that has no such form.
    """
    parsed = parse(made.dockerfile)
    lines = made.dockerfile.split("\n")
    written, position, size, users = [], 0, 0, set()
    for item in parsed.instructions:
        users |= {item.stage} if item.keyword == "USER" else set()
        taken = _taken(item, files, made.executable)
        if not taken:
            continue
        size += sum(len(file.data) for file in taken)
        if size > LIMIT_BYTES:
            raise _too_large(taken, size)
        written += [*lines[position : item.line - 1], *_forms(item, taken, made.flavour, as_user=item.stage in users)]
        position = item.end
    return "\n".join([*written, *lines[position:]]).replace(f"# {BESIDE}\n", f"# {_ALONE}\n", 1)


def _taken(item: Instruction, files: Mapping[str, bytes], executable: frozenset[str]) -> list[_File]:
    """The files that an instruction takes from the context; empty for any other instruction."""
    if item.keyword == "RUN" and any(_binds(flag) for flag in item.flags):
        raise _no_form(item, "mounts the build context")
    if item.keyword not in ("COPY", "ADD") or item.heredocs or any(flag.startswith("--from=") for flag in item.flags):
        return []
    words = command(item.text) or item.text.split()
    if item.keyword == "ADD" and all("://" in word for word in words[:-1]):
        return []
    if item.keyword == "ADD" or any(_MEANS_MORE & set(word) for word in words):
        raise _no_form(item, f"is {item.text:.80}")
    *sources, target = words
    into = target.endswith("/") or target == "." or len(sources) > 1
    return [file for source in sources for file in _of(item, source, target, files, executable, into=into)]


def _of(
    item: Instruction, source: str, target: str, files: Mapping[str, bytes], executable: frozenset[str], *, into: bool
) -> list[_File]:
    """The files that one source of a COPY means: itself, or all below a folder."""
    name = str(PurePosixPath("/", source)).lstrip("/")
    if name in files:
        image_path = PurePosixPath(target, PurePosixPath(name).name) if into else PurePosixPath(target)
        return [_File(name, str(image_path), files[name], name in executable)]
    below = [file_name for file_name in files if file_name.startswith(f"{name}/")]
    if not below:
        raise _no_form(item, f"takes {source:.80}, which is not in the build context")
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
    return flag.startswith("--mount=") and "type=" not in flag.replace("type=bind", "") and "from=" not in flag


def _forms(item: Instruction, files: list[_File], flavour: str, *, as_user: bool) -> Iterator[str]:
    """The instructions that write these files, as lines."""
    read = [file for file in files if flavour == "buildkit" and _is_text(file)]
    for folder in dict.fromkeys(PurePosixPath(file.target).parent for file in read):
        group = [file for file in read if PurePosixPath(file.target).parent == folder]
        yield from _heredocs(item, group)
    encoded = [file for file in files if file not in read]
    if encoded and (item.flags or as_user):
        raise _no_form(item, "has flags" if item.flags else "follows USER, and a RUN would not write as root")
    yield from _decoded(encoded)


def _is_text(file: _File) -> bool:
    """Whether a heredoc carries a file unchanged, and every reader of Dockerfiles, hadolint too, reads it."""
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        return False
    name = PurePosixPath(file.name).name
    return (
        not file.executable  # hadolint reads no --chmod before a heredoc
        and name.replace(".", "").replace("_", "").replace("-", "").isalnum()
        and name.isascii()
        and not _MEANS_MORE & set(file.target)
        and text.endswith("\n")
        and all(letter.isprintable() or letter in "\t\n" for letter in text)
        and all(line != name and len(line.encode()) < _LINE_BYTES for line in text.split("\n"))
    )


def _heredocs(item: Instruction, files: list[_File]) -> Iterator[str]:
    """A COPY of files for one folder; a document is named as its file, so that Docker's rules for targets hold."""
    first = files[0]
    names = [PurePosixPath(file.name).name for file in files]
    renamed = len(files) == 1 and PurePosixPath(first.target).name != names[0]
    target = first.target if renamed else f"{PurePosixPath(first.target).parent}/".replace("//", "/")
    yield " ".join(["COPY", *item.flags, *(f"<<'{name}'" for name in names), target])
    for name, document in zip(names, files, strict=True):
        yield from (*document.data.decode().removesuffix("\n").split("\n"), name)
    yield ""  # hadolint ends a heredoc at an empty line


def _decoded(files: list[_File]) -> Iterator[str]:
    """Steps that write these files, none of them with more than a shell takes."""
    step: list[str] = []
    size = 0
    for file in files:
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
    """Shell commands that write a piece of a file; there is no pipe, whose failure a POSIX shell does not see."""
    target, between = shell(file.target), shell(f"{file.target}.base64")
    folder = str(PurePosixPath(file.target).parent)
    if first and folder != ".":
        yield f"mkdir -p {shell(folder)}"
    text = base64.b64encode(piece).decode()
    lines = [text[begin : begin + _WIDTH] for begin in range(0, len(text), _WIDTH)] or ["''"]
    yield " \\\n      ".join(["printf %s", *lines, f"> {between}"])
    yield f"base64 -d {between} {'>' if first else '>>'} {target}"
    yield f"rm {between}"
    if first:
        yield f"chmod {755 if file.executable else 644} {target}"


def _too_large(files: list[_File], size: int) -> UsageError:
    largest = max(files, key=lambda file: len(file.data))
    return UsageError(
        f"{largest.target} ({len(largest.data) / 2**20:.1f} MiB) is too large for --inline: the files of the build "
        f"context have {size / 2**20:.1f} MiB up to here, and a Dockerfile holds at most {LIMIT_BYTES >> 20} MiB",
        hint=_INSTEAD,
    )


def _no_form(item: Instruction, why: str) -> UsageError:
    return UsageError(
        f"Dockerfile:{item.line}: {item.keyword} {why}; --inline cannot write it without a build context", hint=_INSTEAD
    )
