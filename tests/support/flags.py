"""Parse options with a command's own parser."""

from __future__ import annotations

from envkit.cli import build
from envkit.cli.build_flags import BuildFlags
from envkit.cli.declare import gather


def build_flags(*words: str) -> BuildFlags:
    """Return the options of `envkit build WORDS`."""
    return gather(BuildFlags, build.command.make_context("build", list(words)).params)
