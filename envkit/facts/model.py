"""The compatibility facts as frozen values. Versions are text; unknown values are None, never guessed.

The resolver chooses a `Build`: one row per (torch, CUDA, source, platform), generated from the edited YAML tables by
`envkit.facts.snapshot`. Every row has the IDs of its sources (`Facts.sources`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """An installable torch: a wheel or a conda package for one platform."""

    torch: str  # '2.7.1'
    cuda: str | None  # CUDA runtime, 'major.minor'; None = CPU build
    source: str  # 'pytorch' | 'pypi' | 'conda-forge' | 'conda-pytorch'
    platform: str  # 'linux-64' | 'linux-aarch64'
    pythons: tuple[str, ...] | None  # ('3.9', '3.10', ...) without free-threaded variants; None = unknown
    archs: tuple[str, ...] | None  # compute capabilities with cubins: ('7.0', '8.0'); None = unknown
    ptx: tuple[str, ...]  # compute capabilities also shipped as PTX
    cudnn: str | None
    nccl: str | None
    triton: str | None
    index: str | None  # wheel index URL; None for pypi (the client's own index) and for conda sources
    channels: tuple[str, ...]  # conda channels; empty for wheels
    selector: str | None  # conda-pytorch: 'pytorch-cuda=11.8' or 'cudatoolkit=11.3'
    local_version: str | None  # '+cu118', '+cpu'; None if the file name has none
    index_lacks: tuple[str, ...]  # requirements of the file that its own index does not have: 'cuda-bindings==13.0.3'
    glibc: str | None  # lowest glibc of the file's manylinux tag: '2.17', '2.28'
    torchvision: str | None  # of the conda channel; wheels have rows of `Companion`
    torchaudio: str | None
    wheel_size: int | None  # bytes of the torch wheel, the largest of its Pythons; None = unknown
    pulled_size: int | None  # bytes of everything else that pip downloads, as on the day of the release
    advertised: bool
    confidence: str | None  # None = sourced
    note: str | None
    refs: tuple[str, ...]  # source IDs

    @property
    def download_size(self) -> int | None:
        """Bytes of the wheel and everything that is downloaded with it; None if either is unknown."""
        if self.wheel_size is None or self.pulled_size is None:
            return None
        return self.wheel_size + self.pulled_size


PYPI, ROOT = "pypi", "root"
"""Indexes of companions that are not a folder: the Python index, and the top of the PyTorch index."""


def folder_of(cuda: str | None) -> str:
    """Return the folder of the PyTorch index for a CUDA version: '13.0' -> 'cu130', None -> 'cpu'."""
    return "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """The wheels of one release of a package that goes with torch, as an index has them for one platform."""

    package: str  # 'torchvision'
    version: str  # '0.24.1', without the local version
    index: str  # 'pypi', a folder of the PyTorch index ('cu130', 'cpu'), or its 'root', which every folder lists too
    platform: str
    local_version: str | None  # '+cu130'; None if the file name has none
    cuda: str | None  # that it was compiled for; None = it has no CUDA code
    torch_cuda: str | None  # that its torch has to have: '13.0', or '13' for any of that major; None = any, or none
    pythons: tuple[str, ...]
    torch: str  # constraint on its torch: '==2.9.1', '>=2.14.0'
    refs: tuple[str, ...]

    @property
    def pinned(self) -> str:
        """The version as a pin has to name it, so that no file of another variant satisfies it: '0.24.1+cu130'."""
        return f"{self.version}{self.local_version or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A torch release: what all its builds have in common."""

    torch: str
    released: str | None
    torchvision: str | None
    torchaudio: str | None
    triton: str | None  # pin such as '==3.3.1'
    setuptools: str | None  # pin such as '<82' or '>=77.0.3', None = none
    numpy2_ok: bool
    compile_max_python: str | None
    default_cuda: str | None  # CUDA of the Python index's default wheel on linux-64
    note: str | None
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitDriver:
    """The lowest Linux driver that runs a toolkit release natively."""

    toolkit: str  # '12.6.3'
    linux_min: str | None  # None = unknown
    confidence: str | None
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MinorCompat:
    """The lowest Linux driver that runs any toolkit of a CUDA major by minor-version compatibility."""

    cuda_major: int
    linux_min: str | None  # None: the major has no minor-version compatibility
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCompat:
    """The driver branches that the forward compatibility package of a toolkit release supports."""

    toolkit: str  # '12.8.1'
    branches: tuple[str, ...]  # ('535', '550')
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSeries:
    """A minor version of Python and the end of its bug fixes and security fixes."""

    python: str  # '3.12'
    bugfix_until: str  # ISO date; from this day on security fixes only
    eol: str  # ISO date; from this day on no fixes
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A compute capability and the products that have it."""

    capability: str  # '8.6'
    family: str
    products: tuple[str, ...]
    first_cuda: str
    last_cuda: str | None  # '12.x' -> '12'; None = ongoing
    min_driver_branch: int | None  # 570
    last_driver_branch: int | None  # 580; None = ongoing
    amp: dict[str, bool]
    inferred: tuple[str, ...]  # fields with an inferred value, which may warn but never refuses a request
    integrated: bool  # on a Jetson module, which does not run code for other capabilities of the same major
    data_center: tuple[str, ...]  # the products that NVIDIA lists as data center GPUs
    arm_host: tuple[str, ...]  # the products with an Arm CPU of their own, for which images are aarch64
    note: str | None
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Os:
    """An operating system for images."""

    id: str  # 'debian12'
    title: str
    family: str  # 'deb' | 'rpm'
    glibc: str
    pythons: tuple[str, ...]  # minor versions of its own packages; the first is the default python3
    image: str  # 'docker.io/library/debian:bookworm-slim'
    codename: str | None
    cuda_image_suffix: str | None  # 'ubuntu22.04' in nvidia/cuda tags; None = no such tags
    eol: str | None
    platforms: tuple[str, ...]
    aliases: tuple[str, ...]  # other names: 'rhel9' for ubi9
    mirrors_ended: bool  # its mirror list is offline, so packages come from an archive
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cudnn:
    """A cuDNN release for a CUDA major: lowest driver and compute capabilities, from its support matrix."""

    cudnn: str
    cuda_major: str
    cuda_minors: tuple[str, ...]
    linux_min_driver: str | None
    capabilities: tuple[str, ...]
    confidence: str | None  # of the capabilities
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaImage:
    """The nvidia/cuda tags of a toolkit release."""

    cuda: str  # '12.6.3'
    cudnn_tag_part: str | None  # 'cudnn8' | 'cudnn9' | 'cudnn'
    oses: tuple[str, ...]
    tags: tuple[str, ...]  # explicit tags known to exist
    status: str
    refs: tuple[str, ...]


EVERY_TAG = "*"
"""The tag of a row that holds for all tags of an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """An image that people build on, and what it contains."""

    image: str  # with its registry, without tag: 'nvcr.io/nvidia/pytorch'
    tag: str  # '24.10-py3', or EVERY_TAG of an image without torch
    torch: str | None  # minor version of the release that its build became: '2.5'; None = no torch
    build: str | None  # version of the torch in it: '2.5.0a0+e000cf0ad9'
    cuda: str | None
    python: str | None
    os: str | None
    confidence: str | None
    note: str | None
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """A Miniconda installer with its SHA-256."""

    file: str
    url: str
    python: str
    conda: str  # '26.5.3-1'
    arch: str  # 'x86_64' | 'aarch64'
    sha256: str
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageNeeds:
    """What a package of the Python index needs that its wheels and its metadata do not name."""

    package: str  # normalized (PEP 503): 'opencv-python'
    deb: tuple[str, ...]  # packages of Debian and Ubuntu without which it cannot be imported
    rpm: tuple[str, ...]
    programs: tuple[str, ...]  # packages of Debian and Ubuntu with programs that it runs; the import works without
    pages: tuple[str, ...]  # with its prebuilt wheels: 'https://data.pyg.org/whl/torch-{torch}.0+{cu}.html'
    indexes: tuple[str, ...]  # that have its wheels beside those of PyTorch's own index for the same CUDA
    confidence: str | None  # None = sourced
    note: str | None
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A combination that looks valid but fails: its conditions, effect and fix."""

    id: str
    title: str
    when: dict[str, str]
    effect: str
    fix: str
    severity: str  # 'error' | 'warn' | 'info'
    confidence: str | None
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts; immutable after loading."""

    collected: str  # date of the data, ISO
    digest: str  # sha256 of the canonical snapshot, hex
    version: int  # of all tables together; it only grows
    releases: dict[str, Release]
    builds: tuple[Build, ...]
    companions: tuple[Companion, ...]
    toolkits: tuple[ToolkitDriver, ...]
    compat: tuple[MinorCompat, ...]
    forward: tuple[ForwardCompat, ...]
    gpus: tuple[Gpu, ...]
    oses: tuple[Os, ...]
    pythons: tuple[PythonSeries, ...]
    cudnns: tuple[Cudnn, ...]
    cuda_images: tuple[CudaImage, ...]
    base_images: tuple[BaseImage, ...]
    package_needs: tuple[PackageNeeds, ...]
    installers: tuple[Installer, ...]
    traps: tuple[Trap, ...]
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    capabilities_left_out: tuple[str, ...] = ()  # in arch lists, but without a Gpu row (Jetson)

    def identity(self) -> dict[str, Any]:
        """Return version, date and digest as JSON; the digest includes an overlay."""
        return {"version": self.version, "collected": self.collected, "digest": self.digest}
