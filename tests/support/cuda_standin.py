"""A stand-in for a CUDA device that uses the CPU, for an image whose torch has no CUDA. It runs at the end of torch.

Work for the device is done at once, in the order of the calls, and takes simulated time: copies and large products have
rates, streams keep their order, and copies have an engine of their own. `time.perf_counter` returns simulated time as
well, so results do not depend on the load of the machine. Reading it takes a microsecond, and the host's own work takes
its CPU time. Waiting for the device moves it forward, and so does waiting for a loader's batches, because loader
processes work in real time. Only some numbers of a large product are computed; the rest is zero. Unchanged data is not
copied again. Every other function takes KERNEL_S, and memory is counted as the bytes of the functions' results. The
first MiB of page-locked memory is really locked with mlock(2), which a container's usual limit allows and a limit of
zero does not.

STANDIN_CC is the compute capability times ten. STANDIN_FAULT names what goes wrong: `kernel` (a wrong result), `copy`
(a changed byte), `lanes` (copies at a quarter of the rate), `engine` (copies and kernels share one engine), `turns`
(copies of both directions share one engine), `cores` (every precision at float32's rate), `slow` (products at a tenth
of the rate), `bits` (a word of memory loses a bit), `hangs` (it never answers), `lost` (each use raises), `broken` (the
first convolution ends with an error after which nothing works), `full` (no convolution gets its memory). There are
STANDIN_COUNT devices, and where STANDIN_SICK is given, the fault is that device's alone.
"""

import contextlib
import ctypes
import os
import threading
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

torch: Any = import_module("torch")
FAULT = os.environ.get("STANDIN_FAULT")
COUNT = int(os.environ.get("STANDIN_COUNT", "1"))
SICK = os.environ.get("STANDIN_SICK")
CAPABILITY = divmod(int(os.environ.get("STANDIN_CC", "90")), 10)
# Bytes, floating-point operations and cycles of the spin kernel per second.
COPY_RATE = 25e9
PAGEABLE_PART = 0.5
FLOAT_RATE = 20e12
GAINS = {"tf32": 7, "low": 14}
CYCLE_RATE = 2e9
LOOK_S = 1e-6
KERNEL_S = 5e-3
QUERY_S = 1e-3
TOTAL_BYTES = 1 << 34
ON_HOST = ("__get__", "to", "cpu")
WIDENED = ("layer_norm", "softmax")  # by autocast to 16 bits on a GPU, and not on the CPU
LARGE, COMPUTED = 2048, 64
LARGE_COPY = 1 << 16
libc = ctypes.CDLL(None, use_errno=True)
locked: set[int] = set()
filled: set[int] = set()


class Device:
    """`torch.cuda.device`: selects the device inside the block."""

    current = 0

    def __init__(self, index: int) -> None:
        self.index, self.before = index, 0

    def __enter__(self) -> None:
        self.before, Device.current = Device.current, self.index
        if faulty("hangs"):
            time.sleep(3600)
        if faulty("lost"):
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    def __exit__(self, *_: object) -> None:
        Device.current = self.before


def faulty(name: str) -> bool:
    """Return whether the current device has this fault."""
    return name == FAULT and (SICK is None or int(SICK) == Device.current)


class Stream:
    """A queue of work; `at` is when the last of it is done."""

    def __init__(self) -> None:
        self.at = 0.0

    def wait_event(self, event: "Event") -> None:
        """Let later work start after the event."""
        self.at = max(self.at, event.at)

    def wait_stream(self, other: "Stream") -> None:
        """Let later work start after all work that is queued on another stream."""
        self.at = max(self.at, other.at)


class Event:
    """A point in a stream's time."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.timing, self.at = enable_timing, 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Record when all queued work is done."""
        self.at = max(clock.now(), (stream or clock.current).at)

    def elapsed_time(self, later: "Event") -> float:
        """Return the milliseconds to a later event."""
        return (later.at - self.at) * 1e3

    def query(self) -> bool:
        """Return whether the work before the event is done. Each query takes some time."""
        clock.wait(clock.host + QUERY_S)
        return clock.now() >= self.at


