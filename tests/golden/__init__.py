"""Rendered files kept byte for byte; `python -m tests.golden --update` rewrites them after a change on purpose."""
