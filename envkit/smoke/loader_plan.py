"""Which loader settings to measure, and what the measurements recommend."""

# Rates closer than this are one rate: the smaller number of workers is recommended.
SAME_RATE = 0.90


def plan(workers, has_cuda):
    """Return the cells to measure as (num_workers, persistent_workers, pin_memory), the most telling first."""
    cells = [(count, count > 0, False) for count in workers]
    if has_cuda:
        cells += [(count, count > 0, True) for count in workers]
    return cells + [(count, False, False) for count in workers if count > 0]


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
