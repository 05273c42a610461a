"""C12: the DataLoader hands over every sample once, in order, whole, and says so when it cannot; then its speed."""

from .. import loader_bench, loader_checks, timing

ID = "C12"
TITLE = "DataLoader correctness, then throughput"
TIER = "quick"
BUDGET_S = 8
BUDGETS = {"standard": 40, "deep": 40}
NEEDS = "torch"


def run(ctx):
    """Return order, exception, timeout, pinned and throughput; from the standard tier on the whole matrix as well."""
    with timing.single_thread(ctx.seeded()):
        return loader_checks.run(ctx, ID) + loader_bench.run(ctx, ID) + loader_bench.matrix(ctx, ID)
