"""Where the artifacts of a lock are downloaded from, and their public address in the lock."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from envkit.lock.model import CONDA_PUBLIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The sources of one run: public ones, or the mirrors of the settings. None of this reaches a lock."""

    conda_alias: str = CONDA_PUBLIC  # URL; conda-forge is <alias>/conda-forge
    torch_index: str | None = None  # simple index of the torch family; None = the Python index
    torch_public: str | None = None  # the public URL of the same index
    python_index: str | None = None  # None = what the client's own configuration names
    debian_mirror: str | None = None  # None = the host's own apt configuration
    ca_bundle: str | None = None  # PEM file

    def public(self, url: str) -> str:
        """An address as the lock holds it: without login and query, at the public host where that is known."""
        clean = without_login(url)
        for mirror, public in self._pairs():
            if clean.startswith(f"{mirror}/"):
                return public + clean.removeprefix(mirror)
        return clean

    def fetch_url(self, url: str) -> str:
        """Where to fetch what the lock names by `url`."""
        for mirror, public in self._pairs(logins=True):
            if url.startswith(f"{public}/"):
                return mirror + url.removeprefix(public)
        return url

    def _pairs(self, *, logins: bool = False) -> list[tuple[str, str]]:
        found = [(self.conda_alias, CONDA_PUBLIC)]
        if self.torch_index and self.torch_public:
            # Indexes of all CUDA versions share one folder, and their pages point into one another.
            found.append((_above(self.torch_index), _above(self.torch_public)))
        return [
            ((mirror if logins else without_login(mirror)).rstrip("/"), public.rstrip("/")) for mirror, public in found
        ]


def without_login(url: str) -> str:
    """A URL without login, query and fragment: whatever in it may be a credential, it is gone."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def login_of(url: str) -> tuple[str, str] | None:
    """User and password of a URL."""
    parts = urlsplit(url)
    return (unquote(parts.username), unquote(parts.password or "")) if parts.username else None


def _above(index: str) -> str:
    return index.rstrip("/").rpartition("/")[0]
