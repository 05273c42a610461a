"""The options of a command as its own parser reads them."""

from __future__ import annotations

from envkit.cli import build
from envkit.cli.build_flags import BuildFlags
from envkit.cli.options import gather


def build_flags(*words: str) -> BuildFlags:
    """The options of `envkit build WORDS`."""
    return gather(BuildFlags, dict(build.command.make_context("build", list(words)).params))