class Clock:
    """The simulated time of the device and of the host that drives it."""

    def __init__(self) -> None:
        self.host = 0.0
        self.at = time.thread_time()
        self.loading = False  # the work of a loader in this process is the host's
        self.current = self.main = Stream()
        self.streams = [self.main]
        self.free = {"up": 0.0, "down": 0.0, "compute": 0.0}

    def now(self) -> float:
        """Return the time in seconds. Reading it takes some."""
        self.host += LOOK_S + self.worked()
        return self.host

    def worked(self) -> float:
        """Return the seconds of CPU time of the host's own work since the last call."""
        if threading.current_thread() is not threading.main_thread():
            return 0.0
        before, self.at = self.at, time.thread_time()
        return self.at - before

    def queue(self, engine: str, seconds: float) -> None:
        """Queue work on the current stream."""
        engine = "compute" if faulty("engine") else "up" if engine == "down" and faulty("turns") else engine
        self.worked()  # the real time of the computation does not count as the host's
        begin = max(self.now(), self.current.at, self.free[engine])
        self.current.at = self.free[engine] = begin + seconds

    def wait(self, at: float) -> None:
        """Let the host wait."""
        self.host = max(self.host, at)

    def synchronize(self, *_: Any) -> None:
        """Let the host wait for every stream."""
        self.wait(max(stream.at for stream in self.streams))

    def stream(self) -> Stream:
        """Return a new stream."""
        self.streams.append(Stream())
        return self.streams[-1]

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Any:
        """Queue on another stream."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


clock = Clock()
time.perf_counter = clock.now  # the payload's, in this process


def place(value: Any) -> Any:
    """Return the CPU for a CUDA device, and other values unchanged."""
    kind = value.type if isinstance(value, torch.device) else value
    return "cpu" if isinstance(kind, str) and kind.partition(":")[0] == "cuda" else value


class Memory:
    """A rough count of the device's memory: nothing is freed until the next reset."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, made: Any, name: str) -> None:
        """Count the memory of a function's result, and queue the function's time."""
        if isinstance(made, torch.Tensor) and name not in ON_HOST and not clock.loading:
            self.taken += made.numel() * made.element_size()
            clock.queue("compute", KERNEL_S)

    def reset(self) -> None:
        """Start a new peak."""
        self.taken = 0


memory = Memory()


def lock(tensor: Any) -> None:
    """Lock the beginning of the tensor's memory."""
    begin, size = tensor.data_ptr(), min(1 << 20, tensor.numel() * tensor.element_size())
    if libc.mlock(ctypes.c_void_p(begin), ctypes.c_size_t(size)):
        raise RuntimeError(f"mlock of {size} bytes: {os.strerror(ctypes.get_errno())}")
    locked.add(begin)


def copied(target: Any, source: Any) -> None:
    """Queue the time of a copy. The host waits for a copy of pageable memory."""
    pinned = target.data_ptr() in locked or source.data_ptr() in locked
    rate = COPY_RATE * (1 if pinned else PAGEABLE_PART) / (4 if faulty("lanes") else 1)
    clock.queue("down" if target.data_ptr() in locked else "up", target.numel() * target.element_size() / rate)
    if not pinned:
        clock.wait(clock.current.at)


def content(tensor: Any) -> object:
    """Return the same object for the same bytes, until something writes to the tensor's memory."""
    known, version = getattr(tensor, "content", (None, None))
    if version != tensor._version:  # torch increases it with every change of the shared memory
        known = object()
        tensor.content = (known, tensor._version)
    return known


def copy(func: Any, args: Any, options: Any) -> Any:
    """Copy the data, unless the target has these bytes already."""
    target, source = args[:2]
    if target.numel() * target.element_size() < LARGE_COPY:
        return func(*args, **options)
    held = content(source)
    if content(target) is not held:
        func(*args, **options)
        if faulty("copy"):
            target.view(-1)[time.perf_counter_ns() % target.numel()] += 1
        elif target.dtype is source.dtype:
            target.content = (held, target._version)
    return target


def product(left: Any, right: Any, out: Any = None) -> Any:
    """Compute some numbers of a large product, and queue its time."""
    if out is None:
        out = torch.zeros(left.shape[0], right.shape[1], dtype=left.dtype)
    elif out.data_ptr() not in filled:
        filled.add(out.data_ptr())
        out.zero_()
    out[0, :COMPUTED] = left[0] @ right[:, :COMPUTED]
    if faulty("kernel"):
        out[0, time.perf_counter_ns() % COMPUTED] += 1
    gain = GAINS["low"] if left.dtype is not torch.float32 else 1
    if gain == 1 and torch.backends.cuda.matmul.fp32_precision == "tf32":
        gain = GAINS["tf32"]
    rate = FLOAT_RATE * (1 if faulty("cores") else gain) / (10 if faulty("slow") else 1)
    clock.queue("compute", 2.0 * left.numel() * right.shape[1] / rate)
    return out


broken: list[str] = []


def fail(name: str, values: Any) -> None:
    """Raise the error of a device that has lost its context or has no memory left."""
    if name == "conv2d" and faulty("full"):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation.")
    first = name == "conv2d" and faulty("broken") and not broken
    if first:
        broken.append(name)
    if first or (broken and any(place(value) is not value for value in values)):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")


