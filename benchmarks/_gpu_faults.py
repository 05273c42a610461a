"""The faults that the calibration plants with the codes that must be reported, its other loads and its environments.

The patches run in the payload's process before the suite, on the payload's own modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A planted fault. `expected` has the code of each finding. `modeled`: the tests' model of a GPU can show it."""

    name: str
    only: str
    patch: str
    expected: Mapping[str, str]
    modeled: bool = True


_C10 = "import envkit.checks.c10_transfer as c\nreal = c.Copy.__call__\n"
_MATMUL = "import torch\nreal = torch.Tensor.__matmul__\n"
FAULTS = (
    Fault(
        name="pageable memory that is taken for page-locked",
        only="C09,C10",
        patch="import envkit.smoke.context as c\n"
        "def slab(self):\n"
        "    if self._slab is None: self._slab = self.torch.zeros(self.slab_bytes, dtype=self.torch.uint8)\n"
        "    return self._slab\n"
        "c.Ctx.pinned_slab = slab\n",
        expected={"C09.pinned": "NOT_PINNED", "C10.h2d_pinned_256MiB": "BANDWIDTH_BELOW_FLOOR"},
        modeled=False,
    ),
    Fault(
        name="a clock that runs twice as fast",
        only="C10",
        patch="import envkit.smoke.timing as t\n"
        "real = t.event_clock\n"
        "def bad(torch):\n"
        "    inner = real(torch)\n"
        "    def clock(fn, loops): return inner(fn, loops) / 2\n"
        "    clock.label = inner.label\n"
        "    return clock\n"
        "t.event_clock = bad\n",
        expected={"C10.h2d_pinned_256MiB": "ABOVE_LINK_LIMIT"},
    ),
    Fault(
        name="copies at a third of the rate",
        only="C10",
        patch=_C10 + "c.Copy.__call__ = lambda self: (real(self), real(self), real(self)) and None\n",
        expected={"C10.h2d_pinned_256MiB": "BANDWIDTH_BELOW_FLOOR", "C10.d2h_pinned_256MiB": "BANDWIDTH_BELOW_FLOOR"},
    ),
    Fault(
        name="a byte that a copy changes",
        only="C10,C26",
        patch="import torch\nreal = torch.Tensor.copy_\n"
        "def bad(self, source, *a, **k):\n"
        "    out = real(self, source, *a, **k)\n"
        "    if source.is_cuda and self.device.type == 'cpu' and self.numel() > 1 << 23: self[7] ^= 1\n"
        "    return out\n"
        "torch.Tensor.copy_ = bad\n",
        expected={"C10.integrity": "COPY_WRONG", "C26.gpu": "COPY_WRONG"},
        modeled=False,
    ),
    Fault(
        name="one product of twenty that differs",
        only="C07",
        patch=_MATMUL + "n = [0]\n"
        "def bad(self, other):\n"
        "    out = real(self, other); n[0] += 1\n"
        "    if n[0] % 20 == 0 and out.dim() == 2: out[0, 0] += 1\n"
        "    return out\n"
        "torch.Tensor.__matmul__ = bad\n",
        expected={"C07.gemm.fp32": "NONDETERMINISTIC_GEMM"},
    ),
    Fault(
        name="products that leave out a part of K",
        only="C05",
        # The reference is in float64.
        patch=_MATMUL + "def bad(self, other):\n"
        "    if self.dtype is not torch.float64 and self.shape[-1] >= 512:\n"
        "        return real(self[..., :-8], other[..., :-8, :])\n"
        "    return real(self, other)\n"
        "torch.Tensor.__matmul__ = bad\n",
        expected={"C05.fp32": "WRONG_RESULT"},
    ),
    Fault(
        name="products without tensor cores",
        only="C15,C26",
        patch="import torch\nreal = torch.mm\n"
        "def bad(a, b, out=None):\n"
        "    if a.dtype is torch.float32: return real(a, b, out=out)\n"
        "    return out.copy_(real(a.float(), b.float()))\n"
        "torch.mm = bad\n",
        expected={"C15.gemm.fp16": "TENSOR_CORES_UNUSED", "C26.gpu": "PRODUCTS_BELOW_FLOOR"},
    ),
    Fault(
        name="a GPU at a tenth of its rate",
        only="C15,C26",
        patch="import torch\nreal = torch.mm\n"
        "def bad(a, b, out=None):\n"
        "    for _ in range(10): result = real(a, b, out=out)\n"
        "    return result\n"
        "torch.mm = bad\n",
        expected={"C15.gemm.fp16": "PRODUCTS_BELOW_FLOOR", "C26.gpu": "PRODUCTS_BELOW_FLOOR"},
    ),
    Fault(
        name="a word of device memory that loses a bit",
        only="C27",
        patch="import envkit.checks.c27_device_memory as c\nreal = c.fill\n"
        "def bad(torch, memory, inverted):\n"
        "    real(torch, memory, inverted)\n"
        "    memory[memory.numel() // 2] ^= 1 << 33\n"
        "c.fill = bad\n",
        expected={"C27.pattern": "DEVICE_MEMORY_WRONG"},
    ),
    Fault(
        name="device memory at a third of its rate",
        only="C27",
        patch="import torch\nreal = torch.Tensor.copy_\n"
        "def bad(self, source, *a, **k):\n"
        "    for _ in range(2 if self.is_cuda and source.is_cuda else 0): real(self, source, *a, **k)\n"
        "    return real(self, source, *a, **k)\n"
        "torch.Tensor.copy_ = bad\n",
        expected={"C27.copy": "DEVICE_MEMORY_SLOW"},
        modeled=False,
    ),
    Fault(
        name="directions that take turns",
        only="C28",
        patch="import envkit.checks.c28_links as c\nc.Ways.at_once = c.Ways.in_turn\n",
        expected={"C28.both_ways": "COPIES_TAKE_TURNS"},
    ),
    Fault(
        name="copies and kernels on one stream",
        only="C11",
        patch="import contextlib, torch\ntorch.cuda.stream = lambda s: contextlib.nullcontext()\n",
        expected={"C11.overlap": "NO_OVERLAP"},
    ),
    Fault(
        name="a call that never returns",
        only="C01,C05,C08",
        patch="import torch, envkit.checks.c05_gemm as c\n"
        "def run(ctx):\n    torch.cuda._sleep(int(120 * 2e9)); torch.cuda.synchronize()\n"
        "c.run = run\n",
        expected={"C05": "TIME_LIMIT"},
        modeled=False,
    ),
    Fault(
        name="an assertion on the device",
        only="C05,C06,C09,C10",
        patch="import torch, envkit.checks.c05_gemm as c\n"
        "def run(ctx):\n    torch._assert_async(torch.zeros((), device='cuda')); torch.cuda.synchronize()\n"
        "c.run = run\n",
        expected={"C05": "CUDA_CONTEXT_LOST"},
        modeled=False,
    ),
)

