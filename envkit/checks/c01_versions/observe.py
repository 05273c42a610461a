"""C01: the versions in the image, as the libraries themselves report them."""

import platform
import sys
import warnings

from envkit.smoke import importing, observation, versions

KNOWN_FIELDS = frozenset(
    (
        "schema",
        "nonce",
        "plan",
        "gpu",
        "allow_cpu",
        "python",
        "torch",
        "local_version",
        "cuda",
        "cudnn",
        "nccl",
        "triton",
        "torchvision",
        "torchaudio",
        "packages",
        "start",
        "driver",
        "gpu_archs",
        "ptx",
        "prefix",
        "loader",
        "features",
        "shm_mb",
        # Set for the run, not by a plan: the user's own data, and the settings of a launch in a comparison.
        "data",
        "launch",
    )
)


def run(ctx):
    """Return one observation per component: ``found`` is its version, or None with the reason if it is unknown."""
    rows = [_component("python", {"found": platform.python_version()}), _torch(ctx)]
    if ctx.has_torch:
        rows += [_cuda(ctx), _cudnn(ctx), _nccl(ctx), _numpy(ctx)]
    rows += [_triton(), _companion(ctx, "torchvision", _vision_kernel), _companion(ctx, "torchaudio", None)]
    unknown = sorted(str(key) for key in set(ctx.spec) - KNOWN_FIELDS)
    rows.append(_component("spec", {"found": None, "unknown_fields": unknown}))
    return rows


def _torch(ctx):
    if not ctx.has_torch:
        return _component("torch", {"found": None, "error": f"{type(ctx.torch_error).__name__}: {ctx.torch_error}"})
    return _component("torch", {"found": str(ctx.torch.__version__), "distribution": versions.distribution("torch")})


def _cuda(ctx):
    torch = ctx.torch
    return _component("cuda", {"found": torch.version.cuda, "hip": getattr(torch.version, "hip", None)})


def _cudnn(ctx):
    decoded = (versions.decode_cudnn(8902), versions.decode_cudnn(91002))
    control = observation.control("both_encodings", decoded == ("8.9.2", "9.10.2"), str(decoded))
    try:
        observed = {"found": versions.cudnn_runtime(ctx.torch), "compiled": versions.cudnn_compiled(ctx.torch)}
    except (OSError, RuntimeError) as error:
        observed = {"found": None, "compiled": None, "error": str(error)}
    return _component("cudnn", observed, control)


def _nccl(ctx):
    decoded = (versions.decode_nccl(2708), versions.decode_nccl(22105))
    control = observation.control("both_encodings", decoded == ("2.7.8", "2.21.5"), str(decoded))
    compiled, runtime = versions.nccl_compiled(ctx.torch), versions.nccl_runtime()
    return _component("nccl", {"found": runtime or compiled, "runtime": runtime, "compiled": compiled}, control)


def _numpy(ctx):
    installed = versions.distribution("numpy")
    observed = {"found": installed, "round_trip": None}
    if installed is not None:
        try:
            import numpy as np

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                back = ctx.torch.tensor(np.arange(5)).add(1).numpy()
            observed["round_trip"] = back.tolist() == [1, 2, 3, 4, 5]
        except Exception as error:
            observed["round_trip"] = False
            observed["error"] = f"{type(error).__name__}: {error}"
    return _component("numpy", observed)


def _triton():
    return _component("triton", {"found": versions.distribution("triton") or versions.distribution("pytorch-triton")})


def _companion(ctx, name, probe):
    observed = {"found": versions.distribution(name), "works": None}
    if observed["found"] is not None and ctx.spec.get(name) is not None and ctx.has_torch:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = __import__(name)
            observed["found"] = str(module.__version__)
            observed["works"] = probe is None or bool(probe(ctx.torch))
        except Exception as error:
            observed["works"] = False
            observed["error"] = f"{type(error).__name__}: {error}"
            if name not in sys.modules:
                # C29 reports the packages that cannot be imported, and need not try this one again.
                ctx.notes.setdefault("import_errors", {})[name] = importing.described(error)
    return _component(name, observed)


def _vision_kernel(torch):
    """Run torchvision's own compiled operator, which is missing if torchvision does not match torch."""
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [5.0, 5.0, 6.0, 6.0]])
    kept = torch.ops.torchvision.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)
    return kept.tolist() == [0, 2]


def _component(name, observed, control=None):
    absent = versions.distribution("envkit-no-such-distribution") is None
    control = control or observation.control("absent_is_unknown", absent, "a distribution that does not exist")
    return observation.ran(f"C01.{name}", "image", observed, controls=[control])
