"""Join the edited release and variant tables into `Build` rows.

If two tables describe the same file, the wheel's own content decides before its metadata, the metadata before the
release build matrix, that before release documents, and those before the tables of other tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envkit.facts import edited
from envkit.facts.model import Build
from envkit.ground.versions import key

_WORST = ("conflict", "inferred")
_PYTHONS_INFERRED = "The list of Pythons is inferred from the release build matrix."

Row = dict[str, Any]


def build_rows() -> tuple[Build, ...]:
    """Return all builds, sorted by torch, CUDA, source and platform."""
    releases = {row["torch"]: row for row in edited.rows("torch_releases")}
    table = edited.read("torch_cuda_variants")
    variants: list[Row] = table["rows"]
    tags: dict[str, Row] = table["platform_tags"]
    builds: list[Build] = []
    for row in variants:
        release = releases[row["torch"]]
        if row["source"] == "pytorch":
            builds.extend(_index_builds(row, release, tags))
        elif row["source"] == "conda-pytorch":
            builds.append(_conda_pytorch(row))
        else:
            builds.append(_conda_forge(row))
    same_file = {row["torch"]: row for row in variants if row.get("pypi_default")}
    for release in releases.values():
        builds.extend(_pypi_builds(release, same_file[release["torch"]], tags))
    return tuple(sorted(builds, key=sort_key))


def sort_key(build: Build) -> tuple[tuple[int, ...], tuple[int, ...], str, str]:
    """Return the sort key of the builds table; CPU comes before CUDA."""
    return key(build.torch), key(build.cuda) if build.cuda else (), build.source, build.platform


def _index_builds(row: Row, release: Row, tags: dict[str, Row]) -> Iterator[Build]:
    """Yield the builds of the PyTorch wheel index: one per platform, for all its tags."""
    cuda = _cuda(row["cuda"])
    for platform, files in _by_platform(row["files"] or {}, tags).items():
        x86 = platform == "linux-64"
        confidence = row.get("confidence", {})
        # `arch` is the list of the x86 file; that of the aarch64 file has its own field.
        parts = ["row", "arch", "cudnn"] if x86 else ["row", "cudnn"]
        inferred = "files" in confidence or (not x86 and "files_aarch64" in confidence)
        pythons = _union(files)
        yield Build(
            torch=row["torch"],
            cuda=cuda,
            source="pytorch",
            platform=platform,
            pythons=pythons,
            archs=_archs(row.get("arch" if x86 else "arch_aarch64"), cuda),
            ptx=tuple(row.get("ptx") or ()) if x86 else (),
            cudnn=row.get("cudnn"),
            nccl=row.get("nccl"),
            triton=_triton(release, platform, cuda),
            index=row["index"],
            channels=(),
            selector=None,
            local_version=row["local_version"] if x86 else row.get("local_version_aarch64", row["local_version"]),
            index_lacks=tuple(row.get("index_lacks", ())),
            glibc=_glibc(files, row, tags),
            torchvision=None,
            torchaudio=None,
            wheel_size=None,  # sizes are not read from the PyTorch index
            pulled_size=None,
            advertised=row["advertised"],
            confidence=_worst(confidence, parts),
            note=_join(row.get("note"), _PYTHONS_INFERRED if inferred and pythons else None),
            refs=_refs(row, "arch_refs" if x86 else "arch_aarch64_refs", "cudnn_refs"),
        )


def _pypi_builds(release: Row, same_file: Row, tags: dict[str, Row]) -> Iterator[Build]:
    """Yield the builds of the Python package index, from its default wheel; `same_file` is that wheel's variant row."""
    default = release["pypi"]
    for platform, file in default["files"].items():
        cuda = _cuda(file["cuda"])
        x86 = platform == "linux-64"
        extra: tuple[str, ...] = ()
        # Then some of the values below come from the variant row, so its sources belong to this build.
        if cuda and (default["cudnn"] is None or not x86):
            extra = _refs(same_file, "cudnn_refs" if x86 else "arch_aarch64_refs")
        yield Build(
            torch=release["torch"],
            cuda=cuda,
            source="pypi",
            platform=platform,
            pythons=_pythons(file["pythons"]),
            archs=_archs(default["arch"] if x86 else same_file.get("arch_aarch64"), cuda),
            ptx=tuple(same_file.get("ptx") or ()) if x86 else (),
            cudnn=(default["cudnn"] or same_file.get("cudnn")) if cuda else None,
            nccl=default["nccl"] if cuda else None,
            triton=_triton(release, platform, cuda),
            index=None,
            channels=(),
            selector=None,
            local_version=None,
            index_lacks=(),
            glibc=tags[file["tag"]]["glibc"],
            torchvision=None,
            torchaudio=None,
            wheel_size=_size(file, "wheel_size"),
            pulled_size=_size(file, "pulled_size"),
            advertised=True,
            confidence=file.get("confidence"),
            note="That the file carries this CUDA is inferred from its neighbours." if "confidence" in file else None,
            refs=tuple(dict.fromkeys((*release["refs"], *extra))),
        )


