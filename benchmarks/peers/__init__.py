"""Twelve everyday questions, put to envkit and to the tools next to it: see `python -m benchmarks.peers --help`."""
