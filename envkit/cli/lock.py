"""`envkit lock`: the exact artifacts of an image, solved on this host and written to one file."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.console import tell
from envkit.cli.declare import Section, flag, group, new_command, option
from envkit.cli.options import (
    ProgressOptions,
    RequestOptions,
    allow_source_option,
    deadline_of,
    definition_argument,
    load_settings,
    preset_option,
    progress_options,
    timeout_option,
)
from envkit.cli.output import print_json, show_table
from envkit.ground.errors import EnvkitError, LockError, UsageError
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.lock.model import Lock, Move
    from envkit.pipeline.locking import LockRequest
    from envkit.pipeline.resolving import Asked
    from envkit.plan.model import BuildPlan

SCHEMA = "envkit.lock-summary/1"
COLUMNS = ("what", "packages", "download", "")
_FORMATS = ("conda-explicit", "pylock.toml", "requirements.txt", "environment.yml")
MOVED = ("moved", "kind", "from", "to")
_MOVES = 40  # rows on a terminal; JSON has them all. A new torch moves about twenty packages
_DIGEST = len("sha256:") + 12  # characters of a base's digest in the table


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFlags:
    """The options of `envkit lock`."""

    definition: str | None = definition_argument()
    request: RequestOptions = group(RequestOptions)
    base: str = option(
        Section.BUILD, "--base IMAGE", default="auto", help="Base image, bootstrap:debian/bookworm, or none. [auto]"
    )
    engine: str | None = option(
        Section.BUILD,
        "--engine NAME",
        shell_complete=shell_values.engines,
        help="Engine that will build the image; it determines the base image.",
    )
    allow_source: tuple[str, ...] = allow_source_option()
    preset: str | None = preset_option()
    output: str = option(
        Section.OUTPUT,
        "-o",
        "--output FILE",
        shell_complete=shell_values.files,
        default="envkit.lock",
        help="Lock file; - is stdout. [envkit.lock]",
    )
    check: bool = flag(Section.LOCK, "--check", help="Only check the lock; exit 4 if it is stale or missing.")
    as_of: str | None = option(
        Section.LOCK, "--as-of DATE", help="Ignore anything published after this date (UTC) or time."
    )
    update: tuple[str, ...] = option(
        Section.LOCK,
        "--update NAME",
        multiple=True,
        help="Update this package and what must move with it; keep the others. Repeatable.",
    )
    upgrade: bool = flag(Section.LOCK, "--upgrade", help="Update every package, as if there were no lock.")
    export_format: str | None = option(
        Section.OUTPUT, "--export", type=click.Choice(_FORMATS), help="Print the lock for another tool."
    )
    timeout: float | None = timeout_option()
    progress: ProgressOptions = progress_options()
    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {SCHEMA}).")

    def lock_request(self, plan: BuildPlan) -> LockRequest:
        """Return what to lock.

        Raises:
            UsageError: the base or --as-of is invalid.
        """
        from envkit.lock.values import parse_moment
        from envkit.pipeline.locking import LockRequest

        request = LockRequest(
            plan=plan,
            settings=load_settings({"engine": self.engine, "preset": self.preset, "facts": self.request.facts_file}),
            base=self.base,
            as_of=parse_moment(self.as_of, "--as-of") if self.as_of is not None else None,
            update=self.update,
        )
        request.check()
        return request

    def command(self) -> str:
        """Return the command that writes the lock of this request."""
        return self.request.lock_command(
            self.definition, self.output, base=self.base, engine=self.engine, allow_source=self.allow_source
        )


@new_command("lock", LockFlags)
def command(flags: LockFlags) -> None:
    """Solve an image's packages and record the URL, SHA-256 and size of each. No package is downloaded.

    An existing lock keeps its versions of conda packages and wheels wherever the request allows them.

    DEFINITION is a shipped image (envkit render --list-images), a YAML file, or a project file or folder that envkit
    init can read. Flags override it.

    \b
    envkit lock                                   the default image
    envkit lock train.yaml --update torch         update one package and what must move with it
    envkit lock train.yaml --upgrade              update all packages
    envkit lock train.yaml --check                check in CI that it is up to date
    envkit lock --export requirements.txt         export envkit.lock for pip
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.lock.store import check_write, read_lock
    from envkit.pipeline.choosing import plan_for

    output = Path(flags.output)
    _check_update(flags)
    has_request = flags.definition or flags.allow_source or not flags.request.is_empty
    # Without a request, there is nothing to check the lock against.
    if flags.export_format and not has_request:
        _export(read_lock(output), flags.export_format)
        return
    asked = flags.request.asked(flags.definition, allow_source=flags.allow_source)
    if flags.check or flags.export_format:
        request = flags.lock_request(plan_for(asked, output)[0])
        lock = _required(output, flags)
        _check(lock, request, flags.output, as_json=flags.as_json and not flags.export_format)
        if flags.export_format:
            _export(lock, flags.export_format)
        return
    request = flags.lock_request(asked.plan())  # first: errors of the request are reported before those of the file
    if output.is_dir():
        raise UsageError(f"{flags.output} is a folder", hint="envkit lock -o FILE")
    check_write(output)
    old = None
    if flags.output != "-" and (flags.update or output.exists()):
        old = _required(output, flags) if flags.update else _readable(output)
    lock = _solve(flags, asked, request, None if flags.upgrade else old)
    _write(lock, old, flags)


