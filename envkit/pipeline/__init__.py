"""Stages put together: what the CLI and the workers of a fleet both call, so that they cannot differ."""
