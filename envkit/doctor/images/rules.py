"""The rules that find problems in an image's configuration and, if they were read, its layers."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from envkit.doctor.environment import of_environment
from envkit.doctor.host.conda import of_condarc
from envkit.doctor.images.contents import Contents
from envkit.doctor.model import Evidence, Finding, Severity
from envkit.facts.conditions import IN_WORDS, concerns
from envkit.facts.model import Facts
from envkit.ground.sizes import shown_size
from envkit.ground.versions import key
from envkit.knowledge import variables
from envkit.plan.variables import read_requirement
from envkit.verify.static import ImageFacts

MB, GB = 1_000_000, 1_000_000_000
LARGE_LAYER = 4 * GB
"""Size of a compressed layer in bytes above which pushes are known to fail at some registries and proxies."""
_WASTE = 50 * MB  # duplicates and caches below this are not reported
_CUDNN = ("pytorch/pytorch#119989", "pytorch/pytorch#80637", "bmaltais/kohya_ss#1096")
_STATIC = frozenset(name.lower().replace("_", "-") for name in variables.names(variables.SHADOWS, variables.CHECK))
_GPU_DOCS = ("https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",)
_TWICE = ("libcublasLt", "libcublas", "libcudart", "libcufft", "libcusparse", "libcusolver", "libcurand", "libnccl")


def is_cuda(facts: ImageFacts, packages: Mapping[str, str]) -> bool:
    """Return whether an image is made for GPUs, from its base's variables or its installed packages."""
    # The variables of the images nvidia/cuda.
    by_variable = any(facts.env.get(name) for name in ("CUDA_VERSION", "NV_CUDA_CUDART_VERSION", "NVIDIA_REQUIRE_CUDA"))
    return by_variable or any(name.startswith("nvidia-cu") for name in packages) or "+cu" in packages.get("torch", "")


def of_configuration(facts: ImageFacts, *, cuda: bool) -> Iterator[Finding]:
    """Return the findings about an image's environment variables."""
    # `diagnose` reports the other variables that load something else, with what S03 says of them.
    shadowing = variables.one("LD_LIBRARY_PATH", variables.SHADOWS)
    for finding in of_environment(facts.env, gpu=cuda):
        if finding.id == shadowing.id or finding.id not in _STATIC:
            yield finding
    if cuda:
        yield from _of_gpu_variables(facts)


def _of_gpu_variables(facts: ImageFacts) -> Iterator[Finding]:
    if not facts.env.get("NVIDIA_VISIBLE_DEVICES"):
        yield Finding(
            id="no-visible-devices", severity=Severity.WARN, title="NVIDIA_VISIBLE_DEVICES is not set",
            cause="docker run --gpus sets it; if a host relies on nvidia as its default runtime, no GPU is visible.",
            fix=("ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",), sources=_GPU_DOCS,
        )  # fmt: skip
    required = facts.env.get("NVIDIA_REQUIRE_CUDA")
    if required and not facts.env.get("NVIDIA_DISABLE_REQUIRE"):
        yield from _of_requirement(required)


def _of_requirement(value: str) -> Iterator[Finding]:
    """Check what NVIDIA_REQUIRE_CUDA requires of a host: a space between conditions means OR, a comma AND."""
    evidence = (Evidence(text=f"NVIDIA_REQUIRE_CUDA={value[:120]}"),)
    alternatives = read_requirement(value)
    if alternatives is None:
        yield Finding(
            id="requirement-unread", severity=Severity.WARN,
            title="the container toolkit cannot read NVIDIA_REQUIRE_CUDA",
            evidence=evidence, cause="It ignores conditions that it cannot read, or refuses to start the container.",
            fix=("Write alternatives such as 'cuda>=12.6 driver>=525.60.13'.",), sources=_GPU_DOCS,
        )  # fmt: skip
        return
    names = [{name for name, _, _ in factors} for factors in alternatives]
    native = [
        version
        for factors, conditions in zip(alternatives, names, strict=True)
        for name, sign, version in factors
        if (name, sign) == ("cuda", ">=") and "brand" not in conditions
    ]
    # An alternative without `cuda` and `brand` accepts a driver on any GPU, so minor-version compatibility suffices.
    if not native or any(not conditions & {"cuda", "brand"} for conditions in names):
        return
    lowest = min(native, key=key)
    brands = any("brand" in conditions for conditions in names)
    yield Finding(
        id="driver-requirement", severity=Severity.INFO,
        title=f"the container starts only where the driver runs CUDA {lowest} natively"
        + (", or on data center GPUs with one of the listed drivers" if brands else ""),
        evidence=evidence, cause="The base image requires a newer driver than torch does.",
        fix=("Use a base without CUDA; then it runs on every driver that torch supports.",),
        sources=("NVIDIA/nvidia-container-toolkit#152", "SyneRBI/PETRIC2#27"),
    )  # fmt: skip


