"""One function for each part of torch's interface that changed between 1.8 and 2.15, without deprecation warnings."""

import contextlib
import inspect
import warnings


def version_tuple(torch):
    """Return torch's release as integers: ``(2, 13)`` for ``2.13.0+cu130``."""
    parts = []
    for part in str(torch.__version__).split("+", maxsplit=1)[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts[:2])


def empty_host_cache(torch):
    """Release cached page-locked memory to the system, from torch 2.2 on. Return whether that was done."""
    for name in ("_host_emptyCache", "_cuda_hostEmptyCache"):
        function = getattr(torch._C, name, None)  # noqa: SLF001 - there is no public form
        if function is not None:
            try:
                function()
            except RuntimeError:
                return False
            return True
    return False


FP16_SETTINGS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


def fp32_settings(torch):
    """Return the settings of float32 math by name, as plain strings and booleans.

    ``matmul`` and ``conv`` are always present ("ieee" or "tf32"); settings that this torch lacks are absent.
    """
    backends = torch.backends
    settings = {}
    if _attribute(backends.cuda.matmul, "fp32_precision") is not None:
        settings["matmul"] = _named(backends.cuda.matmul.fp32_precision)
        settings["conv"] = _named(backends.cudnn.conv.fp32_precision)
        settings["cpu_matmul"] = _named(backends.mkldnn.matmul.fp32_precision)
        settings["cpu_conv"] = _named(backends.mkldnn.conv.fp32_precision)
    else:
        settings["matmul"] = "tf32" if backends.cuda.matmul.allow_tf32 else "ieee"
        settings["conv"] = "tf32" if backends.cudnn.allow_tf32 else "ieee"
        if hasattr(torch, "get_float32_matmul_precision"):
            settings["cpu_matmul"] = "bf16" if torch.get_float32_matmul_precision() == "medium" else "ieee"
    for name in FP16_SETTINGS:
        value = _attribute(backends.cuda.matmul, name)
        if value is not None:
            settings[name] = bool(value)
    return settings


def _attribute(module, name):
    """Return an attribute of a backend, None if it is missing. Up to 1.13 backends raise AssertionError then."""
    try:
        return getattr(module, name, None)
    except AssertionError:
        return None


def _named(precision):
    return "ieee" if precision == "none" else precision


@contextlib.contextmanager
def fp32_precision(torch, matmul, conv):
    """Set float32 math of CUDA matmul and conv ("ieee" or "tf32") inside the block, and restore it afterwards.

    Inside the block, oneDNN on the CPU uses "ieee".

    torch 2.9 gave each backend a ``fp32_precision``; the older switches now warn, and using both raises.
    """
    backends = torch.backends
    if _attribute(backends.cuda.matmul, "fp32_precision") is not None:
        wanted = [
            (backends.cuda.matmul, matmul),
            (backends.cudnn.conv, conv),
            (backends.mkldnn.matmul, "ieee"),
            (backends.mkldnn.conv, "ieee"),
        ]
        before = [(module, module.fp32_precision) for module, _ in wanted]
        try:
            for module, precision in wanted:
                module.fp32_precision = precision
            yield
        finally:
            for module, precision in before:
                module.fp32_precision = precision
        return
    has_word = hasattr(torch, "set_float32_matmul_precision")
    before_matmul = torch.get_float32_matmul_precision() if has_word else backends.cuda.matmul.allow_tf32
    before_conv = backends.cudnn.allow_tf32
    try:
        if has_word:
            torch.set_float32_matmul_precision("high" if matmul == "tf32" else "highest")
        else:
            backends.cuda.matmul.allow_tf32 = matmul == "tf32"
        backends.cudnn.allow_tf32 = conv == "tf32"
        yield
    finally:
        if has_word:
            torch.set_float32_matmul_precision(before_matmul)
        else:
            backends.cuda.matmul.allow_tf32 = before_matmul
        backends.cudnn.allow_tf32 = before_conv


def out_of_memory(torch, error):
    """Return the message of an out-of-memory error of the device, with the free bytes; None for other exceptions.

    ``torch.cuda.OutOfMemoryError`` exists since 1.13; older versions raise RuntimeError with the same text.
    """
    kind = getattr(torch.cuda, "OutOfMemoryError", None)
    lines = str(error).strip().splitlines() or [""]
    if not (kind is not None and isinstance(error, kind)) and not (
        isinstance(error, RuntimeError) and "CUDA out of memory" in lines[0]
    ):
        return None
    try:
        free, total = torch.cuda.mem_get_info()
    except (RuntimeError, AttributeError):
        return lines[0]
    return f"{lines[0]} ({free} of {total} bytes are free)"


def is_cuda_error(torch, error):
    """Whether an exception reports a CUDA error. ``AcceleratorError`` exists since 2.8."""
    kind = getattr(torch, "AcceleratorError", None)
    text = str(error)
    words = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS", "device-side assert")
    return (kind is not None and isinstance(error, kind)) or any(word in text for word in words)


def capability(torch, device):
    """Return the compute capability of a CUDA device as a tuple, None for the CPU."""
    return tuple(torch.cuda.get_device_capability(device)) if str(device).startswith("cuda") else None


