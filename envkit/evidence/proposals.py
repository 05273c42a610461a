"""Propose rows that a release's files suggest: other CUDA variants, cuDNN releases, toolkits. Pure.

The files prove only a part of each row. The architecture table of torch has the machine code of its other wheels, but
not whether they were published; a cuDNN library has the GPUs that it supports, but not the driver that it needs; a
file list has the versions of a toolkit. The other fields become questions.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from envkit.evidence.yamltext import Ask
from envkit.facts.evidence import ARCH_TABLE, MACHINE_CODE
from envkit.ground.platforms import PLATFORMS
from envkit.ground.platforms import platform as platform_named
from envkit.ground.versions import key, minor

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from envkit.evidence.derive import Release, Row
    from envkit.evidence.index import FileList
    from envkit.evidence.read import Proofs
    from envkit.facts.evidence import Evidence
    from envkit.facts.model import Facts

_X86 = "linux-64"
_CUDNN = re.compile(r"nvidia-cudnn-cu([0-9]+)")
_PARTS = 3  # of the version of a cuDNN or a toolkit in the facts: '9.26.0' for the package 9.26.0.51


def tabled(proofs: Proofs) -> dict[tuple[str, str], Evidence]:
    """Return the architecture table of a torch wheel by (CUDA, platform)."""
    platforms = {platform_named(name).machine: name for name in PLATFORMS}
    table = {}
    for item in proofs.items:
        words = item.field.split()
        if item.kind == ARCH_TABLE and len(words) == 3 and words[2] in platforms:  # noqa: PLR2004 - 'archs 13.0 x86_64'
            table[words[1], platforms[words[2]]] = item
    return table


def variant_evidence(release: Release, facts: Facts) -> list[Row]:
    """Return evidence for the architectures of the release's wheels for other CUDA versions in the facts."""
    x86 = release.wheels.get(_X86)
    table = tabled(x86) if x86 is not None else {}
    return [
        ("builds", replace(evidence, row=_name(build), field="archs"))
        for build in facts.builds
        if build.torch == release.torch and build.source == "pytorch"
        and (evidence := table.get((build.cuda or "cpu", build.platform))) is not None
    ]  # fmt: skip


def _name(build: Any) -> str:
    return f"{build.torch} {build.cuda} {build.source} {build.platform}"


def architectures(release: Release) -> dict[str, dict[str, list[str]]]:
    """Return the fields `arch` and `arch_aarch64` of variant rows, by CUDA."""
    by_cuda: dict[str, dict[str, list[str]]] = {}
    x86 = release.wheels.get(_X86)
    for (cuda, platform), evidence in (tabled(x86) if x86 is not None else {}).items():
        by_cuda.setdefault(cuda, {})["arch" if platform == _X86 else "arch_aarch64"] = list(evidence.value)
    return by_cuda


def variant_rows(release: Release, known: Container[str], index_root: str) -> list[dict[str, Any]]:
    """Return rows for the CUDA versions of a release's architecture table that are not in `known`."""
    return [
        _variant(release.torch, cuda, archs, index_root)
        for cuda, archs in sorted(architectures(release).items(), key=lambda item: key(item[0]))
        if cuda not in known
    ]


def _variant(torch: str, cuda: str, archs: Mapping[str, list[str]], index_root: str) -> dict[str, Any]:
    tag = f"cu{cuda.replace('.', '')}"
    row: dict[str, Any] = {
        "torch": torch, "cuda": cuda, "source": "pytorch", "index": f"{index_root}/{tag}", "local_version": f"+{tag}",
        "advertised": False,
        "files": Ask(f"does the index {tag} have wheels of torch {torch}, and for which Pythons and platforms?"),
        **archs,
        "cudnn": Ask(f"which cuDNN does torch {torch}+{tag} require?"),
        "nccl": Ask(f"which NCCL does torch {torch}+{tag} require?"),
        "refs": ["pypi_wheel"],
    }  # fmt: skip
    return row | {f"{name}_refs": ["pypi_wheel"] for name in archs}


def cudnn_of(release: Release) -> tuple[str, str] | None:
    """Return name and version of the cuDNN package that a release's default wheel requires; None if it bundles one."""
    x86 = release.wheels.get(_X86)
    for requirement in x86.metadata.matching(_CUDNN.pattern) if x86 is not None else ():
        for specifier in requirement.specifier:
            if specifier.operator == "==":
                return requirement.name, specifier.version
    return None


def cudnn_key(package: str, version: str) -> tuple[str, str]:
    """Return version and CUDA major of a row of cudnn_cuda: ('9.26.0', '13')."""
    match = _CUDNN.fullmatch(package)
    assert match is not None
    return short(version), match[1]


def short(version: str) -> str:
    """Return the first three numbers of a version, as the facts have for cuDNN and toolkits."""
    return ".".join(str(number) for number in (*Version(version).release, 0, 0)[:_PARTS])


def cudnn_row(package: str, version: str, cuda: str, proofs: Proofs) -> tuple[dict[str, Any], Evidence | None]:
    """Return the row of a cuDNN from the machine code in its library, with the evidence."""
    cudnn, major = cudnn_key(package, version)
    code = proofs.first("archs", MACHINE_CODE)
    lowest = [f"{code.value[0]}+"] if code is not None and code.value else []
    row = {
        "cudnn": cudnn, "cuda_major": major, "cuda_minors": [minor(cuda)],
        "linux_min_driver": Ask(f"which driver does the support matrix of cuDNN {cudnn} name for CUDA {major}?"),
        "capabilities": lowest or Ask(f"which compute capabilities does cuDNN {cudnn} support?"),
        "refs": ["cudnn_wheel"],
    }  # fmt: skip
    if code is None or not lowest:
        return row, None
    return row, replace(code, row=f"{cudnn} {major} -", field="capabilities", value=tuple(lowest))


def toolkit_rows(files: FileList, known: Iterable[str]) -> list[dict[str, Any]]:
    """Return rows for the toolkits of a file list that are not in `known`, newest first.

    Toolkits older than the oldest known one are left out.
    """
    known_toolkits = set(known)
    oldest = min(known_toolkits, key=key)
    versions = {short(version) for version in files.versions if not Version(version).is_prerelease}
    new = sorted((cuda for cuda in versions - known_toolkits if key(cuda) > key(oldest)), key=key, reverse=True)
    return [
        {
            "toolkit": cuda, "linux_min": Ask(f"which driver do the release notes of CUDA {cuda} name for Linux?"),
            "linux_bundled": None, "windows_bundled": None, "refs": ["pypi_toolkit"],
        }
        for cuda in new
    ]  # fmt: skip
