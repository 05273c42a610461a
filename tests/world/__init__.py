"""The external services that tests need, on one machine. envkit itself never imports this package.

It has a container engine, a registry, a Debian base image, a conda channel with a real Python and a real CPU torch, and
a base image like Miniconda's. `python -m tests.world up` creates whatever is missing. Results are kept below the cache
folder, so a second run takes seconds.
"""
