"""The readings of NVIDIA's management library (NVML) that checks need, through ctypes. Any of them may be missing."""

import ctypes
import os
import pathlib

from .hostfacts import read_text

CLOCK_EVENT_BITS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
# Return values of nvml.h that are distinguished from other errors.
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TOO_SMALL, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 6, 7, 15, 16
MPS_SERVER = "nvidia-cuda-mps"  # nvidia-cuda-mps-server, cut to the 15 characters of /proc/PID/comm
# The second version of this structure (driver 510 and newer) lists the driver's own memory as `reserved`, not as used.
MEMORY_V2 = 0x02000028
UNKNOWN_BYTES = 2**64 - 1
BUS_TYPES = {1: "pci", 2: "pcie", 3: "fpci", 4: "agp"}
# The Windows driver's folder exists only in WSL2. It comes first: a CUDA package in WSL2 may also install the Linux
# driver's library, which reports there that no driver is loaded.
LIBRARIES = ("/usr/lib/wsl/lib/libnvidia-ml.so.1", "libnvidia-ml.so.1")
VGPU = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU: this is a guest with a virtual GPU
_ABSENT = "cannot open shared object file: No such file"  # the dynamic loader's message
MOST_SLICES = 64  # of one GPU; there are seven at most


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Memory2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t of nvml.h, which version 3 of the call fills in."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t of nvml.h."""

    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class _ConfidentialComputing(ctypes.Structure):
    _fields_ = [("environment", ctypes.c_uint), ("feature", ctypes.c_uint), ("dev_tools", ctypes.c_uint)]


