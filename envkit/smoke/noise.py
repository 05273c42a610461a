"""Was the machine quiet while a check was timed?

Use::

    before = noise.snapshot(gpu=True, idle=True)
    ... timed work ...
    observation["noise"] = noise.gate(before, noise.snapshot(gpu=True))

``gate`` returns {psi_cpu_some, nr_throttled, other_gpu_procs, other_gpu_busy, other_gpu_bytes, clock_events, pstate,
window_s, gate, gpu_gate}; ``gate["gate"]`` is "clean" or the reasons in words, ``gate["gpu_gate"]`` only those that
reach work which the GPU times itself. A source that this machine does not have is None and does not spoil the gate.
The GPU is read through NVML; nvidia-smi is asked only where NVML does not load, and never again once it failed.
``quiet_window(seconds)`` is for checks that load the CPU themselves: it reads an idle window instead.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

from . import gpus, hostfacts, nvml
from .timing import EVENT_CLOCK

PSI_CPU = "/proc/pressure/cpu"
PSI_LIMIT = 0.10  # share of the time in which something waited for a CPU
NVIDIA_SMI_TIMEOUT_S = 5  # it answers in one, or hangs
# The normal state of a 70 W card, and no sign of a disturbance.
POWER_CAP = "sw_power_cap"
# GeForce cards compute in P2 by design; anything slower than that means the clocks had not come up.
BUSY_PSTATES = ("P0", "P1", "P2")
# Others use the GPU when it is busy for more percent than this while we are idle, or hold more memory than this.
BUSY_LIMIT = 5
OTHERS_BYTES = 1 << 30
# What CUDA's context and the kernels of torch 1.x take at most, beside torch's own pool.
CONTEXT_BYTES = 2 << 30
# A driver's utilization is that of its last sample, up to a second long: so the load before has to fade first.
IDLE_STEP_S = 0.1
IDLE_STEPS = 15
IDLE_AGREEING = 3

_nvidia_smi = {"usable": True}
_before_context = {}


def psi_total_us(text):
    """Total stall in microseconds of the ``some`` line of a PSI file's text, or None."""
    for line in (text or "").splitlines():
        if line.startswith("some"):
            for field in line.split()[1:]:
                key, _, value = field.partition("=")
                if key == "total" and value.isdigit():
                    return int(value)
    return None


def cpu_stat_paths(proc_self_cgroup, root="/sys/fs/cgroup"):
    """Return where ``cpu.stat`` may be: cgroup v2, then v1, each by this process's path, then at the mount's root."""
    base, paths = pathlib.Path(root), hostfacts.cgroup_paths(proc_self_cgroup)
    found = []
    for controller, mounts in (("", (base, base / "unified")), ("cpu", (base / "cpu,cpuacct", base / "cpu"))):
        for mount in mounts if controller in paths else ():
            found += [str(mount / paths[controller].strip("/") / "cpu.stat"), str(mount / "cpu.stat")]
    return found


def parse_cpu_stat(text):
    """``{"nr_periods", "nr_throttled"}`` from cpu.stat's text, or None where the file does not carry them."""
    fields = dict(line.split(None, 1) for line in (text or "").splitlines() if " " in line)
    if "nr_throttled" not in fields:
        return None
    return {"nr_periods": int(fields.get("nr_periods", 0)), "nr_throttled": int(fields["nr_throttled"])}


def throttling():
    """This process's CPU quota counters ``{"nr_periods", "nr_throttled"}`` (cgroup v2 or v1), or None."""
    for path in cpu_stat_paths(hostfacts.read_text("/proc/self/cgroup")):
        counters = parse_cpu_stat(hostfacts.read_text(path))
        if counters is not None:
            return counters
    return None


