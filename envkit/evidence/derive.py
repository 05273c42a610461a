"""Derive the evidence for the rows of one torch release from its files. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from envkit.facts.companions import cuda_of
from envkit.facts.evidence import FILE_LIST, METADATA, Evidence
from envkit.facts.model import PYPI
from envkit.ground.platforms import PLATFORMS
from envkit.ground.platforms import platform as platform_named
from envkit.ground.versions import key, minor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.requirements import Requirement

    from envkit.evidence.index import FileList, WheelFile
    from envkit.evidence.pulled import Pulled
    from envkit.evidence.read import Proofs

_FAMILY = {"cudnn": "nvidia-cudnn-cu[0-9]+", "nccl": "nvidia-nccl-cu[0-9]+"}
# Tags without a glibc version. `linux_x86_64` states no requirement at all.
_OLD_TAGS = {"manylinux1": "2.17", "manylinux2010": "2.17", "manylinux2014": "2.17", "linux": None}
Row = tuple[str, Evidence]  # a table of the facts and evidence for one of its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Everything that was read about one torch release."""

    torch: str
    source: str  # 'pypi' for the index's own wheels, 'pytorch' for a file with a local version
    files: FileList | None  # file list of torch; None for a local file
    wheels: Mapping[str, Proofs]  # by platform
    partners: Mapping[str, Mapping[str, Proofs]]  # name -> platform -> one of its wheels
    partner_files: Mapping[str, FileList]
    list_sha256: Mapping[str, str]  # of the file lists, by package
    pulled: Mapping[str, Pulled]  # by platform, if the index has the sizes


def platform_of(tag: str) -> str | None:
    """Return the platform of a wheel's tag, 'linux-64' or 'linux-aarch64'; None for other systems."""
    first = tag.partition(".")[0]  # of manylinux2014_x86_64.manylinux_2_17_x86_64
    if not first.startswith(("manylinux", "linux")):
        return None
    return next((name for name in PLATFORMS if first.endswith(f"_{platform_named(name).machine}")), None)


def glibc_of(tag: str) -> str | None:
    """Return the lowest glibc of a platform tag; as in the facts, tags before manylinux2014 count as 2.17."""
    versions: list[str] = []
    for part in tag.split("."):
        words = part.split("_")
        if words[0] == "manylinux" and len(words) > 3 and words[1].isdigit() and words[2].isdigit():  # noqa: PLR2004
            versions.append(f"{words[1]}.{words[2]}")
        elif (old := _OLD_TAGS.get(words[0])) is not None:
            versions.append(old)
    return min(versions, key=key) if versions else None


def pythons_of(files: Iterable[WheelFile], platform: str) -> tuple[str, ...]:
    """Return the Pythons with a wheel for a platform, ascending, without free-threaded ones."""
    pythons = {python for file in files if platform_of(file.tag) == platform for python in file.pythons}
    return tuple(sorted((python for python in pythons if not python.endswith("t")), key=key))


def largest(files: Iterable[WheelFile], platform: str) -> WheelFile | None:
    """Return the largest wheel for a platform, without free-threaded ones; None if a size is missing."""
    own = [
        file for file in files
        if platform_of(file.tag) == platform and any(not python.endswith("t") for python in file.pythons)
    ]  # fmt: skip
    if not own or any(file.size is None for file in own):
        return None
    return max(own, key=lambda file: (file.size or 0, file.name))  # the name decides between equal sizes


def any_python(files: Iterable[WheelFile]) -> bool:
    """Return whether one of the wheels is for any Python."""
    return any(not file.pythons for file in files)


def evidence_of(release: Release) -> list[Row]:
    """Return the evidence for the rows of a release, in the order of the tables."""
    rows: list[Row] = []
    x86 = release.wheels.get("linux-64")
    if x86 is not None:
        rows.extend(("releases", evidence) for evidence in _release(release, x86))
    for platform, proofs in release.wheels.items():
        rows.extend(("builds", evidence) for evidence in _build(release, platform, proofs))
    for name, wheels in release.partners.items():
        for platform, proofs in wheels.items():
            rows.extend(("companions", evidence) for evidence in _companion(release, name, platform, proofs))
    return rows


