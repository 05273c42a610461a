"""Free space and write permission where envkit and the engines keep their data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.ground.sizes import shown_size

GB = 1_000_000_000
NEEDED = {"state": 1 * GB, "cache": 2 * GB}
"""Free bytes that envkit's own folders need at least."""
LITTLE = 20 * GB
"""Bytes that building one CUDA image needs for downloads, layers and unpacked files."""
_FEW_INODES = 100_000  # about the number of files of one conda environment


def section(folders: Mapping[str, Path]) -> Section:
    """Check folders by name; `state` and `cache` are envkit's own, the others belong to engines and the system."""
    facts: list[tuple[str, str]] = []
    findings: list[Finding] = []
    for name, path in folders.items():
        # A folder that does not exist yet will be created below its nearest existing parent.
        existing = next((folder for folder in (path, *path.parents) if _exists(folder)), Path("/"))
        try:
            volume = os.statvfs(existing)
        except OSError as error:
            facts.append((name, f"{path}: {error.strerror}"))
            continue
        free = volume.f_bavail * volume.f_frsize
        facts.append((name, f"{path}, {shown_size(free, 'GB', 1)} free"))
        findings += _of_space(name, path, free)
        # File systems that create inodes on demand (btrfs) report a total of 0.
        if volume.f_files and volume.f_favail < _FEW_INODES:
            findings.append(_few_inodes(name, path, volume.f_favail))
        if name in NEEDED and not os.access(existing, os.W_OK | os.X_OK):
            findings.append(_not_writable(name, path))
    return Section(id="disks", title="Disks", facts=tuple(facts), findings=tuple(findings))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _of_space(name: str, path: Path, free: int) -> Iterator[Finding]:
    evidence = (Evidence(text=f"{path}: {shown_size(free, 'GB', 1)} free"),)
    if free < NEEDED.get(name, 0):
        variable = {"state": "XDG_STATE_HOME", "cache": "XDG_CACHE_HOME"}[name]
        yield Finding(
            id=f"{name}-disk-full", severity=Severity.ERROR, blocks=True,
            title=f"the disk with envkit's {name} folder is full",
            evidence=evidence, fix=(f"Free disk space, or set {variable} to a folder on another disk.",),
        )  # fmt: skip
    elif free < LITTLE:
        yield Finding(
            id="little-disk", severity=Severity.WARN,
            title=f"not much space for {name}: a CUDA image needs about 20 GB",
            evidence=evidence, check=("df -h; docker system df",),
            fix=("docker builder prune; remove old images and, on hosted runners, the preinstalled toolchains",),
            sources=("actions/runner-images#10237",),
        )  # fmt: skip


def _few_inodes(name: str, path: Path, left: int) -> Finding:
    return Finding(
        id="few-inodes", severity=Severity.WARN, title=f"the file system for {name} has few free inodes",
        evidence=(Evidence(text=f"{path}: {left} inodes free"),),
        cause="A conda environment has about 100,000 files; without free inodes the disk reports that it is full.",
        check=("df -i",),
        fix=("Remove package caches: conda clean --all, pip cache purge",),
    )  # fmt: skip


def _not_writable(name: str, path: Path) -> Finding:
    return Finding(
        id=f"{name}-not-writable", severity=Severity.ERROR, blocks=True,
        title=f"envkit's {name} folder is not writable",
        evidence=(Evidence(text=f"{path} belongs to another user, or its file system is read-only"),),
        fix=("Set XDG_STATE_HOME and XDG_CACHE_HOME to folders of your own.",),
    )  # fmt: skip
