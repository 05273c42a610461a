"""`envkit inspect`: what is in an image, and where it was verified."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, flag, new_command, option
from envkit.cli.image_names import PUBLISHED
from envkit.cli.options import (
    PATH,
    ProgressOptions,
    deadline_of,
    engine_option,
    load_settings,
    progress_options,
    timeout_option,
)
from envkit.cli.output import page_option, print_json, write_document
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.attest.access import Access
    from envkit.attest.inspection import InspectedImage
    from envkit.attest.keyless import Identity
    from envkit.attest.keys import PublicKey
    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName, Reference

_HELP = """Show what is in IMAGE, where and when it was verified, and what was never verified.

IMAGE is HOST/NAME:TAG or HOST/NAME@DIGEST in a registry, oci:DIR, docker-archive:FILE, or a name in an engine. The
records of this machine are shown, and in a registry those that are attached. Files are read without a network, and
nothing is run.

\b
envkit inspect oci:build/image                  summary: CUDA stack, packages, largest layers, user, labels
envkit inspect oci:build/image --packages       every conda, Python, Debian and RPM package
envkit inspect docker-archive:image.tar --layers --licenses

With --key or --identity, only attachments that they signed count, and any other attachment of envkit is an error.
Without them, signatures are shown but not checked.

Exit codes: 0 success; 2 not an image; 5 nothing signed by the key is attached, or with --require proved, the image was
not verified; 6 with --require proved, verification failed; 8 no such image; 9 no engine or registry responds; 10 the
image or an attachment is damaged, or with --key, not signed by the key.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectFlags:
    """The options of `envkit inspect`."""

    image: ImageName = argument(type=PUBLISHED, shell_complete=shell_values.images)
    packages: bool = flag(Section.OUTPUT, "--packages", help="List every package, from all layers.")
    layers: bool = flag(Section.OUTPUT, "--layers", help="List all layers, largest first.")
    licenses: bool = flag(Section.OUTPUT, "--licenses", help="List packages by license, from all layers.")
    key_files: tuple[Path, ...] = option(
        Section.SIGNATURES, "--key PUB", multiple=True, type=PATH, help="Public key of an accepted signer; repeatable."
    )
    identity: tuple[tuple[str, str], ...] = option(
        Section.SIGNATURES,
        "--identity NAME ISSUER",
        nargs=2,
        multiple=True,
        help="Accepted sigstore signer: an email or workflow address, and the URL of its identity provider.",
    )
    require: str | None = option(
        Section.SIGNATURES,
        "--require",
        type=click.Choice(["proved"]),
        help="Exit 5 or 6 unless IMAGE was verified; needs --key or --identity.",
    )
    runner: str = engine_option()
    timeout: float | None = timeout_option()
    page: Path | None = page_option("Write an HTML page with layers, packages and verifications.")
    as_json: bool = flag(Section.OUTPUT, "--json", help="Print JSON (schema envkit.inspect/1).")
    progress: ProgressOptions = progress_options()

    @property
    def lists(self) -> bool:
        """Whether lists are printed instead of the summary."""
        return self.packages or self.layers or self.licenses


@new_command("inspect", InspectFlags, help=_HELP)
def command(flags: InspectFlags) -> None:
    """See `_HELP`."""
    from datetime import UTC, datetime

    from envkit.attest.inspection import inspection
    from envkit.attest.keyless import Identity
    from envkit.attest.keyless import require as require_sigstore
    from envkit.attest.keys import read_public
    from envkit.attest.text import lines, listed
    from envkit.attest.verification import verification_of
    from envkit.facts.load import load
    from envkit.ground.paths import state_dir
    from envkit.verify.verified import recorded_here

    if flags.require is not None and not flags.key_files and not flags.identity:
        raise UsageError("--require proved needs --key or --identity", hint="--key FILE.pub --require proved")
    keys = [read_public(path) for path in flags.key_files]
    identities = [Identity(name, issuer) for name, issuer in flags.identity]
    if identities:
        require_sigstore()
    with closing(flags.progress.reporter()) as reporter, deadline_of(flags.timeout, reporter).holds():
        looked = _with_lists(_look(flags, keys, identities, reporter), flags, reporter)
    here = tuple(map(verification_of, recorded_here({looked.id, str(looked.digest)}, state_dir())))
    inspected = inspection(looked, [*(key.id for key in keys), *map(str, identities)], here)
    if flags.as_json:
        print_json(inspected.to_json(), ascii_only=True)
    elif flags.lists and looked.listing is not None:
        text_lines = listed(looked.listing, packages=flags.packages, layers=flags.layers, licenses=flags.licenses)
        _show(list(text_lines))
    else:
        _show(lines(inspected, load().gpus, datetime.now(UTC)))
    if flags.page is not None:
        from envkit.report.html.image import render_html

        write_document(render_html(inspected.to_json()), str(flags.page), done="the image was read")
    failure = inspected.failure(require_verified=flags.require is not None)
    if failure is not None:
        raise failure