def row_key(release: Release, platform: str, proofs: Proofs) -> str:
    """Return the key of a wheel's row in the builds table."""
    return f"{release.torch} {proofs.text('cuda') or 'cpu'} {release.source} {platform}"


def _release(release: Release, proofs: Proofs) -> Iterable[Evidence]:
    name = release.torch
    if release.files is not None:
        days = sorted(file.uploaded for file in release.files.of(name) if file.uploaded)
        if days:
            yield _listed(release, name, "released", days[0], f"first file uploaded {days[0]}")
        # A local file may be of any variant, so only the index's wheel shows the default.
        yield _of(proofs, "cuda", row=name, field="default_cuda")
    meta = proofs.metadata
    setuptools = meta.requirement("setuptools")
    pin = str(setuptools.specifier) or None if setuptools is not None else None
    yield _required(proofs, name, "setuptools", pin, setuptools)
    triton = triton_requirement(meta.requires)
    yield _required(proofs, name, "triton", str(triton.specifier) if triton is not None else None, triton)
    for partner, wheels in release.partners.items():
        wheel = next(iter(wheels.values()))
        pinned = _pin(wheel.metadata.requirement("torch"))
        if pinned == name:
            yield _required(wheel, name, partner, wheel.metadata.version, wheel.metadata.requirement("torch"))


def _build(release: Release, platform: str, proofs: Proofs) -> Iterable[Evidence]:
    name, meta = row_key(release, platform, proofs), proofs.metadata
    cuda = proofs.text("cuda")
    yield _of(proofs, "cuda", row=name, field="cuda")
    if release.files is not None:
        files = release.files.of(release.torch)
        pythons = pythons_of(files, platform)
        yield _listed(release, name, "pythons", pythons, " ".join(pythons))
    tag = proofs.name.removesuffix(".whl").rpartition("-")[2]
    if (glibc := glibc_of(tag)) is not None:
        yield Evidence(row=name, field="glibc", value=glibc, kind=FILE_LIST, file=proofs.name, sha256=proofs.sha256,
                       quote=tag, date=_date(proofs))  # fmt: skip
    yield from _sizes(release, name, platform)
    if not cuda:
        return
    for field in ("archs", "ptx"):
        for evidence in proofs.items:
            if evidence.field == field:
                yield replace(evidence, row=name)
    for field, pattern in _FAMILY.items():
        for requirement in meta.matching(pattern):
            if (version := _pin(requirement)) is not None and _applies(requirement, platform):
                yield _required(proofs, name, field, version, requirement)
    triton = triton_requirement(meta.requires)
    applies = triton is not None and _applies(triton, platform)
    yield _required(proofs, name, "triton", _range(triton) if triton and applies else None, triton)


def _companion(release: Release, name: str, platform: str, proofs: Proofs) -> Iterable[Evidence]:
    """Yield the evidence of a partner's wheel on the Python index: its CUDA, Pythons and required torch."""
    version = proofs.metadata.version
    row = f"{name} {version} {PYPI} {platform}"
    # Without a local version in it, version.py says nothing about CUDA.
    stated = proofs.first("local_version")
    local = str(stated.value).partition("+")[2] if stated is not None else ""
    if stated is not None and local:
        yield replace(stated, row=row, field="cuda", value=cuda_of(local))
    required = proofs.metadata.requirement("torch")
    if required is not None and str(required.specifier):
        yield _required(proofs, row, "torch", str(required.specifier), required)
    own = release.partner_files[name].of(version)
    if not any_python(own):
        pythons = pythons_of(own, platform)
        yield Evidence(
            row=row, field="pythons", value=pythons, kind=FILE_LIST, file=f"{name} file list",
            sha256=release.list_sha256.get(name), quote=f"{name} {version}: {' '.join(pythons)}", date=_date(proofs),
        )  # fmt: skip


