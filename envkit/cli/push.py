"""`envkit push`: push a verified image to a registry by digest, then move its tags."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, flag, group, new_command, option
from envkit.cli.image_names import IMAGE
from envkit.cli.options import (
    PATH,
    DocumentOptions,
    ProgressOptions,
    RegistryFlags,
    deadline_of,
    document_options,
    exclude,
    load_settings,
    progress_options,
    timeout_option,
)
from envkit.cli.output import write_document
from envkit.ground.engine_names import STORES, has_store
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.image.name import ImageName
    from envkit.pipeline.publish import PushResult, Tagging, Target

SCHEMA = "envkit.push/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushFlags:
    """The options of `envkit push`."""

    reference: str = argument(metavar="REF", shell_complete=shell_values.pushed)
    image: ImageName | None = option(
        Section.INPUT,
        "--image IMAGE",
        type=IMAGE,
        shell_complete=shell_values.images,
        help="Image to push: see above. [the image that was built last]",
    )
    engine: str | None = option(
        Section.INPUT, "--engine", type=click.Choice(STORES), help="Engine that plain names refer to."
    )
    tags: tuple[str, ...] = option(
        Section.PUBLISH, "-t", "--tag TAG", multiple=True, help="Additional tag in the repository of REF; repeatable."
    )
    no_tag: bool = flag(
        Section.PUBLISH, "--no-tag", help="Push by digest only; no verification is needed and no tag moves."
    )
    record: Path | None = option(
        Section.INPUT, "--record FILE", type=PATH, help="Verification record of the image. [from the state folder]"
    )
    unverified: bool = flag(Section.PUBLISH, "--unverified", help="Set the tag even without a passing verification.")
    registry: RegistryFlags = group(RegistryFlags)
    timeout: float | None = timeout_option()
    document: DocumentOptions = document_options(f"the result (schema {SCHEMA})")
    progress: ProgressOptions = progress_options()

    def target(self) -> Target:
        """Return the repository and the tags from REF and -t.

        Raises:
            UsageError: REF or a tag is invalid, or REF has a tag despite --no-tag.
        """
        from envkit.image.name import split_tag
        from envkit.pipeline.publish import Target, parse_name

        first = parse_name(self.reference, "REF")
        repository = replace(first, tag=None)
        if self.no_tag:
            if split_tag(self.reference)[1] is not None:
                raise UsageError(
                    f"--no-tag sets no tag, but {self.reference!r:.200} has one", hint=f"--no-tag {repository.place}"
                )
            return Target(repository=repository, names=())
        others = (parse_name(f"{repository.place}:{tag}", f"-t {tag!r:.140}:") for tag in self.tags)
        return Target(repository=repository, names=tuple(dict.fromkeys((first, *others))))

    def source(self, state: Path) -> tuple[ImageName, str | None]:
        """Return the image and, if known, the engine that stores it.

        Raises:
            UsageError: no image is named, and none was built on this machine.
        """
        from envkit.ground.state import read_last
        from envkit.pipeline.machine import name_of

        if self.image is not None:
            engine = load_settings({"engine": self.engine}).get("engine")
            return self.image, engine if has_store(engine) else None
        last = read_last(state)
        return name_of(last), last.engine


@new_command("push", PushFlags)
def command(flags: PushFlags) -> int:
    """Push an image to REF (HOST/NAME:TAG), and set the tag if this exact image has passed verification.

    IMAGE is a name or ID in an engine, oci:DIR[:TAG], docker-archive:FILE[:TAG] or registry:HOST/NAME:TAG.

    Layers that the registry already has are skipped. envkit uses the logins of docker and podman.

    \b
    envkit push registry.example.com/team/train:1.0
    envkit push registry.example.com/team/train:1.0 -t latest --replace-tag
    envkit push --no-tag registry.example.com/team/train    verify it elsewhere, then tag it

    Exit codes: 0 pushed and tagged, 5 not verified, 8 registry refused, 9 registry unreachable, 10 checksum mismatch.
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.assemble.outputs import repositories
    from envkit.ground.paths import state_dir
    from envkit.pipeline.publish import Push, push

    out = flags.document.target()
    exclude(no_tag=flags.no_tag, unverified=flags.unverified, record=flags.record)
    exclude(no_tag=flags.no_tag, tag=flags.tags)
    target, state = flags.target(), state_dir()
    repositories(target.repository, flags.registry.mount_from)  # refuses other registries' before anything is read
    reporter = flags.progress.reporter()
    deadline = deadline_of(flags.timeout, reporter)
    with closing(reporter), deadline.holds():
        image, engine = flags.source(state)
        to = Push(
            settings=load_settings({"engine": flags.engine}),
            targets=(target,),
            replace_tag=flags.registry.replace_tag,
            mount_from=flags.registry.mount_from,
        )
        is_required = not (flags.no_tag or flags.unverified)
        result = push(image, engine, to, state, reporter, verified=is_required, record=flags.record)
    return _publish(result, out)


def _publish(result: PushResult, out: str | None) -> int:
    """Write the result, then report the tags that did not move.

    Raises:
        EnvkitError: a registry refused a tag; the first such error.
    """
    reference = result.sent.pushed.reference
    if out is None:
        click.echo(reference)
    write_document(document(result), out, done=f"the image was pushed: {reference}")
    report_tags(result.sent.tags)
    return 0


def document(result: PushResult) -> dict[str, Any]:
    """Return the JSON document of a push (`envkit.push/1`)."""
    record = result.verified_by
    return {
        "schema": SCHEMA,
        "image": result.source.name,
        **result.sent.to_json(),
        "proof": None
        if record is None
        else {
            "record": str(record.path),
            "verdict": record.verdict,
            "started": record.started,
            "machine": record.machine,
        },
    }


def report_tags(tags: Sequence[Tagging]) -> None:
    """Print to stderr which tags were not set, why, and what to type next; errors of the registry come last.

    Raises:
        EnvkitError: a registry refused a tag; the first such error.
    """
    from envkit.pipeline.publish import unchanged

    for tagging in sorted(tags, key=lambda tag: tag.error is not None):
        if tagging.why_not is None:
            continue
        if tagging.error is not None:
            tagging.error.details = (*tagging.error.details, unchanged(tagging.image, tagging.tag))
            raise tagging.error
        click.echo(f"not tagged: {tagging.why_not}", err=True)
        click.echo(f"  {unchanged(tagging.image, tagging.tag)}", err=True)
        click.echo(f"hint: {tagging.hint}", err=True)
