"""`envkit diff`: the differences between two images."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, flag, new_command
from envkit.cli.image_names import PUBLISHED_OR_FILE
from envkit.cli.options import (
    ProgressOptions,
    deadline_of,
    engine_option,
    exclude,
    load_settings,
    progress_options,
    timeout_option,
)
from envkit.cli.output import print_json
from envkit.ground.sizes import shown_size
from envkit.ground.text import aligned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envkit.attest.content import Content
    from envkit.attest.diff import Change, Difference, PackageChange
    from envkit.image.name import ImageName

_HELP = """Show the differences between two images: packages, CUDA stack, environment, command, labels, size, layers.

A and B are images or files: HOST/NAME:TAG or registry:HOST/NAME:TAG, oci:DIR, docker-archive:FILE, a name in an
engine, a lock (envkit.lock) or a plan (plan.json). Only the layers that are needed are downloaded: for an image that
envkit built from a lock, only the small layer with the lock.

\b
envkit diff registry.example.com/team/train:1.0 registry.example.com/team/train:1.1
envkit diff oci:old oci:new
envkit diff envkit.lock docker-archive:image.tar
envkit diff old.lock envkit.lock --markdown

Exit codes: 0 success; 2 usage; 6 with --exit-code, A and B differ; 8 no such image; 9 registry or engine unreachable;
10 an image does not match its digests or labels.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffFlags:
    """The options of `envkit diff`."""

    before: ImageName = argument(metavar="A", type=PUBLISHED_OR_FILE, shell_complete=shell_values.images_or_files)
    after: ImageName = argument(metavar="B", type=PUBLISHED_OR_FILE, shell_complete=shell_values.images_or_files)
    layers: bool = flag(
        Section.INPUT, "--layers", help="Download layers from a registry if nothing else lists the packages."
    )
    by_exit: bool = flag(Section.OUTPUT, "--exit-code", help="Exit 6 if A and B differ.")
    runner: str = engine_option()
    timeout: float | None = timeout_option()
    markdown: bool = flag(Section.OUTPUT, "--markdown", help="Print Markdown, for a pull request or merge request.")
    as_json: bool = flag(Section.OUTPUT, "--json", help="Print JSON (schema envkit.diff/1).")
    progress: ProgressOptions = progress_options("Also list labels that envkit computes.")


@new_command("diff", DiffFlags, help=_HELP)
def command(flags: DiffFlags) -> int:
    """See `_HELP`."""
    from envkit.attest.access import Access
    from envkit.attest.diff import difference
    from envkit.attest.reading import read_content
    from envkit.engines.host_environment import ca_file
    from envkit.ground.errors import VerificationError
    from envkit.ground.paths import state_dir

    exclude(markdown=flags.markdown, json=flags.as_json)
    with closing(flags.progress.reporter()) as reporter:
        access = Access(
            runner=flags.runner,
            ca_bundle=ca_file(load_settings().mirrors(), reporter),
            state=state_dir(),
            layers=flags.layers,
            reporter=reporter,
        )
        with deadline_of(flags.timeout, reporter).holds():
            diff = difference(read_content(flags.before, access), read_content(flags.after, access))
    if flags.as_json:
        print_json(diff.to_json(), ascii_only=True)
    elif flags.markdown:
        click.echo("\n".join(_markdown(diff, verbose=flags.progress.verbose)))
    else:
        _show(diff, verbose=flags.progress.verbose)
    return VerificationError.exit_code if flags.by_exit and not diff.same else 0


def _show(diff: Difference, *, verbose: bool) -> None:
    from envkit.ground.text import neutral

    for line in _lines(diff, verbose=verbose):
        click.echo(neutral(line) if line else "")


def _lines(diff: Difference, *, verbose: bool) -> Iterator[str]:
    yield f"A  {_side(diff.before)}"
    yield f"B  {_side(diff.after)}"
    for note in (*diff.before.notes, *diff.after.notes):
        yield f"note: {note}"
    if diff.same:
        yield ""
        yield "identical" if diff.before.id == diff.after.id else "no differences found"
        return
    yield from _changes("CUDA stack", diff.stack, absent="unknown")
    yield from _packages(diff)
    yield from _changes("environment", diff.env or ())
    yield from _changes("command", diff.start or ())
    hidden = 0 if verbose else sum(_computed(label) for label in diff.labels or ())
    yield from _changes("labels", [label for label in diff.labels or () if verbose or not _computed(label)], hidden)
    yield from _sizes(diff)