def _sizes(release: Release, row: str, platform: str) -> Iterable[Evidence]:
    """Yield the evidence for the size of the wheel and of everything that is downloaded with it."""
    files = release.files.of(release.torch) if release.files is not None else ()
    if (file := largest(files, platform)) is not None:
        yield Evidence(row=row, field="wheel_size", value=file.size, kind=FILE_LIST, file=file.name, sha256=file.sha256,
                       quote=f"{file.size} bytes", date=file.uploaded)  # fmt: skip
    if (pulled := release.pulled.get(platform)) is not None:
        wheels = f"{len(pulled.wheels)} wheels for Python {pulled.python}, newest of {pulled.day}"
        yield Evidence(row=row, field="pulled_size", value=pulled.size, kind=FILE_LIST, file=wheels,
                       sha256=pulled.sha256, quote=pulled.quote, date=pulled.day)  # fmt: skip


def has_numpy2(torch: str) -> bool:
    """Return whether a release of torch is built against the numpy 2 interface: 2.3 and later."""
    return key(torch) >= (2, 3)


def triton_requirement(requires: Sequence[Requirement]) -> Requirement | None:
    """Return the requirement of triton, or of pytorch-triton, as its nightly builds are called."""
    return next(
        (
            requirement
            for requirement in requires
            if canonicalize_name(requirement.name) in ("triton", "pytorch-triton")
        ),
        None,
    )


def _applies(requirement: Requirement, platform: str) -> bool:
    """Return whether the marker of a requirement is true on a platform, for any Python."""
    if requirement.marker is None:
        return True
    machine = platform_named(platform).machine
    environment = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": machine, "os_name": "posix",
                   "extra": ""}  # fmt: skip
    # The marker of triton has an upper limit on Python, which is not a property of the build.
    versions = [f"3.{number}" for number in range(6, 30)]
    return any(requirement.marker.evaluate({**environment, "python_version": version}) for version in versions)


def _pin(requirement: Requirement | None) -> str | None:
    specifiers = list(requirement.specifier) if requirement is not None else []
    exact = [
        specifier.version
        for specifier in specifiers
        if specifier.operator in ("==", "===") and not specifier.version.endswith("*")
    ]
    return exact[0] if len(specifiers) == 1 and exact else None


def _range(requirement: Requirement) -> str | None:
    """Return '3.3.1' for ==3.3.1, '3.8.*' for ~=3.8.0, None for anything else."""
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1:
        return None
    specifier = specifiers[0]
    return f"{minor(specifier.version)}.*" if specifier.operator == "~=" else _pin(requirement)


def _of(proofs: Proofs, proof_field: str, *, row: str, field: str) -> Evidence:
    evidence = proofs.first(proof_field)
    assert evidence is not None
    return replace(evidence, row=row, field=field)


def _required(proofs: Proofs, row: str, field: str, value: Any, requirement: Requirement | None) -> Evidence:
    name_evidence = proofs.first("name")
    member = name_evidence.member if name_evidence is not None else None
    quote = f"Requires-Dist: {requirement}" if requirement is not None else f"no requirement of {field}"
    return Evidence(row=row, field=field, value=value, kind=METADATA, file=proofs.name, sha256=proofs.sha256,
                    member=member, quote=quote, date=_date(proofs))  # fmt: skip


def _listed(release: Release, row: str, field: str, value: Any, quote: str) -> Evidence:
    assert release.files is not None
    days = [file.uploaded for file in release.files.of(release.torch) if file.uploaded]
    return Evidence(row=row, field=field, value=value, kind=FILE_LIST, file="torch file list",
                    sha256=release.list_sha256.get("torch"), quote=quote, date=min(days, default=None))  # fmt: skip


def _date(proofs: Proofs) -> str | None:
    return proofs.items[0].date if proofs.items else None