def _check_update(flags: LockFlags) -> None:
    if (flags.update or flags.upgrade) and (flags.check or flags.export_format):
        raise UsageError(
            f"{'--check' if flags.check else '--export'} solves nothing, so nothing is updated",
            hint="run envkit lock with --update or --upgrade first",
        )
    if flags.update and flags.upgrade:
        raise UsageError("--upgrade updates every package, and --update only some", hint="use one of them")
    if flags.update and flags.output == "-":
        raise UsageError("--update needs an old lock, and -o - has none", hint="envkit lock -o FILE --update NAME")


def _check(lock: Lock, request: LockRequest, file: str, *, as_json: bool) -> None:
    """Report that a lock is up to date, or raise LockError with the differences."""
    from envkit.lock.request import drift
    from envkit.pipeline.resolving import facts_of

    lines = drift(lock, request.asked(facts_of(request.settings)), as_of=request.as_of)
    if as_json:
        _print_json({"file": file, "plan": request.plan.digest, "stale": bool(lines), "differences": list(lines)})
    if lines:
        raise LockError(f"{file} is stale: {lines[0]}", details=lines[1:], hint="envkit lock writes a new one")
    if not as_json:
        tell(f"{file} is up to date")


def _solve(flags: LockFlags, asked: Asked, request: LockRequest, old: Lock | None) -> Lock:
    from dataclasses import replace

    from envkit.pipeline import choosing
    from envkit.pipeline.locking import lock_alone, probe_of

    reporter = flags.progress.reporter()
    request = replace(request, old=old)
    with closing(reporter), deadline_of(flags.timeout, reporter).holds():
        plan, lock = choosing.solve(
            asked,
            lambda plan: lock_alone(replace(request, plan=plan), reporter),
            lambda plan: probe_of(request.settings, plan, request.as_of),
            reporter,
            old=old,
            update=flags.update,
        )
    for warning in plan.resolution.warnings:
        tell(f"warning: {warning}")
    return lock


def _required(path: Path, flags: LockFlags) -> Lock:
    """Return the current lock, as `read_lock` does; if there is none, the hint is the command that writes it."""
    from envkit.lock.store import read_lock

    try:
        return read_lock(path)
    except LockError as error:
        raise LockError(error.message, hint=flags.command()) from error


def _readable(path: Path) -> Lock | None:
    """Return the current lock; None with a warning if it cannot be read, because the new lock replaces it anyway."""
    from envkit.lock.store import read_lock

    try:
        return read_lock(path)
    except EnvkitError as error:
        tell(f"warning: the versions of the old lock are not kept: {error.message}")
        return None


def _export(lock: Lock, export_format: str) -> None:
    from envkit.lock.exports import FORMATS

    click.echo(FORMATS[export_format](lock), nl=False)


def _write(lock: Lock, old: Lock | None, flags: LockFlags) -> None:
    from envkit.lock.model import moves_between
    from envkit.lock.previous import unmoved
    from envkit.lock.store import to_text, write_lock

    output = flags.output
    if output == "-":
        click.echo(to_text(lock), nl=False)
        return
    moves = moves_between(old, lock)
    changed = write_lock(Path(output), lock)
    if flags.as_json:
        _print_json(_summary(lock, output) | {"changed": changed, "changes": [str(move) for move in moves]})
        return
    show_table(COLUMNS, size_rows(lock))
    if moves:
        click.echo()
        show_table(MOVED, [_moved_row(move) for move in moves[:_MOVES]])
    if len(moves) > _MOVES:
        tell(f"... {len(moves) - _MOVES} more moved; --json lists all")
    for name, version in unmoved(flags.update, lock, moves):
        tell(f"{name} stays at {version}: the solver found no newer version that fits")
    if old is not None:
        tell(f"{len(moves) or 'no'} package{'' if len(moves) == 1 else 's'} moved")
    tell(f"{output} {'written' if changed else 'is unchanged'}")


def _moved_row(move: Move) -> tuple[str, str, str, str]:
    return (move.name, move.kind, _version(move.before), _version(move.after))


def _version(text: str | None) -> str:
    if text is None:
        return "-"
    return text[:_DIGEST] if text.startswith("sha256:") else text


def size_rows(lock: Lock) -> list[tuple[str, str, str, str]]:
    """Return the download sizes of the lock by kind, and their sum, as rows with the columns COLUMNS."""
    tree = lock.to_json()
    base = f"{lock.base.reference}@{lock.base.digest}" if lock.base.digest else lock.base.reference
    rows, count = [], 0
    for what, packages in (("base", tree["base"]["packages"]), ("conda", tree["conda"]), ("wheels", tree["wheels"])):
        largest = max(packages, key=lambda row: row["size"], default=None)
        remark = f"largest: {largest['name']} {largest['version']}, {shown_size(largest['size'])}" if largest else ""
        number = str(len(packages)) if packages or what != "base" else ""
        size = shown_size(sum(row["size"] for row in packages)) if packages else ""
        rows.append((what, number, size, base if what == "base" else remark))
        count += len(packages)
    return [*rows, ("all", str(count), shown_size(lock.size), "")]


def _summary(lock: Lock, file: str) -> dict[str, Any]:
    tree = lock.to_json()
    return {
        "file": file,
        "plan": lock.plan,
        "as_of": lock.as_of,
        "bytes": lock.size,
        "base": {key: value for key, value in tree["base"].items() if key != "packages"},
        "packages": [
            {"kind": kind, **{key: row[key] for key in ("name", "version", "size")}}
            for kind, packages in (
                ("deb", tree["base"]["packages"]),
                ("conda", tree["conda"]),
                ("wheel", tree["wheels"]),
            )
            for row in packages
        ],
    }


def _print_json(document: dict[str, Any]) -> None:
    print_json({"schema": SCHEMA, **document})
