"""GPU access from containers: the container toolkit, and CDI specifications that match the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.doctor.trees import items, mapping
from envkit.ground.nvidia import parse_module

_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_DOCS = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"
_GENERATE = "As root: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
# libcuda.so.550.54.15, but not the link libcuda.so.1.
_LIBCUDA = re.compile(r"libcuda\.so\.(\d{3}\.[\d.]{1,12})")
# NVIDIA Container Toolkit CLI version 1.17.4
_TOOLKIT = re.compile(r"version:? v?(\d+\.\d+\.\d+\S*)")
_BROKEN_LABEL = "1.19.1"


def section(view: View, docker: Mapping[str, Any]) -> Section:
    """Check the toolkit and the CDI specifications; without a driver, nothing is reported as missing.

    `docker` is the JSON object of `docker info`, empty without an engine.
    """
    driver = parse_module(view.text("/proc/driver/nvidia/version"))
    needed = driver is not None or view.exists("/dev/dxg")  # the latter is WSL's GPU device
    answer = view.ask(["nvidia-ctk", "--version"])
    match = _TOOLKIT.search(answer.out) if answer is not None else None
    toolkit = match.group(1) if match else ("present" if answer is not None else "none")
    specs = [f"{folder}/{name}" for folder in _FOLDERS for name in view.names(folder) if "nvidia" in name]
    facts = (("container toolkit", toolkit), ("CDI specifications", ", ".join(specs) or "none"))
    findings = [*_of_toolkit(toolkit, needed=needed), *_of_docker(docker, toolkit, specs, needed=needed)]
    findings += [*_of_specs(view, specs, driver, needed=needed)]
    return Section(id="wiring", title="GPUs in containers", facts=facts, findings=tuple(findings))


def _of_toolkit(toolkit: str, *, needed: bool) -> Iterator[Finding]:
    if needed and toolkit == "none":
        yield Finding(
            id="no-container-toolkit", severity=Severity.WARN,
            title="nvidia-container-toolkit is not installed, so Docker cannot give GPUs to containers",
            check=("docker info --format '{{.Runtimes}}'",),
            fix=("apt-get install nvidia-container-toolkit, then nvidia-ctk runtime configure --runtime=docker",),
            distinguish="envkit's own runner (bubblewrap) needs no toolkit.",
            sources=("https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",),
        )  # fmt: skip
    if toolkit == _BROKEN_LABEL:
        yield Finding(
            id="toolkit-label-bug", severity=Severity.WARN,
            title="this container toolkit wrongly rejects images that require cuda>=13.3",
            evidence=(Evidence(text=f"nvidia-container-toolkit {toolkit}"),),
            fix=("Update it to 1.20.",), sources=("NVIDIA/nvidia-container-toolkit#152",),
        )  # fmt: skip


def _of_docker(docker: Mapping[str, Any], toolkit: str, specs: list[str], *, needed: bool) -> Iterator[Finding]:
    if not needed or not docker or toolkit == "none":
        return
    # The list is empty if CDI is off in Docker.
    by_cdi = bool(specs and items(docker.get("CDISpecDirs")))
    if "nvidia" not in mapping(docker.get("Runtimes")) and not by_cdi:
        yield Finding(
            id="docker-without-nvidia", severity=Severity.WARN,
            title="Docker is not configured for the container toolkit",
            evidence=(Evidence(text=f"runtimes: {', '.join(mapping(docker.get('Runtimes'))) or 'none'}; no CDI"),),
            cause="docker run --gpus therefore finds no device driver.",
            fix=("nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",),
            sources=("https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",),
        )  # fmt: skip


def _of_specs(view: View, specs: list[str], driver: str | None, *, needed: bool) -> Iterator[Finding]:
    if needed and not specs:
        yield Finding(
            id="no-cdi", severity=Severity.INFO, title="there is no CDI specification of the GPUs",
            cause="podman, and Docker with --device nvidia.com/gpu=all, need one.",
            fix=(_GENERATE,), sources=(_DOCS,),
        )  # fmt: skip
    for spec in specs:
        versions = sorted(set(_LIBCUDA.findall(view.text(spec))))
        if driver and versions and driver not in [version.rstrip(".") for version in versions]:
            yield Finding(
                id="stale-cdi", severity=Severity.ERROR, title="a CDI specification is for another driver version",
                evidence=(Evidence(text=f"{spec} lists libcuda.so.{versions[0]}; the driver is {driver}"),),
                cause=(
                    "The driver was updated after the specification was generated, so the listed files "
                    "no longer exist."
                ),
                fix=(_GENERATE,), sources=(_DOCS,),
            )  # fmt: skip
    if not needed and specs:
        yield Finding(
            id="cdi-without-driver", severity=Severity.WARN,
            title="this machine has a CDI specification but no driver",
            evidence=tuple(Evidence(text=spec) for spec in specs),
            fix=("Load the driver, or remove the specification.",), sources=(_DOCS,),
        )  # fmt: skip
