"""Side-by-side measurements. Each is `python -m benchmarks.NAME`: a table, then one JSON line with the figure."""
