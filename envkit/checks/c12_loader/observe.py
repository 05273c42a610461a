"""C12: the DataLoader hands over every sample once, in order, whole, and says so when it cannot; then its speed."""

from envkit.smoke import loader_bench, loader_checks, timing


def run(ctx):
    """Return order, exception, timeout, pinned and throughput; from the standard tier on the whole matrix as well."""
    with timing.single_thread(ctx.seeded()):
        return loader_checks.run(ctx, "C12") + loader_bench.run(ctx, "C12") + loader_bench.matrix(ctx, "C12")
