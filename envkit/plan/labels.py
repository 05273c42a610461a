"""Labels that depend only on the plan; the engines add those of the run (base digest, version of envkit, time)."""

from __future__ import annotations

from envkit.ground.naming import LABEL_PREFIX
from envkit.plan.model import BuildPlan
from envkit.resolve.model import Resolution

_OCI = "org.opencontainers.image."
BASE_NAME = f"{_OCI}base.name"


def plan_labels(plan: BuildPlan) -> dict[str, str]:
    """Return the labels of every image of a plan, sorted; the definition's own override them.

    A plan without torch (`family` is empty) has none of the labels of torch's wheels; it has CUDA only with the toolkit
    of `flavor: devel`.
    """
    resolution = plan.resolution
    cuda = resolution.cuda if plan.family or plan.flavor == "devel" else None
    own: dict[str, str | None] = {
        "name": plan.name,
        "plan": plan.digest,
        "facts": plan.facts_digest,
        # Explicit, because `envkit run` gives no GPUs to an image without CUDA.
        "cuda": cuda or "none",
        "python": resolution.python,
        "platform": resolution.platform,
        "template": plan.template,
        "flavor": plan.flavor,
        "features": " ".join(plan.features),
        "shm-mb": str(plan.smoke.shm_mb),
    }
    if plan.family:
        own |= _of_torch(resolution)
    if cuda and resolution.driver:
        own |= {"driver.minimum": resolution.driver.minimum, "driver.native": resolution.driver.native}
    software = f"torch-{resolution.torch}" if plan.family else f"python-{resolution.python}"
    oci = {
        "title": plan.title,
        "version": f"{software}-" + (f"cuda-{cuda}" if cuda else "cpu"),
        "base.name": plan.base,
    }
    labels = {f"{LABEL_PREFIX}.{name}": value for name, value in own.items() if value}
    labels |= {f"{_OCI}{name}": value for name, value in oci.items()}
    return dict(sorted((labels | dict(plan.labels)).items()))


def _of_torch(resolution: Resolution) -> dict[str, str | None]:
    """Return the labels about torch and the libraries bundled with it, such as cuDNN and NCCL."""
    return {
        "torch": resolution.torch,
        "cudnn": resolution.cudnn,
        "nccl": resolution.nccl,
        "source": resolution.source,
        "gpu.archs": " ".join(resolution.gpu_archs or ()),
        "gpu.ptx": " ".join(resolution.ptx),
    }
