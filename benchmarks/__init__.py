"""Side-by-side measurements: `python -m benchmarks.NAME` prints a table, then a JSON line with the figure."""
