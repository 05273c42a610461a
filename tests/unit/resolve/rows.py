"""Hand-made rows, so that a rule is seen alone."""

from dataclasses import replace
from typing import Any

from envkit.facts.model import (
    Build,
    Companion,
    Cudnn,
    Facts,
    Gpu,
    MinorCompat,
    Os,
    PythonSeries,
    Release,
    ToolkitDriver,
    Trap,
)

BUILD = Build(
    torch="2.6.0",
    cuda="12.6",
    source="pytorch",
    platform="linux-64",
    pythons=("3.10", "3.11"),
    archs=("7.0", "8.0"),
    ptx=(),
    cudnn="9.5.1.17",
    nccl=None,
    triton="3.2.0",
    index="https://wheels.example.com/cu126",
    channels=(),
    selector=None,
    local_version="+cu126",
    index_lacks=(),
    glibc="2.28",
    torchvision=None,
    torchaudio=None,
    wheel_size=None,
    pulled_size=None,
    advertised=True,
    confidence=None,
    note=None,
    refs=("b",),
)
VISION = Companion(
    package="torchvision",
    version="0.21.0",
    index="cu126",
    platform="linux-64",
    local_version="+cu126",
    cuda="12.6",
    torch_cuda="12",
    pythons=("3.10", "3.11"),
    torch="==2.6.0",
    refs=("v",),
)
AUDIO = replace(VISION, package="torchaudio", version="2.6.0", torch_cuda="12.6", refs=("a",))
RELEASE = Release(
    torch="2.6.0",
    released="2025-01-29",
    torchvision="0.21.0",
    torchaudio="2.6.0",
    triton="==3.2.0",
    setuptools=None,
    numpy2_ok=True,
    compile_max_python=None,
    default_cuda="12.6",
    note=None,
    refs=("r",),
)
GPU = Gpu(
    capability="8.0",
    family="Ampere",
    products=("A100",),
    first_cuda="11.0",
    last_cuda=None,
    min_driver_branch=450,
    last_driver_branch=None,
    amp={},
    inferred=(),
    integrated=False,
    data_center=("A100",),
    arm_host=(),
    note=None,
    refs=("g",),
)
OS = Os(
    id="debian12",
    title="Debian 12",
    family="deb",
    glibc="2.36",
    pythons=("3.11",),
    image="registry.example.com/debian:12",
    codename="bookworm",
    cuda_image_suffix=None,
    eol=None,
    platforms=("linux-64",),
    aliases=(),
    mirrors_ended=False,
    refs=("o",),
)
TOOLKITS = tuple(
    ToolkitDriver(toolkit=toolkit, linux_min=driver, confidence=None, refs=(f"t{toolkit}",))
    for toolkit, driver in (
        ("11.8.0", "520.61.05"),
        ("12.6.3", "560.35.05"),
        ("12.6.0", "560.28.03"),
        ("13.0.0", "580.65.06"),
    )
)
PYTHONS = tuple(
    PythonSeries(python=python, bugfix_until=bugfix_until, eol=eol, refs=("y",))
    for python, bugfix_until, eol in (
        ("3.9", "2022-05-17", "2025-10-31"),
        ("3.10", "2023-04-05", "2026-10-01"),
        ("3.11", "2026-10-07", "2027-10-01"),
    )
)
COMPAT = (
    MinorCompat(cuda_major=11, linux_min="450.80.02", refs=("c11",)),
    MinorCompat(cuda_major=12, linux_min="525.60.13", refs=("c12",)),
    MinorCompat(cuda_major=13, linux_min="580", refs=("c13",)),
    MinorCompat(cuda_major=10, linux_min=None, refs=("c10",)),
)


def build(**changes: Any) -> Build:
    return replace(BUILD, **changes)


def gpu(**changes: Any) -> Gpu:
    return replace(GPU, **changes)


def cudnn(version: str, major: str, *capabilities: str) -> Cudnn:
    return Cudnn(
        cudnn=version,
        cuda_major=major,
        cuda_minors=(),
        linux_min_driver=None,
        capabilities=capabilities,
        confidence=None,
        refs=("n",),
    )


def facts(*builds: Build, **changes: Any) -> Facts:
    releases = {row.torch: replace(RELEASE, torch=row.torch) for row in builds}
    base = Facts(
        collected="2026-01-01",
        digest="0",
        version=1,
        releases=releases,
        builds=builds,
        companions=(VISION, AUDIO),
        toolkits=TOOLKITS,
        compat=COMPAT,
        forward=(),
        gpus=(GPU,),
        oses=(OS,),
        pythons=PYTHONS,
        cudnns=(),
        cuda_images=(),
        base_images=(),
        package_needs=(),
        installers=(),
        traps=(),
    )
    return replace(base, **changes)


def trap(name: str, when: dict[str, str], severity: str = "error") -> Trap:
    return Trap(
        id=name, title="T", when=when, effect="Effect.", fix="Fix.", severity=severity, confidence=None, refs=("p",)
    )
