"""`envkit attest`: attach SBOM, provenance and verification records to an image, signed with a key."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.console import tell
from envkit.cli.declare import Section, argument, flag, new_command, option
from envkit.cli.image_names import PUBLISHED
from envkit.cli.options import (
    PATH,
    ProgressOptions,
    deadline_of,
    exclude,
    load_settings,
    progress_options,
    timeout_option,
)
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from envkit.attest.keyless import Keyless
    from envkit.attest.keys import PrivateKey
    from envkit.attest.making import Result, Sources
    from envkit.attest.subject import Subject
    from envkit.image.name import ImageName, Reference

_HELP = """Attach SBOM, provenance and verification records to IMAGE in its registry.

\b
envkit attest --new-key team.key                            create a key pair: team.key and team.key.pub
envkit attest HOST/NAME:TAG --record r.json --key team.key  sign and attach; repeat on each machine
envkit inspect HOST/NAME:TAG --key team.key.pub             show what was attached, and by whom

IMAGE is HOST/NAME:TAG or HOST/NAME@DIGEST. The SBOM is in CycloneDX format, the provenance in SLSA format. Records are
those of `envkit verify -o FILE` or --json, and must be of this image.

Exit codes: 0 attached, 4 no lock, 8 registry refused, 10 a record, plan or lock belongs to another image.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestFlags:
    """The options of `envkit attest`."""

    image: ImageName | None = argument(required=False, type=PUBLISHED, shell_complete=shell_values.pushed)
    records: tuple[Path, ...] = option(
        Section.INPUT, "--record FILE", multiple=True, type=PATH, help="Verification record; repeatable."
    )
    key_file: Path | None = option(Section.SIGNATURES, "--key FILE", type=PATH, help="Private key to sign with.")
    keyless: bool = flag(
        Section.SIGNATURES, "--keyless", help="Sign with sigstore, using your identity at an identity provider."
    )
    unsigned: bool = flag(Section.SIGNATURES, "--unsigned", help="Attach unsigned: anyone could have written it.")
    plan_file: Path | None = option(Section.INPUT, "--plan FILE", type=PATH, help="Plan of the image.")
    lock_file: Path | None = option(Section.INPUT, "--lock FILE", type=PATH, help="Lock of the image.")
    new_key: Path | None = option(Section.SIGNATURES, "--new-key FILE", type=PATH, help="Create a key pair and exit.")
    passphrase_file: Path | None = option(
        Section.SIGNATURES,
        "--passphrase-file FILE",
        type=PATH,
        help="File whose first line is the private key's passphrase. [prompt if needed; none for new keys]",
    )
    timeout: float | None = timeout_option()
    as_json: bool = flag(Section.OUTPUT, "--json", help="Print JSON (schema envkit.attest/1).")
    progress: ProgressOptions = progress_options()

    def reference(self) -> Reference:
        """Return the image, after checking that the other options make sense with it.

        Raises:
            UsageError: the image, the records or the key are missing or invalid.
        """
        from envkit.image.name import InEngine, InRegistry, parse_reference

        name = self.image
        if name is None:
            raise UsageError("missing IMAGE", hint="envkit attest HOST/NAME:TAG --record FILE --key FILE")
        if isinstance(name, InEngine):
            parse_reference(name.name)  # what is not valid in any registry is refused as that
        if not isinstance(name, InRegistry):
            raise UsageError(
                f"{name.typed!r:.200} is not in a registry, and attestations are stored in the registry of the image",
                hint="write HOST/NAME:TAG: registry.example.com/team/train:1.0",
            )
        if not self.records:
            raise UsageError("missing --record", hint=f"envkit verify registry:{name.name} -o record.json")
        exclude(key=self.key_file, keyless=self.keyless, unsigned=self.unsigned)
        if not (self.key_file or self.keyless or self.unsigned):
            raise UsageError(
                "missing --key",
                hint="--key FILE (envkit attest --new-key FILE creates one), --keyless, or --unsigned",
            )
        return name.reference

    def sources(self) -> Sources:
        """Read the records, the plan and the lock.

        Raises:
            UsageError: a file cannot be read.
        """
        from envkit.attest.making import Sources
        from envkit.ground.paths import state_dir
        from envkit.lock.store import read_lock
        from envkit.plan.store import read_plan
        from envkit.verify.again import read_record

        return Sources(
            records=tuple((str(path), read_record(path)) for path in self.records),
            plan=None if self.plan_file is None else read_plan(self.plan_file),
            lock=None if self.lock_file is None else read_lock(self.lock_file),
            state=state_dir(),
        )


