"""The settings of this run, as every command takes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from envkit.ground import settings

_TOLD = "envkit.ground.settings.told"


def load(flags: Mapping[str, str | None] | None = None) -> settings.Settings:
    """Resolve the settings for the current folder, with a note for what its file may not set.

    Raises:
        UsageError: a settings file, a variable or a flag is at fault.
    """
    return noted(settings.load(flags or {}, os.environ, Path.cwd()))


def noted(found: settings.Settings) -> settings.Settings:
    """Say on stderr, once per run, what the file of the current folder may not set."""
    context = click.get_current_context(silent=True)
    told = context.meta.setdefault(_TOLD, set()) if context else set()
    for note in found.notes:
        if note not in told:
            told.add(note)
            click.echo(f"note: {note}", err=True)
    return found
