"""Everyday questions, put to envkit and to comparable tools: see `python -m benchmarks.peers --help`."""
