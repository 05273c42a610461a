"""Find torch's CUDA device in NVML and sysfs, and read its link, its state and its place in the machine."""

import os
import pathlib

from . import hostfacts, nvml

PCI_DEVICES = "/sys/bus/pci/devices"
MPS_CONTROL = "/tmp/nvidia-mps/control"  # where the daemon listens unless CUDA_MPS_PIPE_DIRECTORY says otherwise


def device_uuid(torch, index):
    """Return the UUID of torch's device ``index`` as NVML writes it, None where this torch does not tell."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else str(uuid)


def visible_entry(variable, index):
    """Return entry ``index`` of a CUDA_VISIBLE_DEVICES text: a UUID, or an NVML index as an int; None where unset."""
    entries = [entry.strip() for entry in (variable or "").split(",") if entry.strip()]
    if index >= len(entries):
        return None
    return int(entries[index]) if entries[index].isdigit() else entries[index]


def nvml_index(torch, session, index=0):
    """Return the NVML index of torch's device ``index``, None where they cannot be matched.

    A MIG slice is found by its own UUID, or by the PCI address that it shares with its GPU; the index is the GPU's.
    """
    uuid = device_uuid(torch, index)
    found = None if uuid is None else _index_of(session, uuid)
    if found is None:
        found = session.index_at(bus_address(torch, index))
    if found is not None:
        return found
    entry = visible_entry(os.environ.get("CUDA_VISIBLE_DEVICES"), index)
    if isinstance(entry, str):
        return _index_of(session, entry)
    wanted = index if entry is None else entry
    return wanted if wanted < session.count() else None


def _index_of(session, uuid):
    found = session.index_of(uuid)
    if found is not None:
        return found
    part = session.slice_of(uuid)
    return None if part is None else part[0]


def memory_handle(torch, session, index=0):
    """Return the handle whose memory is that of torch's device ``index``: the MIG slice's where it is one, or None."""
    uuid = device_uuid(torch, index)
    found = None if uuid is None else session.index_of(uuid)
    part = None if uuid is None or found is not None else session.slice_of(uuid)
    if part is not None:
        return part[1]
    found = nvml_index(torch, session, index) if found is None else found
    return None if found is None else session.handle(found)


def uses_mps(session=None, index=None):
    """Whether CUDA's calls go through NVIDIA's multi-process service, where one client's fault ends all of them."""
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or pathlib.Path(MPS_CONTROL).exists():
        return True
    if session is None or index is None:
        return False
    return any(is_mps_server(process) for process in session.load(index)["processes"] or ())


def is_mps_server(process):
    """Whether an entry of ``Nvml.processes`` is the server of the multi-process service, which computes nothing."""
    return nvml.MPS_SERVER in process["name"]


def placement(address, root=PCI_DEVICES):
    """Return ``{node, cpus}`` of a PCI device: its NUMA node and the CPUs near it as a kernel list; None where unknown.

    A machine that does not tell has -1 for the node; all of its CPUs are near then.
    """
    found = sorted(pathlib.Path(root).glob(f"*{address.lower()}")) if address else []
    if len(found) != 1:
        return {"node": None, "cpus": None}
    node = hostfacts.read_text(found[0] / "numa_node").strip()
    cpus = hostfacts.read_text(found[0] / "local_cpulist").strip()
    return {"node": int(node) if node.isdigit() else None, "cpus": cpus or None}


class HostLink:
    """The link between the host and torch's device ``index``. NVML tells it, or sysfs where NVML does not."""

    def __init__(self, torch, index=0):
        properties = torch.cuda.get_device_properties(index)
        self._session = nvml.open_session()
        self._index = nvml_index(torch, self._session, index) if self._session else None
        self._address = bus_address(torch, index)
        integrated = getattr(properties, "is_integrated", None)
        self._integrated = None if integrated is None else bool(integrated)

    def read(self):
        """Return the link at this moment; what is unknown is None.

        The keys are gen, width, gen_max, width_max, source, c2c (NVLink-C2C to the host), cc_mode (confidential
        computing), bus, own_memory and integrated (the last two tell GPUs that compute on the host's memory, for which
        NVML shows a link that does not exist).
        """
        found = {"c2c": None, "cc_mode": None, "bus": None, "own_memory": None, "integrated": self._integrated}
        if self._index is not None:
            session, handle = self._session, self._session.handle(self._index)
            found.update(c2c=session.chip_to_chip(self._index), cc_mode=session.confidential())
            found.update(bus=session.bus(handle), own_memory=session.has_own_memory(handle))
            link = session.link(self._index)
            if link["gen"] is not None and link["width"] is not None:
                return dict(found, source="nvml", **link)
        link = nvml.sysfs_link(self._address)
        return dict(found, source="sysfs" if link["gen"] is not None else None, **link)

    def now(self):
        """Return ``{gen, width}`` at this moment, and nothing else: this runs while the link is busy."""
        if self._index is not None:
            link = self._session.link_now(self._index)
            if link["gen"] is not None and link["width"] is not None:
                return link
        link = nvml.sysfs_link(self._address)
        return {"gen": link["gen"], "width": link["width"]}


def bus_address(torch, index=0):
    """Return ``0000:01:00.0``-style PCI address of torch's device ``index``, None where this torch does not tell."""
    properties = torch.cuda.get_device_properties(index)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, device = (getattr(properties, name, None) for name in names)
    if bus is None or device is None:
        return None
    return f"{bus:02x}:{device:02x}.0" if domain is None else f"{domain:04x}:{bus:02x}:{device:02x}.0"