def _markdown(diff: Difference, *, verbose: bool) -> Iterator[str]:
    """Yield the same as Markdown tables; names and values are escaped, because they come from the images."""
    from envkit.report.markdown import table, text_only

    yield from (f"- {name}: {text_only(_side(side))}" for name, side in (("A", diff.before), ("B", diff.after)))
    yield from (f"- note: {text_only(note)}" for note in (*diff.before.notes, *diff.after.notes))
    yield ""
    if diff.same:
        yield "No differences found."
        return
    shown = [label for label in diff.labels or () if verbose or not _computed(label)]
    groups = {"CUDA stack": diff.stack, "Environment": diff.env, "Command": diff.start, "Labels": shown}
    for title, changes in groups.items():
        absent = "unknown" if title == "CUDA stack" else "none"
        rows = [
            [text_only(text or absent) for text in (change.name, change.before, change.after)]
            for change in changes or ()
        ]
        yield from table(title, ["Name", "A", "B"], rows)
    packages = [[text_only(text) for text in _package_row(package)] for package in diff.packages or ()]
    yield from table(_package_counts(diff).capitalize(), ["Package", "Kind", "A", "B"], packages)
    yield from (text_only(line) + "  " for line in _sizes(diff) if line)


def _package_row(change: PackageChange) -> tuple[str, str, str, str]:
    after = f"{change.after} (other bytes)" if change.rebuilt else change.after
    return change.name, change.kind, change.before or "none", after or "none"


def _side(content: Content) -> str:
    from envkit.ground.progress import counted

    parts = [content.kind if content.kind != "engine" else "an engine's image"]
    if content.digest or content.id:
        parts.append(str(content.digest or content.id)[:19])
    if content.size is not None:
        parts.append(shown_size(content.size))
    if content.layers is not None:
        parts.append(counted(len(content.layers), "layer"))
    if content.packages is not None:
        parts.append(f"{counted(len(content.packages), 'package')} by its {content.packages_from}")
    return f"{content.name}  ({', '.join(parts)})"


def _changes(title: str, changes: Sequence[Change], hidden: int = 0, *, absent: str = "none") -> Iterator[str]:
    if not changes and not hidden:
        return
    yield ""
    yield title
    yield from aligned(
        [(f"  {change.name}", f"{change.before or absent} -> {change.after or absent}") for change in changes]
    )
    if hidden:
        yield f"  {hidden} more that envkit computes (-v lists them)"


def _packages(diff: Difference) -> Iterator[str]:
    if not diff.packages:
        return
    yield ""
    yield _package_counts(diff)
    yield from aligned([_package(package) for package in diff.packages])


def _package_counts(diff: Difference) -> str:
    packages = diff.packages or ()
    added = sum(package.before is None for package in packages)
    removed = sum(package.after is None for package in packages)
    return f"packages: {len(packages) - added - removed} changed, {added} added, {removed} removed"


def _package(change: PackageChange) -> tuple[str, str, str]:
    if change.before is None:
        return f"  + {change.name}", str(change.after), change.kind
    if change.after is None:
        return f"  - {change.name}", change.before, change.kind
    versions = f"{change.before} (other bytes)" if change.rebuilt else f"{change.before} -> {change.after}"
    return f"    {change.name}", versions, change.kind


def _sizes(diff: Difference) -> Iterator[str]:
    before, after, layers = diff.before.size, diff.after.size, diff.layers
    if before is not None and after is not None:
        sign = "+" if after >= before else "-"
        yield ""
        yield f"size: {shown_size(before)} -> {shown_size(after)} ({sign}{shown_size(abs(after - before))})"
    if layers is not None:
        yield (
            f"layers: {layers.shared} shared ({_amount(layers.shared_bytes)}), "
            f"{layers.only_before} only in A ({_amount(layers.only_before_bytes)}), "
            f"{layers.only_after} only in B ({_amount(layers.only_after_bytes)})"
        )


def _computed(change: Change) -> bool:
    from envkit.ground.naming import LABEL_PREFIX

    return change.name.startswith((f"{LABEL_PREFIX}.", "org.opencontainers.image."))


def _amount(size: int | None) -> str:
    return "size unknown" if size is None else shown_size(size)
