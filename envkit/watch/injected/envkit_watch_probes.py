"""Probes that time a training from inside its processes. Standard library only; inactive until torch is imported.

Every probe calls what it replaces and returns its result. A probe that cannot be installed is left out, so that no
version of torch keeps a training from running.
"""

import functools
import os
import sys
import threading
import time
import weakref
from contextlib import suppress

import envkit_watch_stack as stack
import envkit_watch_stream as stream
from envkit_watch_endings import Endings
from envkit_watch_hooks import Finder, Loaders, clock, device, recorder

UNTRAINED = 16  # batches without an optimizer step, after which there will be none
endings = Endings(recorder, device)
state = threading.local()  # per thread: the calls that are being timed, the current step, autocast


def install(folder):
    """Install the import hook, which installs the probes when torch is imported."""
    recorder.folder = folder
    endings.install()
    sys.meta_path.insert(0, Finder({"torch": probe_torch, "torch._dynamo.callback": probe_compile}))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=recorder.forget)


def quietly(probe, *args):
    """Run a part of a probe. An error in it is written, and the training goes on."""
    try:
        return probe(*args)
    except Exception as error:
        recorder.fact("probe-failed", module=probe.__name__, error=type(error).__name__)
        return None


def timed(owner, name, kind):
    """Time the calls of a function or method, with one event for each outermost call."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args, **kwargs):
        if kind in inside():
            return original(*args, **kwargs)
        inside().add(kind)
        begin = clock()
        try:
            return original(*args, **kwargs)
        finally:
            inside().discard(kind)
            recorder.event(kind, begin, clock() - begin)

    setattr(owner, name, call)


def inside():
    """Return the kinds of calls that are running in this thread."""
    kinds = getattr(state, "inside", None)
    if kinds is None:
        kinds = state.inside = set()
    return kinds


def probe_torch(torch):
    """Install every probe that this torch supports."""
    device.use(torch.cuda if torch.version.cuda else None, sys.modules.get("ctypes"))
    endings.trace_signals()
    for probe in (probe_loader, probe_optimizer, probe_copies, probe_syncs, probe_backward, probe_autocast,
                  probe_collectives, probe_ddp):  # fmt: skip
        try:
            probe(torch)
        except Exception as error:
            recorder.fact(probe.__name__, failed=type(error).__name__)


def probe_loader(torch):
    """Time the batches of loaders, in the process that uses them and in the one that makes them."""
    # From sys.modules here and below: torch imports these itself, and a probe must import nothing more.
    loaders = sys.modules["torch.utils.data.dataloader"]
    advance = loaders._BaseDataLoaderIter.__next__

    @functools.wraps(advance)
    def next_batch(self):
        # Without this counter in torch, first batches are not marked.
        flags = 0 if getattr(self, "_num_yielded", 1) else stream.EDGE
        begin = clock()
        try:
            return advance(self)
        except StopIteration:  # the end of an epoch, in which the workers are stopped
            flags = stream.EDGE | stream.END
            raise
        finally:
            recorder.event(stream.NEXT, begin, clock() - begin, 0.0, flags, which=number_of(self))
            # A training notes it with its first step; without steps this thread is the one to look at.
            if getattr(self, "_num_yielded", 0) == UNTRAINED and "stack" not in recorder.known:
                quietly(note_stack)

    loaders._BaseDataLoaderIter.__next__ = next_batch
    iterate = loaders.DataLoader.__iter__
    numbers, known = weakref.WeakKeyDictionary(), Loaders()

    def number_of(iterator):
        try:
            return numbers.get(iterator, 0)
        except TypeError:  # of a class without a hash
            return 0

    @functools.wraps(iterate)
    def begin_epoch(self):
        number = known.number(self)
        recorder.loader = number  # inherited by the workers that are forked here
        begin = clock()
        try:
            iterator = iterate(self)
        finally:
            recorder.loader = 0
            recorder.event(stream.ITER, begin, clock() - begin, which=number)
        if isinstance(iterator, loaders._BaseDataLoaderIter):
            with suppress(TypeError):
                numbers[iterator] = number
        return iterator

    loaders.DataLoader.__iter__ = begin_epoch
    fetchers = sys.modules["torch.utils.data._utils.fetch"]
    for kind in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        kind.fetch = fetching(kind.fetch)


def fetching(fetch):
    """Time the making of a batch, with the CPU time of a worker's threads; without workers, of this thread."""

    @functools.wraps(fetch)
    def call(self, index):
        worker = sys.modules.get("torch.utils.data._utils.worker")
        # The libraries that decode have threads of their own. The process that trains has others, too.
        spent = time.thread_time if getattr(worker, "_worker_info", None) is None else time.process_time
        begin, used = clock(), spent()
        batch = fetch(self, index)
        recorder.event(stream.FETCH, begin, clock() - begin, spent() - used)
        return batch

    return call


