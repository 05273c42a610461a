"""Resolve, build and prove GPU environments."""

__version__ = "0.1.0"
