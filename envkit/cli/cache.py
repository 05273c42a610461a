"""`envkit cache`: show, prune and carry the caches of builds and runs on this machine."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, flag, new_command, new_group, option
from envkit.cli.options import PATH, ProgressOptions, progress_options
from envkit.ground.sizes import parse_size, shown_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.ground.cache import Entry, Pruned
    from envkit.ground.progress import Reporter

SCHEMA = "envkit.cache/1"
PRUNE_SCHEMA = "envkit.cache-prune/1"
_DAY_S = 86400
_CONFIRM_FROM = 1_000_000_000  # bytes; on a terminal, removing more needs a confirmation


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFlags:
    """The options of `envkit cache`."""

    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {SCHEMA}).")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFlags:
    """The options of `envkit cache export`."""

    file: Path = argument(type=PATH, shell_complete=shell_values.files)
    locked: str = option(
        Section.LOCK,
        "--locked LOCK",
        default="envkit.lock",
        shell_complete=shell_values.files,
        help="The lock whose files are exported. [envkit.lock]",
    )
    progress: ProgressOptions = progress_options()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFlags:
    """The options of `envkit cache import`."""

    file: Path = argument(type=PATH, shell_complete=shell_values.files)
    progress: ProgressOptions = progress_options()


_HELP = """Show, prune and carry the caches of builds and runs on this machine.

Nothing is removed automatically unless the setting cache_limit names a size.

\b
envkit cache                        show the entries by kind, with their folders
envkit cache prune                  remove entries unused for 30 days
envkit cache prune --keep 20GB      remove entries until 20 GB are left
envkit cache prune --all            remove everything that is not in use
envkit cache export need.tar        everything that envkit.lock needs, for a machine without a network
envkit cache import need.tar        add it to the cache there; then envkit build --offline
"""


def keep_within(limit: str | None, reporter: Reporter) -> None:
    """Prune the cache after a build to the size that the setting `cache_limit` gives, if it is set.

    Raises:
        UsageError: the setting is not a size.
    """
    from envkit.ground.cache import Rule

    if limit is None:
        return
    done = _prune(Rule(keep=parse_size(limit, "cache_limit")))
    if done.removed:
        reporter.note(f"cache_limit {limit}: {'; '.join(_summary_of(done).splitlines())}")


@new_group("cache", CacheFlags, help=_HELP, invoke_without_command=True)
def command(flags: CacheFlags) -> None:
    """Show the entries by kind."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    from envkit.cli.output import show_table
    from envkit.ground.cache import ROWS, entries

    cache, state = _folders()
    kept = entries(cache, state)
    if flags.as_json:
        tree = {
            "schema": SCHEMA,
            "cache": str(cache),
            "state": str(state),
            "bytes": sum(entry.size for entry in kept),
            "kinds": {row: _summary([entry for entry in kept if entry.row == row]) for row in ROWS},
        }
        click.echo(json.dumps(tree, indent=2))
        return
    now = time.time()
    rows = []
    # `entries` returns the least recently used entry first.
    for row, meaning in ROWS.items():
        own = [entry for entry in kept if entry.row == row]
        if own:
            rows.append((row, str(len(own)), shown_size(_bytes(own)), _age(now - own[-1].used), _age(now - own[0].used),
                         meaning))  # fmt: skip
    rows.append(("all", str(len(kept)), shown_size(_bytes(kept)), "", "", f"below {cache}, images below {state}"))
    show_table(("what", "entries", "size", "last used", "first used", ""), rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneFlags:
    """The options of `envkit cache prune`."""

    keep: str | None = option(
        Section.SELECTION, "--keep SIZE", help="Remove until this size is reached, least recently used first: 20GB."
    )
    older_than: float | None = option(
        Section.SELECTION,
        "--older-than DAYS",
        type=click.FloatRange(min=0),
        help="Remove entries unused for this many days.",
    )
    everything: bool = flag(Section.SELECTION, "--all", help="Remove everything.")
    images: bool = flag(Section.SELECTION, "--images", help="Also prune images in the state folder.")
    yes: bool = flag(Section.GENERAL, "-y", "--yes", help="Remove more than 1 GB without asking.")
    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {PRUNE_SCHEMA}).")


