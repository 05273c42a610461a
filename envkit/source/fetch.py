"""Fetch sources: an sdist by its SHA-256, or a commit of a git repository as the tar of `git archive`."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground import paths
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError, TimeLimitError
from envkit.ground.process import follow
from envkit.ground.sizes import shown_size
from envkit.ground.text import neutral
from envkit.lock.index_locations import authorization
from envkit.registry.download import fetch, from_url

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.lock.index_locations import IndexLocations
    from envkit.lock.sdists import Sdist
    from envkit.registry.transport import Transport

MOST_BYTES = 1 << 30  # of an archive; the largest sdists have a few hundred MB
_GIT_S = 900.0  # seconds for each git command
_LINES = 10  # lines of git's output in an error
# The system ends a program that writes more, and its children. The unit of `ulimit -f` is 512 bytes (POSIX).
_LIMITED = ("/bin/sh", "-c", 'ulimit -f "$0" 2>/dev/null; ulimit -c 0; exec "$@"', str(MOST_BYTES // 512))
# One pack instead of a file for each object, for the limit to count. Large files pass through, not through memory.
_OPTIONS = (
    "core.hooksPath=/dev/null",
    "http.followRedirects=false",
    "fetch.unpackLimit=1",
    "core.bigFileThreshold=16m",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The archive of a source on the disk."""

    name: str
    version: str | None  # None: known only after the build
    url: str
    commit: str | None
    path: Path  # a tar; compressed with gzip if it is an sdist
    sha256: str

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size


def sdist(source: Sdist, indexes: IndexLocations, transport: Transport, folder: Path, reporter: Reporter) -> Archive:
    """Download an sdist into a folder of files by SHA-256, and verify it.

    Raises:
        IntegrityError: it has another digest or size.
        EngineError: the index refuses, or the file is larger than 1 GiB.
        EnvironmentProblem: the index cannot be reached, or the disk is full.
        TimeLimitError: the index does not answer.
    """
    _check_size(source.name, source.size)
    url = indexes.fetch_url(source.url)
    item = from_url(
        transport,
        name=f"{source.name} {source.version}",
        url=url,
        sha256=source.sha256,
        size=source.size,
        authorization=authorization(url, indexes.python_index),
    )
    reporter.step(f"download the source of {source.name} {source.version} ({shown_size(source.size)})")
    path = fetch([item], folder, transport.policy, reporter.advance)[source.sha256]
    url = indexes.public(source.url)
    return Archive(name=source.name, version=source.version, url=url, commit=None, path=path, sha256=source.sha256)


def commit(name: str, url: str, commit: str, folder: Path, reporter: Reporter, *, ca_bundle: str | None) -> Archive:
    """Fetch one commit of a repository and write its tar into a folder.

    git checks the contents of the commit by its hash. It fetches no submodules, runs no hooks and follows no redirects.
    What it writes is limited while it is written: a repository of a few MB can unpack to thousands of times its size.

    Raises:
        EngineError: the server refuses or does not have the commit, or its packed files or its tar are larger than
            1 GiB.
        EnvironmentProblem: git is missing, or the server cannot be reached.
        TimeLimitError: a git command took longer than 15 minutes.
    """
    git = shutil.which("git")
    if git is None:
        raise EnvironmentProblem(f"git is not installed; envkit needs it to fetch {name}", hint="apt-get install git")
    reporter.step(f"fetch {name} at {commit[:12]}")
    env = _environment(ca_bundle)
    with paths.scratch() as repository:
        # No redirects: git would follow one into a private network, which `envkit.ground.addresses` forbids to servers.
        run = [*_LIMITED, git, "-C", str(repository), *(word for option in _OPTIONS for word in ("-c", option))]
        # A repository has one kind of hash: a commit of 64 digits is in one with SHA-256.
        kind = ["--object-format=sha256"] if len(commit) == 64 else []  # noqa: PLR2004
        _git([*run, "init", "--quiet", *kind], env, url, repository)
        # `--`: a URL or commit that begins with a hyphen must not become an option.
        _git([*run, "fetch", "--quiet", "--depth", "1", "--no-tags", "--", url, commit], env, url, repository)
        tar = repository / "source.tar"
        _git([*run, "archive", "--format=tar", "--prefix=source/", f"--output={tar}", commit], env, url, repository)
        _check_size(name, tar.stat().st_size)
        with tar.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        # Not a rename, because the temporary folder may be on another file system.
        shutil.move(tar, folder / sha256)
    return Archive(name=name, version=None, url=url, commit=commit, path=folder / sha256, sha256=sha256)


def same_bytes(archive: Archive, sha256: str) -> Archive:
    """Return an archive after comparing its SHA-256 with that of a lock.

    Raises:
        IntegrityError: they differ.
    """
    if archive.sha256 != sha256:
        raise IntegrityError(
            f"the tar of {archive.name} at {archive.commit} has the SHA-256 {archive.sha256}, the lock has {sha256}",
            hint="envkit lock makes a new lock with the git of this machine",
        )
    return archive


def _check_size(name: str, size: int) -> None:
    if size > MOST_BYTES:
        raise EngineError(f"the source of {name} has {size} bytes, more than 1 GiB", hint="use a wheel instead")


def _environment(ca_bundle: str | None) -> dict[str, str]:
    """Return git's environment: no prompts, only HTTP and HTTPS; logins come from the user's git configuration."""
    # GIT_DIR and others of the caller, such as a git hook, would make git use another repository.
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # Without the list of protocols, `ext::` would run a program and `file:` read this machine's files.
    variables |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:http", "GIT_LFS_SKIP_SMUDGE": "1"}
    variables |= {"LC_ALL": "C.UTF-8", "TZ": "UTC"}
    return variables | ({"GIT_SSL_CAINFO": ca_bundle} if ca_bundle else {})


def _git(argv: Sequence[str], env: dict[str, str], url: str, repository: Path) -> None:
    output: list[str] = []
    done = follow(argv, output.append, env=env, limit_s=_GIT_S)
    lines = tuple(neutral(line) for line in output if line.strip())[-_LINES:]
    if done.timed_out:
        raise TimeLimitError(f"git did not finish within {_GIT_S:.0f} s: {url}", hint=f"git ls-remote {url}")
    # git does not say that the limit ended a child of it, but the file is as large as it may be.
    if done.code != 0 and any(path.stat().st_size >= int(_LIMITED[-1]) * 512 for path in repository.rglob("*")):
        raise EngineError(f"{url} has more than 1 GiB at this commit", hint="use a wheel instead")
    if done.code != 0:
        raise EngineError(
            f"git cannot fetch {url}: {lines[-1] if lines else f'exit code {done.code}'}",
            details=lines[:-1],
            hint=f"git ls-remote {url}",
        )