def probe_optimizer(torch):
    """Time the steps of optimizers of any class."""
    module = sys.modules["torch.optim.optimizer"]
    tracing = is_tracing(torch)

    # An optimizer that is compiled is not timed: the unit is a batch then.
    def before(optimizer, args, kwargs):
        if not tracing():
            quietly(before_step)

    def after(optimizer, args, kwargs):
        if not tracing():
            quietly(after_step, torch, optimizer)

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def before_step():
    """Note the start of a step, and mark it on the device."""
    state.step_began = clock()
    device.give(getattr(state, "step_mark", None))  # of a step that raised
    state.step_mark = device.mark()


def after_step(torch, optimizer):
    """Write a step. If the device has already reached its start, the device waits for the host, not the reverse."""
    now = clock()
    begin = getattr(state, "step_began", now)
    mark, state.step_mark = getattr(state, "step_mark", None), None
    flags = stream.AUTOCAST if getattr(state, "autocast", None) else 0
    done = device.is_done(mark)
    if done is not None:
        flags |= stream.DRAIN_KNOWN | (stream.DRAINED if done else 0)
    device.give(mark)
    recorder.event(stream.STEP, begin, now - begin, 0.0, flags)
    if "training" not in recorder.known:
        recorder.fact("training", **training_facts(torch, optimizer))
    if "stack" not in recorder.known:
        quietly(note_stack)
    state.autocast = None  # the next step sets it again
    device.collect()
    device.allocator(now)
    for ddp in tuple(ddps):  # `write` removes one whose model is gone
        ddp.write()


def note_stack():
    """Write where the frames of this thread are in memory, for a reader outside of this process."""
    thread = getattr(threading, "get_native_id", os.getpid)()  # new in Python 3.8
    recorder.fact("stack", **(stack.layout(sys.modules.get("ctypes"), thread) or {}))


