"""Was the machine quiet while a check was timed?

Use::

    before = noise.snapshot(gpu=True)
    ... timed work ...
    observation["noise"] = noise.gate(before, noise.snapshot(gpu=True))

``gate`` returns {psi_cpu_some, nr_throttled, other_gpu_procs, clock_events, pstate, window_s, gate}; ``gate["gate"]``
is "clean" or the reason in words. A source that this machine does not have is None and does not spoil the gate.
``quiet_window(seconds)`` is for checks that load the CPU themselves: it reads an idle window instead.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

PSI_CPU = "/proc/pressure/cpu"
PSI_LIMIT = 0.10
NVIDIA_SMI_TIMEOUT_S = 5
# Bits of nvidia-smi's active clock-event reasons that mean the clock was taken away (nvml.h). A power cap is not among
# them: it is the normal state of a 70 W card.
CLOCK_EVENTS = {0x8: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake"}
# GeForce cards compute in P2 by design; anything slower than that means the clocks had not come up.
BUSY_PSTATES = ("P0", "P1", "P2")


def _text(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return None


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
    base = pathlib.Path(root)
    paths = []
    for line in (proc_self_cgroup or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        controllers, path = parts[1].split(","), parts[2].strip("/")
        if parts[1] == "":
            mounts = [base, base / "unified"]
        elif "cpu" in controllers:
            mounts = [base / parts[1], base / "cpu", base / "cpu,cpuacct"]
        else:
            continue
        for mount in mounts:
            paths.extend([str(mount / path / "cpu.stat"), str(mount / "cpu.stat")])
    return list(dict.fromkeys(paths))


def parse_cpu_stat(text):
    """``{"nr_periods", "nr_throttled"}`` from cpu.stat's text, or None where the file does not carry them."""
    fields = dict(line.split(None, 1) for line in (text or "").splitlines() if " " in line)
    if "nr_throttled" not in fields:
        return None
    return {"nr_periods": int(fields.get("nr_periods", 0)), "nr_throttled": int(fields["nr_throttled"])}


def throttling():
    """This process's CPU quota counters ``{"nr_periods", "nr_throttled"}`` (cgroup v2 or v1), or None."""
    for path in cpu_stat_paths(_text("/proc/self/cgroup")):
        counters = parse_cpu_stat(_text(path))
        if counters is not None:
            return counters
    return None


def _nvidia_smi(*arguments):
    binary = shutil.which("nvidia-smi")
    if binary is None:
        return None
    try:
        done = subprocess.run(
            [binary, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=NVIDIA_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
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
        mask = int(fields[1], 16)
        events = [name for bit, name in sorted(CLOCK_EVENTS.items()) if mask & bit]
    return {"pstate": pstate, "clock_events": events}


def gpu_state(gpu):
    """Performance state, clock events and compute process ids of one GPU (index or UUID); None without nvidia-smi."""
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        text = _nvidia_smi("-i", str(gpu), "--query-gpu=pstate," + reasons, "--format=csv,noheader")
        state = parse_gpu_state(text)
        if state is not None:
            processes = _nvidia_smi("-i", str(gpu), "--query-compute-apps=pid", "--format=csv,noheader")
            state["pids"] = (
                None if processes is None else [int(word) for word in processes.split() if word.strip().isdigit()]
            )
            return state
    return None


def nvidia_smi_id():
    """Return nvidia-smi's name of torch's cuda:0: the UUID where torch knows it, else the index."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
        if uuid is not None:
            return "GPU-" + str(uuid)
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def snapshot(gpu=False, own_gpu_processes=1):
    """Read every counter once. ``gpu``: ask nvidia-smi about torch's first GPU too.

    ``own_gpu_processes``: how many of the compute processes on it are ours. Inside a container nvidia-smi shows host
    process ids or none at all, so ours cannot be told by id.
    """
    return {
        "time": time.perf_counter(),
        "psi_us": psi_total_us(_text(PSI_CPU)),
        "throttling": throttling(),
        "gpu": gpu_state(nvidia_smi_id()) if gpu else None,
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
    states = [snap["gpu"] for snap in (before, after) if snap["gpu"] is not None]
    events = sorted({event for state in states for event in state["clock_events"]})
    pids = states[-1]["pids"] if states else None
    others = None if pids is None else max(0, len(pids) - after["own_gpu_processes"])
    pstates = [state["pstate"] for state in states]
    reasons = []
    if share is not None and share > PSI_LIMIT:
        reasons.append("CPU pressure {:.2f} above {:.2f}".format(share, PSI_LIMIT))
    if throttled:
        reasons.append("CPU quota throttled {} periods".format(throttled))
    if events:
        reasons.append("GPU clock events: " + ", ".join(events))
    if others:
        reasons.append("{} other compute processes on the GPU".format(others))
    if pstates and pstates[-1] is not None and pstates[-1] not in BUSY_PSTATES:
        reasons.append("GPU in {} right after the work".format(pstates[-1]))
    return {
        "psi_cpu_some": share,
        "nr_throttled": throttled,
        "other_gpu_procs": others,
        "clock_events": events,
        "pstate": pstates,
        "window_s": window,
        "gate": "; ".join(reasons) or "clean",
    }


def quiet_window(seconds=0.2):
    """``gate`` over ``seconds`` in which this process only sleeps: what other processes do."""
    before = snapshot()
    time.sleep(seconds)
    return gate(before, snapshot())
