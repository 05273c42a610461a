"""The problems of an image, from its configuration and, where they can be read, its layers."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from envkit.doctor.host.conda import of_condarc
from envkit.doctor.images.contents import Contents
from envkit.doctor.model import Evidence, Finding, Severity
from envkit.facts.conditions import IN_WORDS, concerns
from envkit.facts.model import Facts
from envkit.ground.versions import key
from envkit.plan.variables import read_requirement
from envkit.verify.static import ImageFacts

MB, GB = 1_000_000, 1_000_000_000
LARGE_LAYER = 4 * GB
"""Bytes of a compressed layer from which on pushes are known to fail at registries and proxies."""
_CACHE_WORTH = 50 * MB
_CUDNN = ("pytorch/pytorch#119989", "pytorch/pytorch#80637", "bmaltais/kohya_ss#1096")
_SHADOW = ("pytorch/pytorch#111469", "pytorch/pytorch#134929", "pytorch/pytorch#140797")
_GPU_DOCS = ("https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",)
_TWICE = ("libcublasLt", "libcublas", "libcudart", "libcufft", "libcusparse", "libcusolver", "libcurand", "libnccl")


def is_cuda(facts: ImageFacts, packages: Mapping[str, str]) -> bool:
    """Whether an image is meant for GPUs: by its base's variables, its labels, or what is installed."""
    promised = any(facts.env.get(name) for name in ("CUDA_VERSION", "NV_CUDA_CUDART_VERSION", "NVIDIA_REQUIRE_CUDA"))
    return promised or any(name.startswith("nvidia-cu") for name in packages) or "+cu" in packages.get("torch", "")


