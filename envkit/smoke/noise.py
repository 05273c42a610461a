"""Noise readings: whether other processes disturbed the machine while a check was timed.

Use::

    before = noise.snapshot(gpu=True, idle=True)
    ... timed work ...
    observation["noise"] = noise.gate(before, noise.snapshot(gpu=True))

``gate`` returns {psi_cpu_some, nr_throttled, other_gpu_procs, other_gpu_busy, other_gpu_bytes, clock_events, pstate,
window_s, gate, gpu_gate}; ``gate["gate"]`` is "clean" or the reasons in words, ``gate["gpu_gate"]`` only the reasons
that affect work which the GPU times itself. A reading that this machine lacks is None and counts as clean. The GPU is
read through NVML; nvidia-smi is used only if NVML does not load, and not again after it failed once.
``quiet_window(seconds)`` is for checks that load the CPU themselves: it takes its readings over an idle window.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

from . import gpus, hostfacts, nvml
from .pressure import PSI_LIMIT, of_this_process
from .timing import EVENT_CLOCK

NVIDIA_SMI_TIMEOUT_S = 5  # it answers within a second, or hangs
# The normal state of a 70 W card, not a sign of a disturbance.
POWER_CAP = "sw_power_cap"
# GeForce cards compute in P2 by design; any lower state means that the clocks had not risen yet.
BUSY_PSTATES = ("P0", "P1", "P2")
# Others use the GPU if it is busy for more than this percentage while this process is idle, or if their memory is
# larger than this.
BUSY_LIMIT = 5
OTHERS_BYTES = 1 << 30
# The most memory that CUDA's context and the kernels of torch 1.x take outside torch's pool.
CONTEXT_BYTES = 2 << 30
# The driver's utilization is that of its last sample period, up to a second, so earlier load of this process has to
# leave it first.
IDLE_STEP_S = 0.1
IDLE_STEPS = 15
IDLE_AGREEING = 3

_nvidia_smi = {"usable": True}
_before_context = {}


def cpu_stat_paths(proc_self_cgroup, root="/sys/fs/cgroup"):
    """Return the possible paths of ``cpu.stat``: cgroup v2, then v1; each at this process's path, then at the root."""
    base, paths = pathlib.Path(root), hostfacts.cgroup_paths(proc_self_cgroup)
    files = []
    for controller, mounts in (("", (base, base / "unified")), ("cpu", (base / "cpu,cpuacct", base / "cpu"))):
        for mount in mounts if controller in paths else ():
            files += [str(mount / paths[controller].strip("/") / "cpu.stat"), str(mount / "cpu.stat")]
    return files


def parse_cpu_stat(text):
    """Return ``{"nr_periods", "nr_throttled"}`` from cpu.stat's text, or None if it lacks them."""
    fields = dict(line.split(None, 1) for line in (text or "").splitlines() if " " in line)
    if "nr_throttled" not in fields:
        return None
    return {"nr_periods": int(fields.get("nr_periods", 0)), "nr_throttled": int(fields["nr_throttled"])}


def throttling():
    """Return this process's CPU quota counters ``{"nr_periods", "nr_throttled"}`` (cgroup v2 or v1), or None."""
    for path in cpu_stat_paths(hostfacts.read_text("/proc/self/cgroup")):
        counters = parse_cpu_stat(hostfacts.read_text(path))
        if counters is not None:
            return counters
    return None


def ask_nvidia_smi(gpu):
    """Return pstate and clock-event mask of one GPU (index or UUID) as nvidia-smi's CSV line, None if it fails.

    After one failure this process does not call it again, because each call may take the whole time limit.
    """
    binary = shutil.which("nvidia-smi")
    if binary is None or not _nvidia_smi["usable"]:
        return None
    # Newer drivers name the second field clocks_event_reasons, but still accept this name.
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
    """Return ``{"pstate", "clock_events"}`` from one ``pstate, reasons`` CSV line of nvidia-smi, or None."""
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
    """Return ``{pstate, clock_events, pids, busy, foreign_bytes}`` of torch's first GPU, None if it cannot be read.

    ``busy`` is the percentage of time in which others run kernels. It is read only with ``idle``, because this process
    has to be idle for it; that takes 0.3 s if nobody else runs kernels and 1.5 s if somebody does.
    """
    session = nvml.open_session()
    index = gpus.nvml_index(torch, session) if session is not None and torch is not None else None
    if index is None:
        state = parse_gpu_state(ask_nvidia_smi(nvidia_smi_id()))
        return None if state is None else dict(state, pids=None, busy=None, foreign_bytes=None)
    load = session.load(index)
    processes = load["processes"]
    clients = [item for item in processes or () if not gpus.is_mps_server(item)]
    handle = gpus.memory_handle(torch, session)
    memory = session.memory(handle)
    # A MIG slice has its own memory, of which there is no earlier reading.
    before = _before_context.get(index, 0) if handle.value == session.handle(index).value else 0
    return {
        "pstate": load["pstate"],
        "clock_events": _slowing(load["clock_events"]),
        "pids": None if processes is None else [item["pid"] for item in clients],
        "busy": _busy(torch, session, session.handle(index)) if idle else None,
        "foreign_bytes": None if memory is None else foreign_bytes(memory["used"], processes, _reserved(torch), before),
    }