def _conda_pytorch(row: Row) -> Build:
    confidence = row.get("confidence", {})
    return _conda(
        row,
        platform="linux-64",
        channels=tuple(row["channels"]),
        glibc=None,
        note="The list of Pythons is inferred from the wheels." if "pythons" in confidence else None,
    )


def _conda_forge(row: Row) -> Build:
    confidence = row.get("confidence", {})
    return _conda(
        row,
        platform=row["platform"],
        channels=("conda-forge",),
        glibc=row["glibc"],
        note="Its glibc is inferred from the build image." if "glibc" in confidence else None,
    )


def _conda(row: Row, *, platform: str, channels: tuple[str, ...], glibc: str | None, note: str | None) -> Build:
    cuda = _cuda(row["cuda"])
    return Build(
        torch=row["torch"],
        cuda=cuda,
        source=row["source"],
        platform=platform,
        pythons=_pythons(row["pythons"]),
        archs=_archs(row.get("arch"), cuda),
        ptx=tuple(row.get("ptx") or ()),
        cudnn=row.get("cudnn"),
        nccl=row.get("nccl"),
        triton=None,
        index=None,
        channels=channels,
        selector=row.get("selector"),
        local_version=None,
        index_lacks=(),
        glibc=glibc,
        torchvision=row.get("torchvision"),
        torchaudio=row.get("torchaudio"),
        wheel_size=None,
        pulled_size=None,
        advertised=True,
        confidence=_worst(row.get("confidence", {}), ["row", "arch", "cudnn"]),
        note=_join(row.get("note"), note),
        refs=_refs(row, "arch_refs", "cudnn_refs"),
    )


def _size(file: Row, field: str) -> int | None:
    return int(file[field]) if field in file else None


def _by_platform(files: dict[str, Any], tags: dict[str, Row]) -> dict[str, dict[str, Any]]:
    by_platform: dict[str, dict[str, Any]] = {}
    for tag, pythons in files.items():
        by_platform.setdefault(tags[tag]["platform"], {})[tag] = pythons
    return by_platform


def _glibc(files: dict[str, Any], row: Row, tags: dict[str, Row]) -> str | None:
    """Return the lowest glibc of a platform's files; None if no tag has one."""
    own = row.get("glibc", {})
    known = [value for tag in files if (value := own.get(tag, tags[tag]["glibc"]))]
    return min(known, key=key) if known else None


def _cuda(text: str) -> str | None:
    return None if text == "cpu" else text


def _archs(archs: list[str] | None, cuda: str | None) -> tuple[str, ...] | None:
    if cuda is None:
        return ()
    return None if archs is None else tuple(archs)


def _pythons(pythons: list[str] | None) -> tuple[str, ...] | None:
    """Sort Pythons, without free-threaded variants."""
    if pythons is None:
        return None
    return tuple(sorted((python for python in pythons if not python.endswith("t")), key=key))


def _union(files: dict[str, list[str] | None]) -> tuple[str, ...] | None:
    return _pythons(list(dict.fromkeys(python for pythons in files.values() for python in pythons or ())) or None)


def _triton(release: Row, platform: str, cuda: str | None) -> str | None:
    """Return the triton that the wheel's metadata requires: '3.3.1', or '3.8.*' if it allows all patch releases."""
    requirement = release["triton"]
    if cuda is None or requirement is None:
        return None
    # A marker such as `platform_machine == "x86_64"`: there is no triton for other machines.
    if platform != "linux-64" and "x86_64" in requirement["marker"]:
        return None
    pin: str = requirement["pin"]
    # PEP 440: `~=3.8.0` allows every 3.8 release from 3.8.0 on.
    if pin.startswith("~="):
        return pin[2:].rsplit(".", 1)[0] + ".*"
    return pin.removeprefix("==")


def _worst(confidence: dict[str, str], parts: list[str]) -> str | None:
    present = {confidence[part] for part in parts if part in confidence}
    return next((level for level in _WORST if level in present), None)


def _join(*notes: str | None) -> str | None:
    return " ".join(note for note in notes if note) or None


def _refs(row: Row, *fields: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*row["refs"], *(ref for field in fields for ref in row.get(field, ()))]))
