"""The tag of an image that a build pushed by digest: it moves when the proof allows that, and never silently not."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envkit.build.model import BuildOptions, BuiltImage
    from envkit.ground.errors import EnvkitError
    from envkit.ground.progress import Reporter
    from envkit.verify.record import Record

_UNVERIFIED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagging:
    """What became of a tag."""

    image: str | None  # 'host/name@sha256:...': there in any case; None = it was not sent
    tag: str  # 'host/name:tag'
    why_not: str | None = None  # None = it names the image now
    hint: str | None = None
    error: EnvkitError | None = None

    def to_json(self) -> dict[str, Any]:
        """As a build's document has it."""
        return {"reference": self.image, "tag": self.tag, "tagged": self.why_not is None, "why": self.why_not}


def settle(built: BuiltImage, options: BuildOptions, record: Record | None, reporter: Reporter) -> Tagging | None:
    """Set the tag of what was pushed where the proof ended well or none was wanted; None where nothing was pushed."""
    if built.pushed is None or options.output is None:
        return None
    from envkit.assemble.engine import move_tag_of
    from envkit.ground.errors import EnvkitError

    tag = _tag(options)
    if record is not None and record.exit_code != 0:
        return unproved(built.pushed, tag, record)
    try:
        move_tag_of(built, options)
    except EnvkitError as error:
        return Tagging(image=built.pushed, tag=tag, why_not=error.message, hint=error.hint, error=error)
    reporter.note(f"tagged {tag}: {built.pushed}")
    return Tagging(image=built.pushed, tag=tag)


def unproved(image: str | None, tag: str, record: Record) -> Tagging:
    """A tag that does not move because the proof did not end well."""
    why = f"the image is not proved: {record.verdict}, exit code {record.exit_code}"
    return Tagging(image=image, tag=tag, why_not=why, hint=_way(record))


def tell(tagging: Tagging | None) -> None:
    """Say on stderr that a tag did not move, why, and what to type.

    Raises:
        EnvkitError: the registry did not let it move.
    """
    if tagging is None or tagging.why_not is None:
        return
    if tagging.error is not None:
        tagging.error.details = (*tagging.error.details, _there(tagging.image, tagging.tag))
        raise tagging.error
    click.echo(f"not tagged: {tagging.why_not}", err=True)
    click.echo(f"  {_there(tagging.image, tagging.tag)}", err=True)
    click.echo(f"hint: {tagging.hint}", err=True)


def tell_all(tags: Sequence[Tagging]) -> None:
    """Say of each what `tell` says; what a registry did not let move comes last.

    Raises:
        EnvkitError: the first of these.
    """
    for one in sorted(tags, key=lambda tag: tag.error is not None):
        tell(one)


@contextlib.contextmanager
def told(built: BuiltImage, options: BuildOptions) -> Iterator[None]:
    """Add to an error that ends the proof what it means for the tag."""
    from envkit.ground.errors import EnvkitError

    try:
        yield
    except EnvkitError as error:
        if built.pushed is not None:
            error.details = (*error.details, _there(built.pushed, _tag(options)))
        raise


def _tag(options: BuildOptions) -> str:
    from envkit.assemble.outputs import parse_output

    return str(parse_output(options.output or "").reference)


def _there(image: str | None, tag: str) -> str:
    return f"{tag} is untouched; " + (f"the image is in the registry as {image}" if image else "nothing was pushed")


def _way(record: Record) -> str:
    """What to type; a second run finds every layer made and every blob sent, so it is quick."""
    unproved = "the same command with --no-verify tags it without a proof"
    if record.exit_code == _UNVERIFIED:
        return f"the same command with --allow-cpu tags it where only a GPU was missing; {unproved}"
    return f"envkit verify tells more; {unproved}"
