"""C02: the paths of the CUDA and torch libraries in this process."""

import os
import sys

from envkit.smoke import libraries, observation

PLANTED = """\
7f00-7f01 r-xp 00000000 08:01 1 /opt/env/lib/libcudnn_ops.so.9
7f02-7f03 r-xp 00000000 08:01 2 /usr/local/cuda/lib64/libcudnn_ops.so.9
7f04-7f05 r--p 00000000 08:01 1 /opt/env/lib/libcudnn_ops.so.9
"""


def run(ctx):
    """Return ``{soname: [paths]}`` of CUDA's and torch's libraries after real work on the device."""
    torch = ctx.seeded()
    left = torch.randn(64, 64, device=ctx.device)
    image = torch.randn(1, 3, 16, 16, device=ctx.device)
    (left @ left).sum().item()
    torch.nn.functional.conv2d(image, torch.randn(4, 3, 3, 3, device=ctx.device)).sum().item()
    everything = libraries.in_this_process()
    planted = libraries.of_families(libraries.loaded(PLANTED), libraries.CUDA_FAMILIES)
    controls = [
        observation.control(
            "planted_second_path_is_seen",
            [len(paths) for paths in planted.values()] == [2],
            f"a second libcudnn_ops planted in the map: {planted}",
        )
    ]
    observed = {
        "cuda": libraries.of_families(everything, libraries.CUDA_FAMILIES),
        "torch": libraries.of_families(everything, libraries.TORCH_FAMILIES),
        "sys_prefix": sys.prefix,
        "prefix": os.path.realpath(str(ctx.spec.get("prefix"))) if ctx.spec.get("prefix") else None,
        "worked_on": ctx.device,
    }
    return [observation.ran("C02.libraries", "image", observed, controls=controls)]
