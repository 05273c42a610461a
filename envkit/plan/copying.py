"""Copy files of a project into an image: which files, to which paths, and their digest in the plan.

The contents of copied files are part of the image, so the plan has their digest; the files are read again when the
image is built. Modes are 0644 or 0755, the owner is root and dates are not copied, so equal contents give equal images.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from envkit.ground import foreign, imagepaths
from envkit.ground.errors import UsageError, shown
from envkit.ground.sizes import shown_size
from envkit.plan import names
from envkit.plan.ignoring import IGNORE_FILES, Ignore
from envkit.plan.model import BuildPlan, Copied

LOCK_FILE = "envkit.lock"
LIMIT_BYTES = 200 << 20  # enough for the sources of a project; data belongs in a mount
_LIMIT_FILES = 20_000  # each file is hashed for the plan
_LIMIT_SEEN = 1_000_000  # files and folders to look at, ignored ones too
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
    sha256: str
    data: bytes  # empty in a file that was only hashed


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


class Limits:
    """What the copied files of one image may have together, and what may be looked at to find them."""

    def __init__(self) -> None:
        """Begin with everything left."""
        self.bytes = foreign.Budget(LIMIT_BYTES, f"{shown_size(LIMIT_BYTES, 'MiB')} of copied files")
        self.files = foreign.Budget(_LIMIT_FILES, f"{_LIMIT_FILES} copied files")
        self.seen = foreign.Budget(_LIMIT_SEEN, f"{_LIMIT_SEEN} files and folders")


def planned(pairs: Iterable[tuple[str, str]], *, workdir: str, folder: Path, where: str) -> tuple[Copied, ...]:
    """Return the pairs of `copy` for a plan: absolute targets and the digests of the files as they are now.

    Args:
        pairs: `from`, relative to the folder, and `to`.
        workdir: the working folder, to which `to` may be relative.
        folder: the definition's folder.
        where: the definition, for errors.

    Raises:
        UsageError: as `files_of`.
    """
    limits, ignore = Limits(), Ignore.of(folder)
    copied = []
    for source, target in pairs:
        pair = _absolute(source, target, workdir, folder, where)
        copied.append(replace(pair, digest=_digest(list(_read(pair, folder, where, limits, ignore)))))
    return tuple(copied)


def _absolute(source: str, target: str, workdir: str, folder: Path, where: str) -> Copied:
    below = target if target.startswith("/") else f"{workdir}/{target}"
    final = str(PurePosixPath(below))
    is_file = foreign.is_file(folder / source)
    if target.endswith("/") and is_file:
        final = f"{final}/{PurePosixPath(source).name}"
    if final == workdir and is_file:
        raise UsageError(
            f"{where}: copy: {source} is a file, and {final} is the working folder",
            hint=f"to: {final}/{PurePosixPath(source).name}",
        )
    return Copied(source=source, target=final, is_file=is_file, digest="")


def check_files(plan: BuildPlan) -> None:
    """Check the files of a plan's `copy` as `files_of`, without keeping their contents.

    Raises:
        UsageError: as `files_of`.
    """
    _files(plan, keep=False)


def files_of(plan: BuildPlan) -> tuple[tuple[ProjectFile, ...], ...]:
    """Return the files of each pair of a plan's `copy`, sorted by target. Together they have at most `LIMIT_BYTES`.

    Raises:
        UsageError: a file is missing, unreadable or a secret, or the files have changed since the plan was made.
    """
    return _files(plan, keep=True)


def _files(plan: BuildPlan, *, keep: bool) -> tuple[tuple[ProjectFile, ...], ...]:
    folder, limits = Path(plan.folder), Limits()
    ignore = Ignore.of(folder) if plan.copy else Ignore()
    groups = []
    for copied in plan.copy:
        files = tuple(_read(copied, folder, plan.name, limits, ignore, keep=keep))
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
    lines = [f"{file.sha256} {int(file.executable)} {file.target}\n" for file in files]
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def _read(
    copied: Copied, folder: Path, where: str, limits: Limits, ignore: Ignore, *, keep: bool = False
) -> Iterator[ProjectFile]:
    """Yield the files of one pair, sorted by target.

    Raises:
        UsageError: there are none, or one is missing, unreadable, a secret, or a link out of the folder.
    """
    start, root = folder / copied.source, Path(os.path.realpath(folder))
    if not foreign.exists(start):
        raise UsageError(f"{where}: copy: {start} does not exist", hint="change `from`, or create the file")
    # Before anything below it is listed: it may be a link to the root of the file system.
    if not _real(start).is_relative_to(root):
        raise _outside(start, folder, where, ignore)
    paths = sorted(_walk(start, folder, where, limits, ignore)) if foreign.is_folder(start) else [start]
    if not paths:
        raise UsageError(
            f"{where}: copy: {start} is empty, or all of its files are ignored",
            hint=f"check {ignore.name or 'the files of the folder'}",
        )
    secrets = [path.relative_to(folder).as_posix() for path in paths if _looks_secret(path, folder, root)]
    files: list[ProjectFile] = []
    for path in paths:
        relative = path.relative_to(folder).as_posix()
        if not _real(path).is_relative_to(root) or not foreign.is_file(path):
            raise _outside(path, folder, where, ignore)
        below = path.relative_to(start).as_posix()
        target = (copied.target if below == "." else f"{copied.target}/{below}").strip("/")
        if fault := imagepaths.fault(target):
            raise UsageError(f"{where}: copy: {fault}", hint=f"add `{relative}` to {ignore.name or IGNORE_FILES[0]}")
        is_pem = ".pem" in (path.suffix, _real(path).suffix)
        file = _hashed(path, target, folder, where, limits, keep=keep or is_pem)
        if is_pem and _PRIVATE_KEY in file.data:
            secrets.append(relative)
        files.append(file if keep else replace(file, data=b""))
    if secrets:
        raise UsageError(
            f"{where}: copy: {secrets[0]} looks like a secret, and everyone with the image can read its files",
            details=shown([f"{name} looks like a secret" for name in secrets[1:]]),
            hint=f"add `{secrets[0]}` to {ignore.name or IGNORE_FILES[0]}, and mount it when the container runs",
        )
    yield from sorted(files, key=lambda file: file.target)


def _hashed(path: Path, target: str, folder: Path, where: str, limits: Limits, *, keep: bool) -> ProjectFile:
    digest, kept = hashlib.sha256(), []
    hint = f"add data and results to {IGNORE_FILES[0]}, and mount them when the container runs"
    limits.files.spend(1, f"{where}: copy: {path}", hint=hint)
    try:
        with foreign.opened(path, root=folder) as file:
            # Before the file is read, and then what it really has: it may grow.
            limits.bytes.check(file.status.st_size, f"{where}: copy: {path}", hint=hint)
            # The owner's bit: those of group and others depend on the umask of the checkout.
            executable = bool(file.status.st_mode & 0o100)
            for part in file.chunks(LIMIT_BYTES + 1):
                limits.bytes.spend(len(part), f"{where}: copy: {path}", hint=hint)
                digest.update(part)
                if keep:
                    kept.append(part)
    except OSError as error:
        raise UsageError(f"{where}: copy: {path}: {error.strerror}", hint=f"ls -l {path}") from error
    return ProjectFile(
        source=path, target=target, executable=executable, sha256=digest.hexdigest(), data=b"".join(kept)
    )


def _outside(path: Path, folder: Path, where: str, ignore: Ignore) -> UsageError:
    return UsageError(
        f"{where}: copy: {path} is a link out of the folder, or not a regular file",
        hint=f"add `{path.relative_to(folder).as_posix()}` to {ignore.name or IGNORE_FILES[0]}",
    )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve() fails for a link to itself


def _walk(start: Path, folder: Path, where: str, limits: Limits, ignore: Ignore) -> Iterator[Path]:
    for parent, folders, files in os.walk(start):
        here = Path(parent)
        limits.seen.spend(
            len(folders) + len(files),
            f"{where}: copy: {here}",
            hint="copy a folder with fewer files, or name its parts",
        )
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


def _looks_secret(path: Path, folder: Path, root: Path) -> bool:
    """Return whether a file's name is that of a secret, or the name that a link on the way to it leads to."""
    real = _real(path)
    return is_secret(path.relative_to(folder)) or (real.is_relative_to(root) and is_secret(real.relative_to(root)))


def is_secret(path: Path) -> bool:
    """Return whether a relative path is that of a file that usually contains a secret."""
    name = path.name.lower()
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _EXAMPLES):
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRETS) or not _SECRET_FOLDERS.isdisjoint(path.parts)
