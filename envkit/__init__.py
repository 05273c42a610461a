"""Resolve, build and prove GPU environments."""

__version__ = "0.2.0"
