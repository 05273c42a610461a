"""C10: copies to the device and back, from page-locked and pageable memory, with the link read while it is busy."""

import os
import time
from collections import deque

from envkit.smoke import gpus, hostfacts, noise, nvml, observation, timing
from envkit.smoke.context import MIB, fill_pattern

SIZES_MIB = (1, 16, 64, 256)
# Copies in the queue while the link is read, at first and at most: from 20 ms on PCIe 5.0 x16.
QUEUED_COPIES, MOST_QUEUED = 4, 256
READINGS, READING_S = 3, 2.0
WAKE_S = 0.2  # longer than a link takes to wake up
WALL_MS = 50.0  # of copies in a row, so that the time to launch one does not matter


def run(ctx):
    """Return the rate for each size, direction and kind of host memory, the link, and how non_blocking copies act."""
    torch = ctx.seeded()
    try:
        ends = Ends(ctx)
    except RuntimeError as error:
        # C09 judges whether this is a fault of the image.
        raise observation.Skip("BUFFERS_UNAVAILABLE", str(error)[:300]) from error
    before = noise.snapshot(gpu=True, idle=True)
    exact, controls = _integrity(torch, ends)
    link = _link_under_load(torch, ends)
    measured = {size: _measure(torch, ends, size) for size in ends.sizes_mib}
    clocks = _by_two_clocks(torch, ends, measured[ends.deciding_mib])
    asynchrony = _asynchrony(torch, ends)
    quiet = noise.gate(before, noise.snapshot(gpu=True))
    placement, near = _placement(torch)
    local = _on_cpus(torch, ends, near) if near else {}
    rows = [observation.ran("C10.integrity", "gpu:0", {"exact": exact, "bytes": ends.bytes}, controls=controls)]
    for size, by_name in measured.items():
        deciding = size == ends.deciding_mib
        for name, item in by_name.items():
            observed = {"gb_per_s": rate(size, item["stats"]["median"]), "link": link, "decides": deciding}
            observed["clocks"] = clocks.get(name.partition("_")[0] + "_pinned")
            if deciding:
                observed.update(placement=placement, local_gb_per_s=local.get(name))
            rows.append(
                observation.ran(
                    f"C10.{name}_{size}MiB",
                    "gpu:0",
                    observed,
                    controls=controls,
                    samples=item["samples"],
                    stats=item["stats"],
                    noise=quiet,
                )
            )
    fastest = max((item["wall_gb_per_s"] for item in clocks.values()), default=None)
    observed = {"link": link, "gb_per_s": fastest}
    rows.append(observation.ran("C10.link", "gpu:0", observed, controls=controls, noise=quiet))
    for prefix in ("h2d", "d2h"):
        observed = {"ratio": ratios(prefix, measured), "link": link}
        rows.append(observation.ran(f"C10.{prefix}_ratio", "gpu:0", observed, controls=controls, noise=quiet))
    rows.append(observation.ran("C10.non_blocking", "gpu:0", asynchrony, controls=controls, noise=quiet))
    del ends
    ctx.release_pinned()
    return rows


class Copy:
    """One copy between buffers that are allocated and touched. ``pageable`` selects the clock."""

    def __init__(self, target, source, pageable, non_blocking):
        self.target = target
        self.source = source
        self.pageable = pageable
        self.non_blocking = non_blocking

    def __call__(self):
        """Queue or do the copy."""
        self.target.copy_(self.source, non_blocking=self.non_blocking)