@new_command("prune", PruneFlags, parent=command)
def prune_command(flags: PruneFlags) -> None:
    """Remove entries, least recently used first.

    Without options, remove entries unused for 30 days. Leftovers of killed runs are always removed. Entries that a
    build or run is using are kept, and so are images unless --images is given. A removed layer is rebuilt when a build
    needs it.
    """
    from envkit.ground.cache import USUAL_S, Rule
    from envkit.ground.errors import UsageError

    if flags.everything and (flags.keep is not None or flags.older_than is not None):
        raise UsageError("--all contradicts --keep and --older-than", hint="give one of them")
    limit = None if flags.keep is None else parse_size(flags.keep, "--keep")
    age = None if flags.older_than is None else flags.older_than * _DAY_S
    if limit is None and age is None and not flags.everything:
        age = USUAL_S
    rule = Rule(keep=limit, older_than_s=age, everything=flags.everything, images=flags.images)
    if not flags.yes and not _confirmed(rule):
        click.echo("nothing was removed", err=True)
        return
    done = _prune(rule)
    if flags.as_json:
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


@new_command("export", ExportFlags, parent=command)
def export_command(flags: ExportFlags) -> None:
    """Write everything that a lock needs into one tar, for a machine without a network.

    The packages, the base and the wheels that were built from source have to be in the cache: run `envkit build`
    with the lock before. On the other machine, `envkit cache import FILE` checks each file's SHA-256 and adds it to
    the cache, and `envkit build --locked LOCK --offline` builds the same image.
    """
    from envkit.assemble import cache_archive
    from envkit.lock.store import read_lock

    lock = read_lock(Path(flags.locked))
    with closing(flags.progress.reporter()) as reporter:
        size = cache_archive.export(lock, _folders()[0], flags.file, reporter)
    click.echo(f"{flags.file}: {shown_size(size)}, with the lock and a README")


@new_command("import", ImportFlags, parent=command)
def import_command(flags: ImportFlags) -> None:
    """Add the files of an exported tar to the cache, after checking their SHA-256.

    The layer of a base from Debian packages has no digest in the lock, so import archives only from people you trust.
    """
    from envkit.assemble import cache_archive

    with closing(flags.progress.reporter()) as reporter:
        added, present = cache_archive.take(flags.file, _folders()[0], reporter)
    click.echo(f"{added} files added, {present} were there")


def _prune(rule: Any) -> Pruned:
    from envkit.ground.cache import prune

    return prune(*_folders(), rule)


def _confirmed(rule: Any) -> bool:
    """Return whether to apply the rule; on a terminal, ask the user first if it would remove more than 1 GB."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    from envkit.ground.cache import chosen, entries

    removed = chosen(entries(*_folders()), rule, time.time())
    if _bytes(removed) <= _CONFIRM_FROM:
        return True
    return click.confirm(f"Remove {len(removed)} entries ({shown_size(_bytes(removed))})?", err=True)


def _folders() -> tuple[Path, Path]:
    from envkit.ground.paths import cache_dir, state_dir

    return cache_dir(), state_dir()


def _summary_of(done: Pruned) -> str:
    lines = [f"removed {len(done.removed)} entries, freed {shown_size(done.freed)}"]
    if done.held:
        lines.append(f"another {shown_size(done.held)} stays on disk, because images use the same files")
    if done.in_use:
        lines.append(f"{len(done.in_use)} entries ({shown_size(_bytes(done.in_use))}) are in use and were kept")
    return "\n".join(lines)


def _summary(rows: Sequence[Entry]) -> dict[str, Any]:
    """Return the number, size and times of the entries of one kind, which are sorted by time of last use."""
    used = {"first_used": int(rows[0].used), "last_used": int(rows[-1].used)} if rows else {}
    return {"entries": len(rows), "bytes": _bytes(rows), **used}


def _row(entry: Entry) -> dict[str, Any]:
    return {"kind": entry.row, "path": str(entry.path), "bytes": entry.size, "used": int(entry.used)}


def _bytes(rows: Sequence[Entry]) -> int:
    return sum(entry.size for entry in rows)


def _age(seconds: float) -> str:
    for unit, length in (("day", _DAY_S), ("hour", 3600), ("minute", 60)):
        if (count := int(seconds // length)) >= 1:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