def of_configuration(facts: ImageFacts, *, cuda: bool) -> Iterator[Finding]:
    """What variables, labels and user of an image bring about."""
    path = [folder for folder in facts.env.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any("cuda" in folder.lower() or "cudnn" in folder.lower() for folder in path):
        yield Finding(
            id="ld-library-path", severity=Severity.WARN,
            title="LD_LIBRARY_PATH puts the base's CUDA libraries before those that torch brings",
            evidence=(Evidence(text=f"LD_LIBRARY_PATH={':'.join(path)}"),),
            cause="Another CUDA minor found first fails at import (undefined symbol) or mixes two cuDNNs.",
            check=("envkit verify IMAGE --only C02",),
            fix=("ENV LD_LIBRARY_PATH= in the Dockerfile, or a base without CUDA.",), sources=_SHADOW,
        )  # fmt: skip
    if any(folder.rstrip("/").endswith("stubs") for folder in path):
        yield Finding(
            id="cuda-stubs", severity=Severity.ERROR, title="the stub of libcuda is on the loader's path",
            evidence=(Evidence(text=f"LD_LIBRARY_PATH={':'.join(path)}"),),
            cause="The stub is for linking only; a program that loads it finds no GPU.",
            fix=("Take the stubs folder out of LD_LIBRARY_PATH after building.",), sources=_GPU_DOCS,
        )  # fmt: skip
    if cuda:
        yield from _of_gpu_variables(facts)


def _of_gpu_variables(facts: ImageFacts) -> Iterator[Finding]:
    if not facts.env.get("NVIDIA_VISIBLE_DEVICES"):
        yield Finding(
            id="no-visible-devices", severity=Severity.WARN, title="NVIDIA_VISIBLE_DEVICES is not set",
            cause="--gpus sets it; where the NVIDIA runtime is the default instead, GPUs are left out without it.",
            fix=("ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",), sources=_GPU_DOCS,
        )  # fmt: skip
    capabilities = facts.env.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"compute", "all"} & {capability.strip() for capability in capabilities.split(",")}:
        yield Finding(
            id="no-compute", severity=Severity.ERROR, title="NVIDIA_DRIVER_CAPABILITIES keeps CUDA out",
            evidence=(Evidence(text=f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"),),
            fix=("ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility",), sources=_GPU_DOCS,
        )  # fmt: skip
    required = facts.env.get("NVIDIA_REQUIRE_CUDA")
    if required and not facts.env.get("NVIDIA_DISABLE_REQUIRE"):
        yield from _of_requirement(required)


def _of_requirement(value: str) -> Iterator[Finding]:
    """What NVIDIA_REQUIRE_CUDA asks of a host: a space between conditions means OR, a comma AND."""
    evidence = (Evidence(text=f"NVIDIA_REQUIRE_CUDA={value[:120]}"),)
    alternatives = read_requirement(value)
    if alternatives is None:
        yield Finding(
            id="requirement-unread", severity=Severity.WARN,
            title="the container toolkit cannot read NVIDIA_REQUIRE_CUDA",
            evidence=evidence, cause="It skips conditions that it does not know, or refuses to start the container.",
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
    # A driver that any GPU may have instead of a native one: the image starts by minor-version compatibility.
    if not native or any(not conditions & {"cuda", "brand"} for conditions in names):
        return
    lowest = min(native, key=key)
    brands = any("brand" in conditions for conditions in names)
    yield Finding(
        id="driver-requirement", severity=Severity.INFO,
        title=f"the container starts only where the driver runs CUDA {lowest} natively"
        + (", or on data center GPUs with one of the drivers that are named" if brands else ""),
        evidence=evidence, cause="The base asks for more driver than torch does.",
        fix=("A base without CUDA lets it run on every driver that torch supports.",),
        sources=("NVIDIA/nvidia-container-toolkit#152", "SyneRBI/PETRIC2#27"),
    )  # fmt: skip


def of_contents(contents: Contents, *, cuda: bool) -> Iterator[Finding]:
    """What the files of an image bring about."""
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
            id="credentials", severity=Severity.ERROR, title="a layer holds files that usually hold credentials",
            evidence=tuple(Evidence(text=f"/{name}") for name in contents.secrets[:8]),
            cause="Anyone who can pull the image can read them, even if a later layer removes them.",
            fix=("Use RUN --mount=type=secret, replace what was exposed, and build again.",),
            sources=("https://docs.docker.com/build/building/secrets/", "conda/conda-lock#135"),
        )  # fmt: skip


def of_versions(packages: Mapping[str, str], facts: Facts) -> Iterator[Finding]:
    """Traps of the facts whose conditions the installed versions meet, all of them."""
    known = ("torch", "numpy", "setuptools", "mkl", "triton", "torchvision")
    values = {name: packages[name].partition("+")[0] for name in known if name in packages}
    values = {name: text for name, text in values.items() if re.fullmatch(r"\d{1,6}(?:\.\d{1,6}){0,3}", text)}
    for trap in facts.traps:
        # A trap of torch alone is about what to choose, and here the choice is made.
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
            cause="Which one a process loads depends on the order of paths; parts of two versions do not fit.",
            check=("envkit verify IMAGE --only C02",),
            fix=("Take a base without cuDNN, because wheels and conda packages bring it.",), sources=_CUDNN,
        )  # fmt: skip


def _of_driver_files(contents: Contents) -> Iterator[Finding]:
    libraries = sorted(contents.libraries("libcuda.so"))
    compat = [path for path in libraries if "/compat/" in path]
    own = [path for path in libraries if "/compat/" not in path and "/stubs/" not in path]
    if own:
        yield Finding(
            id="libcuda-in-image", severity=Severity.ERROR, title="the image has a libcuda of its own",
            evidence=tuple(Evidence(text=f"/{path}") for path in own[:4]),
            cause="libcuda belongs to the host's driver and is put in at the start; another one does not fit.",
            fix=("Remove the driver's packages (libcuda1, libnvidia-*) from the image.",), sources=_GPU_DOCS,
        )  # fmt: skip
    if compat:
        yield Finding(
            id="cuda-compat", severity=Severity.WARN, title="the image has cuda-compat libraries",
            evidence=tuple(Evidence(text=f"/{path}") for path in compat[:4]),
            cause="Where they are loaded on GPUs that are not for data centers, CUDA ends with error 804.",
            fix=("apt-get remove cuda-compat-*, unless old drivers on data center GPUs are the aim.",),
            sources=("NVIDIA/nvidia-docker#1294", "NVIDIA/nvidia-docker#1515"),
        )  # fmt: skip


def _of_torch(packages: Mapping[str, str], *, cuda: bool) -> Iterator[Finding]:
    torch, vision = packages.get("torch", ""), packages.get("torchvision", "")
    if cuda and torch.endswith("+cpu"):
        yield Finding(
            id="cpu-build", severity=Severity.ERROR, title="a CPU build of torch in an image made for CUDA",
            evidence=(Evidence(text=f"torch {torch}"),),
            cause="The solver or the index gave the CPU variant; nothing failed while it was built.",
            fix=("pip: --index-url of the CUDA variant. conda: CONDA_OVERRIDE_CUDA before the solve.",),
            sources=("conda/conda#14761", "mamba-org/micromamba-docker#620"),
        )  # fmt: skip
    variants = [text.partition("+")[2] for text in (torch, vision)]
    if all(variants) and variants[0] != variants[1]:
        yield Finding(
            id="torchvision-pair", severity=Severity.ERROR, title="torch and torchvision are of different variants",
            evidence=(Evidence(text=f"torch {torch}, torchvision {vision}"),),
            cause="torchvision's operators (nms) are then missing.",
            fix=("Install both from one index, in one command.",),
            sources=("pytorch/vision#8985", "vllm-project/vllm#5736"),
        )  # fmt: skip


def _of_duplicates(contents: Contents) -> Iterator[Finding]:
    evidence, wasted = [], 0
    for name in _TWICE:
        places: dict[str, list[int]] = defaultdict(list)
        for path, seen in contents.libraries(f"{name}.so").items():
            places[posixpath.dirname(path)].append(seen.size)
        if len(places) > 1:
            sizes = sorted(max(file_sizes) for file_sizes in places.values())
            wasted += sum(sizes[:-1])
            evidence.append(Evidence(text=f"{name}: {', '.join(f'/{folder}' for folder in sorted(places))}"))
    if wasted > _CACHE_WORTH:
        yield Finding(
            id="cuda-twice", severity=Severity.WARN, title=f"CUDA is in the image twice: {wasted / MB:.0f} MB more",
            evidence=tuple(evidence[:8]), fix=("Take a base without CUDA; wheels bring what torch needs.",),
            sources=("amaiya/onprem#73", "vllm-project/vllm#4950"),
        )  # fmt: skip


def _of_caches(contents: Contents) -> Iterator[Finding]:
    caches = contents.caches()
    if sum(caches.values()) > _CACHE_WORTH:
        yield Finding(
            id="caches-left", severity=Severity.WARN,
            title=f"left-over caches take {sum(caches.values()) / MB:.0f} MB",
            evidence=tuple(Evidence(text=f"{name}: {size / MB:.0f} MB") for name, size in caches.items()),
            fix=("conda clean --all, pip --no-cache-dir, rm -rf /var/lib/apt/lists/* in the same RUN line",),
            sources=("ufoym/deepo#113",),
        )  # fmt: skip


def _of_layers(contents: Contents) -> Iterator[Finding]:
    large = [layer for layer in contents.layers if layer.blob > LARGE_LAYER]
    if large:
        yield Finding(
            id="large-layer", severity=Severity.WARN, title="a layer is larger than registries like",
            evidence=tuple(Evidence(text=f"{layer.diff_id[:19]}: {layer.blob / GB:.1f} GB") for layer in large),
            cause="Every change sends it again as a whole, and some registries stop at 10 GB or ten minutes.",
            fix=("Split the step; the embedded engine makes a layer for each wheel.",),
            sources=("goharbor/harbor#15719", "cloudflare/serverless-registry#67"),
        )  # fmt: skip