class Ends:
    """The buffers of all copies, allocated once and touched, so that no page fault is timed."""

    def __init__(self, ctx):
        torch = ctx.torch
        self.pinned = ctx.pinned_slab()
        self.bytes = self.pinned.numel()
        self.sizes_mib = [size for size in SIZES_MIB if size * MIB <= self.bytes]
        self.deciding_mib = self.sizes_mib[-1]  # the largest that fits, at least 64 MiB
        fill_pattern(torch, self.pinned)
        self.pageable = torch.zeros(self.bytes, dtype=torch.uint8)
        self.device = torch.zeros(self.bytes, dtype=torch.uint8, device="cuda:0")

    def copies(self, size_mib):
        """Return ``[(name, Copy)]`` for one size."""
        count = size_mib * MIB
        host, plain, device = self.pinned[:count], self.pageable[:count], self.device[:count]
        return [
            ("h2d_pinned", Copy(device, host, pageable=False, non_blocking=True)),
            ("h2d_pageable", Copy(device, plain, pageable=True, non_blocking=False)),
            ("d2h_pinned", Copy(host, device, pageable=False, non_blocking=True)),
            ("d2h_pageable", Copy(plain, device, pageable=True, non_blocking=False)),
        ]


def _placement(torch):
    """Return the placement of GPU and process, and the CPUs near the GPU if this process could move there, else None.

    In ``{nodes, node, cpus, cpu, local_allowed}``, ``nodes`` is the number of NUMA nodes, ``node`` and ``cpus`` are the
    ones near the GPU, ``cpu`` runs this process, and ``local_allowed`` is how many of ``cpus`` the process may use.
    """
    near = gpus.placement(gpus.bus_address(torch) or _address_of_nvml(torch))
    nodes = hostfacts.count_list(hostfacts.read_text("/sys/devices/system/node/online"))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    usable = hostfacts.numbers_of_list(near["cpus"] or "") & allowed
    placement = {
        "nodes": nodes,
        "node": near["node"],
        "cpus": near["cpus"],
        "cpu": hostfacts.current_cpu(),
        "local_allowed": len(usable),
    }
    return placement, (usable if nodes and nodes > 1 and usable and usable != allowed else None)


def _address_of_nvml(torch):
    """Return the PCI address from NVML, because older releases of torch do not have it."""
    session = nvml.open_session()
    index = gpus.nvml_index(torch, session) if session is not None else None
    card = None if index is None else session.describe(index)
    return card["pci_bus"][-12:] if card and card["pci_bus"] else None


def _on_cpus(torch, ends, cpus):
    """Measure the deciding pinned copies again with process and host memory on these CPUs; return GB/s by name."""
    count, before = ends.deciding_mib * MIB, os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
        # New memory, because existing pages stay on the node where they were first touched.
        host = torch.empty(count, dtype=torch.uint8, pin_memory=True)
        host.zero_()
        device = ends.device[:count]
        pairs = (("h2d_pinned", device, host), ("d2h_pinned", host, device))
        copies = [(name, Copy(target, source, False, True)) for name, target, source in pairs]
        measured = timing.measure(copies, timing.event_clock(torch), samples=7, warmup_cap_s=0.2, budget_s=1.0)
        return {name: rate(ends.deciding_mib, item["stats"]["median"]) for name, item in measured.items()}
    except (OSError, RuntimeError):
        return {}  # a container may forbid it, or have no room for a second buffer
    finally:
        os.sched_setaffinity(0, before)


def rate(size_mib, milliseconds):
    """Return GB/s (1e9 bytes) of one copy of ``size_mib``; None if the time is 0."""
    return size_mib * MIB / milliseconds / 1e6 if milliseconds else None


def ratios(prefix, measured):
    """Return ``{size in MiB: pageable time / pinned time}`` of one direction: above 1, page-locked memory is faster."""
    by_size = {}
    for size, by_name in measured.items():
        pinned = by_name[prefix + "_pinned"]["stats"]["median"]
        by_size[str(size)] = by_name[prefix + "_pageable"]["stats"]["median"] / pinned if pinned else None
    return by_size


def _measure(torch, ends, size):
    deciding = size == ends.deciding_mib
    events = timing.event_clock(torch)
    wall = timing.wall_clock(torch.cuda.synchronize)

    def clock(copy, loops):
        # The driver stages pageable memory on the host, and events on the device do not time all of that.
        return (wall if copy.pageable else events)(copy, loops)

    clock.label = events.label
    copies = ends.copies(size)
    measured = timing.measure(
        copies,
        clock,
        samples=20 if deciding else 7,
        warmup_cap_s=0.5 if deciding else 0.15,
        bytes_per_call=size * MIB,
        budget_s=3.0,
    )
    for name, copy in copies:
        measured[name]["samples"]["clock"] = (wall if copy.pageable else events).label
    return measured


