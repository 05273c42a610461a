"""The engines and runners on this machine, detected as builds and runs detect them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envkit.build.model import Probe
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.doctor.trees import items

_RUNNER_HINTS = {
    "docker": "systemctl start docker   # or: apt-get install docker.io",
    "podman": "apt-get install podman",
    "bubblewrap": "apt-get install bubblewrap",
    "proot": "apt-get install proot",
}


def section(builders: Mapping[str, Probe], runners: Mapping[str, str | None], docker: Mapping[str, Any]) -> Section:
    """Summarize the engines and runners; without a working engine, or a working runner, envkit cannot work.

    Args:
        builders: the probe of each engine.
        runners: for each runner None, or why it does not work.
        docker: the JSON object of `docker info`, empty without an engine.
    """
    facts = [(f"builds: {name}", probe.detail) for name, probe in builders.items()]
    facts += [(f"runs: {name}", reason or "works") for name, reason in runners.items()]
    return Section(
        id="engines",
        title="Engines",
        facts=tuple(facts),
        findings=(*_blocking(builders, runners), *_of_docker(docker)),
    )


def _blocking(builders: Mapping[str, Probe], runners: Mapping[str, str | None]) -> Iterator[Finding]:
    if not any(probe.available for probe in builders.values()):
        yield Finding(
            id="nothing-builds", severity=Severity.ERROR, blocks=True,
            title="no engine on this machine can build images",
            evidence=tuple(Evidence(text=f"{probe.name}: {probe.detail}") for probe in builders.values()),
            fix=tuple(dict.fromkeys(probe.hint for probe in builders.values() if probe.hint)),
        )  # fmt: skip
    if all(reason is not None for reason in runners.values()):
        yield Finding(
            id="nothing-runs", severity=Severity.ERROR, blocks=True,
            title="no runner on this machine can run an image, so no image can be verified",
            evidence=tuple(Evidence(text=f"{name}: {reason}") for name, reason in runners.items()),
            fix=tuple(_RUNNER_HINTS[name] for name in runners if name in _RUNNER_HINTS),
        )  # fmt: skip


def _of_docker(tree: Mapping[str, Any]) -> Iterator[Finding]:
    if tree.get("Driver") == "vfs":
        yield Finding(
            id="docker-vfs", severity=Severity.WARN, title="Docker stores images with vfs, a full copy for each layer",
            evidence=(Evidence(text=f"storage driver vfs in {tree.get('DockerRootDir')}"),),
            fix=("Use overlay2 on a local file system; inside containers fuse-overlayfs.",),
            sources=("https://docs.docker.com/engine/storage/drivers/vfs-driver/",),
        )  # fmt: skip
    for warning in items(tree.get("Warnings")):
        if isinstance(warning, str) and ("memory limit" in warning or "cpu" in warning.lower()):
            yield Finding(
                id="docker-limits", severity=Severity.INFO, title="Docker cannot enforce some limits here",
                evidence=(Evidence(text=warning[:300]),),
                cause="The kernel's control groups here lack the needed controller.",
            )  # fmt: skip
