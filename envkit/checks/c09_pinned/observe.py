"""C09: page-locked memory, measured by allocating it: ``ulimit -l`` says little about what the driver will pin."""

import os

from envkit.smoke import hostfacts, observation

# With this setting torch calls malloc without checking the result, then touches every page: if memory is short, the
# process is killed (CachingHostAllocator.cpp of c10/cuda).
UNCHECKED = "pinned_use_cuda_host_register:true"
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def loader_need(loader):
    """Return the most bytes a loader keeps page-locked: prefetch x batch x 2. None if no loader is declared."""
    if not loader or not loader.get("batch_bytes") or loader.get("pin_memory") is False:
        return None
    return int(loader.get("prefetch_factor") or 2) * int(loader["batch_bytes"]) * 2


def run(ctx):
    """Return C09.pinned: the memory needed, the memory pinned, and whether torch reports it as pinned."""
    torch = ctx.torch
    observed = {
        "need_bytes": loader_need(ctx.spec.get("loader")),
        "cap_bytes": ctx.slab_bytes,
        "memlock": hostfacts.limit("MEMLOCK"),
        "cgroup_bytes": hostfacts.read_cgroup()["memory_bytes"],
        "pinned_bytes": 0,
        "is_pinned": None,
        "error": None,
    }
    try:
        slab = ctx.pinned_slab()
        slab.fill_(1)
        observed.update(pinned_bytes=slab.numel(), is_pinned=slab.is_pinned())
    except RuntimeError as error:
        observed["error"] = str(error)[:500]
        observed["pinned_bytes"] = _largest(torch, ctx.slab_bytes)
    pageable = torch.zeros(1024, dtype=torch.uint8)
    controls = [observation.control("pageable_is_not_pinned", not pageable.is_pinned(), "an ordinary tensor")]
    if not unchecked(os.environ):
        refused = observation.control("impossible_size_is_refused", _refused(torch), "4 EiB of page-locked memory")
        controls.append(refused)
    return [observation.ran("C09.pinned", "gpu:0", observed, controls=controls)]


def unchecked(environment):
    """Whether torch's allocator is set to UNCHECKED, which kills the process if there is too little memory."""
    texts = [environment.get(name, "").lower().replace(" ", "") for name in ALLOCATOR_VARIABLES]
    return any(UNCHECKED in text for text in texts)


def _largest(torch, cap):
    """Return the largest power-of-two fraction of ``cap`` that can be pinned; 0 if even 1 MiB cannot."""
    size = cap // 2
    while size >= 1 << 20:
        try:
            torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            size //= 2
        else:
            return size
    return 0


def _refused(torch):
    try:
        torch.empty(1 << 62, dtype=torch.uint8, pin_memory=True)
    except (RuntimeError, MemoryError):
        return True
    return False