@new_command("attest", AttestFlags, help=_HELP)
def command(flags: AttestFlags) -> None:
    """See `_HELP`."""
    from envkit.attest.keyless import Keyless
    from envkit.attest.making import attest
    from envkit.attest.subject import find_subject
    from envkit.engines.host_environment import ca_file
    from envkit.registry.registry import Registry
    from envkit.registry.transport import Transport

    if flags.new_key is not None:
        if flags.image is not None or flags.records or flags.key_file is not None:
            hint = f"envkit attest --new-key {flags.new_key}"
            raise UsageError("--new-key only creates a key pair; leave out the other options", hint=hint)
        _new_pair(flags.new_key, flags.passphrase_file, as_json=flags.as_json)
        return
    reference, sources = flags.reference(), flags.sources()
    key: PrivateKey | Keyless | None = Keyless() if flags.keyless else None
    if flags.key_file is not None:
        key = private_key(flags.key_file, flags.passphrase_file)
    with closing(flags.progress.reporter()) as reporter:
        deadline = deadline_of(flags.timeout, reporter)
        ca_bundle = ca_file(load_settings().mirrors(), reporter)
        with deadline.holds(), Transport(ca_bundle=ca_bundle) as transport:
            registry = Registry.of(reference, transport)
            subject = find_subject(reference, registry)
            result = attest(subject, registry, sources, key, reporter, ca_bundle=ca_bundle)
    signer = None if key is None else str(key.identity) if isinstance(key, Keyless) else key.public.id
    _show(subject, result, signer, as_json=flags.as_json)


def private_key(path: Path, passphrase_file: Path | None) -> PrivateKey:
    """Return the private key in a file; prompt for its passphrase if it needs one and stdin is a terminal.

    Raises:
        UsageError: the key does not exist, or its passphrase is missing or wrong.
    """
    from envkit.attest.keys import PassphraseNeededError, read_private

    try:
        return read_private(path, _passphrase(passphrase_file))
    except PassphraseNeededError:
        if not sys.stdin.isatty():
            raise
        return read_private(path, click.prompt(f"Passphrase of {path}", hide_input=True, err=True).encode())


def _passphrase(path: Path | None) -> bytes | None:
    if path is None:
        return None
    from envkit.ground import foreign

    data = foreign.read(path, hint="--passphrase-file FILE")
    passphrase = data.split(b"\n", 1)[0].rstrip(b"\r")  # an editor may end the line with CRLF
    if not passphrase:
        raise UsageError(f"{path}: the first line is empty", hint="write the passphrase on the first line")
    return passphrase


def _new_pair(path: Path, passphrase_file: Path | None, *, as_json: bool) -> None:
    from envkit.attest.keys import new_pair

    public, key = new_pair(path, _passphrase(passphrase_file))
    if as_json:
        tree = {"schema": "envkit.key/1", "private": str(path), "public": str(public), "id": key.id, "kind": key.kind}
        click.echo(json.dumps(tree, indent=2))
        return
    click.echo(f"{path}      private key; keep it secret")
    click.echo(f"{public}  public key; publish it")
    click.echo(f"key id {key.id}")


def _show(subject: Subject, result: Result, signer: str | None, *, as_json: bool) -> None:
    image = f"{subject.reference.place}@{subject.digest}"
    if as_json:
        tree = {
            "schema": "envkit.attest/1",
            "image": image,
            "id": subject.id,
            "signer": signer,
            "attached": [
                {
                    "kind": attachment.kind,
                    "digest": attachment.digest,
                    "new": attachment.new,
                    "listed_by": attachment.listed_by or None,
                }
                for attachment in result.made
            ],
            "packages": dict(result.packages),
            "locked": result.locked,
            "absent": list(result.absent),
        }
        click.echo(json.dumps(tree, indent=2))
    else:
        click.echo(image)
        for attachment in result.made:
            what = {"registry": "attached", "tag": "attached, listed under a tag"}.get(
                attachment.listed_by, "already there"
            )
            click.echo(f"  {attachment.kind:<10}  {attachment.digest}  {what}")
        click.echo(f"  signed by {signer}" if signer is not None else "  unsigned: anyone could have written it")
    if not result.locked:
        tell("note: the image was built without a lock, so packages are listed without hashes")
    if result.absent:
        names = ", ".join(result.absent[:5]) + (", ..." if len(result.absent) > len(result.absent[:5]) else "")
        tell(f"note: the lock contains {len(result.absent)} packages that are not in the image: {names}")
    if result.rpm:
        tell("note: RPM packages are not listed, because their database cannot be read")
