"""Run the two solvers as processes: with a clean environment, one time limit, and no traceback if they are missing."""

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

from envkit.ground import paths
from envkit.ground.errors import EnvironmentProblem, TimeLimitError
from envkit.ground.process import child

LIMIT_S = 900.0  # a solver may download a channel's whole index first
_GRACE_S = 1.0  # between the word and the force
_GLANCE_S = 0.2  # how soon an interruption is noticed
_CAUSES = ("caused by:", "cause:")

# What steers these programs besides their arguments; the answer must not depend on it.
_STEERING = ("UV_", "PIP_", "PYTHON", "CONDA_", "RATTLER_", "VIRTUAL_ENV", "LC_", "LANG", "TZ", "ENVKIT_", "MAMBA_")
# These decide whether a source answers (logins, cache, patience) or where the solvers are installed, not what they
# choose.
_KEPT = frozenset(
    {"PYTHONPATH", "RATTLER_AUTH_FILE", "UV_CACHE_DIR", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_KEYRING_PROVIDER"}
)


def environment(ca_bundle: str | None, more: Mapping[str, str]) -> dict[str, str]:
    """This process's variables without those that steer a solver, with fixed locale and time zone."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(_STEERING) or k in _KEPT}
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
    """Run a solver to its end; whatever interrupts this process ends the solver and what it started, too.

    `check` is called several times a second where it is given; what it raises ends the program. Threads that no
    signal reaches need it.

    Raises:
        EnvironmentProblem: it cannot be started.
        TimeLimitError: it ran longer than `limit_s`.
    """
    pipe = subprocess.PIPE
    deadline = time.monotonic() + limit_s
    with ExitStack() as stack:
        try:
            # In a session of its own: what it starts belongs to one group, and a Ctrl-C reaches it through here alone.
            asked = stack.enter_context(_file_of(stdin))
            process = stack.enter_context(
                child(
                    argv,
                    end=_end,
                    stdin=asked,
                    stdout=pipe,
                    stderr=pipe,
                    env=dict(env),
                    cwd=folder,
                    start_new_session=True,
                )
            )
        except OSError as error:
            raise EnvironmentProblem(
                f"{argv[0]} cannot be run: {error.strerror or error}", hint="pip install envkit"
            ) from error
        try:
            out, err = _wait(process, deadline, check)
        except subprocess.TimeoutExpired as error:
            raise TimeLimitError(
                f"{what} took longer than {limit_s:.0f} s", hint="envkit config shows which mirrors are set"
            ) from error
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def root_cause(lines: Sequence[str]) -> str | None:
    """Return the last cause of an error of uv or rattler, None where it names none.

    Both print the causes one below the other, the outermost first. The outer ones repeat an address that the caller's
    message has, and name layers of the HTTP client.
    """
    causes = [line.partition(":")[2].strip() for line in map(str.strip, lines) if line.lower().startswith(_CAUSES)]
    return causes[-1] if causes else None


def no_answer(place: str, lines: tuple[str, ...], *, mirror: str) -> EnvironmentProblem:
    """The error of an index or a channel that a solver could not read.

    Args:
        place: its address or name.
        lines: what the solver printed.
        mirror: the hint, unless the certificate is what is not trusted.
    """
    cause = root_cause(lines)
    untrusted = "certificate" in " ".join(lines).lower()
    said = cause or (lines[0] if lines else "")
    return EnvironmentProblem(
        f"no answer from {place}" + (f": {said}" if said else ""),
        details=() if cause else lines[1:],
        hint="ENVKIT_CA_BUNDLE=FILE.pem adds certificate authorities" if untrusted else mirror,
    )


@contextmanager
def _file_of(data: bytes) -> Iterator[IO[bytes]]:
    """What a program reads: a file, because a wait that is cut into pieces cannot feed a pipe meanwhile."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        yield file


def _wait(process: subprocess.Popen[bytes], deadline: float, check: Callable[[], object] | None) -> tuple[bytes, bytes]:
    while True:
        left = deadline - time.monotonic()
        try:
            return process.communicate(timeout=left if check is None else min(left, _GLANCE_S))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
        if check is not None:
            check()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and its group: a word first, so that it can remove what it is writing, then by force."""
    for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)


@contextmanager
def cache_folder(name: str) -> Iterator[Path]:
    """A folder for what a solver downloads, below the cache folder; a passing one where that cannot be written."""
    folder = paths.cache_dir() / name
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        yield folder
        return
    with paths.scratch() as passing:
        yield passing
