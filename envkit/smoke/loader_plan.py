"""Choose the loader settings to measure, and recommend settings from the measurements."""

# Rates closer than this count as equal, and the smaller number of workers is recommended.
SAME_RATE = 0.90
AXES = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
# torch's default first: what is left out for lack of time is the other one.
PREFETCHES = (2, 4)


def plan(workers, has_cuda):
    """Return the cells to measure as (num_workers, persistent_workers, pin_memory), the most telling first."""
    cells = [(count, count > 0, False) for count in workers]
    if has_cuda:
        cells += [(count, count > 0, True) for count in workers]
    return cells + [(count, False, False) for count in workers if count > 0]


def matrix(workers, has_cuda):
    """Return every cell of the matrix as (num_workers, persistent_workers, pin_memory, prefetch_factor).

    The first ones cover num_workers; what a small time budget leaves out are the combinations.
    """
    pins = (False, True) if has_cuda else (False,)
    cells = [
        (count, count > 0 and persistent, pin, prefetch if count else None)
        for prefetch in PREFETCHES
        for persistent in (True, False)
        for pin in pins
        for count in workers
    ]
    return list(dict.fromkeys(cells))


def recommend_all(cells):
    """The cell of the matrix to use: near the best rate, fewest workers, then the least prefetched, then the rate."""
    if not cells:
        return None
    best = max(cell["samples_per_s"] for cell in cells)
    close = [cell for cell in cells if cell["samples_per_s"] >= SAME_RATE * best]
    return min(close, key=lambda cell: (cell["num_workers"], cell["prefetch_factor"] or 0, -cell["samples_per_s"]))


def effects(cells):
    """Return by how much each option changes the rate: the median over pairs of cells that differ in it alone.

    ``{"persistent_workers": 1.05, "pin_memory": None, "prefetch_factor": 0.99}``: None where there is no such pair; for
    prefetch_factor the larger value over the smaller.
    """
    found = {}
    for option in ("persistent_workers", "pin_memory", "prefetch_factor"):
        rest = [name for name in AXES if name != option]
        ratios = [
            more["samples_per_s"] / less["samples_per_s"]
            for more in cells
            for less in cells
            if more["num_workers"] and all(more[name] == less[name] for name in rest) and more[option] > less[option]
        ]
        found[option] = sorted(ratios)[len(ratios) // 2] if ratios else None
    return found


def recommend(cells):
    """The smallest num_workers whose rate is within 10 % of the best, with its other settings; None without cells."""
    if not cells:
        return None
    best = max(cell["samples_per_s"] for cell in cells)
    close = [cell for cell in cells if cell["samples_per_s"] >= SAME_RATE * best]
    return min(close, key=lambda cell: (cell["num_workers"], -cell["samples_per_s"]))


def gain(cells):
    """Return the best rate with workers over the rate without, both unpinned; None where one of them is missing."""
    none = [cell["samples_per_s"] for cell in cells if not cell["num_workers"] and not cell["pin_memory"]]
    some = [cell["samples_per_s"] for cell in cells if cell["num_workers"] and not cell["pin_memory"]]
    return max(some) / none[0] if none and some else None
