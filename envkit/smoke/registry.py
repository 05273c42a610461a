"""The checks in the order they run. A check that makes later results meaningless comes first."""

import importlib

# The kernel check (C04) runs before anything touches CUDA in this process: a wedged driver hangs there, and only there
# is it bounded by a subprocess.
ORDER = (
    "c00_container",
    "c01_versions",
    "c04_kernel",
    "c03_arch",
    "c02_libraries",
    "c05_gemm",
    "c06_conv",
    "c07_repeat",
    "c08_cpus",
    "c13_shm",
    "c09_pinned",
    "c10_transfer",
    "c11_overlap",
    "c12_loader",
    "c14_amp",
    "c15_amp_speed",
    "c16_amp_memory",
    "c17_no_grad",
    "c18_compile",
    "c19_checkpoints",
    "c20_collectives",
    # What the mini training finds out about waiting decides what to say about decoders.
    "c23_training",
    "c21_jpeg",
    "c22_storage",
    "c24_sustained",
)
TIERS = ("quick", "standard", "deep")


def load():
    """Return the check modules in order; raises ValueError where two share an id or one lacks a constant."""
    package = __package__ or "smoke"
    modules = [importlib.import_module(f"{package}.checks.{name}") for name in ORDER]
    seen = set()
    for module in modules:
        missing = [name for name in ("ID", "TITLE", "TIER", "BUDGET_S", "NEEDS", "run") if not hasattr(module, name)]
        if missing or module.ID in seen or module.TIER not in TIERS or module.NEEDS not in ("host", "torch", "cuda"):
            raise ValueError(f"{module.__name__}: not a check: {missing or module.ID}")
        seen.add(module.ID)
    return modules


def select(modules, tier, only=()):
    """Return the modules of ``tier`` and every cheaper one, narrowed to the ids in ``only`` where given."""
    allowed = TIERS[: TIERS.index(tier) + 1]
    unknown = sorted(set(only) - {module.ID for module in modules})
    if unknown:
        raise ValueError("no such check: " + ", ".join(unknown))
    return [module for module in modules if (module.ID in only if only else module.TIER in allowed)]


def budget(module, tier):
    """Return the seconds a check is meant to take in ``tier``: one that does more in a deeper tier says so."""
    return getattr(module, "BUDGETS", {}).get(tier, module.BUDGET_S)
