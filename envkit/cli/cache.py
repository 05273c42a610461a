"""`envkit cache`: show and prune the caches of builds and runs on this machine."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.declare import Section, new_group, option
from envkit.ground.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envkit.assemble.cache_prune import Entry, Pruned
    from envkit.ground.progress import Reporter

SCHEMA = "envkit.cache/1"
PRUNE_SCHEMA = "envkit.cache-prune/1"
_DAY_S = 86400
_CONFIRM_FROM = 1_000_000_000  # bytes; on a terminal, removing more needs a confirmation

_HELP = """Show and prune the caches of builds and runs on this machine.

Nothing is removed automatically unless the setting cache_limit names a size.

\b
envkit cache                        show the entries by kind, with their folders
envkit cache prune                  remove entries unused for 30 days
envkit cache prune --keep 20GB      remove entries until 20 GB are left
envkit cache prune --all            remove everything that is not in use
"""


def keep_within(limit: str | None, reporter: Reporter) -> None:
    """Prune the cache after a build to the size that the setting `cache_limit` gives, if it is set.

    Raises:
        UsageError: the setting is not a size.
    """
    from envkit.assemble.cache_prune import Rule

    if limit is None:
        return
    done = _prune(Rule(keep=parse_size(limit, "cache_limit")))
    if done.removed:
        reporter.note(f"cache_limit {limit}: {'; '.join(_summary_of(done).splitlines())}")


@new_group("cache", help=_HELP, invoke_without_command=True)
@option(Section.OUTPUT, "--json", "as_json", is_flag=True, help=f"Print JSON (schema {SCHEMA}).")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Show the entries by kind."""
    if ctx.invoked_subcommand is not None:
        return
    from envkit.assemble.cache_prune import KINDS, entries
    from envkit.cli.output import show_table

    cache, state = _folders()
    kept = entries(cache, state)
    if as_json:
        tree = {
            "schema": SCHEMA,
            "cache": str(cache),
            "state": str(state),
            "bytes": sum(entry.size for entry in kept),
            "kinds": {kind: _summary([entry for entry in kept if entry.kind == kind]) for kind in KINDS},
        }
        click.echo(json.dumps(tree, indent=2))
        return
    now = time.time()
    rows = []
    # `entries` returns the least recently used entry first.
    for kind, meaning in KINDS.items():
        own = [entry for entry in kept if entry.kind == kind]
        if own:
            rows.append((kind, str(len(own)), _text(_bytes(own)), _age(now - own[-1].used), _age(now - own[0].used),
                         meaning))  # fmt: skip
    rows.append(("all", str(len(kept)), _text(_bytes(kept)), "", "", f"below {cache}, images below {state}"))
    show_table(("what", "entries", "size", "last used", "first used", ""), rows)


@command.command("prune")
@option(
    Section.SELECTION,
    "--keep",
    metavar="SIZE",
    help="Remove until this size is reached, least recently used first: 20GB.",
)
@option(
    Section.SELECTION,
    "--older-than",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Remove entries unused for this many days.",
)
@option(Section.SELECTION, "--all", "everything", is_flag=True, help="Remove everything.")
@option(Section.SELECTION, "--images", is_flag=True, help="Also prune images in the state folder.")
@option(Section.GENERAL, "-y", "--yes", is_flag=True, help="Remove more than 1 GB without asking.")
@option(Section.OUTPUT, "--json", "as_json", is_flag=True, help=f"Print JSON (schema {PRUNE_SCHEMA}).")
def prune_command(
    *, keep: str | None, older_than: float | None, everything: bool, images: bool, yes: bool, as_json: bool
) -> None:
    """Remove entries, least recently used first.

    Without options, remove entries unused for 30 days. Leftovers of killed runs are always removed. Entries that a
    build or run is using are kept, and so are images unless --images is given. A removed layer is rebuilt when a build
    needs it.
    """
    from envkit.assemble.cache_prune import USUAL_S, Rule
    from envkit.ground.errors import UsageError

    if everything and (keep is not None or older_than is not None):
        raise UsageError("--all contradicts --keep and --older-than", hint="give one of them")
    limit = None if keep is None else parse_size(keep, "--keep")
    age = None if older_than is None else older_than * _DAY_S
    if limit is None and age is None and not everything:
        age = USUAL_S
    rule = Rule(keep=limit, older_than_s=age, everything=everything, images=images)
    if not yes and not _confirmed(rule):
        click.echo("nothing was removed", err=True)
        return
    done = _prune(rule)
    if as_json:
        tree = {
            "schema": PRUNE_SCHEMA,
            "removed": [_row(entry) for entry in done.removed],
            "in_use": [_row(entry) for entry in done.in_use],
            "freed": done.freed,
            "held": done.held,
        }
        click.echo(json.dumps(tree, indent=2))
    else:
        click.echo(_summary_of(done))


def _prune(rule: Any) -> Pruned:
    from envkit.assemble.cache_prune import prune

    return prune(*_folders(), rule)


def _confirmed(rule: Any) -> bool:
    """Return whether to apply the rule; on a terminal, ask the user first if it would remove more than 1 GB."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    from envkit.assemble.cache_prune import chosen, entries

    removed = chosen(entries(*_folders()), rule, time.time())
    if _bytes(removed) <= _CONFIRM_FROM:
        return True
    return click.confirm(f"Remove {len(removed)} entries ({_text(_bytes(removed))})?", err=True)


def _folders() -> tuple[Path, Path]:
    from envkit.ground.paths import cache_dir, state_dir

    return cache_dir(), state_dir()


def _summary_of(done: Pruned) -> str:
    lines = [f"removed {len(done.removed)} entries, freed {_text(done.freed)}"]
    if done.held:
        lines.append(f"another {_text(done.held)} stays on disk, because images use the same files")
    if done.in_use:
        lines.append(f"{len(done.in_use)} entries ({_text(_bytes(done.in_use))}) are in use and were kept")
    return "\n".join(lines)


def _summary(rows: Sequence[Entry]) -> dict[str, Any]:
    """Return the number, size and times of the entries of one kind, which are sorted by time of last use."""
    used = {"first_used": int(rows[0].used), "last_used": int(rows[-1].used)} if rows else {}
    return {"entries": len(rows), "bytes": _bytes(rows), **used}


def _row(entry: Entry) -> dict[str, Any]:
    return {"kind": entry.kind, "path": str(entry.path), "bytes": entry.size, "used": int(entry.used)}


def _bytes(rows: Sequence[Entry]) -> int:
    return sum(entry.size for entry in rows)


def _text(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"  # noqa: PLR2004 - SI units


def _age(seconds: float) -> str:
    for unit, length in (("day", _DAY_S), ("hour", 3600), ("minute", 60)):
        if (count := int(seconds // length)) >= 1:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
