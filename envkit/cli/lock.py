"""`envkit lock`: the exact artefacts of an image, solved on this host and written to one file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.console import MODES
from envkit.cli.limit import Limit, limit_option
from envkit.cli.request_options import FLAGS, given, load_facts, request_options

if TYPE_CHECKING:
    from envkit.build.model import Builder
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.lock.model import Asked, Lock
    from envkit.lock.places import Places
    from envkit.plan.model import BuildPlan

SCHEMA = "envkit.lock-summary/1"
_FORMATS = ("conda-explicit", "pylock.toml", "requirements.txt", "environment.yml")
COLUMNS = ("what", "packages", "download", "")
_CHANGES = 20  # lines on a terminal; JSON has them all


# "\b" keeps click from joining the example lines.
_HELP = """Solve an image's packages and write every one with its URL, SHA-256 and size. Nothing is downloaded.

DEFINITION is a shipped image (envkit render --list-images) or a YAML file. Flags win over what it says.

\b
envkit lock                                   the default image
envkit lock train.yaml --update numpy         move one package of an existing lock
envkit lock train.yaml --check                for CI: does the lock still fit?
envkit lock --export requirements.txt         what is in envkit.lock, for pip
"""


@click.command("lock", help=_HELP)
@click.argument("definition", required=False)
@request_options
@click.option("--template", metavar="NAME", help="miniconda, wheels, or your own miniconda-NAME or wheels-NAME.")
@click.option("--base", metavar="IMAGE", default="auto", help="Base image, bootstrap:debian/bookworm, or none. [auto]")
@click.option("--engine", metavar="NAME", help="Engine that will build it, as in envkit build: it decides the base.")
@click.option("-o", "--output", metavar="FILE", default="envkit.lock", help="The lock; - is stdout. [envkit.lock]")
@click.option("--check", is_flag=True, help="Only say whether the lock fits; a stale or missing one is exit code 4.")
@click.option("--as-of", metavar="DATE", help="Solve the past: nothing newer than this day (UTC) or time.")
@click.option("--update", multiple=True, metavar="NAME", help="Move this package and keep the others; repeatable.")
@click.option("--export", "export_format", type=click.Choice(_FORMATS), help="Print the lock for another tool.")
@limit_option()
@click.option("--progress", type=click.Choice(MODES), default="auto", help="Talk on stderr. [auto]")
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON (schema {SCHEMA}).")
def command(
    definition: str | None,
    *,
    template: str | None,
    base: str,
    engine: str | None,
    output: str,
    check: bool,
    as_of: str | None,
    update: tuple[str, ...],
    export_format: str | None,
    timeout: float | None,
    progress: str,
    as_json: bool,
    **typed: Any,
) -> None:
    """Solve, check or export; see `_HELP`."""
    from envkit.ground.errors import UsageError
    from envkit.lock.store import read_lock

    asked_for = definition or template or any(typed[name] for name in FLAGS)
    if export_format and not asked_for:
        _export(read_lock(Path(output)), export_format)
        return
    work = _Work(definition, typed | {"template": template}, base, engine=engine, as_of=as_of)
    if check or export_format:
        lock = read_lock(Path(output))
        work.check(lock, output, as_json=as_json and not export_format)
        if export_format:
            _export(lock, export_format)
        return
    if Path(output).is_dir():
        raise UsageError(f"{output}: Is a directory", hint="envkit lock -o FILE")
    old = None
    if output != "-" and (update or Path(output).exists()):
        old = _old(Path(output), needed=bool(update))
    made = work.solve(old, update, progress, timeout)
    _hand_over(made, old, output, as_json=as_json)


class _Work:
    """One request: its plan, its sources, and what is done with them."""

    def __init__(
        self, definition: str | None, typed: dict[str, Any], base: str, *, engine: str | None, as_of: str | None
    ) -> None:
        from envkit.cli import configured, locking
        from envkit.lock import base as bases
        from envkit.lock import moment, request
        from envkit.plan.planner import plan_for

        facts = load_facts(typed.pop("facts_file"))
        self.plan = plan_for(definition, given(typed) | {"template": typed["template"]}, facts)
        self.settings = configured.load({"engine": engine})
        self.base = base
        bases.check(locking.base_asked(self.plan, base), self.plan)
        self.as_of = moment.parse(as_of, "--as-of") if as_of is not None else None
        self.glibc = locking.glibc(self.plan, facts)
        self.asked: tuple[tuple[str, Asked], ...] = request.request_of(
            self.plan, glibc=self.glibc, base=locking.base_asked(self.plan, base)
        )

    def check(self, lock: Lock, file: str, *, as_json: bool) -> None:
        """Say that a lock fits, or raise LockError with what differs."""
        from envkit.ground.errors import LockError
        from envkit.lock.model import UNSEALED
        from envkit.lock.request import drift

        lines = drift(lock, self.asked, as_of=self.as_of)
        if as_json:
            _print_json({"file": file, "plan": self.plan.digest, "stale": bool(lines), "differences": list(lines)})
        if lines:
            raise LockError(f"{file} is stale: {lines[0]}", details=lines[1:], hint="envkit lock writes it anew")
        if not as_json:
            seal = f"; {UNSEALED} has no seal: envkit lock writes one" if lock.schema == UNSEALED else ""
            click.echo(f"{file} fits{seal}", err=True)

    def solve(self, old: Lock | None, update: tuple[str, ...], progress: str, timeout: float | None) -> Lock:
        """The new lock."""
        from envkit.cli import locking
        from envkit.cli.console import reporter
        from envkit.cli.phases import Phases

        talk = Phases(reporter(progress))
        for warning in self.plan.resolution.warnings:
            click.echo(f"warning: {warning}", err=True)
        try:
            with Limit(timeout, lambda: talk.current).holds():
                return locking.lock_for(
                    self.plan,
                    lambda: self._builder(talk),
                    self.base,
                    talk,
                    settings=self.settings,
                    glibc=self.glibc,
                    as_of=self.as_of,
                    update=update,
                    old=old,
                )
        finally:
            talk.close()

    def _builder(self, talk: Reporter) -> Builder:
        """The engine's builder; it is asked for the base alone."""
        from envkit.assemble.builders import EMBEDDED, meant
        from envkit.lock.base import NONE, PREFIX

        name = self.settings.get("engine") or "auto"
        if name == "auto" and (self.base == NONE or self.base.startswith(PREFIX)):
            name = EMBEDDED  # such a base says all by itself, so no engine has to be looked for
        return meant(name, talk, docker_cli=self.settings.get("docker_cli") or "docker")


