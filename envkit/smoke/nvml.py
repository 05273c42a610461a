"""The few readings of NVIDIA's management library that checks need, through ctypes; every one may be absent."""

import ctypes
import pathlib

from .hostfacts import read_text

CLOCK_EVENT_BITS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


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
    """An open session. ``open_session`` makes one; readings that this driver or card lacks are None."""

    def __init__(self, library):
        self._library = library

    def driver(self):
        """Return the driver version, like ``580.95.05``."""
        return self._text("nvmlSystemGetDriverVersion", ctypes.c_char * 96)

    def count(self):
        """Return how many devices NVML shows in this container."""
        value = ctypes.c_uint()
        return value.value if self.call("nvmlDeviceGetCount_v2", ctypes.byref(value)) else 0

    def handle(self, index):
        """Return the handle of device ``index``, None when there is none."""
        value = ctypes.c_void_p()
        ok = self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(value))
        return value if ok else None

    def describe(self, index):
        """Return name, uuid, pci ids, capability, memory, modes, link and power limit of device ``index``, or None."""
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
            "name": self._text("nvmlDeviceGetName", ctypes.c_char * 96, handle),
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

    def link(self, index):
        """Return ``{gen, width, gen_max, width_max}`` of device ``index`` at this moment, None where unknown."""
        handle = self.handle(index)
        if handle is None:
            return {"gen": None, "width": None, "gen_max": None, "width_max": None}
        return {
            "gen": self.number("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "width": self.number("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "gen_max": self.number("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "width_max": self.number("nvmlDeviceGetMaxPcieLinkWidth", handle),
        }

    def load(self, index):
        """Return ``{pstate, clock_events, processes}`` of device ``index`` at this moment, None where unknown."""
        handle = self.handle(index)
        if handle is None:
            return {"pstate": None, "clock_events": None, "processes": None}
        pstate = self.number("nvmlDeviceGetPerformanceState", handle)
        mask = ctypes.c_ulonglong()
        events = None
        if self.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(mask)):
            events = [name for bit, name in sorted(CLOCK_EVENT_BITS.items()) if mask.value & bit]
        size = ctypes.c_uint(0)
        # Asking with room for none answers with the number there are (return value 7: the buffer is too small).
        function = self._function("nvmlDeviceGetComputeRunningProcesses_v3")
        answered = function is not None and function(handle, ctypes.byref(size), None) in (0, 7)
        return {
            "pstate": None if pstate is None else f"P{pstate}",
            "clock_events": events,
            "processes": size.value if answered else None,
        }

    def chip_to_chip(self, index):
        """Whether device ``index`` reaches the host over NVLink-C2C, not PCIe; None where the driver cannot tell."""
        handle = self.handle(index)
        enabled = ctypes.c_uint()
        answered = handle is not None and self.call("nvmlDeviceGetC2cModeInfoV", handle, ctypes.byref(enabled))
        return bool(enabled.value) if answered else None

    def confidential(self):
        """Whether confidential computing is on, which slows copies down; None where the driver cannot tell."""
        state = _ConfidentialComputing()
        return bool(state.feature) if self.call("nvmlSystemGetConfComputeState", ctypes.byref(state)) else None

    def index_of(self, uuid):
        """Return the NVML index of the device with ``uuid``, None when NVML shows no such device."""
        for index in range(self.count()):
            handle = self.handle(index)
            # Nothing else is asked: this runs while the link is busy, and other readings take their time.
            found = None if handle is None else self._text("nvmlDeviceGetUUID", ctypes.c_char * 96, handle)
            if found is not None and _same_uuid(found, uuid):
                return index
        return None

    def _function(self, name):
        return getattr(self._library, name, None)

    def call(self, name, *arguments):
        """Call a function of the library; whether it is there and succeeded."""
        function = self._function(name)
        return function is not None and function(*arguments) == 0

    def number(self, name, handle, *kind):
        """Return the unsigned number that a function fills in after its arguments, None where it cannot."""
        value = ctypes.c_uint()
        return value.value if self.call(name, handle, *kind, ctypes.byref(value)) else None

    def _text(self, name, kind, *arguments):
        value = kind()
        ok = self.call(name, *arguments, value, ctypes.c_uint(ctypes.sizeof(kind)))
        return value.value.decode("utf-8", "replace") if ok else None


def open_session():
    """Return an Nvml, or None where the library is absent or refuses (no driver, no ``utility`` capability)."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        ready = library.nvmlInit_v2() == 0
    except (OSError, AttributeError):
        return None
    return Nvml(library) if ready else None


def sysfs_link(bus_id, root="/sys/bus/pci/devices"):
    """Return the link of a PCI device from sysfs, as ``Nvml.link`` does; all None where sysfs does not show it.

    ``bus_id`` may lack its domain; where devices of several domains have it, it is none of them.
    """
    found = sorted(pathlib.Path(root).glob(f"*{bus_id.lower()}")) if bus_id else []

    def read(name):
        return read_text(found[0] / name) if len(found) == 1 else ""

    return {
        "gen": speed_generation(read("current_link_speed")),
        "width": _width(read("current_link_width")),
        "gen_max": speed_generation(read("max_link_speed")),
        "width_max": _width(read("max_link_width")),
    }


def speed_generation(text):
    """Return the PCIe generation of sysfs's ``16.0 GT/s PCIe``: 4; None for anything else."""
    word = text.split(" ")[0] if text else ""
    return {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "64.0": 6}.get(word)


def _width(text):
    return int(text) if text.strip().isdigit() and 0 < int(text) <= 32 else None


def _same_uuid(left, right):
    return left.lower().replace("gpu-", "") == right.lower().replace("gpu-", "")
