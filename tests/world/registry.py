"""A registry on loopback: Debian's `docker-registry` with storage below the cache folder."""

import http.client
import json
import secrets
from pathlib import Path

from tests.world import apt, processes
from tests.world.places import cache

NAME = "registry"
PREFERRED_PORT = 5000


def up(*, keep: bool) -> str:
    """Start the registry if it does not run and return its `host:port`; raises UnavailableError."""
    running = processes.state_of(NAME)
    if running and _answers(running["port"]):
        return f"127.0.0.1:{running['port']}"
    command = apt.require("docker-registry", "docker-registry")
    port = processes.free_port(PREFERRED_PORT)
    configuration = _configure(cache("registry"), port)
    processes.start(NAME, [command, "serve", str(configuration)], port=port, keep=keep, answers=lambda: _answers(port))
    return f"127.0.0.1:{port}"


def _configure(folder: Path, port: int) -> Path:
    """Write the configuration as JSON, which is valid YAML and quotes any path."""
    settings = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": secrets.token_hex(16)},
    }
    path = folder / "config.yml"
    path.write_text(json.dumps(settings, indent=1))
    return path


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