def _show(lines: Sequence[str]) -> None:
    from envkit.cli.console import show

    for line in "\n".join(lines).rstrip().split("\n"):
        show(line)


def _look(
    flags: InspectFlags, keys: Sequence[PublicKey], identities: Sequence[Identity], reporter: Reporter
) -> InspectedImage:
    from envkit.attest.inspection import InspectedImage
    from envkit.attest.reading import read_content
    from envkit.image.name import InEngine, InRegistry

    name = flags.image
    if isinstance(name, InRegistry):
        return in_registry(name.reference, keys, identities, reporter)
    if isinstance(name, InEngine):
        _check_prefix(name.name)
    content = read_content(name, _access(flags, reporter))
    sizes = [layer.size for layer in content.layers or ()]
    return InspectedImage(
        name=name.typed,
        digest=content.digest,
        id=content.id or "",
        config=content.config,
        labels=content.labels,
        layer_sizes=None if None in sizes else tuple(size for size in sizes if size is not None),
        attached=None,
        content=content,
    )


def in_registry(
    reference: Reference, keys: Sequence[PublicKey], identities: Sequence[Identity], reporter: Reporter
) -> InspectedImage:
    """Return what a registry has of an image: its configuration, and the attached documents."""
    from envkit.attest.attached import read_attached
    from envkit.attest.content import Content
    from envkit.attest.inspection import InspectedImage
    from envkit.attest.reading import settings_of
    from envkit.attest.subject import find_subject
    from envkit.engines.host_environment import ca_file
    from envkit.image.name import REGISTRY
    from envkit.registry.registry import Registry
    from envkit.registry.transport import Transport

    with Transport(ca_bundle=ca_file(load_settings().mirrors(), reporter)) as transport:
        registry = Registry.of(reference, transport)
        subject = find_subject(reference, registry)
        return InspectedImage(
            name=str(reference),
            digest=subject.digest,
            id=subject.id,
            config=subject.config,
            labels=subject.labels,
            layer_sizes=subject.layer_sizes,
            attached=read_attached(subject, registry, keys, identities),
            content=Content(name=str(reference), kind=REGISTRY, **settings_of(subject.config.get("config") or {})),
        )


def _with_lists(looked: InspectedImage, flags: InspectFlags, reporter: Reporter) -> InspectedImage:
    """Add the lists that the options request."""
    from envkit.attest.listing import read_listing

    if not flags.lists and flags.page is None:
        return looked
    packages = flags.packages or flags.licenses or flags.page is not None
    listing = read_listing(flags.image, _access(flags, reporter), looked.content, packages=packages)
    return replace(looked, listing=listing)


def _access(flags: InspectFlags, reporter: Reporter) -> Access:
    from envkit.attest.access import Access
    from envkit.engines.host_environment import ca_file
    from envkit.ground.paths import state_dir

    ca_bundle = ca_file(load_settings().mirrors(), reporter)
    return Access(runner=flags.runner, ca_bundle=ca_bundle, state=state_dir(), reporter=reporter)


def _check_prefix(image: str) -> None:
    """Refuse an empty name, and a path without the prefix `oci:` or `docker-archive:`.

    Raises:
        UsageError: the name is one of these.
    """
    if not image.strip():
        raise UsageError("the image name is empty", hint="envkit inspect oci:DIR")
    if ("/" in image or image.endswith(".tar")) and Path(image).exists():
        kind = "oci" if Path(image).is_dir() else "docker-archive"
        raise UsageError(
            f"{image!r:.200} is a path without a prefix for the kind of image",
            hint=f"envkit inspect {kind}:{image}",
        )