def of_contents(contents: Contents, *, cuda: bool) -> Iterator[Finding]:
    """Return the findings about the files of an image."""
    packages = contents.packages()
    yield from _of_cudnn(contents)
    yield from _of_driver_files(contents)
    yield from _of_torch(packages, cuda=cuda)
    yield from _of_duplicates(contents)
    yield from _of_caches(contents)
    yield from _of_layers(contents)
    for name, text in contents.condarcs().items():
        yield from of_condarc(f"/{name}", text)
    if contents.secrets:
        yield Finding(
            id="credentials", severity=Severity.ERROR, title="a layer has files that usually contain credentials",
            evidence=tuple(Evidence(text=f"/{name}") for name in contents.secrets[:8]),
            cause="Anyone who can pull the image can read them, even if a later layer removes them.",
            fix=("Revoke the credentials, use RUN --mount=type=secret, and build again.",),
            sources=("https://docs.docker.com/build/building/secrets/", "conda/conda-lock#135"),
        )  # fmt: skip


def of_versions(packages: Mapping[str, str], facts: Facts) -> Iterator[Finding]:
    """Return the known traps that apply to the installed versions."""
    known = ("torch", "numpy", "setuptools", "mkl", "triton", "torchvision")
    values = {name: packages[name].partition("+")[0] for name in known if name in packages}
    # Development versions such as 2.8.0a0 cannot be compared.
    values = {name: text for name, text in values.items() if re.fullmatch(r"\d{1,6}(?:\.\d{1,6}){0,3}", text)}
    for trap in facts.traps:
        # A trap with torch as its only condition advises which torch to choose; here it is already installed.
        if len(trap.when) == 1 or IN_WORDS in trap.when or not set(trap.when) <= set(values):
            continue
        if all(concerns(trap.when, name, values[name]) for name in trap.when):
            yield Finding(
                id=trap.id, severity=Severity(trap.severity), title=trap.title,
                evidence=(Evidence(text=", ".join(f"{name} {packages[name]}" for name in trap.when)),),
                cause=trap.effect, fix=(trap.fix,), sources=trap.refs,
            )  # fmt: skip


def _of_cudnn(contents: Contents) -> Iterator[Finding]:
    folders: dict[str, str] = {}
    for path in sorted(contents.libraries("libcudnn.so")):
        folders.setdefault(posixpath.dirname(path), path)
    if len(folders) > 1:
        yield Finding(
            id="two-cudnn", severity=Severity.ERROR, title=f"cuDNN is in the image {len(folders)} times",
            evidence=tuple(Evidence(text=f"/{path}") for path in folders.values()),
            cause="The search path decides which one a process loads; libraries of two versions are incompatible.",
            check=("envkit verify IMAGE --only C02",),
            fix=("Use a base without cuDNN, because wheels and conda packages include it.",), sources=_CUDNN,
        )  # fmt: skip


def _of_driver_files(contents: Contents) -> Iterator[Finding]:
    libraries = sorted(contents.libraries("libcuda.so"))
    compat = [path for path in libraries if "/compat/" in path]
    # The devel images of nvidia/cuda have stubs, against which programs are linked.
    own = [path for path in libraries if "/compat/" not in path and "/stubs/" not in path]
    if own:
        yield Finding(
            id="libcuda-in-image", severity=Severity.ERROR, title="the image contains its own libcuda",
            evidence=tuple(Evidence(text=f"/{path}") for path in own[:4]),
            cause="libcuda belongs to the host's driver and is mounted at start; any other version is incompatible.",
            fix=("Remove the driver's packages (libcuda1, libnvidia-*) from the image.",), sources=_GPU_DOCS,
        )  # fmt: skip
    if compat:
        yield Finding(
            id="cuda-compat", severity=Severity.WARN, title="the image has cuda-compat libraries",
            evidence=tuple(Evidence(text=f"/{path}") for path in compat[:4]),
            cause="On GPUs other than data center GPUs, CUDA fails with error 804 if they are loaded.",
            fix=("apt-get remove cuda-compat-*, unless the image is for old drivers on data center GPUs.",),
            sources=("NVIDIA/nvidia-docker#1294", "NVIDIA/nvidia-docker#1515"),
        )  # fmt: skip


