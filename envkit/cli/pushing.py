"""An image into registries: every blob by digest, then the tags. For `envkit push` and `envkit build --push`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from envkit.cli.tagging import Tagging

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.image.reference import Reference
    from envkit.registry.push import Pushed
    from envkit.registry.registry import Registry
    from envkit.registry.transport import Transport
    from envkit.run.source import Source

_EXAMPLE = "registry.example.com/team/train:1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A repository, and the names that the image is to have there; none = it is known by its digest alone."""

    place: Reference  # without tag and digest
    names: tuple[Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one target."""

    id: str  # of the image: its configuration's digest
    pushed: Pushed
    tags: tuple[Tagging, ...]

    def to_json(self) -> dict[str, Any]:
        """As documents have it; sizes in bytes."""
        return {
            "id": self.id,
            "reference": self.pushed.reference,
            "digest": self.pushed.digest,
            "sent_bytes": self.pushed.sent,
            "mounted_bytes": self.pushed.mounted,
            "present_bytes": self.pushed.present,
            "tags": [{"tag": one.tag, "tagged": one.why_not is None, "why": one.why_not} for one in self.tags],
        }


def authorities(resolved: Settings, reporter: Reporter) -> str | None:
    """The PEM file that the settings or this machine's other clients trust; None = what the system trusts.

    Raises:
        UsageError: it cannot be read.
    """
    from envkit.build import host_environment

    mirrors, _ = host_environment.certificates(resolved.mirrors(), os.environ, reporter)
    return mirrors.ca_bundle


def transport_of(resolved: Settings, reporter: Reporter) -> Transport:
    """Connections that trust those `authorities`.

    Raises:
        UsageError: the file of certificates cannot be read.
    """
    from envkit.registry.transport import Transport

    return Transport(ca_bundle=authorities(resolved, reporter))


def parse_name(text: str, what: str) -> Reference:
    """A name that says its registry, so that nobody's image goes to a public one by an omission.

    Raises:
        UsageError: it is no image's name, names no registry, or a digest; `what` begins the message.
    """
    from envkit.ground.errors import UsageError
    from envkit.image.reference import names_registry, parse_reference

    if not names_registry(text):
        raise UsageError(f"{what} {text!r:.200} names no registry", hint=f"write HOST/NAME:TAG: {_EXAMPLE}")
    found = parse_reference(text, what=f"{what} {text!r:.200}")
    if found.digest is not None:
        raise UsageError(
            f"{what} {text!r:.200} names a digest, which only the image itself decides",
            hint=f"{found.place}:TAG, or --no-tag {found.place}",
        )
    return found


def targets(names: Sequence[Reference]) -> tuple[Target, ...]:
    """The names by repository, in the order in which they were typed."""
    found: dict[Reference, list[Reference]] = {}
    for name in names:
        found.setdefault(replace(name, tag=None), []).append(name)
    return tuple(Target(place=place, names=tuple(dict.fromkeys(tags))) for place, tags in found.items())


def look(
    wanted: Sequence[Target], labels: dict[str, str], transport: Transport, reporter: Reporter, *, replace_tag: bool
) -> bool:
    """See before anything long begins that the registries take the image; gives whether all its names are free.

    Args:
        wanted: where to.
        labels: of the image, as far as they are known: a name whose image has other ones is somebody else's.
        transport: connections.
        reporter: hears of it.
        replace_tag: names may be other images'.

    Raises:
        EngineError: a registry refuses, or a name is another image's.
        EnvironmentProblem: a registry cannot be reached.
    """
    from envkit.registry.registry import Registry
    from envkit.registry.tagging import check_target

    free = True
    for one in wanted:
        registry = Registry.of(one.place, transport)
        reporter.step(f"look at {one.place.place}")
        if not one.names:
            registry.try_upload(one.place.repository)
        for name in one.names:
            free &= check_target(name, labels, registry, replace_tag=replace_tag)
    return free


def send(
    source: Source,
    wanted: Sequence[Target],
    transport: Transport,
    reporter: Reporter,
    *,
    replace_tag: bool,
    ahead: bool,
    mount_from: Sequence[str] = (),
) -> Iterator[Sent]:
    """Send an image to each target and prove it there, then set its tags.

    Args:
        source: the image.
        wanted: where to.
        transport: connections.
        reporter: hears of the work.
        replace_tag: names may be other images'.
        ahead: layers may be sent while others are still being compressed (`look` says so).
        mount_from: repositories of the first target's registry whose blobs may be taken over.

    Raises:
        EngineError: a registry refuses.
        IntegrityError: bytes are not what was promised, here or there.
        EnvironmentProblem: a registry or engine does not answer, or the disk is full.
    """
    from envkit.registry.push import Pusher
    from envkit.registry.registry import Registry
    from envkit.registry.tagging import check_tag

    image, known = None, [(wanted[0].place.registry, repository) for repository in mount_from]
    for one in wanted:
        registry = Registry.of(one.place, transport)
        first = one.names[0] if one.names else one.place
        pusher = Pusher(
            first,
            registry,
            sources=tuple(repository for host, repository in known if host == one.place.registry),
            replace_tag=replace_tag or not one.names,
            ahead=ahead,
            fetch=source.fetch,
        )
        with pusher:
            image = image or source.read(pusher.offer)
            for name in one.names[1:]:
                check_tag(name, image.digest, registry, replace_tag=replace_tag)
            pushed = pusher.finish(image, reporter)
        reporter.note(f"pushed {pushed.reference}: {_told(pushed)}")
        known.append((one.place.registry, one.place.repository))
        tags = tuple(
            set_tag(name, pushed.reference, pushed.digest, registry, reporter, replace_tag=replace_tag)
            for name in one.names
        )
        yield Sent(id=image.id, pushed=pushed, tags=tags)


def set_tag(
    name: Reference, reference: str, digest: str, registry: Registry, reporter: Reporter, *, replace_tag: bool
) -> Tagging:
    """Set a tag to an image that its registry holds; a refusal is kept, so that the others are set all the same."""
    from envkit.ground.errors import EnvkitError
    from envkit.registry.tagging import move_tag

    try:
        move_tag(name, digest, registry, replace_tag=replace_tag)
    except EnvkitError as error:
        return Tagging(image=reference, tag=str(name), why_not=error.message, hint=error.hint, error=error)
    reporter.note(f"tagged {name}: {reference}")
    return Tagging(image=reference, tag=str(name))


def _told(pushed: Pushed) -> str:
    sizes = {"sent": pushed.sent, "taken over": pushed.mounted, "there already": pushed.present}
    return ", ".join(f"{size / 1e6:.1f} MB {what}" for what, size in sizes.items() if size or what == "sent")
