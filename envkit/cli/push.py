"""`envkit push`: an image that was proved into a registry, by digest; its tags move last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.console import MODES
from envkit.cli.documents import document_options, target_of, write_document
from envkit.cli.limit import limit_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.cli.pushing import Sent, Target
    from envkit.ground.settings import Settings
    from envkit.run.source import Source
    from envkit.verify.proof import Proof

SCHEMA = "envkit.push/1"


@click.command("push")
@click.argument("reference", metavar="REF")
@click.option("--image", metavar="IMAGE", help="What to push: see above. [the image built last]")
@click.option("--engine", type=click.Choice(["docker", "podman"]), help="Whose image a plain name means.")
@click.option("-t", "--tag", "tags", multiple=True, metavar="TAG", help="A further tag of REF; repeatable.")
@click.option("--no-tag", is_flag=True, help="Push by digest alone; needs no proof, and no tag moves.")
@click.option("--replace-tag", is_flag=True, help="A tag may be another image's, and moves.")
@click.option(
    "--record", type=click.Path(path_type=Path), metavar="FILE", help="The record that proves it. [found in the state]"
)
@click.option("--unverified", is_flag=True, help="Tag it although no record proves it.")
@click.option(
    "--mount-from",
    multiple=True,
    metavar="REPOSITORY",
    help="Repository of the same registry that has layers of this image already; repeatable.",
)
@limit_option()
@document_options(f"what was pushed (schema {SCHEMA})")
@click.option("--progress", type=click.Choice(MODES), default="auto", help="Talk on stderr. [auto]")
def command(
    *,
    reference: str,
    image: str | None,
    engine: str | None,
    tags: tuple[str, ...],
    no_tag: bool,
    replace_tag: bool,
    record: Path | None,
    unverified: bool,
    mount_from: tuple[str, ...],
    timeout: float | None,
    as_json: bool,
    out_file: str | None,
    progress: str,
) -> int:
    """Push an image to REF (HOST/NAME:TAG) and tag it there, if a record proves this very image.

    IMAGE is a name or id in an engine, oci:DIR[:TAG], docker-archive:FILE[:TAG] or registry:HOST/NAME:TAG.

    What the registry holds is not sent. The engine's own login is not needed: envkit reads those of docker and podman.

    \b
    envkit push registry.example.com/team/train:1.0
    envkit push registry.example.com/team/train:1.0 -t latest --replace-tag
    envkit push --no-tag registry.example.com/team/train    to prove it elsewhere, and tag it then

    Exit codes: 0 pushed and tagged, 5 not proved, 8 the registry refuses, 9 it cannot be reached, 10 integrity.
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.assemble.outputs import repositories
    from envkit.cli import choices, configured, pushing
    from envkit.cli.console import reporter
    from envkit.cli.limit import Limit
    from envkit.cli.phases import Phases
    from envkit.ground import paths
    from envkit.ground.paths import cache_dir, run_folder
    from envkit.run.source import find_source

    out = target_of(as_json=as_json, out_file=out_file)
    choices.exclude(no_tag=no_tag, unverified=unverified, record=record)
    choices.exclude(no_tag=no_tag, tag=tags)
    wanted = targets_of(reference, tags, no_tag=no_tag)
    others = repositories(wanted[0].place, mount_from)
    resolved, state = configured.load({"engine": engine}), paths.state_dir()
    talk = Phases(reporter(progress))
    limit = Limit(timeout, lambda: talk.current)
    try:
        with limit.holds(), pushing.transport_of(resolved, talk) as transport, run_folder(cache_dir()) as folder:
            name, whose = _image(image, resolved, state)
            source = find_source(name, folder, transport, talk, engine=whose)
            proof = None if no_tag or unverified else _proof(source, record, state)
            free = pushing.look(wanted, dict(source.labels), transport, talk, replace_tag=replace_tag)
            (sent,) = pushing.send(
                source, wanted, transport, talk, replace_tag=replace_tag, ahead=free, mount_from=others
            )
    finally:
        talk.close()
    return _publish(source, sent, proof, out)


def targets_of(reference: str, tags: Sequence[str], *, no_tag: bool) -> tuple[Target, ...]:
    """Where REF and -t say that an image goes.

    Raises:
        UsageError: one is no name, or REF has a tag and none is wanted.
    """
    from dataclasses import replace

    from envkit.cli.pushing import Target, parse_name
    from envkit.ground.errors import UsageError

    first = parse_name(reference, "REF")
    place = replace(first, tag=None)
    if no_tag:
        if ":" in reference.rpartition("/")[2]:
            raise UsageError(f"--no-tag sets no tag, and {reference!r:.200} has one", hint=f"--no-tag {place.place}")
        return (Target(place=place, names=()),)
    further = (parse_name(f"{place.place}:{tag}", f"-t {tag!r:.140}:") for tag in tags)
    return (Target(place=place, names=tuple(dict.fromkeys((first, *further)))),)


def _image(typed: str | None, resolved: Settings, state: Path) -> tuple[str, str | None]:
    """The image and, where known, the engine that has it."""
    from envkit.ground.state import read_last

    if typed is not None:
        engine = resolved.get("engine")
        return typed, engine if engine in ("docker", "buildkit", "podman") else None
    last = read_last(state)
    return last.image, last.engine


def _proof(source: Source, record: Path | None, state: Path) -> Proof:
    from envkit.verify.proof import find_proof, proof_in_file

    if record is not None:
        return proof_in_file(source.name, source.ids, record)
    return find_proof(source.name, source.ids, state)


def _publish(source: Source, sent: Sent, proof: Proof | None, out: str | None) -> int:
    """Write what was pushed, then say which tags did not move.

    Raises:
        EnvkitError: what kept the first of them.
    """
    from envkit.cli.tagging import tell_all

    if out is None:
        click.echo(sent.pushed.reference)
    write_document(document(source, sent, proof), out, done=f"the image itself is pushed: {sent.pushed.reference}")
    tell_all(sent.tags)
    return 0


def document(source: Source, sent: Sent, proof: Proof | None) -> dict[str, Any]:
    """What was pushed, as data."""
    return {
        "schema": SCHEMA,
        "image": source.name,
        **sent.to_json(),
        "proof": None
        if proof is None
        else {"record": str(proof.path), "verdict": proof.verdict, "started": proof.started, "machine": proof.machine},
    }