def _of_torch(packages: Mapping[str, str], *, cuda: bool) -> Iterator[Finding]:
    torch, vision = packages.get("torch", ""), packages.get("torchvision", "")
    if cuda and torch.endswith("+cpu"):
        yield Finding(
            id="cpu-build", severity=Severity.ERROR, title="a CPU build of torch in an image made for CUDA",
            evidence=(Evidence(text=f"torch {torch}"),),
            cause="The solver or the index chose the CPU variant, and the build did not fail.",
            fix=("pip: --index-url of the CUDA variant. conda: CONDA_OVERRIDE_CUDA before the solve.",),
            sources=("conda/conda#14761", "mamba-org/micromamba-docker#620"),
        )  # fmt: skip
    # Without a local version, as of most conda packages, the variant is unknown.
    variants = [text.partition("+")[2] for text in (torch, vision)]
    if all(variants) and variants[0] != variants[1]:
        yield Finding(
            id="torchvision-pair", severity=Severity.ERROR, title="torch and torchvision are different variants",
            evidence=(Evidence(text=f"torch {torch}, torchvision {vision}"),),
            cause="torchvision's compiled operators (such as nms) are then missing.",
            fix=("Install both from one index, in one command.",),
            sources=("pytorch/vision#8985", "vllm-project/vllm#5736"),
        )  # fmt: skip


def _of_duplicates(contents: Contents) -> Iterator[Finding]:
    evidence, wasted = [], 0
    for name in _TWICE:
        by_folder: dict[str, list[int]] = defaultdict(list)
        for path, node in contents.libraries(f"{name}.so").items():
            by_folder[posixpath.dirname(path)].append(node.size)
        if len(by_folder) > 1:
            sizes = sorted(max(file_sizes) for file_sizes in by_folder.values())
            # One copy is needed; the largest is not counted.
            wasted += sum(sizes[:-1])
            evidence.append(Evidence(text=f"{name}: {', '.join(f'/{folder}' for folder in sorted(by_folder))}"))
    if wasted > _WASTE:
        yield Finding(
            id="cuda-twice", severity=Severity.WARN,
            title=f"CUDA is in the image twice, which takes {shown_size(wasted)}",
            evidence=tuple(evidence[:8]), fix=("Use a base without CUDA; wheels include what torch needs.",),
            sources=("amaiya/onprem#73", "vllm-project/vllm#4950"),
        )  # fmt: skip


def _of_caches(contents: Contents) -> Iterator[Finding]:
    caches = contents.caches()
    if sum(caches.values()) > _WASTE:
        yield Finding(
            id="caches-left", severity=Severity.WARN,
            title=f"leftover caches take {shown_size(sum(caches.values()))}",
            evidence=tuple(Evidence(text=f"{name}: {shown_size(size)}") for name, size in caches.items()),
            fix=("In the same RUN line: conda clean --all, pip --no-cache-dir, rm -rf /var/lib/apt/lists/*",),
            sources=("ufoym/deepo#113",),
        )  # fmt: skip


def _of_layers(contents: Contents) -> Iterator[Finding]:
    large = [layer for layer in contents.layers if layer.blob > LARGE_LAYER]
    if large:
        yield Finding(
            id="large-layer", severity=Severity.WARN, title="a layer is larger than some registries accept",
            evidence=tuple(Evidence(text=f"{layer.diff_id[:19]}: {shown_size(layer.blob)}") for layer in large),
            cause="Every change uploads the whole layer again; some registries limit it to 10 GB or ten minutes.",
            fix=("Split the step; the embedded engine makes one layer per wheel.",),
            sources=("goharbor/harbor#15719", "cloudflare/serverless-registry#67"),
        )  # fmt: skip
