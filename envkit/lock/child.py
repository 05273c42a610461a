"""The two solvers' processes: a clean environment for each, one time limit, and no trace when they are missing."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from envkit.errors import SurroundingsError, TimeLimitError

LIMIT_S = 900.0

# What steers these programs besides their arguments; the answer must not depend on it.
_STEERING = ("UV_", "PIP_", "PYTHON", "CONDA_", "RATTLER_", "VIRTUAL_ENV", "LC_", "LANG", "TZ", "ENVKIT_", "MAMBA_")
_KEPT = frozenset(
    {"PYTHONPATH", "RATTLER_AUTH_FILE", "UV_CACHE_DIR", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_KEYRING_PROVIDER"}
)


def environment(ca_bundle: str | None, more: Mapping[str, str]) -> dict[str, str]:
    """This process's variables without those that steer a solver, with fixed locale and time zone."""
    found = {k: v for k, v in os.environ.items() if not k.startswith(_STEERING) or k in _KEPT}
    found |= {"LC_ALL": "C.UTF-8", "TZ": "UTC", "NO_COLOR": "1"}
    if ca_bundle:
        found["SSL_CERT_FILE"] = ca_bundle
    return found | dict(more)


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    what: str,
    stdin: bytes = b"",
    folder: Path | None = None,
    limit_s: float = LIMIT_S,
) -> subprocess.CompletedProcess[bytes]:
    """Run a solver to its end; whatever interrupts this process ends the solver, too.

    Raises:
        SurroundingsError: it cannot be started.
        TimeLimitError: it ran longer than `limit_s`.
    """
    try:
        return subprocess.run(  # noqa: S603 - a list of arguments, no shell
            list(argv), input=stdin, capture_output=True, env=dict(env), cwd=folder, timeout=limit_s, check=False
        )
    except OSError as error:
        raise SurroundingsError(
            f"{argv[0]} cannot be run: {error.strerror or error}", hint="pip install envkit"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise TimeLimitError(
            f"{what} took longer than {limit_s:.0f} s", hint="envkit config shows which mirrors are set"
        ) from error


@contextmanager
def cache_folder(name: str) -> Iterator[Path]:
    """A folder for what a solver downloads, below XDG_CACHE_HOME/envkit; a passing one where that cannot be written."""
    base, home = os.environ.get("XDG_CACHE_HOME") or "", os.environ.get("HOME")
    root = Path(base) if Path(base).is_absolute() else Path(home) / ".cache" if home else None
    folder = root / "envkit" / name if root else None
    if folder is not None:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            yield folder
            return
    with tempfile.TemporaryDirectory(prefix="envkit-") as passing:
        yield Path(passing)
