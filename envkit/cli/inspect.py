"""`envkit inspect`: what is in an image, and where it was verified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli.options import load_settings, timeout_option
from envkit.cli.output import print_json
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.attest.inspection import Looked
    from envkit.attest.keyless import Identity
    from envkit.attest.keys import PublicKey

_HELP = """Show what is in IMAGE, which machines verified it, since when, and what was never verified.

IMAGE is HOST/NAME:TAG or HOST/NAME@DIGEST in a registry, or oci:DIR, which has only its labels.

With --key or --identity, only what they signed counts, and everything else that envkit attached is refused; without
them, signatures are shown but not checked.

Exit codes: 0 answered; 10 an attachment is damaged or, with --key, not signed by the key; 5 nothing that the key
signed is attached, or with --require proved no machine verified the image; 6 it failed there.
"""


@click.command("inspect", help=_HELP)
@click.argument("image")
@click.option(
    "--key", "key_files", multiple=True, type=click.Path(path_type=Path), metavar="PUB",
    help="Public key whose signatures count; repeatable.",
)  # fmt: skip
@click.option(
    "--identity", nargs=2, multiple=True, metavar="NAME ISSUER",
    help="Accepted sigstore signer: an e-mail or workflow address, and the URL of its provider.",
)  # fmt: skip
@click.option(
    "--require",
    type=click.Choice(["proved"]),
    help="Exit 5 or 6 unless a machine verified it; needs --key or --identity.",
)
@timeout_option()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema envkit.inspect/1).")
def command(
    *,
    image: str,
    key_files: tuple[Path, ...],
    identity: tuple[tuple[str, str], ...],
    require: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """See `_HELP`."""
    from datetime import UTC, datetime

    from envkit.attest.inspection import inspection
    from envkit.attest.keyless import Identity
    from envkit.attest.keyless import require as require_sigstore
    from envkit.attest.keys import read_public
    from envkit.attest.telling import lines
    from envkit.facts.load import load
    from envkit.pipeline.deadline import Deadline

    if require is not None and not key_files and not identity:
        raise UsageError("--require proved needs --key or --identity", hint="--key FILE.pub --require proved")
    keys = [read_public(path) for path in key_files]
    identities = [Identity(name, issuer) for name, issuer in identity]
    if identities:
        require_sigstore()
    with Deadline(timeout, lambda: f"reading {image}").holds():
        looked = _look(image, keys, identities)
    found = inspection(looked, [*(key.id for key in keys), *map(str, identities)])
    if as_json:
        print_json(found.to_json(), ascii_only=True)
    else:
        click.echo("\n".join(lines(found, load().gpus, datetime.now(UTC))).rstrip())
    failure = found.failure(require_proved=require is not None)
    if failure is not None:
        raise failure


def _look(image: str, keys: Sequence[PublicKey], identities: Sequence[Identity]) -> Looked:
    from envkit.attest.access import Access
    from envkit.attest.attached import read_attached
    from envkit.attest.inspection import Looked
    from envkit.attest.subject import find_subject, labels_of
    from envkit.build.host_environment import ca_file
    from envkit.image.opening import is_registry
    from envkit.image.reference import is_file_reference, parse_reference
    from envkit.registry.registry import Registry
    from envkit.registry.transport import Transport

    ca_bundle = ca_file(load_settings().mirrors())
    if is_registry(image) and not is_file_reference(image):
        reference = parse_reference(image.removeprefix("registry:"))
        with Transport(ca_bundle=ca_bundle) as transport:
            registry = Registry.of(reference, transport)
            subject = find_subject(reference, registry)
            return Looked(
                name=str(reference),
                digest=subject.digest,
                id=subject.id,
                config=subject.config,
                labels=subject.labels,
                layer_sizes=subject.layer_sizes,
                attached=read_attached(subject, registry, keys, identities),
            )
    opened = Access(ca_bundle=ca_bundle).open(image)
    if opened is None:
        raise UsageError(
            f"{image!r:.200} is neither HOST/NAME:TAG in a registry nor oci:DIR",
            hint="attestations are stored in the registry: envkit push HOST/NAME:TAG",
        )
    return Looked(
        name=image,
        digest=opened.digest,
        id=opened.id,
        config=opened.config,
        labels=labels_of(opened.config),
        layer_sizes=tuple(one.descriptor.size for one in opened.layers),
        attached=None,
    )