class Nvml:
    """An open session, made by ``open_session``. Readings that this driver or GPU lacks are None."""

    def __init__(self, library):
        self._library = library

    def driver(self):
        """Return the driver version, like ``580.95.05``."""
        return self._text("nvmlSystemGetDriverVersion", ctypes.c_char * 96)

    def cuda(self):
        """Return the newest CUDA version that the driver supports natively, like ``12.4``, None if unknown."""
        value = ctypes.c_int()
        if not self.call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(value)):
            return None
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def library_version(self):
        """Return the driver version of the library, or None. It may differ from that of the kernel module."""
        text = self._text("nvmlSystemGetNVMLVersion", ctypes.c_char * 96)  # CUDA's major version, then the driver's
        return None if text is None else text.partition(".")[2] or None

    def reason(self, code):
        """Return the library's text for a return value of ``code``, like ``GPU is lost (error 15)``."""
        if code is None:
            return "function not found"
        function = getattr(self._library, "nvmlErrorString", None)
        if function is None:
            return f"error {code}"
        function.restype = ctypes.c_char_p
        return f"{(function(code) or b'?').decode('utf-8', 'replace')} (error {code})"

    def count(self):
        """Return the number of devices that NVML shows in this container."""
        value = ctypes.c_uint()
        return value.value if self.call("nvmlDeviceGetCount_v2", ctypes.byref(value)) else 0

    def handle(self, index):
        """Return the handle of device ``index``, None if it does not exist."""
        value = ctypes.c_void_p()
        ok = self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(value))
        return value if ok else None

    def describe(self, index):
        """Return name, UUID, PCI IDs, capability, memory, modes, link and power limit of device ``index``, or None."""
        handle = self.handle(index)
        if handle is None:
            return None
        memory, pci = _Memory(), PciInfo()
        major, minor, first, second = ctypes.c_int(), ctypes.c_int(), ctypes.c_uint(), ctypes.c_uint()
        has_memory = self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        has_pci = self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        has_cc = self.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        has_mig = self.call("nvmlDeviceGetMigMode", handle, ctypes.byref(first), ctypes.byref(second))
        mig = bool(first.value) if has_mig else None
        has_ecc = self.call("nvmlDeviceGetEccMode", handle, ctypes.byref(first), ctypes.byref(second))
        power = self.number("nvmlDeviceGetPowerManagementLimit", handle)
        vendor_device = f"{pci.pci_device_id & 0xFFFF:04x}:{pci.pci_device_id >> 16:04x}" if has_pci else None
        return {
            "uuid": self._text("nvmlDeviceGetUUID", ctypes.c_char * 96, handle),
            "name": self.name(handle),
            "pci_id": vendor_device,
            "pci_bus": pci.bus_id.decode("ascii", "replace").lower() if has_pci else None,
            "cc": f"{major.value}.{minor.value}" if has_cc else None,
            "mem_mib": memory.total // 2**20 if has_memory else None,
            "driver": self.driver(),
            "mig": mig,
            "ecc": bool(first.value) if has_ecc else None,
            "cc_mode": self.confidential(),
            "power_limit_w": power // 1000 if power is not None else None,
            "link": self.link(index),
        }

    def virtualization(self, index):
        """Return the NVML_GPU_VIRTUALIZATION_MODE of device ``index``, such as VGPU, None if unknown."""
        handle = self.handle(index)
        return None if handle is None else self.number("nvmlDeviceGetVirtualizationMode", handle)

    def slices(self, index):
        """Return the handles of the MIG devices of device ``index`` that are visible to this process."""
        handle = self.handle(index)
        most = None if handle is None else self.number("nvmlDeviceGetMaxMigDeviceCount", handle)
        parts = []
        for number in range(min(most or 0, MOST_SLICES)):
            part = ctypes.c_void_p()
            # Numbers are missing if a slice was destroyed or belongs to another user.
            if self.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(number), ctypes.byref(part)):
                parts.append(part)
        return parts

    def name(self, handle):
        """Return the product name of a device or MIG device, None if unknown."""
        return self._text("nvmlDeviceGetName", ctypes.c_char * 96, handle)

    def link(self, index):
        """Return the current ``{gen, width, gen_max, width_max}`` of device ``index``; unknown values are None."""
        handle = self.handle(index)
        if handle is None:
            return {"gen": None, "width": None, "gen_max": None, "width_max": None}
        return {
            **self.link_now(index),
            "gen_max": self.number("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "width_max": self.number("nvmlDeviceGetMaxPcieLinkWidth", handle),
        }

    def link_now(self, index):
        """Return the current ``{gen, width}`` of device ``index``; unknown values are None."""
        handle = self.handle(index)
        if handle is None:
            return {"gen": None, "width": None}
        return {
            "gen": self.number("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "width": self.number("nvmlDeviceGetCurrPcieLinkWidth", handle),
        }

    def bus(self, handle):
        """Return how a device is attached, one of BUS_TYPES, None if unknown."""
        return BUS_TYPES.get(self.number("nvmlDeviceGetBusType", handle))

    def has_own_memory(self, handle):
        """Whether a device has its own memory: False if NVML does not support the query, None if unknown."""
        code = self.code("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(_Memory()))
        return {0: True, NOT_SUPPORTED: False}.get(code)

    def load(self, index):
        """Return the current ``{pstate, clock_events, processes}`` of device ``index``; unknown values are None.

        ``processes`` are ``{pid, bytes, name}``. In a container NVML lists those of its PID namespace, or none.
        """
        handle = self.handle(index)
        if handle is None:
            return {"pstate": None, "clock_events": None, "processes": None}
        pstate = self.number("nvmlDeviceGetPerformanceState", handle)
        return {
            "pstate": None if pstate is None else f"P{pstate}",
            "clock_events": self.clock_events(handle),
            "processes": self.processes(handle),
        }

    def clock_events(self, handle):
        """Return the names of the current reasons for a lower clock, None if unknown."""
        mask = ctypes.c_ulonglong()
        known = self.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(mask))
        return clock_event_names(mask.value) if known else None

    def processes(self, handle):
        """Return ``[{pid, bytes, name}]`` of the compute processes that NVML shows, None if unknown."""
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        size = ctypes.c_uint(0)
        # A call with an empty buffer returns the number of processes.
        answer = self.code(name, handle, ctypes.byref(size), None)
        if answer not in (0, TOO_SMALL):
            return None
        if not size.value:
            return []
        size.value += 8  # more may start before the second call
        rows = (_Process * size.value)()
        if not self.call(name, handle, ctypes.byref(size), rows):
            return None
        return [
            {
                "pid": row.pid,
                "bytes": None if row.used == UNKNOWN_BYTES else row.used,
                "name": self.process_name(row.pid),
            }
            for row in rows[: size.value]
        ]

    def process_name(self, pid):
        """Return the program of a process, empty if neither the kernel nor the driver shows it."""
        own = read_text(f"/proc/{pid}/comm").strip()
        return own or self._text("nvmlSystemGetProcessName", ctypes.c_char * 1024, ctypes.c_uint(pid)) or ""

    def memory(self, handle):
        """Return ``{total, used}`` in bytes, None if unknown. Drivers before 510 count their own memory as used."""
        newer, older = _Memory2(version=MEMORY_V2), _Memory()
        if self.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(newer)):
            return {"total": newer.total, "used": newer.used}
        if self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(older)):
            return {"total": older.total, "used": older.used}
        return None

    def utilization(self, handle):
        """Return the percentage of the last sample period (up to a second) in which a kernel ran, None if unknown."""
        rates = _Utilization()
        return rates.gpu if self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates)) else None

    def memory_utilization(self, handle):
        """Return the percentage of the last sample period in which device memory was accessed, None if unknown."""
        rates = _Utilization()
        return rates.memory if self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates)) else None

    def chip_to_chip(self, index):
        """Whether device ``index`` is connected to the host by NVLink-C2C instead of PCIe, None if unknown."""
        handle = self.handle(index)
        enabled = ctypes.c_uint()
        answered = handle is not None and self.call("nvmlDeviceGetC2cModeInfoV", handle, ctypes.byref(enabled))
        return bool(enabled.value) if answered else None

    def confidential(self):
        """Whether confidential computing is on, which slows copies; None if unknown."""
        state = _ConfidentialComputing()
        return bool(state.feature) if self.call("nvmlSystemGetConfComputeState", ctypes.byref(state)) else None

    def index_of(self, uuid):
        """Return the NVML index of the device with ``uuid``, None if NVML shows no such device."""
        for index in range(self.count()):
            handle = self.handle(index)
            # Only the UUID is read: this runs while the link is busy, and other readings take longer.
            own = None if handle is None else self._text("nvmlDeviceGetUUID", ctypes.c_char * 96, handle)
            if own is not None and _same_uuid(own, uuid):
                return index
        return None

    def slice_of(self, uuid):
        """Return ``(NVML index of its GPU, handle)`` of the MIG slice with ``uuid``, None if NVML shows none."""
        for index in range(self.count()):
            for part in self.slices(index):
                own = self._text("nvmlDeviceGetUUID", ctypes.c_char * 96, part)
                if own is not None and _same_uuid(own, uuid, "mig-"):
                    return index, part
        return None

    def index_at(self, address):
        """Return the NVML index of the device at a PCI address like ``0000:3b:00.0``, None if there is none."""
        handle = ctypes.c_void_p()
        if not address:
            return None
        if not self.call("nvmlDeviceGetHandleByPciBusId_v2", address.encode("ascii"), ctypes.byref(handle)):
            return None
        return self.number("nvmlDeviceGetIndex", handle)

    def code(self, name, *arguments):
        """Call a function of the library and return its return value, None if this driver lacks the function."""
        function = getattr(self._library, name, None)
        return None if function is None else function(*arguments)

    def call(self, name, *arguments):
        """Call a function of the library. Return whether it exists and succeeded."""
        return self.code(name, *arguments) == 0

    def number(self, name, handle, *kind):
        """Return the unsigned number that a function writes to its last parameter, None if the call fails."""
        value = ctypes.c_uint()
        return value.value if self.call(name, handle, *kind, ctypes.byref(value)) else None

    def _text(self, name, kind, *arguments):
        value = kind()
        ok = self.call(name, *arguments, value, ctypes.c_uint(ctypes.sizeof(kind)))
        return value.value.decode("utf-8", "replace") if ok else None


