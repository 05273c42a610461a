"""A session as a service of Docker Compose or podman-compose."""

from __future__ import annotations

import re

from envkit.render.texts import text_of
from envkit.run.command_line import TMP, ULIMITS
from envkit.run.session import Session

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def service(session: Session, engine: str) -> str:
    """Return the text of a compose file with one service.

    Args:
        session: what is run.
        engine: whose image it is: 'docker' or 'podman'.
    """
    image = session.image.removeprefix("sha256:") if engine == "podman" else session.image
    values = {
        "name": _name(session.image),
        "image": _plain(image),
        "command": [_plain(word) for word in session.argv],
        "user": session.user,
        "init": not session.has_init,
        "terminal": session.terminal,
        "tmpfs": TMP,
        "shm_mb": session.shm_mb,
        "ulimits": dict(ULIMITS),
        "network": None if session.network == "default" else session.network,
        "ports": [str(port) for port in session.ports] if session.network == "default" else [],
        "volumes": [
            {"source": _plain(str(one.source)), "target": _plain(one.target), "read_only": one.read_only}
            for one in session.mounts
        ],
        "env": [[key, _plain(value)] for key, value in session.env],
        "gpus": session.gpus,
    }
    return text_of("export/compose.yaml.j2", values, ()).rstrip("\n")


def _plain(text: str) -> str:
    """A text in which Compose replaces nothing."""
    return text.replace("$", "$$")


def _name(image: str) -> str:
    """A service's name: that of the image without registry and tag."""
    last = image.rpartition("/")[2].partition("@")[0].partition(":")[0].lower()
    return last if _NAME.fullmatch(last) and last != "sha256" else "envkit"