LOADS = {
    "copy": "import torch, time, sys\n"
    "h = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True); d = torch.empty_like(h, device='cuda')\n"
    "print('up', flush=True); end = time.time() + float(sys.argv[1])\n"
    "while time.time() < end:\n"
    "    [d.copy_(h, non_blocking=True) for _ in range(20)]; torch.cuda.synchronize()\n",
    "gemm": "import torch, time, sys\n"
    "a = torch.randn(8192, 8192, device='cuda').bfloat16()\n"
    "print('up', flush=True); end = time.time() + float(sys.argv[1])\n"
    "while time.time() < end:\n"
    "    [torch.mm(a, a) for _ in range(50)]; torch.cuda.synchronize()\n",
    "memory": "import torch, time, sys\n"
    "free, _ = torch.cuda.mem_get_info()\n"
    "x = torch.empty(max(1, free - int(sys.argv[2]) * 2**20), dtype=torch.uint8, device='cuda')\n"
    "print('up', flush=True); time.sleep(float(sys.argv[1]))\n",
    "cpu": "import time, sys, os\n"
    "print('up', flush=True); end = time.time() + float(sys.argv[1])\n"
    "[os.fork() for _ in range(5)]\n"
    "while time.time() < end: sum(range(10000))\n",
}
"""Programs that print `up` once they are running, and go on for the given number of seconds."""

ENVIRONMENTS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "warnings are errors": ({"PYTHONWARNINGS": "error"}, "C02,C03,C04,C05,C06,C09,C10,C14,C17,C19"),
    "GPU hidden": ({"CUDA_VISIBLE_DEVICES": ""}, "C00,C03,C04,C09"),
    "one connection": ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "C11"),
    "TF32 forced": ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, "C00,C05,C06"),
    "TF32 off": ({"NVIDIA_TF32_OVERRIDE": "0"}, "C05,C06"),
    "expandable segments": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "C04,C09,C10,C14,C16"),
    "cudaMallocAsync": ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "C09,C10,C16,C27"),
    "registered host memory": ({"PYTORCH_CUDA_ALLOC_CONF": "pinned_use_cuda_host_register:True"}, "C09,C10"),
    "blocking launches": ({"CUDA_LAUNCH_BLOCKING": "1"}, "C00,C10,C11"),
    "eager loading": ({"CUDA_MODULE_LOADING": "EAGER"}, "C04,C05"),
    "NCCL on an absent interface": ({"NCCL_SOCKET_IFNAME": "eth9"}, "C20"),
    "home not writable": ({"HOME": "/proc/none"}, "C04,C18"),
}
"""Variables that images and hosts set, and the checks that they may affect."""
