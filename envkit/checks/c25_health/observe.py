"""C25: what each GPU reports of its own past: repaired and broken memory, errors, its power limit, link replays."""

import ctypes

from envkit.smoke import gpus, hostfacts, nvml
from envkit.smoke.observation import Skip, control, ran, skipped

# Enumerations of nvml.h.
CORRECTED, UNCORRECTED = 0, 1
SINCE_DRIVER_LOADED, EVER = 0, 1
SINGLE_BIT, DOUBLE_BIT = 0, 1
STATES = {nvml.GPU_IS_LOST: "lost", nvml.RESET_REQUIRED: "reset required"}
SRAM_V1 = 1 << 24  # nvml.h keeps a structure's version in its highest byte


class Histogram(ctypes.Structure):
    """nvmlRowRemapperHistogramValues_t of nvml.h: memory banks by how many spare rows they have left."""

    _fields_ = [(name, ctypes.c_uint) for name in ("max", "high", "partial", "low", "none")]


class Sram(ctypes.Structure):
    """nvmlEccSramErrorStatus_v1_t of nvml.h; ``exceeded``: more errors than a board may have before it is returned."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("ever_parity", ctypes.c_ulonglong),
        ("ever_sec_ded", ctypes.c_ulonglong),
        ("ever_corrected", ctypes.c_ulonglong),
        ("parity", ctypes.c_ulonglong),
        ("sec_ded", ctypes.c_ulonglong),
        ("corrected", ctypes.c_ulonglong),
        ("ever_l2", ctypes.c_ulonglong),
        ("ever_sm", ctypes.c_ulonglong),
        ("ever_pcie", ctypes.c_ulonglong),
        ("ever_mcu", ctypes.c_ulonglong),
        ("ever_other", ctypes.c_ulonglong),
        ("exceeded", ctypes.c_uint),
    ]


def run(ctx):
    """Return C25.device, remaps, pages, ecc, power and replays for each GPU of torch, or else for each GPU in NVML."""
    session = nvml.open_session()
    if session is None:
        raise Skip("NO_NVML", f"NVML does not answer: {nvml.refusal()}")
    count = session.count()
    if not count:
        raise Skip("NO_GPU", "NVML shows no GPU in this container")
    controls = [
        control("planted_faults_are_read", planted_is_read(), "a device with one fault of each kind"),
        control("nothing_is_read_of_no_device", session.handle(count) is None, f"device {count} of 0 to {count - 1}"),
    ]
    rows = []
    for subject, index in devices(ctx, session):
        rows.extend(_observations(f"gpu:{subject}", Health(session, index), controls))
    return rows


def devices(ctx, session):
    """Return ``(number in the observation, NVML index)`` of each GPU. The number is torch's if torch was imported."""
    if ctx.tried_torch and ctx.has_cuda:
        matched = {}
        for number in range(ctx.torch.cuda.device_count()):
            index = gpus.nvml_index(ctx.torch, session, number)
            if index is not None:
                matched.setdefault(index, number)  # MIG slices share their GPU
        if matched:
            return sorted((number, index) for index, number in matched.items())
    return [(index, index) for index in range(session.count())]