def note_idle_memory():
    """Note the memory used on each GPU. Before this process has a CUDA context, all of it belongs to others."""
    session = nvml.open_session()
    for index in range(session.count() if session is not None else 0):
        handle = session.handle(index)
        memory = None if handle is None else session.memory(handle)
        if memory is not None:
            _before_context.setdefault(index, memory["used"])


def foreign_bytes(used, processes, reserved, before=0):
    """Return how many of the ``used`` bytes belong to other processes.

    Exact if NVML shows this process. Otherwise an estimate: the bytes that were used ``before`` this process had a
    context, or those beyond torch's pool of ``reserved`` bytes and CONTEXT_BYTES, whichever is larger.
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
            return None  # MIG slices have no utilization
        last = seen[-IDLE_AGREEING:]
        if len(last) == IDLE_AGREEING and max(last) <= BUSY_LIMIT:
            break
    return max(seen[-IDLE_AGREEING:])


def nvidia_smi_id():
    """Return nvidia-smi's ID for torch's cuda:0: the UUID if torch has it, else the index."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
        if uuid is not None:
            return "GPU-" + str(uuid)
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def snapshot(gpu=False, own_gpu_processes=1, idle=False):
    """Read every counter once. ``gpu``: also those of torch's first GPU; ``idle``: this process is idle now.

    ``own_gpu_processes``: how many of the compute processes on the GPU belong to this run. Inside a container NVML
    shows host process IDs or none at all, so they cannot always be recognized by ID.
    """
    state = gpu_state(sys.modules.get("torch"), idle) if gpu else None
    return {
        "time": time.perf_counter(),
        "waited_s": of_this_process().measured(),
        "throttling": throttling(),
        "gpu": state,
        "own_gpu_processes": own_gpu_processes,
    }


def gate(before, after):
    """Return the readings between two snapshots, see the module's docstring."""
    window = after["time"] - before["time"]
    share = None
    if before["waited_s"] is not None and after["waited_s"] is not None and window > 0:
        share = min(1.0, (after["waited_s"] - before["waited_s"]) / window)
    throttled = None
    if before["throttling"] is not None and after["throttling"] is not None:
        throttled = after["throttling"]["nr_throttled"] - before["throttling"]["nr_throttled"]
    reasons = []
    if share is not None and share > PSI_LIMIT:
        reasons.append("CPU pressure {:.2f} above {:.2f}".format(share, PSI_LIMIT))
    if throttled:
        reasons.append("CPU quota throttled {} periods".format(throttled))
    states = [snap["gpu"] for snap in (before, after) if snap["gpu"] is not None]
    readings, on_gpu = _gpu_gate(states, after["own_gpu_processes"])
    return dict(
        readings,
        psi_cpu_some=share,
        nr_throttled=throttled,
        window_s=window,
        gate="; ".join(reasons + on_gpu) or "clean",
        gpu_gate="; ".join(on_gpu) or "clean",
    )


def _gpu_gate(states, own):
    """Return the GPU's readings over the snapshots, and the reasons why it was not quiet."""
    events = sorted({event for state in states for event in state["clock_events"]})
    pids = states[-1]["pids"] if states else None
    others = None if pids is None else max(0, len(pids) - own)
    pstates = [state["pstate"] for state in states]
    busy = max((state["busy"] for state in states if state["busy"] is not None), default=None)
    foreign = max((state["foreign_bytes"] for state in states if state["foreign_bytes"] is not None), default=None)
    used = []
    if busy is not None and busy > BUSY_LIMIT:
        used.append("{} % of the time".format(busy))
    if foreign is not None and foreign > OTHERS_BYTES:
        used.append("{:.1f} GiB".format(foreign / (1 << 30)))
    reasons = []
    if events:
        reasons.append("GPU clock events: " + ", ".join(events))
    if others:
        reasons.append("{} other compute processes on the GPU".format(others))
    if used:
        reasons.append("GPU used by others: " + ", ".join(used))
    if pstates and pstates[-1] is not None and pstates[-1] not in BUSY_PSTATES:
        reasons.append("GPU in {} right after the work".format(pstates[-1]))
    readings = {
        "other_gpu_procs": others,
        "other_gpu_busy": busy,
        "other_gpu_bytes": foreign,
        "clock_events": events,
        "pstate": pstates,
    }
    return readings, reasons


def for_clock(readings, clock):
    """Return the readings with the gate for samples of ``clock``: CPU load does not disturb the GPU's own clock."""
    if readings is None or clock != EVENT_CLOCK or "gpu_gate" not in readings:
        return readings
    return dict(readings, gate=readings["gpu_gate"])


def quiet_window(seconds=0.2):
    """Return ``gate`` over ``seconds`` in which this process only sleeps: the load of other processes."""
    before = snapshot()
    time.sleep(seconds)
    return gate(before, snapshot())