def bf16_native(torch, device):
    """Whether ``device`` computes bfloat16 in hardware. True for a CPU: every build computes it correctly, if slowly.

    ``is_bf16_supported()`` also counts emulation, as on capability 7.5; from 2.5 on that can be excluded.
    """
    if not str(device).startswith("cuda"):
        return True
    supported = getattr(torch.cuda, "is_bf16_supported", None)
    if supported is not None and "including_emulation" in inspect.signature(supported).parameters:
        return bool(supported(including_emulation=False))
    return capability(torch, device) >= (8, 0)


def autocast(torch, device, dtype, enabled=True):
    """Return an autocast context for ``device``: ``torch.autocast`` since 1.10, ``torch.cuda.amp.autocast`` before.

    Raises NotImplementedError if this torch cannot autocast to ``dtype`` on ``device``.
    """
    kind = str(device).split(":")[0]
    if hasattr(torch, "autocast"):
        if kind == "cpu" and dtype is torch.float16 and version_tuple(torch) < (2, 3):
            raise NotImplementedError("CPU autocast to float16 begins with torch 2.3")
        return torch.autocast(kind, dtype=dtype, enabled=enabled)
    if kind != "cuda" or dtype is not torch.float16:
        raise NotImplementedError("this torch autocasts to float16 on CUDA only")
    return torch.cuda.amp.autocast(enabled=enabled)


def grad_scaler(torch, device, **options):
    """Return a GradScaler for ``device``: ``torch.amp.GradScaler`` since 2.3, ``torch.cuda.amp.GradScaler`` before.

    Raises NotImplementedError if ``device`` is the CPU and this torch scales on CUDA only.
    """
    kind = str(device).split(":")[0]
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(kind, **options)
    if kind != "cuda":
        raise NotImplementedError("GradScaler on the CPU begins with torch 2.3")
    return torch.cuda.amp.GradScaler(**options)


def saved_tensors_hooks(torch, pack, unpack):
    """Return a context that passes every tensor saved for backward through ``pack`` and ``unpack``.

    Raises NotImplementedError before torch 1.10.
    """
    graph = torch.autograd.graph if hasattr(torch.autograd, "graph") else None
    if graph is None or not hasattr(graph, "saved_tensors_hooks"):
        raise NotImplementedError("saved_tensors_hooks begins with torch 1.10")
    return graph.saved_tensors_hooks(pack, unpack)


def byte_tensor(torch, data):
    """Return a copy of bytes as a uint8 tensor: ``torch.frombuffer`` since 1.10, a storage before."""
    own = bytearray(data)
    if hasattr(torch, "frombuffer"):
        return torch.frombuffer(own, dtype=torch.uint8)
    return torch.ByteTensor(torch.ByteStorage.from_buffer(own))


def load_weights(torch, file):
    """Return ``(state on the CPU, whether only weights were allowed)`` from a file object.

    1.13 has ``weights_only`` but cannot read the numbers in an optimizer's state with it. 2.0 can, and warns about its
    own use of a deprecated class.
    """
    file.seek(0)
    if version_tuple(torch) >= (2, 0):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
            return torch.load(file, map_location="cpu", weights_only=True), True
    return torch.load(file, map_location="cpu"), False


def checkpoint(torch, block, inputs):
    """Run ``block`` and keep only its inputs for backward. Raises NotImplementedError before torch 1.11."""
    from torch.utils import checkpoint as module

    if "use_reentrant" not in inspect.signature(module.checkpoint).parameters and version_tuple(torch) < (1, 11):
        raise NotImplementedError("checkpointing without re-entrance begins with torch 1.11")
    return module.checkpoint(block, inputs, use_reentrant=False)


def group_options(torch, device):
    """Return further arguments of ``init_process_group``. From 2.3 on it warns if it does not get the rank's GPU."""
    known = inspect.signature(torch.distributed.init_process_group).parameters
    if str(device).startswith("cuda") and "device_id" in known:
        return {"device_id": torch.device(device)}
    return {}


def nccl_version(torch):
    """Return NCCL's version as a tuple. Up to 1.9, torch returns a single number."""
    version = torch.cuda.nccl.version()
    return version if isinstance(version, tuple) else (version,)


def attention_backend(torch, name, member):
    """Return a context in which scaled dot product attention uses one backend: an enum since 2.3, switches since 2.0.

    Raises NotImplementedError if this torch lacks the backend.
    """
    try:
        from torch.nn import attention
    except ImportError:
        if name == "cudnn" or not hasattr(torch.backends.cuda, "sdp_kernel"):
            raise NotImplementedError("this torch has no such backend") from None
        switches = {"math": "enable_math", "flash": "enable_flash", "efficient": "enable_mem_efficient"}
        return torch.backends.cuda.sdp_kernel(**{switch: name == own for own, switch in switches.items()})
    if not hasattr(attention.SDPBackend, member):
        raise NotImplementedError("this torch has no such backend")
    return attention.sdpa_kernel(getattr(attention.SDPBackend, member))
