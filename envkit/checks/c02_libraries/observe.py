"""C02: the paths of the CUDA and torch libraries in this process, and whether those that load later parts work."""

import ctypes
import math
import os
import re
import sys
from pathlib import Path

from envkit.smoke import libraries, observation

TEXT_CHARS = 400
PLANTED = """\
7f00-7f01 r-xp 00000000 08:01 1 /opt/env/lib/libcudnn_ops.so.9
7f02-7f03 r-xp 00000000 08:01 2 /usr/local/cuda/lib64/libcudnn_ops.so.9
7f04-7f05 r--p 00000000 08:01 1 /opt/env/lib/libcudnn_ops.so.9
"""
# A wheel of torch with its own NVRTC gives it a name with a hash, so this finds those of packages alone.
NVRTC = re.compile(r"libnvrtc\.so\.[0-9.]+$")
SOURCE = b'extern "C" __global__ void one(float *x) { *x = 1.0f; }'


def run(ctx):
    """Return C02.libraries, C02.nvrtc and, on a GPU, C02.linalg."""
    # The first one looks at what is loaded, and the others load more.
    parts = [paths(ctx), nvrtc()]
    return [*parts, linalg(ctx)] if ctx.has_cuda else parts


def nvrtc():
    """Compile a kernel with NVRTC, which needs no GPU. Only then does it open libnvrtc-builtins."""
    path = nvrtc_path(libraries.in_this_process(), sys.prefix)
    if path is None:
        return observation.skipped("C02.nvrtc", "image", "NO_NVRTC", "no package of this Python brings libnvrtc")
    error = nvrtc_error(path, SOURCE)
    noticed = nvrtc_error(path, b"not a kernel")
    controls = [observation.control("wrong_source_is_noticed", noticed is not None, str(noticed)[:200])]
    return observation.ran("C02.nvrtc", "image", {"library": path, "error": error}, controls=controls)


def nvrtc_path(loaded, prefix):
    """Return the libnvrtc that is loaded, else the one in the environment's folders, else None."""
    found = [Path(path) for paths_of in loaded.values() for path in paths_of]
    for folder in ("lib/python3*/site-packages/nvidia/*/lib", "lib"):
        found += sorted(Path(prefix).glob(folder + "/libnvrtc.so.*"))
    return next((str(path) for path in found if NVRTC.match(path.name)), None)


def nvrtc_error(path, source):
    """Return what NVRTC says of a source that it cannot compile, or None."""
    try:
        library = ctypes.CDLL(path)
        program = ctypes.c_void_p()
        code = library.nvrtcCreateProgram(ctypes.byref(program), source, b"one.cu", 0, None, None)
        if code == 0:
            code = library.nvrtcCompileProgram(program, 0, None)
        if code == 0:
            return None
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(max(1, size.value))
        library.nvrtcGetProgramLog(program, log)
    except (OSError, AttributeError) as error:
        return str(error)[:TEXT_CHARS]
    return (log.value.decode("utf-8", "replace").strip() or "NVRTC error {}".format(code))[:TEXT_CHARS]


def linalg(ctx):
    """Invert a matrix on the GPU, for which torch loads cuSOLVER."""
    torch = ctx.torch
    error = None
    try:
        inverse = torch.inverse(torch.eye(8, device=ctx.device) * 2.0)
        largest = float((inverse - torch.eye(8, device=ctx.device) * 0.5).abs().max())
    except (RuntimeError, OSError) as failure:
        largest, error = None, str(failure)[:TEXT_CHARS]
    # An inverse that does not exist is an error or not finite, depending on the release of torch.
    try:
        singular = float(torch.inverse(torch.zeros(8, 8, device=ctx.device)).sum())
        noticed, detail = not math.isfinite(singular), "the result is {}".format(singular)
    except (RuntimeError, OSError) as failure:
        noticed, detail = True, str(failure)[:200]
    controls = [observation.control("singular_matrix_is_noticed", noticed, detail)]
    observed = {"error": error, "largest_difference": largest}
    return observation.ran("C02.linalg", ctx.subject, observed, controls=controls)


def paths(ctx):
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
    return observation.ran("C02.libraries", "image", observed, controls=controls)
