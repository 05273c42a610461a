"""Rows that files prove beside a release's own: other CUDA variants, cuDNN releases, toolkits. Pure.

The table of a torch says which machine code its releases have, not that such a wheel was published; a cuDNN says what
it runs on, not which driver it needs; a file list says that a toolkit exists. The rest is asked for.
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

_X86, _ARM = "linux-64", "linux-aarch64"
_CUDNN = re.compile(r"nvidia-cudnn-cu([0-9]+)")
_PARTS = 3  # of the version of a cuDNN or a toolkit in the facts: '9.26.0' for the package 9.26.0.51


def tabled(proofs: Proofs) -> dict[tuple[str, str], Evidence]:
    """What the table of a torch wheel says of each CUDA: (CUDA, platform) -> architectures."""
    platforms = {platform_named(name).machine: name for name in PLATFORMS}
    table = {}
    for item in proofs.items:
        words = item.field.split()
        if item.kind == ARCH_TABLE and len(words) == 3 and words[2] in platforms:  # noqa: PLR2004 - 'archs 13.0 x86_64'
            table[words[1], platforms[words[2]]] = item
    return table


def variant_evidence(release: Release, facts: Facts) -> list[Row]:
    """Evidence for the architectures of the wheels of other CUDA versions that the facts have."""
    x86 = release.wheels.get(_X86)
    said = tabled(x86) if x86 is not None else {}
    return [
        ("builds", replace(evidence, row=_name(build), field="archs"))
        for build in facts.builds
        if build.torch == release.torch and build.source == "pytorch"
        and (evidence := said.get((build.cuda or "cpu", build.platform))) is not None
    ]  # fmt: skip


def _name(build: Any) -> str:
    return f"{build.torch} {build.cuda} {build.source} {build.platform}"


def architectures(release: Release) -> dict[str, dict[str, list[str]]]:
    """The fields `arch` and `arch_aarch64` of variant rows, by CUDA."""
    made: dict[str, dict[str, list[str]]] = {}
    x86 = release.wheels.get(_X86)
    for (cuda, platform), evidence in (tabled(x86) if x86 is not None else {}).items():
        made.setdefault(cuda, {})["arch" if platform == _X86 else "arch_aarch64"] = list(evidence.value)
    return made


def variant_rows(release: Release, known: Container[str], index_root: str) -> list[dict[str, Any]]:
    """Rows for the CUDA versions of a release's table that are not among the known ones."""
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
    """The cuDNN package that a release's default wheel requires, with its version; None where it bundles one."""
    x86 = release.wheels.get(_X86)
    for requirement in x86.metadata.matching(_CUDNN.pattern) if x86 is not None else ():
        for wanted in requirement.specifier:
            if wanted.operator == "==":
                return requirement.name, wanted.version
    return None


def cudnn_key(package: str, version: str) -> tuple[str, str]:
    """Version and CUDA major of the row of cudnn_cuda: ('9.26.0', '13')."""
    match = _CUDNN.fullmatch(package)
    assert match is not None
    return short(version), match[1]


def short(version: str) -> str:
    """The first three numbers of a version, as the facts name cuDNN and toolkits."""
    return ".".join(str(number) for number in (*Version(version).release, 0, 0)[:_PARTS])


def cudnn_row(package: str, version: str, cuda: str, proofs: Proofs) -> tuple[dict[str, Any], Evidence | None]:
    """The row of a cuDNN from the machine code in its library, with the evidence."""
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
    """Rows for the toolkits of a file list that the facts lack, newest first; older ones than theirs are left out."""
    have = set(known)
    oldest = min(have, key=key)
    versions = {short(version) for version in files.versions if not Version(version).is_prerelease}
    new = sorted((cuda for cuda in versions - have if key(cuda) > key(oldest)), key=key, reverse=True)
    return [
        {
            "toolkit": cuda, "linux_min": Ask(f"which driver do the release notes of CUDA {cuda} name for Linux?"),
            "linux_bundled": None, "windows_bundled": None, "refs": ["pypi_toolkit"],
        }
        for cuda in new
    ]  # fmt: skip
