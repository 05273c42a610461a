"""The context of a check: the spec, the device, a seed, its deadline and torch, imported on first use."""

import time

PINNED_CAP_BYTES = 256 * 1024 * 1024
"""All page-locked buffers that live at one time stay within this many bytes."""


class Ctx:
    """The context of one run. ``cuda_usable`` turns False when the kernel check fails: later checks stay off."""

    def __init__(self, spec, seed=0, tier="quick"):
        self.spec = spec
        self.seed = seed
        self.tier = tier
        # What an earlier check leaves for a later one, by name.
        self.notes = {}
        self.deadline = None
        self.torch_error = None
        self.cuda_usable = True
        self.threads = (spec.get("launch") or {}).get("threads")
        self._torch = None
        self._cuda = None
        self._slab = None

    @property
    def torch(self):
        """Return the torch module; raises what importing it raised."""
        if self._torch is None:
            if self.torch_error is not None:
                raise self.torch_error
            try:
                import torch
            except Exception as error:
                self.torch_error = error
                raise
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            self._torch = torch
        return self._torch

    @property
    def tried_torch(self):
        """Whether torch was imported, or that failed."""
        return self._torch is not None or self.torch_error is not None

    @property
    def has_torch(self):
        """Whether torch can be imported."""
        try:
            return self.torch is not None
        except Exception:
            return False

    @property
    def has_cuda(self):
        """Whether torch sees a CUDA device and no earlier check found it unusable."""
        if self._cuda is None:
            self._cuda = bool(self.has_torch and self.torch.cuda.is_available())
        return self._cuda and self.cuda_usable

    @property
    def device(self):
        """Return ``cuda:0`` where a GPU can be used, else ``cpu``."""
        return "cuda:0" if self.has_cuda else "cpu"

    @property
    def subject(self):
        """Return ``gpu:0`` or ``cpu``, the name of the device in observations."""
        return "gpu:0" if self.has_cuda else "cpu"

    def wants(self, key):
        """Return what the spec promises for ``key``, None where it promises nothing."""
        return self.spec.get(key)

    def remaining(self):
        """Return the seconds left to the running check."""
        return float("inf") if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def seeded(self):
        """Seed torch and return it, so that each check starts from the same numbers whatever ran before."""
        self.torch.manual_seed(self.seed)
        return self.torch

    def pinned_slab(self):
        """Return the one page-locked uint8 buffer of PINNED_CAP_BYTES that all checks share."""
        if self._slab is None:
            self._slab = self.torch.empty(PINNED_CAP_BYTES, dtype=self.torch.uint8, pin_memory=True)
        return self._slab

    def release_pinned(self):
        """Give the shared page-locked buffer back to the system, as far as this torch can."""
        if self._slab is None:
            return
        self._slab = None
        from . import compat

        compat.empty_host_cache(self.torch)
