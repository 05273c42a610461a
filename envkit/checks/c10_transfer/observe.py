"""C10: host to device and back, page-locked against pageable, with the link read while it is busy."""

import time

from envkit.smoke import gpus, noise, observation, timing

MIB = 1024 * 1024
SIZES_MIB = (1, 16, 64, 256)
DECIDING_MIB = 256
# Copies queued while the link is read: about 0.2 s on PCIe 4.0 x16, longer than a link takes to wake up.
QUEUED_COPIES = 24
PATTERN = 251  # a prime, so that bytes at power-of-two distances differ


def run(ctx):
    """Report time per copy for each size, direction and kind of host memory, the link, and host asynchrony."""
    torch = ctx.seeded()
    try:
        ends = Ends(ctx)
    except RuntimeError as error:
        # Whether that is a fault of the image is C09's question.
        raise observation.Skip("BUFFERS_UNAVAILABLE", str(error)[:300]) from error
    before = noise.snapshot(gpu=True)
    exact, controls = _integrity(torch, ends)
    link = _link_under_load(torch, ends)
    measured = {size: _measure(torch, ends, size) for size in SIZES_MIB}
    asynchrony = _asynchrony(torch, ends)
    quiet = noise.gate(before, noise.snapshot(gpu=True))
    found = [observation.ran("C10.integrity", "gpu:0", {"exact": exact, "bytes": ends.bytes}, controls=controls)]
    for size, by_name in measured.items():
        for name, item in by_name.items():
            found.append(
                observation.ran(
                    f"C10.{name}_{size}MiB",
                    "gpu:0",
                    {"gb_per_s": rate(size, item["stats"]["median"]), "link": link, "decides": size == DECIDING_MIB},
                    controls=controls,
                    samples=item["samples"],
                    stats=item["stats"],
                    noise=quiet,
                )
            )
    found.append(observation.ran("C10.link", "gpu:0", {"link": link}, controls=controls, noise=quiet))
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
        self.pinned.copy_(torch.arange(PATTERN, dtype=torch.uint8).repeat(self.bytes // PATTERN + 1)[: self.bytes])
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
    deciding = size == DECIDING_MIB
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
    return exact, [observation.control("flipped_byte_is_noticed", noticed, "one byte of 256 MiB changed")]


def _link_under_load(torch, ends):
    """Queue copies and read the link until they are done: an idle GPU slows its link down, and takes time to wake up.

    The last reading that ended before the copies did counts. ``busy`` is False where none did.
    """
    copies = dict(ends.copies(DECIDING_MIB))
    idle = gpus.link_and_load(torch)
    for _ in range(QUEUED_COPIES // 2):
        copies["h2d_pinned"]()
        copies["d2h_pinned"]()
    last = torch.cuda.Event()
    last.record()
    busy = None
    while True:
        seen = gpus.link_and_load(torch)
        if last.query():
            break
        busy = seen
    torch.cuda.synchronize()
    return dict(busy or seen, busy=busy is not None, idle_gen=idle["gen"])


def _asynchrony(torch, ends):
    """Return how soon the host gets control back, and whether a D2H copy is exact once synchronized."""
    count = DECIDING_MIB * MIB
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
