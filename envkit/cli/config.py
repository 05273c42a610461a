"""`envkit config`: show every setting, its value and where the value comes from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import click

from envkit.cli.declare import Section, flag, new_command
from envkit.cli.options import preset_option
from envkit.ground import plugins, settings
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.text import neutral


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFlags:
    """The options of `envkit config`."""

    preset: str | None = preset_option()
    as_json: bool = flag(Section.OUTPUT, "--json", help="Print JSON (schema envkit.config/1).")


@new_command("config", ConfigFlags)
def command(flags: ConfigFlags) -> int:
    """Show every setting and where its value comes from.

    An invalid value is marked INVALID, and the exit code is 2.

    Precedence: flag, then ENVKIT_* variable, then envkit.toml or [tool.envkit] in pyproject.toml of this folder, then
    ~/.config/envkit/envkit.toml, then the default. A checkout may come from someone else, so its file can set only
    where builds download from, the engine and labels; any other value in it is marked IGNORED.

    The installed plug-ins are listed last; one that cannot be loaded is marked BROKEN, and the exit code is 9.
    """
    resolved = settings.read({"preset": flags.preset}, os.environ, Path.cwd())
    rows = [(item, resolved.values[item.key]) for item in settings.SETTINGS]
    faults = {item.key: fault for item, value in rows if (fault := settings.fault_of(item, value)) is not None}
    added = [(plugin, plugins.fault_of(plugin)) for plugin in plugins.installed()]
    broken = EnvironmentProblem.exit_code if any(fault for _, fault in added) else 0
    code = UsageError.exit_code if faults else broken
    if flags.as_json:
        document = {
            "schema": "envkit.config/1",
            "settings": {
                item.key: {
                    "value": redacted(value.text),
                    "origin": value.origin,
                    "variable": item.variable,
                    "meaning": item.meaning,
                    "invalid": faults.get(item.key),
                    "ignored": _ignored(resolved.ignored.get(item.key)),
                }
                for item, value in rows
            },
            "plugins": [{**plugin.to_json(), "broken": fault} for plugin, fault in added],
        }
        click.echo(json.dumps(document, indent=2))
        return code
    width = max(len(item.key) for item, _ in rows)
    for item, value in rows:
        text = redacted(value.text) or "-"
        click.echo(f"{item.key:<{width}}  {text}  ({value.origin})")
        if item.key in faults:
            click.echo(f"{'':<{width}}  INVALID: {faults[item.key]}")
        if (other := resolved.ignored.get(item.key)) is not None:
            click.echo(f"{'':<{width}}  IGNORED: {redacted(other.text)}  ({other.origin})")
        click.echo(f"{'':<{width}}  {item.meaning}; {item.variable}")
    for plugin, fault in added:
        click.echo(f"plug-in {plugin}")
        if fault is not None:
            click.echo(f"{'':<{width}}  BROKEN: {neutral(fault)}")
    return code


def _ignored(value: settings.Value | None) -> dict[str, str | None] | None:
    return None if value is None else {"value": redacted(value.text), "origin": value.origin}


def redacted(text: str | None) -> str | None:
    """Return the text, with the user and password of a URL replaced by `***`."""
    if not text or "@" not in text:
        return text
    parts = urlsplit(text)
    if not parts.username and not parts.password:
        return text
    host = parts.hostname or ""
    return urlunsplit(parts._replace(netloc=f"***@{host}:{parts.port}" if parts.port else f"***@{host}"))