class Health:
    """The readings of one device; ``failed`` has the reason for each call that gave no answer."""

    def __init__(self, session, index):
        self.session = session
        self.failed = {}
        self.state = "answers"
        self.handle = ctypes.c_void_p()
        name = "nvmlDeviceGetHandleByIndex_v2"
        self._succeeded(name, session.code(name, ctypes.c_uint(index), ctypes.byref(self.handle)))

    def call(self, name, *arguments):
        """Call a function of NVML for the device; return whether it answered."""
        return self._succeeded(name, self.session.code(name, self.handle, *arguments))

    def _succeeded(self, name, code):
        if code != 0:
            self.failed[name] = nvml.numbered(code)
            self.state = STATES.get(code, self.state)
        return code == 0

    def remaps(self):
        """Return the rows remapped, whether a remap is pending or failed, and the spare rows left; None if unknown."""
        values = [ctypes.c_uint() for _ in range(4)]
        if not self.call("nvmlDeviceGetRemappedRows", *(ctypes.byref(value) for value in values)):
            return None
        corrected, uncorrected, pending, failed = (value.value for value in values)
        rows = Histogram()
        known = self.call("nvmlDeviceGetRowRemapperHistogram", ctypes.byref(rows))
        return {
            "corrected": corrected,
            "uncorrected": uncorrected,
            "pending": bool(pending),
            "failed": bool(failed),
            "banks": {name: getattr(rows, name) for name, _ in Histogram._fields_} if known else None,
        }

    def pages(self):
        """Return the pages retired by cause, and whether one is pending; None if the GPU remaps rows instead."""
        counts = {}
        for name, cause in (("single_bit", SINGLE_BIT), ("double_bit", DOUBLE_BIT)):
            size = ctypes.c_uint(0)
            call = "nvmlDeviceGetRetiredPages"
            # Without a buffer the call returns the number, and TOO_SMALL if there are any.
            code = self.session.code(call, self.handle, ctypes.c_uint(cause), ctypes.byref(size), None)
            if not self._succeeded(call, 0 if code == nvml.TOO_SMALL else code):
                return None
            counts[name] = size.value
        waiting = ctypes.c_uint()
        known = self.call("nvmlDeviceGetRetiredPagesPendingStatus", ctypes.byref(waiting))
        return dict(counts, pending=bool(waiting.value) if known else None)

    def ecc(self):
        """Return the ECC errors since the driver was loaded and ever; None if there is no ECC."""
        counts = {}
        for age, since in (("volatile", SINCE_DRIVER_LOADED), ("aggregate", EVER)):
            for name, kind in (("corrected", CORRECTED), ("uncorrected", UNCORRECTED)):
                count = ctypes.c_ulonglong()
                kinds = (ctypes.c_uint(kind), ctypes.c_uint(since))
                known = self.call("nvmlDeviceGetTotalEccErrors", *kinds, ctypes.byref(count))
                counts[f"{age}_{name}"] = count.value if known else None
        if all(value is None for value in counts.values()):
            return None
        sram = Sram(version=ctypes.sizeof(Sram) | SRAM_V1)
        known = self.call("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(sram))
        counts["sram_uncorrected"] = sram.ever_parity + sram.ever_sec_ded if known else None
        counts["sram_exceeded"] = bool(sram.exceeded) if known else None
        return counts

    def power(self):
        """Return the enforced power limit and the board's default in watts, or None if either is unknown."""
        limits = []
        for name in ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit"):
            milliwatts = ctypes.c_uint()
            if not self.call(name, ctypes.byref(milliwatts)):
                return None
            limits.append(milliwatts.value / 1000.0)
        return {"limit_w": limits[0], "default_w": limits[1]}

    def replays(self):
        """Return the PCIe replays, and the seconds since the machine started, or None if unknown."""
        count = ctypes.c_uint()
        if not self.call("nvmlDeviceGetPcieReplayCounter", ctypes.byref(count)):
            return None
        words = hostfacts.read_text("/proc/uptime").split()
        return {"count": count.value, "uptime_s": float(words[0]) if words else None}


def _observations(subject, health, controls):
    rows = []
    if health.state == "answers":
        for part in ("remaps", "pages", "ecc", "power", "replays"):
            before = set(health.failed)
            observed = getattr(health, part)()
            if observed is None:
                reasons = [f"{name}: {health.failed[name]}" for name in sorted(set(health.failed) - before)]
                rows.append(skipped(f"C25.{part}", subject, "NOT_TOLD", "; ".join(reasons)))
            else:
                rows.append(ran(f"C25.{part}", subject, observed, controls))
    # Last, because any of the calls above may have reported that the GPU is lost.
    observed = {"state": health.state, "not_told": health.failed}
    return [ran("C25.device", subject, observed, controls), *rows]


class Planted:
    """A stand-in for NVML with one fault of each kind: every number that a call fills in is 1."""

    def __getattr__(self, name):
        def answer(*arguments):
            for argument in arguments:
                target = getattr(argument, "_obj", None)
                if isinstance(target, ctypes.Structure):
                    target.none = target.exceeded = 1
                elif target is not None:
                    target.value = 1
            return 0

        return answer


def planted_is_read():
    """Whether every fault of the planted device is read."""
    health = Health(nvml.Nvml(Planted()), 0)
    remaps, pages, ecc = health.remaps(), health.pages(), health.ecc()
    return (
        all(remaps[name] for name in ("corrected", "uncorrected", "pending", "failed"))
        and remaps["banks"]["none"] == 1
        and all(pages.values())
        and ecc["volatile_uncorrected"] == ecc["aggregate_uncorrected"] == 1
        and ecc["sram_exceeded"]
        and health.power() == {"limit_w": 0.001, "default_w": 0.001}
        and health.replays()["count"] == 1
    )
