"""Copy files of a project into an image: which files, to which paths, and their digest in the plan.

The contents of copied files are part of the image, so the plan has their digest; the files are read again when the
image is built. Modes are 0644 or 0755, the owner is root and dates are not copied, so equal contents give equal images.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from envkit.ground import imagepaths
from envkit.ground.errors import UsageError, shown
from envkit.plan import names
from envkit.plan.model import BuildPlan, Copied

LOCK_FILE = "envkit.lock"
IGNORE_FILES = (".envkitignore", ".dockerignore")  # the first that exists is read
LIMIT_BYTES = 200 << 20  # enough for the sources of a project; data belongs in a mount
_LIMIT_FILES = 20_000  # each file is hashed for the plan
# Never copied: caches, environments, version control, schemas for editors, and the lock, which every image contains
# anyway.
ALWAYS_IGNORED = frozenset(
    [".git", ".hg", ".svn", ".venv", "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache",
     ".envkit", "node_modules", ".DS_Store", LOCK_FILE]
)  # fmt: skip
_SECRETS = (
    ".env", ".env.*", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc",
    "_netrc", ".pypirc", ".npmrc", ".condarc", ".git-credentials", ".htpasswd", ".pgpass", "credentials",
    "credentials.*",
    "kubeconfig", "kaggle.json", "secrets.*", "service-account*.json", "service_account*.json",
    "application_default_credentials.json",
)  # fmt: skip
# These match a pattern above, but usually hold no secret: examples, public keys, modules of Python.
_EXAMPLES = (".env.example", ".env.sample", ".env.template", "*.pub", "credentials.py", "secrets.py")
_SECRET_FOLDERS = frozenset([".ssh", ".aws", ".gnupg", ".kube", ".docker"])
# `-----BEGIN RSA PRIVATE KEY-----`: a .pem file may also hold only certificates, so its contents decide.
_PRIVATE_KEY = b"PRIVATE KEY-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFile:
    """One file to copy."""

    source: Path
    target: str  # path in the image, without the leading slash
    executable: bool
    data: bytes


def check(source: str, target: str) -> str | None:
    """Return why a pair of `copy` is refused, None if it is fine."""
    if not source or source.startswith(("/", "~")) or ".." in source.split("/"):
        return f"from: {source!r:.120} is not a path inside the definition's folder"
    if not source.isprintable() or "\\" in source:
        return f"from: {source!r:.120} contains a character that is not allowed in a build context"
    if target.startswith("/"):
        why = names.workdir(target.rstrip("/")) or _hidden(target)
        return f"to: {target!r:.120} {why}" if why else None
    if not re.fullmatch(r"[A-Za-z0-9._/-]+", target) or ".." in target.split("/"):
        return f"to: {target!r:.120} is neither an absolute path nor a path below workdir"
    return None


def volume(value: str) -> str | None:
    """Return why a path is refused as a volume, None if it is fine."""
    return names.workdir(value) or _hidden(value)


def _hidden(path: str) -> str | None:
    return (
        "is below /tmp, where a container may mount a tmpfs; use another folder"
        if path.split("/")[1] == "tmp"
        else None
    )


def planned(source: str, target: str, *, workdir: str, folder: Path, where: str) -> Copied:
    """Return a pair of `copy` for a plan: its absolute target and the digest of the files as they are now.

    Raises:
        UsageError: as `files_of`.
    """
    below = target if target.startswith("/") else f"{workdir}/{target}"
    final = str(PurePosixPath(below))
    is_file = (folder / source).is_file()
    if target.endswith("/") and is_file:
        final = f"{final}/{PurePosixPath(source).name}"
    if final == workdir and is_file:
        raise UsageError(
            f"{where}: copy: {source} is a file, and {final} is the working folder",
            hint=f"to: {final}/{PurePosixPath(source).name}",
        )
    copied = Copied(source=source, target=final, is_file=is_file, digest="")
    return replace(copied, digest=_digest(list(_read(copied, folder, where))))


def files_of(plan: BuildPlan) -> tuple[tuple[ProjectFile, ...], ...]:
    """Return the files of each pair of a plan's `copy`, sorted by target.

    Raises:
        UsageError: a file is missing, unreadable or a secret, or the files have changed since the plan was made.
    """
    folder = Path(plan.folder)
    groups = []
    for copied in plan.copy:
        files = tuple(_read(copied, folder, plan.name))
        if _digest(list(files)) != copied.digest:
            raise UsageError(
                f"{folder / copied.source} does not have the contents that the plan of {plan.name} was made from",
                hint="use the definition instead of the plan, or run in the definition's folder",
            )
        groups.append(files)
    _refuse_clashes([file for files in groups for file in files], plan.name)
    return tuple(groups)


def merged(plan: BuildPlan) -> Mapping[str, ProjectFile]:
    """Return the files of a plan by their path in the image; the last pair wins, as with COPY."""
    return {file.target: file for files in files_of(plan) for file in files}


def _refuse_clashes(files: list[ProjectFile], where: str) -> None:
    # A path of the image cannot be both a file and a folder.
    targets = {file.target for file in files}
    for target in sorted(targets):
        above = [str(parent) for parent in PurePosixPath(target).parents if str(parent) in targets]
        if above:
            raise UsageError(
                f"{where}: copy: /{above[0]} is a file, but also the folder of /{target}",
                hint="change `to` of one of them",
            )


def _digest(files: list[ProjectFile]) -> str:
    lines = [f"{hashlib.sha256(file.data).hexdigest()} {int(file.executable)} {file.target}\n" for file in files]
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def _read(copied: Copied, folder: Path, where: str) -> Iterator[ProjectFile]:
    """Yield the files of one pair, sorted by target.

    Raises:
        UsageError: there are none, or one is missing, unreadable, a secret, or a link out of the folder.
    """
    start, root = folder / copied.source, folder.resolve()
    if not start.exists():
        raise UsageError(f"{where}: copy: {start} does not exist", hint="change `from`, or create the file")
    ignore = Ignore.of(folder)
    paths = sorted(_walk(start, folder, ignore)) if start.is_dir() else [start]
    if not paths:
        raise UsageError(
            f"{where}: copy: {start} is empty, or all of its files are ignored",
            hint=f"check {ignore.name or 'the files of the folder'}",
        )
    secrets = [path.relative_to(folder).as_posix() for path in paths if is_secret(path.relative_to(folder))]
    files: list[ProjectFile] = []
    size = 0
    for path in paths:
        relative = path.relative_to(folder).as_posix()
        if not path.resolve().is_relative_to(root) or not path.is_file():
            raise UsageError(
                f"{where}: copy: {path} is a link out of the folder, or not a regular file",
                hint=f"add `{relative}` to {ignore.name or IGNORE_FILES[0]}",
            )
        below = path.relative_to(start).as_posix()
        target = (copied.target if below == "." else f"{copied.target}/{below}").strip("/")
        if fault := imagepaths.fault(target):
            raise UsageError(f"{where}: copy: {fault}", hint=f"add `{relative}` to {ignore.name or IGNORE_FILES[0]}")
        try:
            size += path.stat().st_size
            _within(size, len(files), start, where)
            data = path.read_bytes()
            # The owner's bit: those of group and others depend on the umask of the checkout.
            executable = bool(path.stat().st_mode & 0o100)
        except OSError as error:
            raise UsageError(f"{where}: copy: {path}: {error.strerror}", hint=f"ls -l {path}") from error
        if path.suffix == ".pem" and _PRIVATE_KEY in data:
            secrets.append(relative)
        files.append(ProjectFile(source=path, target=target, executable=executable, data=data))
    if secrets:
        raise UsageError(
            f"{where}: copy: {secrets[0]} looks like a secret, and everyone with the image can read its files",
            details=shown([f"{name} looks like a secret" for name in secrets[1:]]),
            hint=f"add `{secrets[0]}` to {ignore.name or IGNORE_FILES[0]}, and mount it when the container runs",
        )
    yield from sorted(files, key=lambda file: file.target)


def _within(size: int, count: int, start: Path, where: str) -> None:
    if size > LIMIT_BYTES or count >= _LIMIT_FILES:
        raise UsageError(
            f"{where}: copy: {start} has more than {LIMIT_BYTES >> 20} MiB or {_LIMIT_FILES} files",
            hint=f"add data and results to {IGNORE_FILES[0]}, and mount them when the container runs",
        )


def _walk(start: Path, folder: Path, ignore: Ignore) -> Iterator[Path]:
    for parent, folders, files in os.walk(start):
        here = Path(parent)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in links:
            if name not in ALWAYS_IGNORED and not ignore.matches((here / name).relative_to(folder).as_posix()):
                yield here / name  # `_read` refuses it as a link to a folder
        folders[:] = [
            name
            for name in folders
            if name not in links
            and name not in ALWAYS_IGNORED
            and (ignore.has_exceptions or not ignore.matches((here / name).relative_to(folder).as_posix()))
        ]
        for name in files:
            relative = (here / name).relative_to(folder).as_posix()
            if name not in ALWAYS_IGNORED and name not in IGNORE_FILES and not ignore.matches(relative):
                yield here / name


def is_secret(path: Path) -> bool:
    """Return whether a relative path is that of a file that usually contains a secret."""
    name = path.name.lower()
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _EXAMPLES):
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRETS) or not _SECRET_FOLDERS.isdisjoint(path.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """The patterns of an ignore file, in the syntax of .dockerignore: the last pattern that matches decides."""

    name: str = ""  # of the file; empty if there is none
    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()  # pattern, and whether it is an exception (`!`)

    @classmethod
    def of(cls, folder: Path) -> Ignore:
        """Return the patterns of a folder's ignore file; there are none if it has no such file.

        Raises:
            UsageError: the file cannot be read.
        """
        for name in IGNORE_FILES:
            if (folder / name).is_file():
                try:
                    lines = (folder / name).read_text(encoding="utf-8").splitlines()
                except (OSError, UnicodeDecodeError) as error:
                    raise UsageError(f"{folder / name}: {error}", hint="save the file as UTF-8") from error
                return cls(name=name, patterns=tuple(_patterns(lines)))
        return cls()

    @property
    def has_exceptions(self) -> bool:
        """Whether a pattern may include files of an ignored folder again."""
        return any(is_exception for _, is_exception in self.patterns)

    def matches(self, path: str) -> bool:
        """Return whether a relative path, or a folder above it, is ignored."""
        ignored = False
        for pattern, is_exception in self.patterns:
            if pattern.fullmatch(path):
                ignored = not is_exception
        return ignored


def _patterns(lines: list[str]) -> Iterator[tuple[re.Pattern[str], bool]]:
    for raw in lines:
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        parts = [part for part in line.removeprefix("!").strip().split("/") if part not in ("", ".")]
        if parts:
            yield re.compile(_regex(parts)), line.startswith("!")


def _regex(parts: list[str]) -> str:
    """Return the regular expression of a pattern; paths below a match match too."""
    regex = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            regex += ".*" if last else "(?:.*/)?"
        else:
            regex += _glob(part) + ("" if last else "/")
    return f"{regex}(?:/.*)?"


def _glob(part: str) -> str:
    regex, index = "", 0
    while index < len(part):
        char = part[index]
        index += 1
        end = part.find("]", index + 1) if char == "[" else -1
        if char == "*":
            regex += "[^/]*"
        elif char == "?":
            regex += "[^/]"
        elif end > 0:
            inner = part[index:end].replace("\\", "\\\\")
            regex += f"[{inner}]"
            index = end + 1
        elif char == "\\" and index < len(part):
            regex += re.escape(part[index])
            index += 1
        else:
            regex += re.escape(char)
    return regex
