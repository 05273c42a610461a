"""Errors relative to a float64 reference, and the limits that planted faults must exceed."""

import os

from .observation import control

# A planted fault must exceed this relative Frobenius error, which no correct precision reaches.
FAULT_LINE = 2e-2
# Float32 arithmetic stays below this relative Frobenius error; every reduced precision exceeds it.
FULL_PRECISION_LINE = 2e-6
# Largest max|error| / max|reference| that counts as rounding, by precision: at least eight times the measured value.
ELEMENT_LINES = {"ieee": 3.2e-5, "tf32": 1.1e-2, "fp16": 5.1e-3, "bf16": 3.6e-2}
OVERRIDES = (
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)


def errors(candidate, reference):
    """Compare ``candidate`` (any dtype and device) with ``reference`` (float64), on the device of the reference.

    Returns ``{"rel_fro", "rel_max", "nonfinite"}``: relative Frobenius error, max|error| / max|reference|, and the
    number of elements that are not finite (the two errors are None then).
    """
    wide = candidate.detach().to(reference.device).double()
    nonfinite = int(wide.numel() - int(wide.isfinite().sum()))
    if nonfinite:
        return {"rel_fro": None, "rel_max": None, "nonfinite": nonfinite}
    difference = wide - reference
    return {
        "rel_fro": float(difference.norm() / reference.norm()),
        "rel_max": float(difference.abs().max() / reference.abs().max()),
        "nonfinite": 0,
    }


def to_tf32(tensor):
    """Return a float32 tensor with its mantissa cut to the 10 bits that TF32 keeps."""
    import torch

    return (tensor.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def fault_control(name, faulty, reference):
    """Return the control that a result with a fault planted in its sums exceeds FAULT_LINE."""
    error = errors(faulty, reference)["rel_fro"]
    return control(name, error is not None and error > FAULT_LINE, f"relative error {error} against {FAULT_LINE}")


def element_control(candidate, reference, promise):
    """Return the control that setting the element of median magnitude to zero exceeds the limit per element."""
    flat = candidate.detach().to("cpu").double().reshape(-1).clone()
    magnitude = reference.abs().reshape(-1)
    flat[int(magnitude.argsort()[magnitude.numel() // 2])] = 0.0
    error = errors(flat.reshape(reference.shape), reference)["rel_max"]
    line = ELEMENT_LINES[promise]
    return control("one_element_zeroed", error is not None and error > line, f"element error {error} against {line}")


def rounding_control(rounded, reference):
    """Return the control that inputs rounded to TF32 are distinguished from float32."""
    error = errors(rounded, reference)["rel_fro"]
    held = error is not None and error > FULL_PRECISION_LINE
    return control("tf32_rounding_noticed", held, f"relative error {error} against {FULL_PRECISION_LINE}")


def overrides():
    """Return those environment variables that override the program's precision settings, if they are set."""
    return {name: os.environ[name] for name in OVERRIDES if name in os.environ}


def variants(ctx, compat):
    """Return the precisions to run on the context's device: a list of (name, dtype name, promise, skip).

    ``promise`` is "ieee", "tf32", "fp16" or "bf16"; ``skip`` is None if the variant can run, else (code, message).
    """
    torch = ctx.torch
    capability = compat.capability(torch, ctx.device)
    no_tf32 = None
    no_bf16 = None
    if capability is None:
        no_tf32 = ("NO_TF32", "TF32 exists on NVIDIA GPUs of compute capability 8.0 and newer; this is a CPU")
    elif capability < (8, 0):
        no_tf32 = ("NO_TF32", "compute capability {}.{} has no TF32; it begins with 8.0".format(*capability))
    if not compat.bf16_native(torch, ctx.device):
        no_bf16 = ("NO_BF16", "compute capability {}.{} only emulates bfloat16; it begins with 8.0".format(*capability))
    return [
        ("fp32", "float32", "ieee", None),
        ("tf32", "float32", "tf32", no_tf32),
        ("fp16", "float16", "fp16", None),
        ("bf16", "bfloat16", "bf16", no_bf16),
    ]


def unsupported(error):
    """Whether an exception means that this build has no kernel for the dtype."""
    text = str(error).lower()
    return "not implemented" in text or "not supported" in text or "unsupported" in text