def seed(number: int) -> Any:
    """Seed as torch does where CUDA is initialized: the generators of all devices, which fails on a lost one."""
    if broken:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")
    return seed_cpu(number)


seed_cpu, torch.manual_seed = torch.manual_seed, seed


class OnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is looked up when this runs
    """Runs everything that names a CUDA device on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        clock.host += clock.worked()
        try:
            return self.run(func, args, kwargs)
        finally:
            clock.worked()  # the time that this took does not count as the host's

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a function as the device would."""
        fail(getattr(func, "__name__", ""), (*args, *(kwargs or {}).values()))
        options = {name: place(value) for name, value in (kwargs or {}).items()}
        pinned = options.pop("pin_memory", False)
        name = getattr(func, "__name__", "")
        if name == "is_pinned":
            return args[0].data_ptr() in locked or hasattr(args[0], "pinned")
        large = name in ("mm", "matmul") and args[0].dim() == args[1].dim() == 2
        if large and min(*args[0].shape, *args[1].shape) >= LARGE:
            return product(*args, **options)
        if faulty("bits") and name == "ne" and args[0].dtype is torch.int64:
            args[0].view(-1)[-1] &= ~(1 << 40)
        if name != "copy_":
            result = func(*[place(value) for value in args], **options)
            if name in WIDENED and torch.is_autocast_enabled("cpu"):
                result = result.float()
            memory.take(result, name)
        else:
            result = copy(func, args, options)
            copied(*args[:2])
        if pinned:
            lock(result)
        if faulty("kernel") and name == "arange" and (kwargs or {}).get("device"):
            result[7] += 1
        return result


def properties(index: Any = 0) -> SimpleNamespace:
    """Return torch's properties of a device."""
    number = 0 if index is None else torch.device("cuda", index).index if isinstance(index, int) else index.index or 0
    return SimpleNamespace(
        name="Stand-in",
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=TOTAL_BYTES,
        multi_processor_count=100,
        is_integrated=False,
        uuid=f"00000000-0000-0000-0000-00000000000{number + 1}",
    )


for name, value in {
    "is_available": lambda: True,
    "is_bf16_supported": lambda including_emulation=True: CAPABILITY >= (8, 0) or including_emulation,
    "device_count": lambda: COUNT,
    "device": Device,
    "init": lambda: None,
    "synchronize": clock.synchronize,
    "get_device_properties": properties,
    "get_device_capability": lambda *_: CAPABILITY,
    "get_device_name": lambda *_: "Stand-in",
    "current_device": lambda: Device.current,
    "memory_allocated": lambda *_: 0,
    "max_memory_allocated": lambda *_: memory.taken,
    "memory_reserved": lambda *_: 0,
    "reset_peak_memory_stats": lambda *_: memory.reset(),
    "mem_get_info": lambda *_: (TOTAL_BYTES, TOTAL_BYTES),
    "empty_cache": lambda: None,
    "can_device_access_peer": lambda *_: False,
    "current_stream": lambda *_: clock.current,
    "stream": clock.on,
    "Stream": clock.stream,
    "Event": Event,
    "_sleep": lambda cycles: clock.queue("compute", cycles / CYCLE_RATE),
}.items():
    setattr(torch.cuda, name, value)
autocast, loading = torch.autocast, import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
begin, read = loading.__init__, loading.__next__


def cast(kind: str, dtype: Any = None, enabled: bool = True) -> Any:
    """Use the CPU's autocast for the device. The CPU's own autocast does not affect the device's tensors."""
    return autocast("cpu", dtype=dtype, enabled=enabled and kind == "cuda")


def started(self: Any, loader: Any) -> None:
    """Create a loader's iterator without the pinning thread, which torch starts only for a real device."""
    self.pins, loader.pin_memory = loader.pin_memory, False
    try:
        begin(self, loader)
    finally:
        loader.pin_memory = self.pins


def batch(self: Any) -> Any:
    """Return the next batch. The simulated clock advances by the time that it really took."""
    began, clock.loading = time.monotonic(), True
    try:
        tensors = read(self)
    finally:
        clock.loading = False
        clock.host += time.monotonic() - began
    for tensor in tensors if self.pins and isinstance(tensors, list) else ():
        if isinstance(tensor, torch.Tensor):
            tensor.pinned = True
    return tensors


def sleep(seconds: Any) -> None:
    """Sleep, and advance the simulated clock by as much."""
    nap(seconds)
    if threading.current_thread() is threading.main_thread() and not clock.loading:
        clock.host += seconds


nap: Any = time.sleep
time.sleep = sleep  # the payload's
torch.autocast, loading.__init__, loading.__next__ = cast, started, batch
OnCpu().__enter__()
