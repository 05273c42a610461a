"""Code that is appended to torch in an image: what torch says of itself stays, what it does changes.

Each piece runs in torch's own namespace. `EXPECTED` holds what the checks have to say: verdict and reason code.
`clock` breaks nothing: it makes the payload's clocks count products, convolutions and layers, at a pace that
CLOCK_SEED draws.
"""

from __future__ import annotations

import textwrap

_CODE = {
    "threads": """
        set_num_threads(64)
    """,
    "precision": """
        exact = Tensor.__matmul__
        def product(a, b):
            return exact(a, b) if a.dtype != float32 else exact(a.bfloat16(), b.bfloat16()).float()
        Tensor.__matmul__ = product
    """,
    "convolution": """
        exact = nn.functional.conv2d
        def convolved(images, weights, **options):
            return exact(images, weights, **options) * (1.001 if images.dtype == float32 else 1)
        nn.functional.conv2d = convolved
    """,
    "unsteady": """
        exact = Tensor.__matmul__
        def product(a, b):
            return exact(a, b) if a.dtype != float32 else exact(a, b) * (1 + 1e-3 * rand(1))
        Tensor.__matmul__ = product
    """,
    "samples": """
        import torch.utils.data
        torch.utils.data.SequentialSampler.__iter__ = lambda self: iter([0] * len(self.data_source))
    """,
    "autocast": """
        autocast.__enter__ = autocast.__exit__ = lambda self, *rest: None
    """,
    "widened": """
        exact = Tensor.to
        def moved(self, *places, **options):
            return exact(self, *[place for place in places if place is not bfloat16], **options)
        Tensor.to = moved
    """,
    "gradients": """
        inference_mode.__enter__ = inference_mode.__exit__ = lambda self, *rest: None
    """,
    "truncated": """
        whole = load
        def load(*arguments, **options):
            state = whole(*arguments, **options)
            state["model"] = {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in state["model"].items()}
            return state
    """,
    "collectives": """
        import torch.distributed
        torch.distributed.all_reduce = lambda *arguments, **options: None
    """,
    "numpy": """
        def from_numpy(array):
            raise RuntimeError("Numpy is not available")
        tensor = from_numpy
    """,
    "starving": """
        import time, torch.utils.data._utils.fetch as fetching
        fetch = fetching._MapDatasetFetcher.fetch
        fetching._MapDatasetFetcher.fetch = lambda self, batch: (time.sleep(0.2), fetch(self, batch))[1]
    """,
    "uphill": """
        import torch.optim
        down = torch.optim.SGD.__init__
        def up(self, parameters, **options):
            down(self, parameters, **{**options, "maximize": True})
        torch.optim.SGD.__init__ = up
    """,
    "clock": """
        import random, time
        pace, worked = 0.004 * random.Random(os.environ["CLOCK_SEED"]).uniform(0.99, 1.01), [0.0]
        def counted(exact):
            def run(*given, **options):
                worked[0] += pace
                return exact(*given, **options)
            return run
        mm, nn.functional.linear, nn.functional.conv2d = map(counted, (mm, nn.functional.linear, nn.functional.conv2d))
        time.perf_counter = time.process_time = lambda: worked[0]
    """,
    "slow": """
        def thrice(exact):
            return lambda *given, **options: [exact(*given, **options) for _ in (0, 1, 2)][-1]
        mm, nn.functional.linear = thrice(mm), thrice(nn.functional.linear)
    """,
    "storage": """
        plain = os.preadv
        def changed(fd, buffers, offset):
            count = plain(fd, buffers, offset)
            buffers[0][count // 3] ^= 1
            return count
        os.preadv = changed
    """,
}
CODE = {name: textwrap.dedent(text) for name, text in _CODE.items()}
EXPECTED: dict[str, dict[str, tuple[str, str | None]]] = {
    "precision": {"C05.fp32": ("FAIL", "PRECISION_OVERRIDDEN")},
    "convolution": {"C06.fp32": ("FAIL", "PRECISION_OVERRIDDEN"), "C05.fp32": ("PASS", None)},
    "unsteady": {"C07.gemm.fp32": ("FAIL", "NONDETERMINISTIC_GEMM")},
    "samples": {"C12.order.nw0": ("FAIL", "SAMPLES_WRONG"), "C12.order.nw2": ("FAIL", "SAMPLES_WRONG")},
    "autocast": {"C14.dtypes.bf16": ("FAIL", "AMP_INERT"), "C16.batch8192": ("WARN", "AMP_SAVES_LITTLE")},
    "widened": {"C15.gemm.bf16": ("FAIL", "PRECISION_NOT_USED")},
    "gradients": {"C17.no_grad": ("PASS", None), "C17.inference_mode": ("FAIL", "TENSORS_SAVED")},
    "truncated": {"C19.state": ("FAIL", "STATE_CHANGED"), "C19.activations": ("PASS", None)},
    "collectives": {"C20.allreduce.gloo": ("FAIL", "COLLECTIVE_WRONG")},
    "numpy": {"C01.numpy": ("FAIL", "NUMPY_ABI")},
    "storage": {"C22.image_read": ("FAIL", "BYTES_CHANGED"), "C22.image_random": ("FAIL", "BYTES_CHANGED")},
}