def clock_event_names(mask):
    """Return the names of the bits in ``mask``, lowest bit first."""
    return [name for bit, name in sorted(CLOCK_EVENT_BITS.items()) if mask & bit]


_sessions = {}
_refusals = {}


def open_session():
    """Return an Nvml, None if the library is missing or fails to start (no driver, no ``utility`` capability).

    Each process opens one session, because opening takes longer than all readings together. A forked child opens its
    own.
    """
    if os.getpid() in _sessions:
        return _sessions[os.getpid()]
    try:
        session, code = start()
    except OSError:
        _refusals[os.getpid()] = "its library is not in this container"
        return None
    if code == 0:
        _sessions[os.getpid()] = session
    else:
        _refusals[os.getpid()] = numbered(code)
    return _sessions.get(os.getpid())


def refusal():
    """Return why ``open_session`` returned None: ``NVML error 18``, or that there is no library."""
    return _refusals.get(os.getpid(), "its library is not in this container")


def numbered(code):
    """Return a return value other than 0 as text; what reads the observation knows its meaning."""
    return "this driver lacks the call" if code is None else f"NVML error {code}"


def start(libraries=LIBRARIES):
    """Load the first of ``libraries`` that exists; return its Nvml and the return value of nvmlInit (0: success).

    Raises OSError with the reasons if none loads, FileNotFoundError if none exists.
    """
    reasons = []
    for name in libraries:
        try:
            session = Nvml(ctypes.CDLL(name))
        except OSError as error:
            reasons.append(str(error))
        else:
            return session, session.code("nvmlInit_v2")
    # If a library exists but needs another one that is missing, the message names that other one.
    faults = [reason for reason in reasons if not reason.startswith(tuple(f"{name}: {_ABSENT}" for name in libraries))]
    raise OSError("; ".join(faults)) if faults else FileNotFoundError("; ".join(reasons))


