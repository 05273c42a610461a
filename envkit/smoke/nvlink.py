"""NVLinks of a GPU as NVML reports them: number, active ones, speed, other ends and error counters."""

import ctypes

from .nvml import PciInfo

# Constants of nvml.h: field IDs, error counters, types of remote devices.
SPEED_MBPS, LINK_COUNT = 90, 91
ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}
KINDS = {0: "gpu", 1: "npu", 2: "switch"}
MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS of nvml.h


class _Value(ctypes.Union):
    _fields_ = [("double", ctypes.c_double), ("uint", ctypes.c_uint), ("ull", ctypes.c_ulonglong)]


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t of nvml.h."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("type", ctypes.c_int),
        ("result", ctypes.c_int),
        ("value", _Value),
    ]


def field(session, handle, number):
    """Return an unsigned field of a device, None if this driver or device lacks it."""
    item = FieldValue(field=number)
    answered = session.call("nvmlDeviceGetFieldValues", handle, ctypes.c_int(1), ctypes.byref(item))
    return item.value.uint if answered and item.result == 0 else None


def state(session, handle):
    """Return ``{bus, links, active, gb_per_s, to, errors}`` of one GPU, None if it has no NVLink.

    ``gb_per_s`` is the rate of one link in one direction, ``to`` the PCI addresses of the GPUs at the other ends or
    ``["switch"]``, ``errors`` the sums of the error counters since the driver was loaded. Values that the driver does
    not report are None.
    """
    known = field(session, handle, LINK_COUNT)
    up, far, errors = [], set(), dict.fromkeys(ERRORS)
    seen = 0
    for link in range(MAX_LINKS if known is None else known):
        # nvmlDeviceGetNvLinkState returns an error for a link that this device does not have.
        value = session.number("nvmlDeviceGetNvLinkState", handle, ctypes.c_uint(link))
        if value is None:
            continue
        seen += 1
        if value:
            up.append(link)
            far.add(_far_end(session, handle, link))
        for name, kind in ERRORS.items():
            count = ctypes.c_ulonglong()
            kinds = (ctypes.c_uint(link), ctypes.c_int(kind))
            if session.call("nvmlDeviceGetNvLinkErrorCounter", handle, *kinds, ctypes.byref(count)):
                errors[name] = (errors[name] or 0) + count.value
    if not seen:
        return None
    speed = field(session, handle, SPEED_MBPS) if up else None
    pci = PciInfo()
    known_pci = session.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
    return {
        "bus": _address(pci) if known_pci else None,
        "links": seen,
        "active": len(up),
        "gb_per_s": speed / 1000.0 if speed else None,
        "to": None if None in far else sorted(far),
        "errors": errors,
    }


def joined(states):
    """Whether NVLinks connect every GPU of the group with every other one, directly or by a switch."""
    if len(states) < 2 or any(item is None or not item["active"] or not item["to"] for item in states):
        return False
    if all(item["to"] == ["switch"] for item in states):
        return True
    buses = {item["bus"] for item in states}
    return all(buses - {item["bus"]} <= set(item["to"]) for item in states)


def group_rate(states):
    """Return the lowest total rate of one GPU's active NVLinks in GB/s in one direction.

    None if NVLinks do not connect all GPUs: collectives of the whole group then run over PCIe, so no rate of NVLink
    can be required.
    """
    if not joined(states) or any(item["gb_per_s"] is None for item in states):
        return None
    return min(item["active"] * item["gb_per_s"] for item in states)


def _far_end(session, handle, link):
    kind = session.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, ctypes.c_uint(link))
    if KINDS.get(kind) == "switch":
        return "switch"
    pci = PciInfo()
    known = session.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, ctypes.c_uint(link), ctypes.byref(pci))
    return _address(pci) if known and kind == 0 else None


def _address(pci):
    return pci.bus_id.decode("ascii", "replace").lower()
