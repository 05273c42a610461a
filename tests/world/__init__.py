"""The world outside, made real on one machine: test equipment that envkit itself never imports.

A container engine, a registry, a Debian base image, a conda channel holding a real Python and a real CPU torch, and a
Miniconda-shaped base image. `python -m tests.world up` makes whatever is missing; what is built is kept below the cache
folder, so a second run takes seconds.
"""