def main(_arguments):
    """Open the driver's first device, in a process that can be killed if that hangs. Exit code 0: success."""
    session = open_session()
    return 0 if session is not None and session.handle(0) is not None else 1


def sysfs_link(bus_id, root="/sys/bus/pci/devices"):
    """Return the link of a PCI device from sysfs, as ``Nvml.link`` does; all values None if sysfs does not show it.

    ``bus_id`` may lack its domain; an address that devices of several domains have is ambiguous and not read.
    """
    paths = sorted(pathlib.Path(root).glob(f"*{bus_id.lower()}")) if bus_id else []

    def read(name):
        return read_text(paths[0] / name) if len(paths) == 1 else ""

    return {
        "gen": speed_generation(read("current_link_speed")),
        "width": _width(read("current_link_width")),
        "gen_max": speed_generation(read("max_link_speed")),
        "width_max": _width(read("max_link_width")),
    }


def speed_generation(text):
    """Return the PCIe generation of a link speed in sysfs: 4 for ``16.0 GT/s PCIe``; None for other texts."""
    word = text.split(" ")[0] if text else ""
    return {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "64.0": 6}.get(word)


def _width(text):
    return int(text) if text.strip().isdigit() and 0 < int(text) <= 32 else None


def _same_uuid(left, right, prefix="gpu-"):
    """Whether two UUIDs are equal. torch omits the prefix ``GPU-`` or ``MIG-`` that NVML writes."""
    return left.lower().replace(prefix, "") == right.lower().replace(prefix, "")
