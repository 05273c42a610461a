"""The spec that an image is verified against, for the payload and the judges. None means: not specified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envkit.ground.naming import LABEL_PREFIX
from envkit.plan.model import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.plan.model import BuildPlan

MIB = 1 << 20
_LABELLED = (
    "plan",
    "torch",
    "cuda",
    "cudnn",
    "nccl",
    "python",
    "driver.minimum",
    "driver.native",
    "gpu.archs",
    "gpu.ptx",
    "shm-mb",
)

EMPTY: Mapping[str, Any] = {
    "nonce": None,
    "plan": None,
    "gpu": None,
    "allow_cpu": False,
    "python": None,
    "torch": None,
    "local_version": None,
    "cuda": None,
    "cudnn": None,
    "nccl": None,
    "triton": None,
    "torchvision": None,
    "driver": None,
    "gpu_archs": None,
    "ptx": None,
    "prefix": None,
    "loader": None,
    "features": None,
    "shm_mb": None,
}
"""A spec that specifies nothing."""


def spec_of_plan(plan: BuildPlan, *, allow_cpu: bool = False) -> dict[str, Any]:
    """Return the spec of a plan."""
    made = plan.resolution
    smoke = plan.smoke
    return {
        **EMPTY,
        "plan": plan.digest,
        "gpu": made.cuda is not None,
        "allow_cpu": allow_cpu,
        "python": made.python,
        "torch": made.torch,
        "local_version": made.local_version,
        "cuda": made.cuda,
        "cudnn": made.cudnn,
        "nccl": made.nccl,
        "triton": made.triton,
        "torchvision": made.torchvision,
        "driver": None if made.driver is None else {"native": made.driver.native, "minimum": made.driver.minimum},
        "gpu_archs": None if made.gpu_archs is None else list(made.gpu_archs),
        "ptx": list(made.ptx),
        "prefix": plan.prefix,
        "loader": {
            "num_workers": smoke.num_workers,
            "prefetch_factor": smoke.prefetch_factor,
            "batch_bytes": smoke.batch_mb * MIB,
            "pin_memory": smoke.pin_memory,
        },
        "features": {"compile": smoke.compile},
        "shm_mb": smoke.shm_mb,
    }


def spec_of_labels(labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec from an image's own labels, for an image whose plan is not available.

    It is empty for images that envkit did not build and for incomplete labels.
    """
    own = {key: labels.get(f"{LABEL_PREFIX}.{key}") or None for key in _LABELLED}
    if own["torch"] is None or own["python"] is None or own["cuda"] is None:
        return dict(EMPTY)
    gpu = own["cuda"] != "none"
    archs, shm = own["gpu.archs"], own["shm-mb"]
    return {
        **EMPTY,
        "plan": own["plan"],
        "gpu": gpu,
        "python": own["python"],
        "torch": own["torch"],
        "cuda": own["cuda"] if gpu else None,
        "cudnn": own["cudnn"],
        "nccl": own["nccl"],
        "driver": {"native": own["driver.native"], "minimum": own["driver.minimum"]} if own["driver.minimum"] else None,
        "gpu_archs": archs.split() if archs else None,
        "ptx": (own["gpu.ptx"] or "").split() if archs else None,
        "prefix": PREFIX,  # there is no label for it; every image that envkit builds has this one
        "shm_mb": int(shm) if shm and shm.isdigit() else None,
    }
