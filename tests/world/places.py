"""The world's folders and locks, its messages, and the error for parts that are unavailable."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class UnavailableError(Exception):
    """A part of the world is unavailable on this machine. The text is the reason in the test's skip."""


def cache(*parts: str) -> Path:
    """Return a folder below the cache folder (`ENVKIT_WORLD`, else `.world` in the checkout), created if missing."""
    folder = Path(os.environ.get("ENVKIT_WORLD") or REPOSITORY / ".world").resolve().joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(text: str) -> None:
    """Report on stderr what is being done to this machine."""
    print(f"world: {text}", file=sys.stderr, flush=True)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock file below the cache folder, so that two runs do not build the same part at the same time."""
    with (cache() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ca_bundle() -> Path | None:
    """Return the certificate bundle that this machine's clients use, if one is set."""
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"):
        value = os.environ.get(name)
        if value and Path(value).is_file():
            return Path(value)
    return None
