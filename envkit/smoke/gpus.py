"""Find torch's CUDA device in NVML and sysfs, and read its link and state."""

import os
import pathlib

from . import hostfacts, nvml

PCI_DEVICES = "/sys/bus/pci/devices"


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
    """Return the NVML index of torch's device ``index``, None where they cannot be matched."""
    uuid = device_uuid(torch, index)
    if uuid is not None:
        found = session.index_of(uuid)
        if found is not None:
            return found
    entry = visible_entry(os.environ.get("CUDA_VISIBLE_DEVICES"), index)
    if isinstance(entry, str):
        return session.index_of(entry)
    wanted = index if entry is None else entry
    return wanted if wanted < session.count() else None


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
