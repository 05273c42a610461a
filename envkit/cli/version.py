"""`envkit version`: which envkit this is, and how old its compatibility data are."""

from __future__ import annotations

import platform

import click

from envkit import __version__

SCHEMA = "envkit.version/1"


@click.command("version")
@click.option("-v", "--verbose", is_flag=True, help="Also list the plug-ins of this installation.")
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON (schema {SCHEMA}).")
def command(*, verbose: bool, as_json: bool) -> None:
    """Show the version of envkit and of its compatibility data.

    \b
    envkit version          for a bug report
    envkit version -v       with the plug-ins that are installed
    envkit --version        only the version of envkit; -V is the same
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.cli.output import print_json
    from envkit.facts.load import load
    from envkit.ground import plugins

    facts = load()
    added = plugins.installed()
    python = platform.python_version()
    if as_json:
        known = {"collected": facts.collected, "digest": facts.digest}
        rows = [plugin.to_json() for plugin in added]
        print_json({"schema": SCHEMA, "version": __version__, "python": python, "facts": known, "plugins": rows})
        return
    click.echo(f"envkit {__version__}")
    click.echo(f"compatibility data of {facts.collected} ({facts.digest[:12]}), Python {python}")
    if verbose:
        click.echo("\n".join(f"plug-in {plugin}" for plugin in added) or "no plug-ins")