def ask_nvidia_smi(gpu):
    """Return pstate and clock-event mask of one GPU (index or UUID) as nvidia-smi's CSV line, None without an answer.

    One failure ends it for this process: where it is slow it takes its whole time limit, each time.
    """
    binary = shutil.which("nvidia-smi")
    if binary is None or not _nvidia_smi["usable"]:
        return None
    # Newer drivers call the second field clocks_event_reasons and still know this name.
    query = "--query-gpu=pstate,clocks_throttle_reasons.active"
    try:
        done = subprocess.run(
            [binary, "-i", str(gpu), query, "--format=csv,noheader"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=NVIDIA_SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        _nvidia_smi["usable"] = False
        return None
    return done.stdout.decode("utf-8", "replace")


def parse_gpu_state(text):
    """``{"pstate", "clock_events"}`` from one ``pstate, reasons`` CSV line of nvidia-smi, or None."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    if not lines:
        return None
    fields = [field.strip() for field in lines[0].split(",")]
    pstate = fields[0] if fields[0][:1] == "P" and fields[0][1:].isdigit() else None
    events = []
    if len(fields) > 1 and fields[1].lower().startswith("0x"):
        events = nvml.clock_event_names(int(fields[1], 16))
    return {"pstate": pstate, "clock_events": _slowing(events)}


def _slowing(events):
    return [event for event in events or () if event != POWER_CAP]


def gpu_state(torch, idle=False):
    """Return ``{pstate, clock_events, pids, busy, foreign_bytes}`` of torch's first GPU, None where nobody tells.

    ``busy`` is the percent of time in which others run kernels. It is read only when ``idle``: this process has to be
    idle for it, and it takes 0.3 s where nobody else runs anything and 1.5 s where somebody does.
    """
    session = nvml.open_session()
    index = gpus.nvml_index(torch, session) if session is not None and torch is not None else None
    if index is None:
        state = parse_gpu_state(ask_nvidia_smi(nvidia_smi_id()))
        return None if state is None else dict(state, pids=None, busy=None, foreign_bytes=None)
    load = session.load(index)
    processes = load["processes"]
    strangers = [item for item in processes or () if not gpus.is_mps_server(item)]
    handle = gpus.memory_handle(torch, session)
    memory = session.memory(handle)
    # A MIG slice has its own memory, and was not looked at before.
    before = _before_context.get(index, 0) if handle.value == session.handle(index).value else 0
    return {
        "pstate": load["pstate"],
        "clock_events": _slowing(load["clock_events"]),
        "pids": None if processes is None else [item["pid"] for item in strangers],
        "busy": _busy(torch, session, session.handle(index)) if idle else None,
        "foreign_bytes": None if memory is None else foreign_bytes(memory["used"], processes, _reserved(torch), before),
    }


def note_idle_memory():
    """Remember what is held on each GPU. Only before this process has a context is all of it other people's."""
    session = nvml.open_session()
    for index in range(session.count() if session is not None else 0):
        handle = session.handle(index)
        memory = None if handle is None else session.memory(handle)
        if memory is not None:
            _before_context.setdefault(index, memory["used"])


def foreign_bytes(used, processes, reserved, before=0):
    """Return how many of the ``used`` bytes are not ours.

    Exact where NVML shows our own process. Else what was held ``before`` we had a context, or what is above torch's
    pool of ``reserved`` bytes and CONTEXT_BYTES.
    """
    own = [item["bytes"] for item in processes or () if item["pid"] == os.getpid() and item["bytes"] is not None]
    if own:
        return max(0, used - sum(own))
    return max(before, used - reserved - CONTEXT_BYTES, 0)


def _reserved(torch):
    known = hasattr(torch.cuda, "memory_reserved") and torch.cuda.is_initialized()
    return torch.cuda.memory_reserved(0) if known else 0


def _busy(torch, session, handle):
    torch.cuda.synchronize()
    seen = []
    for _ in range(IDLE_STEPS):
        time.sleep(IDLE_STEP_S)
        seen.append(session.utilization(handle))
        if seen[-1] is None:
            return None  # as on MIG slices
        last = seen[-IDLE_AGREEING:]
        if len(last) == IDLE_AGREEING and max(last) <= BUSY_LIMIT:
            break
    return max(seen[-IDLE_AGREEING:])


def nvidia_smi_id():
    """Return nvidia-smi's name of torch's cuda:0: the UUID where torch knows it, else the index."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
        if uuid is not None:
            return "GPU-" + str(uuid)
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def snapshot(gpu=False, own_gpu_processes=1, idle=False):
    """Read every counter once. ``gpu``: torch's first GPU too; ``idle``: this process does nothing at this moment.

    ``own_gpu_processes``: how many of the compute processes on it are ours. Inside a container NVML shows host
    process ids or none at all, so ours cannot always be told by id.
    """
    state = gpu_state(sys.modules.get("torch"), idle) if gpu else None
    return {
        "time": time.perf_counter(),
        "psi_us": psi_total_us(hostfacts.read_text(PSI_CPU)),
        "throttling": throttling(),
        "gpu": state,
        "own_gpu_processes": own_gpu_processes,
    }


def gate(before, after):
    """Compare two snapshots; see the module's docstring for the result."""
    window = after["time"] - before["time"]
    share = None
    if before["psi_us"] is not None and after["psi_us"] is not None and window > 0:
        share = (after["psi_us"] - before["psi_us"]) / 1e6 / window
    throttled = None
    if before["throttling"] is not None and after["throttling"] is not None:
        throttled = after["throttling"]["nr_throttled"] - before["throttling"]["nr_throttled"]
    reasons = []
    if share is not None and share > PSI_LIMIT:
        reasons.append("CPU pressure {:.2f} above {:.2f}".format(share, PSI_LIMIT))
    if throttled:
        reasons.append("CPU quota throttled {} periods".format(throttled))
    states = [snap["gpu"] for snap in (before, after) if snap["gpu"] is not None]
    found, on_gpu = _gpu_gate(states, after["own_gpu_processes"])
    return dict(
        found,
        psi_cpu_some=share,
        nr_throttled=throttled,
        window_s=window,
        gate="; ".join(reasons + on_gpu) or "clean",
        gpu_gate="; ".join(on_gpu) or "clean",
    )


def _gpu_gate(states, own):
    """Return what the snapshots say of the GPU, and the reasons among it."""
    events = sorted({event for state in states for event in state["clock_events"]})
    pids = states[-1]["pids"] if states else None
    others = None if pids is None else max(0, len(pids) - own)
    pstates = [state["pstate"] for state in states]
    busy = max((state["busy"] for state in states if state["busy"] is not None), default=None)
    held = max((state["foreign_bytes"] for state in states if state["foreign_bytes"] is not None), default=None)
    used = []
    if busy is not None and busy > BUSY_LIMIT:
        used.append("{} % of the time".format(busy))
    if held is not None and held > OTHERS_BYTES:
        used.append("{:.1f} GiB".format(held / (1 << 30)))
    reasons = []
    if events:
        reasons.append("GPU clock events: " + ", ".join(events))
    if others:
        reasons.append("{} other compute processes on the GPU".format(others))
    if used:
        reasons.append("GPU used by others: " + ", ".join(used))
    if pstates and pstates[-1] is not None and pstates[-1] not in BUSY_PSTATES:
        reasons.append("GPU in {} right after the work".format(pstates[-1]))
    found = {
        "other_gpu_procs": others,
        "other_gpu_busy": busy,
        "other_gpu_bytes": held,
        "clock_events": events,
        "pstate": pstates,
    }
    return found, reasons


def felt(found, clock):
    """Return a gate as samples of ``clock`` feel it: what the GPU itself times does not wait for a busy processor."""
    if found is None or clock != EVENT_CLOCK or "gpu_gate" not in found:
        return found
    return dict(found, gate=found["gpu_gate"])


def quiet_window(seconds=0.2):
    """``gate`` over ``seconds`` in which this process only sleeps: what other processes do."""
    before = snapshot()
    time.sleep(seconds)
    return gate(before, snapshot())
