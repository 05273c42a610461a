"""`envkit version`: the version of envkit, and the date of its compatibility data."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from envkit import __version__
from envkit.cli.declare import Section, flag, new_command, verbosity

SCHEMA = "envkit.version/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFlags:
    """The options of `envkit version`."""

    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {SCHEMA}).")


@new_command("version", VersionFlags)
def command(flags: VersionFlags) -> None:
    """Show the version of envkit and of its compatibility data.

    \b
    envkit version          for a bug report
    envkit version -v       also the folder, the system, the libraries and the plug-ins
    envkit --version        only the version of envkit; -V is the same
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.cli.output import print_json
    from envkit.facts.load import load
    from envkit.ground import plugins

    facts = load()
    added = plugins.installed()
    python = platform.python_version()
    if flags.as_json:
        known = {"collected": facts.collected, "digest": facts.digest}
        rows = [plugin.to_json() for plugin in added]
        print_json({"schema": SCHEMA, "version": __version__, "python": python, "facts": known, "plugins": rows})
        return
    click.echo(f"envkit {__version__}")
    click.echo(f"compatibility data of {facts.collected} ({facts.digest[:12]}), Python {python}")
    if verbosity().verbose:
        for line in _details():
            click.echo(line)
        click.echo("\n".join(f"plug-in {plugin}" for plugin in added) or "no plug-ins")


def _details() -> list[str]:
    """Return the folder of envkit, the Python and the system that run it, and the versions of its libraries."""
    from importlib.metadata import PackageNotFoundError, distribution, version

    from packaging.requirements import Requirement

    from envkit.ground.naming import DISTRIBUTION

    lines = [
        f"installed in {Path(__file__).parents[1]}",
        f"run by {sys.executable} on {platform.system()} {platform.release()} {platform.machine()}",
    ]
    try:
        needed = [Requirement(text) for text in distribution(DISTRIBUTION).requires or ()]
    except PackageNotFoundError:  # run from a folder without being installed
        return lines
    libraries = [
        f"{requirement.name} {version(requirement.name)}" for requirement in needed if requirement.marker is None
    ]
    return [*lines, f"with {', '.join(libraries)}"]