def places(plan: BuildPlan, settings: Settings) -> Places:
    """Where the artefacts of a plan are fetched from under these settings.

    Raises:
        UsageError: a mirror is not a URL, or the file of certificates cannot be read.
    """
    from envkit.ground import settings as known
    from envkit.lock import clientconf
    from envkit.render.locked import lock_places

    known.ca_file(settings.get("ca_bundle"))
    return lock_places(plan, settings.mirrors(), python_index=clientconf.python_index(os.environ))


def _old(path: Path, *, needed: bool) -> Lock | None:
    """The lock that is there; one that cannot be read matters only when it has to be kept."""
    from envkit.ground.errors import EnvkitError
    from envkit.lock.store import read_lock

    try:
        return read_lock(path)
    except EnvkitError:
        if needed:
            raise
        return None


def _export(lock: Lock, export_format: str) -> None:
    from envkit.lock.exports import FORMATS

    click.echo(FORMATS[export_format](lock), nl=False)


def _hand_over(lock: Lock, old: Lock | None, output: str, *, as_json: bool) -> None:
    from envkit.lock import changes
    from envkit.lock.store import to_text, write_lock

    if output == "-":
        click.echo(to_text(lock), nl=False)
        return
    moved = changes.between(old, lock)
    changed = write_lock(Path(output), lock)
    if as_json:
        _print_json(_summary(lock, output) | {"changed": changed, "changes": list(moved)})
        return
    _show(lock)
    for line in moved[:_CHANGES]:
        click.echo(line, err=True)
    if len(moved) > _CHANGES:
        click.echo(f"... {len(moved) - _CHANGES} more changes", err=True)
    click.echo(f"{output} {'written' if changed else 'is as it was'}", err=True)


def _show(lock: Lock) -> None:
    from envkit.cli import table

    table.show(COLUMNS, size_rows(lock))


def size_rows(lock: Lock) -> list[tuple[str, str, str, str]]:
    """What the lock's artefacts weigh, kind by kind and in all; the columns are COLUMNS."""
    tree = lock.to_json()
    base = f"{lock.base.reference}@{lock.base.digest}" if lock.base.digest else lock.base.reference
    rows, count = [], 0
    for what, found in (("base", tree["base"]["packages"]), ("conda", tree["conda"]), ("wheels", tree["wheels"])):
        largest = max(found, key=lambda row: row["size"], default=None)
        told = f"largest: {largest['name']} {largest['version']}, {_size(largest['size'])}" if largest else ""
        number = str(len(found)) if found or what != "base" else ""
        rows.append((what, number, _size(sum(row["size"] for row in found)), base if what == "base" else told))
        count += len(found)
    return [*rows, ("all", str(count), _size(lock.size), "")]


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
            for kind, found in (("deb", tree["base"]["packages"]), ("conda", tree["conda"]), ("wheel", tree["wheels"]))
            for row in found
        ],
    }


def _size(count: int) -> str:
    if not count:
        return ""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"  # noqa: PLR2004 - SI units


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps({"schema": SCHEMA} | document, indent=2, ensure_ascii=False))
