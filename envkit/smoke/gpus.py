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


def link_and_load(torch, index=0):
    """Return the PCIe link and state of torch's device ``index`` at this moment; what is unknown is None.

    The keys are gen, width, gen_max, width_max, source, pstate, clock_events, c2c (NVLink-C2C to the host) and cc_mode
    (confidential computing).
    """
    session = nvml.open_session()
    found = nvml_index(torch, session, index) if session else None
    if found is not None:
        link, load = session.link(found), session.load(found)
        link.update(source="nvml", pstate=load["pstate"], clock_events=load["clock_events"])
        link.update(c2c=session.chip_to_chip(found), cc_mode=session.confidential())
        if link["gen"] is not None and link["width"] is not None:
            return link
    link = nvml.sysfs_link(bus_address(torch, index))
    link.update(source="sysfs" if link["gen"] is not None else None, pstate=None, clock_events=None)
    link.update(c2c=None, cc_mode=None)
    return link


def bus_address(torch, index=0):
    """Return ``0000:01:00.0``-style PCI address of torch's device ``index``, None where this torch does not tell."""
    properties = torch.cuda.get_device_properties(index)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, device = (getattr(properties, name, None) for name in names)
    if bus is None or device is None:
        return None
    return f"{bus:02x}:{device:02x}.0" if domain is None else f"{domain:04x}:{bus:02x}:{device:02x}.0"
