"""Start the world's parts, and give the settings with which envkit uses them."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

from tests.scratch import storage
from tests.world import apt, base, channel, engine, miniconda, podman, processes, registry
from tests.world.places import UnavailableError, ca_bundle, cache

Part = Literal["docker", "registry", "base", "channel", "miniconda", "podman", "sandbox"]
PARTS: tuple[Part, ...] = get_args(Part)
_NEEDS: Mapping[Part, tuple[Part, ...]] = {
    "base": ("registry", "sandbox"),  # images that are built on it are also run without an engine
    "miniconda": ("registry", "base", "channel"),
    "podman": ("registry",),
}
_SANDBOXES = {"bubblewrap": "bwrap", "proot": "proot"}  # packages that run images without an engine, and their programs
_USUAL_SOCKET = "unix:///var/run/docker.sock"
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class World:
    """The running parts. A part that was not requested or is unavailable is None; `missing` has the reasons."""

    docker_host: str | None = None
    docker_client: str | None = None
    registry: str | None = None
    base: str | None = None
    channel_alias: str | None = None
    miniconda: str | None = None
    debian_mirror: str | None = None
    debian_security_mirror: str | None = None
    ca_bundle: str | None = None
    podman_env: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def require(self, *parts: Part) -> None:
        """Raise UnavailableError with the reason if one of the parts is unavailable."""
        for part in parts:
            if part in self.missing:
                raise UnavailableError(f"{part}: {self.missing[part]}")

    def env(self) -> dict[str, str]:
        """Return the settings with which envkit and the engines' clients use this world."""
        alias = self.channel_alias
        settings = {
            "DOCKER_HOST": None if self.docker_host == _USUAL_SOCKET else self.docker_host,
            "ENVKIT_DOCKER_CLI": self.docker_client,
            "ENVKIT_REGISTRY": self.registry,
            "ENVKIT_MINICONDA_IMAGE": self.miniconda,
            "ENVKIT_CONDA_CHANNEL_ALIAS": alias,
            "ENVKIT_PYTORCH_INDEX": f"{alias}/whl" if alias else None,
            "ENVKIT_DEBIAN_MIRROR": self.debian_mirror,
            "ENVKIT_DEBIAN_SECURITY_MIRROR": self.debian_security_mirror,
            "ENVKIT_CA_BUNDLE": self.ca_bundle,
            "ENVKIT_BUILD_NETWORK": "host",  # registry, channel and index are on this host's loopback
            **self.podman_env,
        }
        return {name: value for name, value in settings.items() if value is not None}


def up(parts: Collection[Part] = PARTS, *, keep: bool = False) -> World:
    """Start the parts, and the parts that they need, and return the running world.

    Without `keep`, the processes started here end together with this one. A part that is unavailable does not stop the
    others; the reason is in `World.missing`.
    """
    wanted = set(parts).union(*(_NEEDS.get(part, ()) for part in parts))
    missing: dict[str, str] = {}

    def make(part: Part, maker: Callable[[], Made]) -> Made | None:
        if part not in wanted:
            return None
        unmet = [need for need in _NEEDS.get(part, ()) if need in missing]
        if unmet:
            missing[part] = f"needs {unmet[0]}: {missing[unmet[0]]}"
            return None
        try:
            return maker()
        except UnavailableError as error:
            missing[part] = str(error)
            return None

    make("sandbox", lambda: [apt.require(program, package) for package, program in _SANDBOXES.items()])
    docker = make("docker", lambda: engine.ensure_docker(keep=keep))
    address = make("registry", lambda: registry.up(keep=keep)) or ""
    bundle = ca_bundle()
    return World(
        docker_host=docker.host if docker else None,
        docker_client=docker.client if docker else None,
        registry=address or None,
        base=make("base", lambda: base.up(address)),
        channel_alias=make("channel", lambda: channel.up(keep=keep)),
        miniconda=make("miniconda", lambda: miniconda.up(address, channel.packed())),
        debian_mirror=_debian_mirror("ENVKIT_DEBIAN_MIRROR", ""),
        debian_security_mirror=_debian_mirror("ENVKIT_DEBIAN_SECURITY_MIRROR", "security"),
        ca_bundle=str(bundle) if bundle else None,
        podman_env=make("podman", lambda: podman.ensure_podman(address)) or {},
        missing=missing,
    )


def down() -> list[str]:
    """Stop the processes that this world started and return their names."""
    return [name for name in (channel.NAME, registry.NAME, engine.NAME) if processes.stop(name)]


def clear() -> list[str]:
    """Remove the storage of this world's engines, except of those that run, and return their names.

    Engines that a test run started end with it, and get a moment to do so.
    """
    deadline = time.monotonic() + processes.STOP_SECONDS
    while processes.state_of(engine.NAME) and time.monotonic() < deadline:
        time.sleep(0.1)
    storages = [podman.NAME] if processes.state_of(engine.NAME) else [podman.NAME, engine.STORAGE]
    for path in {path for name in storages for path in (storage(name), cache(name))}:
        folder = f"{path}/"
        mounts = [row.split()[1] for row in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((path for path in mounts if path.startswith(folder)), reverse=True):
            subprocess.run(["umount", mount], check=False, capture_output=True)
        shutil.rmtree(path, ignore_errors=True)
    return storages


def _debian_mirror(variable: str, pocket: str) -> str | None:
    """Return the mirror of one pocket from the setting, else from the host's apt configuration."""
    if os.environ.get(variable):
        return os.environ[variable]
    try:
        return next(source.uri for source in apt.debian_sources() if source.suite.partition("-")[2] == pocket)
    except (UnavailableError, StopIteration):
        return None
