"""Run the solvers as processes: with a clean environment, a time limit, and an error message if they are missing."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from envkit.ground import installation, paths
from envkit.ground.cache import REPODATA
from envkit.ground.errors import EnvironmentProblem, TimeLimitError
from envkit.ground.process import child

LIMIT_S = 900.0  # a solver may download a channel's whole index first
_GRACE_S = 1.0  # between SIGTERM and SIGKILL
_POLL_S = 0.2  # between calls of `check`
_CAUSES = ("caused by:", "cause:")

# Prefixes of variables that change the result of these programs; a lock must depend only on their arguments.
_STEERING = ("UV_", "PIP_", "PYTHON", "CONDA_", "RATTLER_", "VIRTUAL_ENV", "LC_", "LANG", "TZ", "ENVKIT_", "MAMBA_")
# Exceptions: they affect only whether a source answers (logins, cache, limits) or where the solvers are installed.
_KEPT = frozenset(
    {"PYTHONPATH", "RATTLER_AUTH_FILE", "UV_CACHE_DIR", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_KEYRING_PROVIDER"}
)


def environment(ca_bundle: str | None, more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's variables without those that change a solver's result, with fixed locale and time zone."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(_STEERING) or k in _KEPT}
    # The messages are parsed, so they need one language and no colors.
    variables |= {"LC_ALL": "C.UTF-8", "TZ": "UTC", "NO_COLOR": "1"}
    if ca_bundle:
        variables["SSL_CERT_FILE"] = ca_bundle
    return variables | dict(more)


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    what: str,
    stdin: bytes = b"",
    folder: Path | None = None,
    limit_s: float = LIMIT_S,
    check: Callable[[], object] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a solver until it ends. If this process is interrupted, the solver and its children are ended too.

    `check` is called several times a second, and its exceptions end the program. It is for threads other than the main
    one, which signals do not interrupt.

    Raises:
        EnvironmentProblem: the solver cannot be started.
        TimeLimitError: it ran longer than `limit_s`.
    """
    pipe = subprocess.PIPE
    deadline = time.monotonic() + limit_s
    with ExitStack() as stack:
        try:
            # In its own session, its children are in one process group, and Ctrl-C reaches them only through `_end`.
            file = stack.enter_context(_file_of(stdin))
            process = stack.enter_context(
                child(
                    argv,
                    end=_end,
                    stdin=file,
                    stdout=pipe,
                    stderr=pipe,
                    env=dict(env),
                    cwd=folder,
                    start_new_session=True,
                )
            )
        except OSError as error:
            raise EnvironmentProblem(
                f"{argv[0]} cannot be run: {error.strerror or error}", hint=installation.again()
            ) from error
        try:
            out, err = _wait(process, deadline, check)
        except subprocess.TimeoutExpired as error:
            raise TimeLimitError(
                f"{what} took longer than {limit_s:.0f} s", hint="envkit config shows which mirrors are set"
            ) from error
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def root_cause(lines: Sequence[str]) -> str | None:
    """Return the last cause that uv or rattler printed for an error, None without one.

    Both print one cause per line, the outermost first. The outer ones only repeat the address, which is in the caller's
    message, and name layers of the HTTP client.
    """
    causes = [line.partition(":")[2].strip() for line in map(str.strip, lines) if line.lower().startswith(_CAUSES)]
    return causes[-1] if causes else None


def no_answer(place: str, lines: tuple[str, ...], *, mirror: str) -> EnvironmentProblem:
    """Return the error for an index or a channel that a solver could not read.

    Args:
        place: its address or name.
        lines: the solver's output.
        mirror: the hint, unless its certificate is not trusted.
    """
    cause = root_cause(lines)
    untrusted = "certificate" in " ".join(lines).lower()
    why = cause or (lines[0] if lines else "")
    return EnvironmentProblem(
        f"no answer from {place}" + (f": {why}" if why else ""),
        details=() if cause else lines[1:],
        hint="ENVKIT_CA_BUNDLE=FILE.pem adds certificate authorities" if untrusted else mirror,
    )


@contextmanager
def _file_of(data: bytes) -> Iterator[IO[bytes]]:
    """Return a file for a program's stdin: `communicate` cannot continue writing to a pipe after a timeout."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        yield file


def _wait(process: subprocess.Popen[bytes], deadline: float, check: Callable[[], object] | None) -> tuple[bytes, bytes]:
    while True:
        left = deadline - time.monotonic()
        try:
            return process.communicate(timeout=left if check is None else min(left, _POLL_S))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
        if check is not None:
            check()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and its process group: with SIGTERM, so that it can remove its unfinished files, then SIGKILL."""
    for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        # SIGKILL is sent even if the program has ended: its children may still run in its process group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)


@contextmanager
def repodata_folder() -> Iterator[Path]:
    """Yield a folder for the conda solver's downloads: in the cache, or a temporary one if that is not writable."""
    folder = REPODATA.at(paths.cache_dir())
    # An error, such as a read-only home, shows in os.access below.
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        yield folder
        return
    with paths.scratch() as temporary:
        yield temporary
