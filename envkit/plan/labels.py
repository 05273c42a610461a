"""Labels that follow from a plan alone; the engines add those of the run (base digest, version of envkit, time)."""

from __future__ import annotations

from envkit.plan.model import BuildPlan
from envkit.plan.names import LABEL_PREFIX

_OCI = "org.opencontainers.image."
BASE_NAME = f"{_OCI}base.name"


def plan_labels(plan: BuildPlan) -> dict[str, str]:
    """Sorted labels of every image of a plan; the definition's own come on top."""
    found = plan.resolution
    driver = found.driver
    own = {
        "name": plan.name,
        "plan": plan.digest,
        "facts": plan.facts_digest,
        "torch": found.torch,
        "cuda": found.cuda or "none",
        "cudnn": found.cudnn,
        "nccl": found.nccl,
        "python": found.python,
        "source": found.source,
        "platform": found.platform,
        "driver.minimum": driver and driver.minimum,
        "driver.native": driver and driver.native,
        "gpu.archs": " ".join(found.gpu_archs or ()),
        "gpu.ptx": " ".join(found.ptx),
        "template": plan.template,
        "flavor": plan.flavor,
        "features": " ".join(plan.features),
        "shm-mb": str(plan.smoke.shm_mb),
    }
    oci = {
        "title": plan.title,
        "version": f"torch-{found.torch}-" + (f"cuda-{found.cuda}" if found.cuda else "cpu"),
        "base.name": plan.base,
    }
    labels = {f"{LABEL_PREFIX}.{name}": value for name, value in own.items() if value}
    labels |= {f"{_OCI}{name}": value for name, value in oci.items()}
    return dict(sorted((labels | dict(plan.labels)).items()))