def _integrity(torch, ends):
    """Copy the pattern to the device and back and compare. The control changes one byte, which must be noticed."""
    ends.device.copy_(ends.pinned, non_blocking=True)
    ends.pageable.copy_(ends.device)
    torch.cuda.synchronize()
    exact = bool(torch.equal(ends.pinned, ends.pageable))
    ends.pageable[ends.bytes // 3] += 1
    noticed = not torch.equal(ends.pinned, ends.pageable)
    ends.pageable[ends.bytes // 3] -= 1
    return exact, [
        observation.control("flipped_byte_is_noticed", noticed, f"one byte of {ends.bytes // MIB} MiB changed")
    ]


def _link_under_load(torch, ends):
    """Read the link while copies are queued: an idle GPU slows its link down and takes time to wake up.

    ``busy`` is True if READINGS readings each ended before the copies queued at their start. The last one at or after
    WAKE_S counts. If a reading takes longer than the queued copies, more are queued for the next.
    """
    copies = dict(ends.copies(ends.deciding_mib))
    link = gpus.HostLink(torch)
    idle = link.read()
    queued, covered, seen = deque(), [], {}
    depth, begin, spent = QUEUED_COPIES, time.perf_counter(), 0.0
    while (len(covered) < READINGS or spent < WAKE_S) and spent < READING_S:
        while queued and queued[0].query():
            queued.popleft()
        while len(queued) < depth:
            copies["d2h_pinned" if len(queued) % 2 else "h2d_pinned"]()
            queued.append(torch.cuda.Event())
            queued[-1].record()
        seen = link.now()
        if not queued[-1].query():
            covered = [*covered[1 - READINGS :], seen]
        else:
            depth = min(2 * depth, MOST_QUEUED)
        spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return dict(idle, **(covered[-1] if covered else seen), busy=len(covered) >= READINGS, idle_gen=idle["gen"])


def _by_two_clocks(torch, ends, measured):
    """Return ``{name: {event_gb_per_s, wall_gb_per_s}}``: the deciding pinned copies, timed by both clocks.

    The host's clock counts the best of three, because a busy CPU can only add time.
    """
    wall, by_name = timing.wall_clock(torch.cuda.synchronize), {}
    for name, copy in ends.copies(ends.deciding_mib):
        milliseconds = measured[name]["stats"]["median"]
        if not copy.pageable and milliseconds:
            loops = int(WALL_MS / milliseconds) + 1
            best = min(wall(copy, loops) for _ in range(3)) / loops
            by_name[name] = {
                "event_gb_per_s": rate(ends.deciding_mib, milliseconds),
                "wall_gb_per_s": rate(ends.deciding_mib, best),
            }
    return by_name


def _asynchrony(torch, ends):
    """Return how soon a copy returns control to the host, and whether a D2H copy is exact once synchronized."""
    count = ends.bytes
    kinds = {
        "pinned_non_blocking": Copy(ends.device[:count], ends.pinned[:count], pageable=False, non_blocking=True),
        "pinned_blocking": Copy(ends.device[:count], ends.pinned[:count], pageable=False, non_blocking=False),
        "pageable_non_blocking": Copy(ends.device[:count], ends.pageable[:count], pageable=True, non_blocking=True),
    }
    observed = {}
    for name, copy in kinds.items():
        returned, finished = [], []
        for _ in range(5):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            copy()
            returned.append((time.perf_counter() - begin) * 1e3)
            torch.cuda.synchronize()
            finished.append((time.perf_counter() - begin) * 1e3)
        observed[name] = {"host_return_ms": timing.median(returned), "finished_ms": timing.median(finished)}
    ends.pinned.zero_()
    Copy(ends.pinned, ends.device, pageable=False, non_blocking=True)()
    torch.cuda.synchronize()
    observed["d2h_exact_after_sync"] = bool(torch.equal(ends.pinned, ends.pageable))
    return observed
