"""The context of a check: the spec, the device, a seed, its time limit and torch, imported on first use."""

import os

from . import hostfacts, noise

MIB = 1024 * 1024
PATTERN = 251  # a prime, so that bytes at power-of-two distances differ
SLABS_BYTES = (256 * MIB, 64 * MIB)
"""Sizes of the page-locked buffer, largest first. The last one is used if none fits."""
SLAB_SHARE = 16
"""A buffer takes at most 1/SLAB_SHARE of free memory: a check may hold three, which is less than a fifth."""


class Ctx:
    """The context of one run. ``cuda_usable`` becomes False if the kernel check fails: later checks skip the GPU."""

    def __init__(self, spec, seed=0, tier="quick", data=None):
        self.spec = spec
        self.data = data  # the user's folder of files
        self.seed = seed
        self.tier = tier
        self.notes = {}  # results of earlier checks that later ones use, by name
        self.limit = None  # the running check's, a pressure.Limit
        self.torch_error = None
        self.cuda_usable = True
        self.lost_in = None  # the check whose CUDA error made the device unusable
        self.threads = (spec.get("launch") or {}).get("threads")
        self._torch = None
        self._cuda = None
        self._slab = None
        self._slab_bytes = None

    @property
    def torch(self):
        """Return the torch module. Raises the error of its import, also on later uses."""
        if self._torch is None:
            if self.torch_error is not None:
                raise self.torch_error
            try:
                import torch
            except Exception as error:
                self.torch_error = error
                raise
            from . import compat

            if compat.version_tuple(torch) < (2, 4):
                # This torch has no UUIDs, so its devices are matched with NVML's by their order. Newer ones have
                # UUIDs and keep CUDA's own order (fastest first), so that cuda:0 is the device that users get.
                os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            self._torch = torch
        return self._torch

    @property
    def tried_torch(self):
        """Whether an import of torch was tried, with or without success."""
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
            if self._cuda and not self.torch.cuda.is_initialized():
                noise.note_idle_memory()
        return self._cuda and self.cuda_usable

    @property
    def looked_for_cuda(self):
        """Whether ``has_cuda`` was evaluated, which starts the driver in this process."""
        return self._cuda is not None

    @property
    def uses_gpu(self):
        """Whether ``has_cuda`` was evaluated and is True; this never starts the driver."""
        return bool(self._cuda and self.cuda_usable)

    def lose_device(self, check_id):
        """Keep later checks off the device."""
        self.cuda_usable, self.lost_in = False, check_id

    @property
    def device(self):
        """Return ``cuda:0`` if a GPU can be used, else ``cpu``."""
        return "cuda:0" if self.has_cuda else "cpu"

    @property
    def subject(self):
        """Return ``gpu:0`` or ``cpu``, the name of the device in observations."""
        return "gpu:0" if self.has_cuda else "cpu"

    def remaining(self):
        """Return the seconds left to the running check."""
        return float("inf") if self.limit is None else max(0.0, self.limit.left())

    def seeded(self):
        """Seed torch and return it: each check starts from the same random numbers, whichever checks ran before."""
        self.torch.manual_seed(self.seed)
        return self.torch

    def pinned_slab(self):
        """Return the page-locked uint8 buffer of ``slab_bytes`` that all checks share."""
        if self._slab is None:
            self._slab = self.torch.empty(self.slab_bytes, dtype=self.torch.uint8, pin_memory=True)
        return self._slab

    @property
    def slab_bytes(self):
        """Return the size of the page-locked buffer: 256 MiB, or 64 MiB if memory is short.

        It is computed once per run, so that all checks use the same size.
        """
        if self._slab_bytes is None:
            self._slab_bytes = slab_size(hostfacts.memory_room())
        return self._slab_bytes

    def release_pinned(self):
        """Release the shared page-locked buffer to the system, as far as this torch can."""
        if self._slab is None:
            return
        self._slab = None
        from . import compat

        compat.empty_host_cache(self.torch)


def slab_size(room):
    """Return the size of the page-locked buffer for ``room`` bytes of free memory (None: unknown)."""
    fitting = (size for size in SLABS_BYTES if room is None or size <= room // SLAB_SHARE)
    return next(fitting, SLABS_BYTES[-1])


def fill_pattern(torch, buffer):
    """Fill a uint8 buffer with the pattern in place, by doubling the filled part."""
    done = min(PATTERN, buffer.numel())
    buffer[:done] = torch.arange(done, dtype=torch.uint8)
    while done < buffer.numel():
        count = min(done, buffer.numel() - done)
        buffer[done : done + count] = buffer[:count]
        done += count
