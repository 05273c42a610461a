"""C10: host to device and back, page-locked against pageable, with the link read while it is busy."""

import os
import time
from collections import deque

from envkit.smoke import gpus, hostfacts, noise, nvml, observation, timing
from envkit.smoke.context import MIB, fill_pattern

SIZES_MIB = (1, 16, 64, 256)
# Copies kept in the queue while the link is read, at first and at most: 20 ms on PCIe 5.0 x16 and up.
QUEUED_COPIES, MOST_QUEUED = 4, 256
READINGS, READING_S = 3, 2.0
WAKE_S = 0.2  # longer than a link takes to wake up
WALL_MS = 50.0  # of copies in a row, so that one launch does not matter


def run(ctx):
    """Report time per copy for each size, direction and kind of host memory, the link, and host asynchrony."""
    torch = ctx.seeded()
    try:
        ends = Ends(ctx)
    except RuntimeError as error:
        # Whether that is a fault of the image is C09's question.
        raise observation.Skip("BUFFERS_UNAVAILABLE", str(error)[:300]) from error
    before = noise.snapshot(gpu=True, idle=True)
    exact, controls = _integrity(torch, ends)
    link = _link_under_load(torch, ends)
    measured = {size: _measure(torch, ends, size) for size in ends.sizes_mib}
    clocks = _by_two_clocks(torch, ends, measured[ends.deciding_mib])
    asynchrony = _asynchrony(torch, ends)
    quiet = noise.gate(before, noise.snapshot(gpu=True))
    place, near = _placement(torch)
    local = _on_cpus(torch, ends, near) if near else {}
    found = [observation.ran("C10.integrity", "gpu:0", {"exact": exact, "bytes": ends.bytes}, controls=controls)]
    for size, by_name in measured.items():
        deciding = size == ends.deciding_mib
        for name, item in by_name.items():
            observed = {"gb_per_s": rate(size, item["stats"]["median"]), "link": link, "decides": deciding}
            observed["clocks"] = clocks.get(name.partition("_")[0] + "_pinned")
            if deciding:
                observed.update(placement=place, local_gb_per_s=local.get(name))
            found.append(
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
    found.append(observation.ran("C10.link", "gpu:0", observed, controls=controls, noise=quiet))
    for way in ("h2d", "d2h"):
        observed = {"ratio": ratios(way, measured), "link": link}
        found.append(observation.ran(f"C10.{way}_ratio", "gpu:0", observed, controls=controls, noise=quiet))
    found.append(observation.ran("C10.non_blocking", "gpu:0", asynchrony, controls=controls, noise=quiet))
    del ends
    ctx.release_pinned()
    return found


class Copy:
    """One copy between preallocated, touched ends; ``pageable`` tells which clock it needs."""

    def __init__(self, target, source, pageable, non_blocking):
        self.target = target
        self.source = source
        self.pageable = pageable
        self.non_blocking = non_blocking

    def __call__(self):
        """Queue or do the copy."""
        self.target.copy_(self.source, non_blocking=self.non_blocking)


class Ends:
    """Both ends of every copy, allocated once and touched, so that no timer sees a page fault."""

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
    """Return where GPU and process are, and the CPUs near the GPU if this process could move to them, else None.

    Of ``{nodes, node, cpus, cpu, local_allowed}`` the first counts the machine's NUMA nodes, ``node`` and ``cpus`` are
    those near the GPU, ``cpu`` is the one that runs this, and ``local_allowed`` counts the near ones it may use.
    """
    near = gpus.placement(gpus.bus_address(torch) or _address_of_nvml(torch))
    nodes = hostfacts.count_list(hostfacts.read_text("/sys/devices/system/node/online"))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    usable = hostfacts.numbers_of_list(near["cpus"] or "") & allowed
    place = {
        "nodes": nodes,
        "node": near["node"],
        "cpus": near["cpus"],
        "cpu": hostfacts.current_cpu(),
        "local_allowed": len(usable),
    }
    return place, (usable if nodes and nodes > 1 and usable and usable != allowed else None)


def _address_of_nvml(torch):
    """Return the PCI address that NVML knows: torch tells it from 1.13 or 2.x on."""
    session = nvml.open_session()
    index = gpus.nvml_index(torch, session) if session is not None else None
    card = None if index is None else session.describe(index)
    return card["pci_bus"][-12:] if card and card["pci_bus"] else None


def _on_cpus(torch, ends, cpus):
    """Return GB/s of the deciding pinned copies by name once more, with process and host memory on these CPUs."""
    count, before = ends.deciding_mib * MIB, os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
        # New memory: the pages that are there stay on the node where they were touched first.
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
    """Return GB/s (1e9 bytes) of one copy of ``size_mib``; None for no time at all."""
    return size_mib * MIB / milliseconds / 1e6 if milliseconds else None


def ratios(way, measured):
    """Return ``{size in MiB: pageable time / pinned time}`` of one direction: above 1 page-locked memory is faster."""
    found = {}
    for size, by_name in measured.items():
        pinned = by_name[way + "_pinned"]["stats"]["median"]
        found[str(size)] = by_name[way + "_pageable"]["stats"]["median"] / pinned if pinned else None
    return found


def _measure(torch, ends, size):
    deciding = size == ends.deciding_mib
    events = timing.event_clock(torch)
    wall = timing.wall_clock(torch.cuda.synchronize)

    def clock(copy, loops):
        # The driver stages pageable memory on the host, which events on the device do not see whole.
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
    """Send the pattern down and back and compare; the control flips one byte, which the comparison must notice."""
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
    """Read the link while copies are queued: an idle GPU slows its link down, and takes time to wake up.

    ``busy`` is True where READINGS readings ended before the copies that were queued when they began did; the last
    one in WAKE_S or later counts. Where a reading takes longer than the queued copies, more are queued for the next.
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
    """Return ``{name: {event_gb_per_s, wall_gb_per_s}}`` of the deciding pinned copies: the same copies by both clocks.

    The best of three on the host's clock, which a busy processor only slows down.
    """
    wall, found = timing.wall_clock(torch.cuda.synchronize), {}
    for name, copy in ends.copies(ends.deciding_mib):
        milliseconds = measured[name]["stats"]["median"]
        if not copy.pageable and milliseconds:
            loops = int(WALL_MS / milliseconds) + 1
            best = min(wall(copy, loops) for _ in range(3)) / loops
            found[name] = {
                "event_gb_per_s": rate(ends.deciding_mib, milliseconds),
                "wall_gb_per_s": rate(ends.deciding_mib, best),
            }
    return found


def _asynchrony(torch, ends):
    """Return how soon the host gets control back, and whether a D2H copy is exact once synchronized."""
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
