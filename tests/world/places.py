"""Where the world keeps its files, how it talks, and how it says that something cannot be had here."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class UnavailableError(Exception):
    """A part of the world cannot be had on this machine. The text is the reason a test gives for its skip."""


def cache(*parts: str) -> Path:
    """A folder below the cache folder (`ENVKIT_WORLD`, else `.world` in the checkout), created if missing."""
    folder = Path(os.environ.get("ENVKIT_WORLD") or REPOSITORY / ".world").resolve().joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(text: str) -> None:
    """Tell the person at the terminal what is being done to this machine."""
    print(f"world: {text}", file=sys.stderr, flush=True)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock file below the cache folder, so that two runs do not build the same part at once."""
    with (cache() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ca_bundle() -> Path | None:
    """The certificate bundle this machine's own clients were told to use, if any."""
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"):
        value = os.environ.get(name)
        if value and Path(value).is_file():
            return Path(value)
    return None
