"""Find torch's CUDA devices in NVML and sysfs, and read their link, state and NUMA node."""

import os
import pathlib

from . import hostfacts, nvml

PCI_DEVICES = "/sys/bus/pci/devices"
MPS_CONTROL = "/tmp/nvidia-mps/control"  # the daemon's default, without CUDA_MPS_PIPE_DIRECTORY


def device_uuid(torch, index):
    """Return the UUID of torch's device ``index``, None if this torch has no UUIDs."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else str(uuid)


def visible_entry(variable, index):
    """Return entry ``index`` of a CUDA_VISIBLE_DEVICES text: a UUID, or an NVML index as an int; None if missing."""
    entries = [entry.strip() for entry in (variable or "").split(",") if entry.strip()]
    if index >= len(entries):
        return None
    return int(entries[index]) if entries[index].isdigit() else entries[index]


def nvml_index(torch, session, index=0):
    """Return the NVML index of torch's device ``index``, None if they cannot be matched.

    For a MIG slice it is the index of its GPU. The slice is found by its own UUID, or by the PCI address of its GPU.
    """
    uuid = device_uuid(torch, index)
    number = None if uuid is None else _index_of(session, uuid)
    if number is None:
        number = session.index_at(bus_address(torch, index))
    if number is not None:
        return number
    entry = visible_entry(os.environ.get("CUDA_VISIBLE_DEVICES"), index)
    if isinstance(entry, str):
        return _index_of(session, entry)
    wanted = index if entry is None else entry
    return wanted if wanted < session.count() else None


def _index_of(session, uuid):
    number = session.index_of(uuid)
    if number is not None:
        return number
    part = session.slice_of(uuid)
    return None if part is None else part[0]


def memory_handle(torch, session, index=0):
    """Return the NVML handle for the memory of torch's device ``index``, None if unknown; for a MIG slice its own."""
    uuid = device_uuid(torch, index)
    number = None if uuid is None else session.index_of(uuid)
    part = None if uuid is None or number is not None else session.slice_of(uuid)
    if part is not None:
        return part[1]
    number = nvml_index(torch, session, index) if number is None else number
    return None if number is None else session.handle(number)


def uses_mps(session=None, index=None):
    """Whether CUDA calls go through NVIDIA's multi-process service, where an error of one client ends all of them."""
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or pathlib.Path(MPS_CONTROL).exists():
        return True
    if session is None or index is None:
        return False
    return any(is_mps_server(process) for process in session.load(index)["processes"] or ())


def is_mps_server(process):
    """Whether an entry of ``Nvml.processes`` is the server of the multi-process service, which runs no kernels."""
    return nvml.MPS_SERVER in process["name"]


def placement(address, root=PCI_DEVICES):
    """Return ``{node, cpus}`` of a PCI device: its NUMA node and the CPUs near it as a kernel list; None if unknown.

    The kernel reports node -1 if the machine has no such data, and then lists all CPUs.
    """
    paths = sorted(pathlib.Path(root).glob(f"*{address.lower()}")) if address else []
    if len(paths) != 1:
        return {"node": None, "cpus": None}
    node = hostfacts.read_text(paths[0] / "numa_node").strip()
    cpus = hostfacts.read_text(paths[0] / "local_cpulist").strip()
    return {"node": int(node) if node.isdigit() else None, "cpus": cpus or None}


class HostLink:
    """The link between the host and torch's device ``index``, from NVML, else from sysfs."""

    def __init__(self, torch, index=0):
        properties = torch.cuda.get_device_properties(index)
        self._session = nvml.open_session()
        self._index = nvml_index(torch, self._session, index) if self._session else None
        self._address = bus_address(torch, index)
        integrated = getattr(properties, "is_integrated", None)
        self._integrated = None if integrated is None else bool(integrated)

    def read(self):
        """Return the current state of the link; unknown values are None.

        The keys are gen, width, gen_max, width_max, source, c2c (NVLink-C2C to the host), cc_mode (confidential
        computing), bus, own_memory and integrated. The last two identify GPUs that use the host's memory, for which
        NVML reports a link that does not exist.
        """
        state = {"c2c": None, "cc_mode": None, "bus": None, "own_memory": None, "integrated": self._integrated}
        if self._index is not None:
            session, handle = self._session, self._session.handle(self._index)
            state.update(c2c=session.chip_to_chip(self._index), cc_mode=session.confidential())
            state.update(bus=session.bus(handle), own_memory=session.has_own_memory(handle))
            link = session.link(self._index)
            if link["gen"] is not None and link["width"] is not None:
                return dict(state, source="nvml", **link)
        link = nvml.sysfs_link(self._address)
        return dict(state, source="sysfs" if link["gen"] is not None else None, **link)

    def now(self):
        """Return the current ``{gen, width}`` and nothing more: this runs while the link is busy."""
        if self._index is not None:
            link = self._session.link_now(self._index)
            if link["gen"] is not None and link["width"] is not None:
                return link
        link = nvml.sysfs_link(self._address)
        return {"gen": link["gen"], "width": link["width"]}


def bus_address(torch, index=0):
    """Return the PCI address of torch's device ``index``, like ``0000:01:00.0``, None if this torch lacks it."""
    properties = torch.cuda.get_device_properties(index)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, device = (getattr(properties, name, None) for name in names)
    if bus is None or device is None:
        return None
    return f"{bus:02x}:{device:02x}.0" if domain is None else f"{domain:04x}:{bus:02x}:{device:02x}.0"
