"""What a worker of a cluster tells of itself; it runs there."""

from __future__ import annotations

import os
import socket
from typing import TypedDict

from envkit import __version__
from envkit.ground.paths import cache_dir


class Facts(TypedDict):
    """Plain values: what is asked may be of another version."""

    envkit: str
    host: str
    pid: int
    cache: str  # 'host:/path'


def facts() -> Facts:
    """This process's version, host name, process id and cache folder."""
    host = socket.gethostname()
    return {"envkit": __version__, "host": host, "pid": os.getpid(), "cache": f"{host}:{cache_dir()}"}
