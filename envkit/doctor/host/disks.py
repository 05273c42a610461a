"""Free space and write permission where envkit and the engines keep their data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from envkit.doctor.model import Evidence, Finding, Section, Severity

GB = 1_000_000_000
NEEDED = {"state": 1 * GB, "cache": 2 * GB}
"""Bytes below which envkit's own folders are too full to work with."""
LITTLE = 20 * GB
"""Bytes that building one CUDA image takes with its download, its layers and what is unpacked."""
_FEW_INODES = 100_000  # an environment with torch has about 50,000 files


def section(places: Mapping[str, Path]) -> Section:
    """Places by what they hold: `state` and `cache` are envkit's own, the others those of engines and the system."""
    facts: list[tuple[str, str]] = []
    findings: list[Finding] = []
    for what, path in places.items():
        there = next((folder for folder in (path, *path.parents) if _is_there(folder)), Path("/"))
        try:
            volume = os.statvfs(there)
        except OSError as error:
            facts.append((what, f"{path}: {error.strerror}"))
            continue
        free = volume.f_bavail * volume.f_frsize
        facts.append((what, f"{path}, {free / GB:.1f} GB free"))
        findings += _of_space(what, path, free)
        if volume.f_files and volume.f_favail < _FEW_INODES:
            findings.append(_few_inodes(what, path, volume.f_favail))
        if what in NEEDED and not os.access(there, os.W_OK | os.X_OK):
            findings.append(_not_writable(what, path))
    return Section(id="disks", title="Disks", facts=tuple(facts), findings=tuple(findings))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _of_space(what: str, path: Path, free: int) -> Iterator[Finding]:
    evidence = (Evidence(text=f"{path}: {free / GB:.1f} GB free"),)
    if free < NEEDED.get(what, 0):
        variable = {"state": "XDG_STATE_HOME", "cache": "XDG_CACHE_HOME"}[what]
        yield Finding(
            id=f"{what}-disk-full", severity=Severity.ERROR, blocks=True,
            title=f"the disk with envkit's {what} folder is full",
            evidence=evidence, fix=(f"Free disk space, or set {variable} to a folder on another disk.",),
        )  # fmt: skip
    elif free < LITTLE:
        yield Finding(
            id="little-disk", severity=Severity.WARN,
            title=f"not much space for {what}: a CUDA image needs about 20 GB",
            evidence=evidence, check=("df -h; docker system df",),
            fix=("docker builder prune; remove old images and, on hosted runners, the preinstalled toolchains",),
            sources=("actions/runner-images#10237",),
        )  # fmt: skip


def _few_inodes(what: str, path: Path, left: int) -> Finding:
    return Finding(
        id="few-inodes", severity=Severity.WARN, title=f"the file system for {what} has few free inodes",
        evidence=(Evidence(text=f"{path}: {left} inodes free"),),
        cause="A conda environment has about 100,000 files; without free inodes the disk reports that it is full.",
        check=("df -i",),
        fix=("Remove package caches: conda clean --all, pip cache purge",),
    )  # fmt: skip


def _not_writable(what: str, path: Path) -> Finding:
    return Finding(
        id=f"{what}-not-writable", severity=Severity.ERROR, blocks=True,
        title=f"envkit's {what} folder is not writable",
        evidence=(Evidence(text=f"{path} belongs to another user, or its file system is read-only"),),
        fix=("Set XDG_STATE_HOME and XDG_CACHE_HOME to folders of your own.",),
    )  # fmt: skip