def training_facts(torch, optimizer):
    """Return facts about a training: torch, the parameters of its optimizer, precision and GPU."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # Weights of 1 x 1 kernels are contiguous in both memory formats, so they do not show which one is used.
    kernels = [weight for weight in parameters if weight.dim() == 4 and weight.shape[2] * weight.shape[3] > 1]
    facts = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": parameters[0].device.type if parameters else None,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "parameter_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "convolutions": len(kernels),
        "channels_last": bool(kernels)
        and all(weight.is_contiguous(memory_format=torch.channels_last) for weight in kernels),
        "optimizer": type(optimizer).__name__,
        "fused": bool(optimizer.defaults.get("fused")),
        "autocast": str(getattr(state, "autocast", None) or "") or None,
    }
    if device.cuda is not None and facts["device"] == "cuda":
        index = parameters[0].device.index
        facts["capability"] = list(device.cuda.get_device_capability(index))
        facts["tf32"] = bool(getattr(torch.backends.cuda.matmul, "allow_tf32", False))
        facts["gpu"] = str(getattr(device.cuda.get_device_properties(index), "uuid", "")) or None
    return facts


def probe_copies(torch):
    """Time copies from the host to a device."""
    tracing = is_tracing(torch)

    def moving(original, takes_device):
        @functools.wraps(original)
        def call(self, *args, **kwargs):
            if tracing() or not self.is_cpu or not takes_device(args, kwargs):
                return original(self, *args, **kwargs)
            first, begin = device.begin(), clock()
            try:
                moved = original(self, *args, **kwargs)
            except BaseException:
                device.give(first)
                raise
            quietly(moved_to, moved, self, first, begin, (args, kwargs))
            return moved

        return call

    # `to` with only a dtype converts a tensor on the host and copies nothing.
    def names_device(args, kwargs):
        target = args[0] if args else kwargs.get("device")
        return target is not None and not isinstance(target, torch.dtype)

    copy_to = torch.Tensor.copy_

    @functools.wraps(copy_to)
    def copy(self, source, *args, **kwargs):
        if tracing() or self.is_cpu or self.is_meta or not getattr(source, "is_cpu", False):
            return copy_to(self, source, *args, **kwargs)
        first, begin = device.begin(), clock()
        try:
            result = copy_to(self, source, *args, **kwargs)
        except BaseException:
            device.give(first)
            raise
        quietly(copied, source, first, begin, (args, kwargs))
        return result

    torch.Tensor.to = moving(torch.Tensor.to, names_device)
    torch.Tensor.cuda = moving(torch.Tensor.cuda, lambda args, kwargs: True)
    torch.Tensor.copy_ = copy


def moved_to(moved, source, first, begin, options):
    """Write the copy of a tensor, if it was one to a device."""
    if moved.device.type in ("cpu", "meta"):
        device.give(first)
    else:
        copied(source, first, begin, options)


def copied(source, first, begin, options):
    """Write a copy of a tensor to a device. `options` are the other arguments of the call, by position and by name."""
    args, kwargs = options
    amount = float(source.numel() * source.element_size())
    # `to` takes non_blocking as its first boolean: to(device, dtype, non_blocking, copy).
    switches = [value for value in args if isinstance(value, bool)]
    non_blocking = kwargs.get("non_blocking", switches[0] if switches else False)
    flags = (stream.NON_BLOCKING if non_blocking else 0) | (stream.PINNED if is_pinned(source) else 0)
    flags |= stream.SIDE if non_blocking and device.is_aside() else 0
    recorder.event(stream.COPY, begin, clock() - begin, amount, flags)
    device.end(first, stream.COPY_DEVICE, begin, amount, flags)


def is_pinned(source):
    """Whether a tensor is in page-locked memory; False on devices that do not support it."""
    try:
        return source.is_pinned()
    except (RuntimeError, NotImplementedError):
        return False


def probe_syncs(torch):
    """Time calls that make the host wait for the device: reading a value or a tensor from it."""
    tracing = is_tracing(torch)

    def waiting(original):
        @functools.wraps(original)
        def call(self, *args, **kwargs):
            if tracing() or self.is_cpu:
                return original(self, *args, **kwargs)
            begin = clock()
            try:
                return original(self, *args, **kwargs)
            finally:
                recorder.event(stream.SYNC, begin, clock() - begin)

        return call

    for name in ("item", "cpu", "tolist"):
        setattr(torch.Tensor, name, waiting(getattr(torch.Tensor, name)))


def is_tracing(torch):
    """Return a function that is True while torch.compile traces code, which treats it as a constant."""
    compiler = getattr(torch, "compiler", None)
    return getattr(compiler, "is_compiling", None) or (lambda: False)


def probe_backward(torch):
    """Time backward passes."""
    timed(torch.autograd, "backward", stream.BACKWARD)


def probe_autocast(torch):
    """Note the precision of autocast."""
    kind = sys.modules["torch.amp.autocast_mode"].autocast
    enter = kind.__enter__

    @functools.wraps(enter)
    def begin(self):
        if getattr(self, "_enabled", True):
            state.autocast = getattr(self, "fast_dtype", None) or "on"
        return enter(self)

    kind.__enter__ = begin


COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor",
               "broadcast", "all_to_all", "all_to_all_single", "reduce", "barrier")  # fmt: skip


def probe_collectives(torch):
    """Time the collectives that the training itself calls."""
    inner = sys.modules.get("torch.distributed.distributed_c10d")
    if inner is None:  # a torch without torch.distributed
        return
    tracing = is_tracing(torch)

    def communicating(original):
        @functools.wraps(original)
        def call(*args, **kwargs):
            if tracing() or stream.COLLECTIVE in inside():
                return original(*args, **kwargs)
            inside().add(stream.COLLECTIVE)
            first, begin = device.begin(), clock()
            try:
                return original(*args, **kwargs)
            finally:
                inside().discard(stream.COLLECTIVE)
                quietly(communicated, args, first, begin)

        return call

    for name in COLLECTIVES:
        original = getattr(inner, name, None)
        if original is not None:
            replaced = communicating(original)
            # torch.distributed has its own names for the same functions, and trainings use both modules.
            for module in (inner, torch.distributed):
                if getattr(module, name, None) is original:
                    setattr(module, name, replaced)


def communicated(args, first, begin):
    """Write a collective."""
    spent, amount = clock() - begin, tensor_bytes(args)
    recorder.event(stream.COLLECTIVE, begin, spent, amount)
    device.end(first, stream.COLLECTIVE_DEVICE, begin, amount, 0)


def tensor_bytes(values):
    """Return the bytes of the first argument that is a tensor or a list of tensors, 0 without one."""
    for value in values:
        tensors = value if isinstance(value, (list, tuple)) else [value]
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors if hasattr(tensor, "element_size")]
        if sizes:
            return float(sum(sizes))
    return 0.0


ddps = []


class Ddp:
    """One DistributedDataParallel, which itself times some of its backward passes."""

    def __init__(self, module):
        # A probe must not keep a model in memory that the training has dropped.
        self.module = weakref.ref(module)
        self.iteration = 0

    def write(self):
        """Write the communication of the last timed pass, once."""
        module = self.module()
        if module is None:
            ddps.remove(self)
            return
        data = module._get_ddp_logging_data()
        iteration, spent = data.get("iteration", 0), data.get("backward_comm_time", 0)
        if iteration == self.iteration or not spent:
            return
        self.iteration = iteration
        hidden = data.get("backward_compute_comm_overlap_time", 0)
        # DDP's logger has nanoseconds.
        recorder.event(stream.DDP, clock(), spent / 1e9, max(0, spent - hidden) / 1e9)
        facts = {name: data.get(name) for name in ("world_size", "backend_name", "bucket_cap_bytes")}
        recorder.fact("ddp", has_sync=1, **facts)


def probe_ddp(torch):
    """Register every DistributedDataParallel, to read its own measurements."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    if module is None:
        return
    kind = module.DistributedDataParallel
    make = kind.__init__

    @functools.wraps(make)
    def begin(self, *args, **kwargs):
        make(self, *args, **kwargs)
        with suppress(TypeError):  # a subclass that takes no weak references
            ddps.append(Ddp(self))

    kind.__init__ = begin


def probe_compile(module):
    """Time torch.compile."""
    handler = module.callback_handler
    starts = []

    def start(*_):
        starts.append(clock())

    def stop(*_):
        if starts:
            begin = starts.pop()
            recorder.fact("compile", used=True)
            flags = stream.WITHIN if stream.BACKWARD in inside() else 0
            recorder.event(stream.COMPILE, begin, clock() - begin, 0.0, flags)

    handler.register_start_callback(start)
    handler.register_end_callback(stop)
