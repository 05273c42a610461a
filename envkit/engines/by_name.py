"""Container engines by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envkit.engines.model import Engine


def _docker(docker_cli: str) -> Engine:
    from envkit.engines.docker import DockerEngine  # noqa: PLC0415 - the SDK takes 0.2 s to import

    del docker_cli
    return DockerEngine()


def _buildkit(docker_cli: str) -> Engine:
    from envkit.engines.buildkit import BuildKitEngine  # noqa: PLC0415

    return BuildKitEngine(client=docker_cli)


def _podman(docker_cli: str) -> Engine:
    from envkit.engines.podman import PodmanEngine  # noqa: PLC0415

    del docker_cli
    return PodmanEngine()


# In the order in which `auto` tries them.
ENGINES: Mapping[str, Callable[[str], Engine]] = {"docker": _docker, "buildkit": _buildkit, "podman": _podman}
