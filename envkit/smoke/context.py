"""The context of a check: the spec, the device, a seed, its deadline and torch, imported on first use."""

import os
import time

from . import hostfacts, noise

MIB = 1024 * 1024
PATTERN = 251  # a prime, so that bytes at power-of-two distances differ
SLABS_BYTES = (256 * MIB, 64 * MIB)
"""Sizes of the page-locked buffer, largest first. The last is taken where no other fits."""
SLAB_SHARE = 16
"""A check holds up to three such buffers in host memory; together they stay below a fifth of it."""


class Ctx:
    """The context of one run. ``cuda_usable`` turns False when the kernel check fails: later checks stay off."""

    def __init__(self, spec, seed=0, tier="quick", data=None):
        self.spec = spec
        # The user's folder of files.
        self.data = data
        self.seed = seed
        self.tier = tier
        # What an earlier check leaves for a later one, by name.
        self.notes = {}
        self.deadline = None
        self.torch_error = None
        self.cuda_usable = True
        # The check that ended with a CUDA error after which nothing works on the device.
        self.lost_in = None
        self.threads = (spec.get("launch") or {}).get("threads")
        self._torch = None
        self._cuda = None
        self._slab = None
        self._slab_bytes = None

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
            from . import compat

            if compat.version_tuple(torch) < (2, 4):
                # This torch tells no UUID, so its devices are found in NVML by their order. Where it tells them, the
                # order stays CUDA's own (fastest first), so that cuda:0 is the device that users get.
                os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
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
            if self._cuda and not self.torch.cuda.is_initialized():
                noise.note_idle_memory()
        return self._cuda and self.cuda_usable

    @property
    def looked_for_cuda(self):
        """Whether torch was asked for a CUDA device, which starts the driver in this process."""
        return self._cuda is not None

    @property
    def uses_gpu(self):
        """As ``has_cuda``, without asking torch for the first time."""
        return bool(self._cuda and self.cuda_usable)

    def lose_device(self, check_id):
        """Keep later checks off the device."""
        self.cuda_usable, self.lost_in = False, check_id

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
        """Return the one page-locked uint8 buffer of ``slab_bytes`` that all checks share."""
        if self._slab is None:
            self._slab = self.torch.empty(self.slab_bytes, dtype=self.torch.uint8, pin_memory=True)
        return self._slab

    @property
    def slab_bytes(self):
        """Return the size of the page-locked buffer: 256 MiB, or 64 MiB where memory is short.

        The first answer holds for the run, so that all checks mean the same buffer.
        """
        if self._slab_bytes is None:
            self._slab_bytes = slab_size(hostfacts.memory_room())
        return self._slab_bytes

    def release_pinned(self):
        """Give the shared page-locked buffer back to the system, as far as this torch can."""
        if self._slab is None:
            return
        self._slab = None
        from . import compat

        compat.empty_host_cache(self.torch)


def slab_size(room):
    """Return the bytes of the page-locked buffer where ``room`` bytes of memory are left; None: unknown."""
    fitting = (size for size in SLABS_BYTES if room is None or size <= room // SLAB_SHARE)
    return next(fitting, SLABS_BYTES[-1])


def fill_pattern(torch, buffer):
    """Write the pattern into a uint8 buffer in place: what is written is doubled until the buffer is full."""
    done = min(PATTERN, buffer.numel())
    buffer[:done] = torch.arange(done, dtype=torch.uint8)
    while done < buffer.numel():
        count = min(done, buffer.numel() - done)
        buffer[done : done + count] = buffer[:count]
        done += count
