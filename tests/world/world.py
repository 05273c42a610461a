"""The whole world: which parts are up, and the settings under which envkit meets them."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

from tests.world import apt, base, channel, engine, miniconda, podman, processes, registry
from tests.world.places import UnavailableError, ca_bundle, cache

Part = Literal["docker", "registry", "base", "channel", "miniconda", "podman", "sandbox"]
PARTS: tuple[Part, ...] = get_args(Part)
_NEEDS: Mapping[Part, tuple[Part, ...]] = {
    "base": ("registry", "sandbox"),  # what is built on it is also run without an engine
    "miniconda": ("registry", "base", "channel"),
    "podman": ("registry",),
}
_SANDBOXES = {"bubblewrap": "bwrap", "proot": "proot"}  # packages that run images without an engine, and their programs
_USUAL_SOCKET = "unix:///var/run/docker.sock"
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class World:
    """What is up. A part that was not asked for, or cannot be had, is None; `missing` holds the reasons."""

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
        """Raise UnavailableError with the reason when one of the parts cannot be had."""
        for part in parts:
            if part in self.missing:
                raise UnavailableError(f"{part}: {self.missing[part]}")

    def env(self) -> dict[str, str]:
        """The settings of envkit, and of the engines' own clients, that make them use this world."""
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
    """Start what is missing of the parts (and of what they need) and say what there is.

    Without `keep` the processes started here end together with this one. A part that cannot be had does not stop the
    others: its reason is in `World.missing`.
    """
    wanted = set(parts).union(*(_NEEDS.get(part, ()) for part in parts))
    missing: dict[str, str] = {}

    def make(part: Part, maker: Callable[[], Made]) -> Made | None:
        if part not in wanted:
            return None
        lacking = [need for need in _NEEDS.get(part, ()) if need in missing]
        if lacking:
            missing[part] = f"needs {lacking[0]}: {missing[lacking[0]]}"
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
    """End the processes that this world started; returns their names."""
    return [name for name in (channel.NAME, registry.NAME, engine.NAME) if processes.stop(name)]


def clear() -> list[str]:
    """Remove what the engines of this world stored, and return their names; an engine that runs keeps its storage.

    Those that a test run started end with it, and get a moment for that.
    """
    deadline = time.monotonic() + processes.STOP_SECONDS
    while processes.state_of(engine.NAME) and time.monotonic() < deadline:
        time.sleep(0.1)
    storages = [podman.NAME] if processes.state_of(engine.NAME) else [podman.NAME, engine.STORAGE]
    for name in storages:
        apart = f"{cache(name)}/"
        mounted = [row.split()[1] for row in Path("/proc/mounts").read_text().splitlines()]
        for place in sorted((one for one in mounted if one.startswith(apart)), reverse=True):
            subprocess.run(["umount", place], check=False, capture_output=True)
        shutil.rmtree(cache(name), ignore_errors=True)
    return storages


def _debian_mirror(variable: str, pocket: str) -> str | None:
    """The mirror of one pocket in the host's own apt configuration, unless the setting names one."""
    if os.environ.get(variable):
        return os.environ[variable]
    try:
        return next(source.uri for source in apt.debian_sources() if source.suite.partition("-")[2] == pocket)
    except (UnavailableError, StopIteration):
        return None
