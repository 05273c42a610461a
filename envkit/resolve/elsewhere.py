"""What envkit does not make images for, by the words that people use for it: the reason, and where to go instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from envkit.ground.errors import ConflictError

_XPU = "pip install torch --index-url https://download.pytorch.org/whl/xpu installs PyTorch's own builds for them"
_ROCM = "pip install torch --index-url https://download.pytorch.org/whl/rocm6.4 installs PyTorch's own builds for them"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A kind of request that has no answer here."""

    fields: tuple[str, ...]
    words: str  # an expression for the whole value, in lower case; compiled when a value is given
    reason: str
    go: str


def _row(fields: str, words: str, reason: str, go: str) -> Elsewhere:
    return Elsewhere(tuple(fields.split()), words, reason, go)


ROWS = (
    _row(
        "platform os", r"(osx|mac ?os|darwin)([-_ ]?(arm64|64|x86_64|universal2|[0-9.]+))?|arm64-darwin",
        "macOS has no CUDA, and envkit makes Linux images for NVIDIA GPUs",
        "pip install torch on the Mac uses its GPU (MPS); --platform linux-aarch64 --cpu is for Docker on it",
    ),
    _row(
        "platform os", r"(win|windows)([-_ ]?(32|64|amd64|arm64|[0-9.]+))?",
        "envkit makes Linux images, not Windows ones",
        "WSL2 on Windows runs Linux images with CUDA: use linux-64 and the Windows driver's version",
    ),
    _row("platform", r"(linux[-_ ])?(ppc64le|s390x|riscv64|armv7l?|i[3-6]86|32)", "PyTorch has no CUDA wheels for it",
         "use linux-64 or linux-aarch64"),
    _row(
        "gpu", r"(intel|arc|iris|uhd|data center gpu)\b.*|arc[ -]?[abp][0-9]{2,3}.*|ponte vecchio|flex [0-9]+",
        "Intel GPUs have no CUDA", _XPU,
    ),
    _row("gpu", r"apple\b.*|m[1-9] (pro|max|ultra)|mps", "Apple GPUs have no CUDA",
         "pip install torch on the Mac uses its GPU (MPS)"),
    _row("gpu", r"jetson (nano|tx1|tx2( nx)?)",
         "PyTorch's wheels have no code for this Jetson module, which needs NVIDIA's own builds for its JetPack",
         "use the l4t-pytorch images of NVIDIA's registry (nvcr.io/nvidia/l4t-pytorch)"),
    _row("cuda torch source", r".*rocm.*|hip([0-9.]*)",
         "ROCm builds are for AMD GPUs, and envkit makes images for NVIDIA GPUs", _ROCM),
    _row("cuda torch source", r"xpu.*|oneapi.*",
         "XPU builds are for Intel GPUs, and envkit makes images for NVIDIA GPUs", _XPU),
    _row(
        "torch source", r"nightly.*|.*\.?dev[0-9]*.*|main|master|pre(-?release)?|(.*[0-9])?rc[0-9]*",
        "nightly builds and release candidates are replaced every day, so no compatibility data describe them",
        "--torch with a release; or pip install --pre torch --index-url https://download.pytorch.org/whl/nightly/cu130",
    ),
    _row("os", r"alpine.*|.*musl.*|void.*", "Alpine's C library is musl, and the wheels of torch need glibc",
         "--os debian12"),
    _row("python", r"(python ?|cp|py)?3\.?[0-9]+t|.*free[- ]?thread.*|.*no-?gil.*",
         "free-threaded builds of Python are not covered: few packages that go with torch have wheels for them",
         "leave out the t, as in --python 3.13"),
)  # fmt: skip


def refuse(fields: Mapping[str, str | Sequence[str] | bool | None], name: Callable[[str], str]) -> None:
    """Refuse a request for what envkit makes no images for.

    Raises:
        ConflictError: a value names such a thing; the message has the reason and the hint where to go.
    """
    for row in ROWS:
        for field in row.fields:
            for value in _values(fields.get(field)):
                if re.fullmatch(row.words, value.strip().lower()):
                    raise ConflictError(f"{name(field)}: {value!r:.60}: {row.reason}", hint=row.go)


def _values(value: str | Sequence[str] | bool | None) -> Sequence[str]:
    if isinstance(value, str):
        return (value,)
    return () if value is None or isinstance(value, bool) else value
