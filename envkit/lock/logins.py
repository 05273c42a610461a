"""Logins for files: that of the index URL, or that of ~/.netrc for the host. None is written to a lock."""

from __future__ import annotations

import base64
import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

from envkit.lock.places import login_of


def authorization(url: str, index: str | None) -> str | None:
    """The Authorization header for a file, None where nobody asks for a login.

    Args:
        url: the file, without a login.
        index: the index it was found in, whose login goes to its own host and to no other.
    """
    host = urlsplit(url).hostname or ""
    login = login_of(index) if index and urlsplit(index).hostname == host else None
    login = login or _netrc(host)
    return "Basic " + base64.b64encode(":".join(login).encode()).decode() if login else None


def _netrc(host: str) -> tuple[str, str] | None:
    path = Path(os.environ.get("NETRC") or Path(os.environ.get("HOME") or "/") / ".netrc")
    try:
        found = netrc.netrc(path).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0], found[2]) if found else None
