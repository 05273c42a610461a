"""`envkit version`: which envkit this is, and how old its compatibility data are."""

from __future__ import annotations

import platform

import click

from envkit import __version__
from envkit.cli.declare import Section, new_command, option

SCHEMA = "envkit.version/1"


@new_command("version")
@option(Section.OUTPUT, "--json", "as_json", is_flag=True, help=f"Print JSON (schema {SCHEMA}).")
def command(*, as_json: bool) -> None:
    """Show the version of envkit and of its compatibility data.

    \b
    envkit version          for a bug report
    envkit --version        only the version of envkit; -V is the same
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.cli.output import print_json
    from envkit.facts.load import load

    facts = load()
    python = platform.python_version()
    if as_json:
        known = {"collected": facts.collected, "digest": facts.digest}
        print_json({"schema": SCHEMA, "version": __version__, "python": python, "facts": known})
        return
    click.echo(f"envkit {__version__}")
    click.echo(f"compatibility data of {facts.collected} ({facts.digest[:12]}), Python {python}")
