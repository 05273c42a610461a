"""Telemetry of a GPU under load: clocks, temperature, power, error counters and Xid events."""

import ctypes
import threading
import time

PERIOD_S = 0.25  # between two readings
SM_CLOCK, GPU_TEMPERATURE = 1, 0
UNCORRECTED, VOLATILE = 1, 0
XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
EVENT_WAIT_MS = 1  # do not wait for events: the thread has its own period
MAX_ROWS = 200  # per record


class EventData(ctypes.Structure):
    """nvmlEventData_t of nvml.h; ``data`` is the Xid number of a critical error."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Watch:
    """Read one device every quarter of a second on its own thread, from ``start`` to ``stop``."""

    def __init__(self, session, index):
        self.session = session
        self.handle = session.handle(index)
        self.rows, self.xids = [], []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._events = self._register()
        self._begin = None
        self.before = self.after = None

    def start(self):
        """Read the counters, take the first reading, and start the thread."""
        self.before = counters(self.session, self.handle)
        self._begin = time.monotonic()
        self._read()
        self._thread.start()

    def stop(self):
        """Stop the thread, read the counters again, and return the readings."""
        self._stop.set()
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._collect()  # events since the last reading
        self.after = counters(self.session, self.handle)
        seconds = time.monotonic() - self._begin
        if self._events is not None:
            self.session.call("nvmlEventSetFree", self._events)
        return {
            "seconds": seconds,
            "max_sm_mhz": self.session.number("nvmlDeviceGetMaxClockInfo", self.handle, ctypes.c_uint(SM_CLOCK)),
            "rows": thinned(self.rows),
            "xids": self.xids if self._events is not None else None,
            "uncorrected_ecc": grown(self.before, self.after, "uncorrected_ecc"),
            "pcie_replays": grown(self.before, self.after, "pcie_replays"),
        }

    def _watch(self):
        while not self._stop.wait(PERIOD_S):
            self._read()
            self._collect()

    def _read(self):
        self.rows.append(dict(reading(self.session, self.handle), at_s=time.monotonic() - self._begin))

    def _register(self):
        """Return an event set for critical errors (Xid), None if this driver or container does not support it."""
        events = ctypes.c_void_p()
        if not self.session.call("nvmlEventSetCreate", ctypes.byref(events)):
            return None
        if self.session.call("nvmlDeviceRegisterEvents", self.handle, ctypes.c_ulonglong(XID_EVENT), events):
            return events
        self.session.call("nvmlEventSetFree", events)
        return None

    def _collect(self):
        data = EventData()
        while self._events is not None and self.session.call(
            "nvmlEventSetWait_v2", self._events, ctypes.byref(data), ctypes.c_uint(EVENT_WAIT_MS)
        ):
            self.xids.append(int(data.data))


def reading(session, handle):
    """Return the current ``{sm_mhz, celsius, watts, events}``; values that the device does not report are None."""
    milliwatts = session.number("nvmlDeviceGetPowerUsage", handle)
    return {
        "sm_mhz": session.number("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(SM_CLOCK)),
        "celsius": session.number("nvmlDeviceGetTemperature", handle, ctypes.c_uint(GPU_TEMPERATURE)),
        "watts": None if milliwatts is None else milliwatts / 1000.0,
        "events": session.clock_events(handle),
    }


def counters(session, handle):
    """Return ``{uncorrected_ecc, pcie_replays}`` since the driver was loaded; None if the device lacks a counter."""
    errors = ctypes.c_ulonglong()
    kinds = (ctypes.c_uint(UNCORRECTED), ctypes.c_uint(VOLATILE))
    known = session.call("nvmlDeviceGetTotalEccErrors", handle, *kinds, ctypes.byref(errors))
    return {
        "uncorrected_ecc": errors.value if known else None,
        "pcie_replays": session.number("nvmlDeviceGetPcieReplayCounter", handle),
    }


def grown(before, after, name):
    """Return the growth of a counter, None unless both readings have it."""
    return None if before[name] is None or after[name] is None else after[name] - before[name]


def thinned(rows):
    """Return at most MAX_ROWS rows, evenly spread."""
    if len(rows) <= MAX_ROWS:
        return rows
    return [rows[index * len(rows) // MAX_ROWS] for index in range(MAX_ROWS)]
