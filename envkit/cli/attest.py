"""`envkit attest`: attach to an image what it holds, how it was made and where it was proved, signed with a key."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli.limit import Limit, limit_option

if TYPE_CHECKING:
    from envkit.attest.keys import PrivateKey
    from envkit.attest.making import Result
    from envkit.attest.subject import Subject

_HELP = """Attach to IMAGE, in its registry, what it holds, how it was made, and where it was proved.

\b
envkit attest --new-key team.key                            make a pair: team.key and team.key.pub
envkit attest HOST/NAME:TAG --record r.json --key team.key  sign and attach; again on each machine
envkit inspect HOST/NAME:TAG --key team.key.pub             what was attached, and by whom

IMAGE is HOST/NAME:TAG or HOST/NAME@DIGEST. Attached are a bill of materials (CycloneDX), the provenance (SLSA), and
each record of `envkit verify --json`, which has to be about this image.

Exit codes: 0 attached, 4 no lock, 8 the registry refuses, 10 a record, plan or lock is of another image.
"""


@click.command("attest", help=_HELP)
@click.argument("image", required=False)
@click.option(
    "--record", "records", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Record of a verification; may be repeated.",
)  # fmt: skip
@click.option("--key", "key_file", type=click.Path(path_type=Path), metavar="FILE", help="Private key that signs.")
@click.option("--keyless", is_flag=True, help="Sign by sigstore, as who you are for an identity provider.")
@click.option("--unsigned", is_flag=True, help="Attach without a signature: anybody could have said it.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="Plan of the image.")
@click.option("--lock", "lock_file", type=click.Path(path_type=Path), metavar="FILE", help="Lock of the image.")
@click.option("--new-key", type=click.Path(path_type=Path), metavar="FILE", help="Make a pair of keys and stop.")
@click.option(
    "--passphrase-file", type=click.Path(path_type=Path), metavar="FILE",
    help="First line: passphrase of the private key. Default: asked for where one is needed; new keys get none.",
)  # fmt: skip
@limit_option()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema envkit.attest/1).")
@click.option(
    "--progress", type=click.Choice(["auto", "plain", "quiet", "json"]), default="auto", help="Talk on stderr."
)
def command(
    *,
    image: str | None,
    records: tuple[Path, ...],
    key_file: Path | None,
    keyless: bool,
    unsigned: bool,
    plan_file: Path | None,
    lock_file: Path | None,
    new_key: Path | None,
    passphrase_file: Path | None,
    timeout: float | None,
    as_json: bool,
    progress: str,
) -> None:
    """See `_HELP`."""
    from envkit.attest.keyless import Keyless
    from envkit.attest.making import Sources, attest
    from envkit.attest.subject import find_subject
    from envkit.cli import choices, configured
    from envkit.cli.console import reporter
    from envkit.cli.phases import Phases
    from envkit.cli.pushing import authorities
    from envkit.ground import paths
    from envkit.ground.errors import UsageError
    from envkit.image.opening import is_registry
    from envkit.image.reference import is_file_reference, parse_reference
    from envkit.lock.store import read_lock
    from envkit.plan.store import read_plan
    from envkit.registry.registry import Registry
    from envkit.registry.transport import Transport
    from envkit.verify.again import read_record

    if new_key is not None:
        if image is not None or records or key_file is not None:
            raise UsageError("--new-key makes a pair and nothing else", hint=f"envkit attest --new-key {new_key}")
        _new_pair(new_key, passphrase_file, as_json=as_json)
        return
    if image is None:
        raise UsageError("which image?", hint="envkit attest HOST/NAME:TAG --record FILE --key FILE")
    reference = parse_reference(image.removeprefix("registry:"))
    if not is_registry(image) or is_file_reference(image):
        raise UsageError(
            f"{image!r:.200} names no registry, and a proof is attached where the image lies in one",
            hint="write HOST/NAME:TAG: registry.example.com/team/train:1.0",
        )
    if not records:
        raise UsageError(
            "which record?", hint=f"envkit verify registry:{image.removeprefix('registry:')} -o record.json"
        )
    choices.exclude(key=key_file, keyless=keyless, unsigned=unsigned)
    if not (key_file or keyless or unsigned):
        raise UsageError(
            "no key signs what is attached",
            hint="--key FILE (envkit attest --new-key FILE makes one), --keyless, or --unsigned",
        )
    read = tuple((str(path), read_record(path)) for path in records)
    key: PrivateKey | Keyless | None = Keyless() if keyless else None
    if key_file is not None:
        key = private_key(key_file, passphrase_file)
    sources = Sources(
        records=read,
        plan=None if plan_file is None else read_plan(plan_file),
        lock=None if lock_file is None else read_lock(lock_file),
        state=paths.state_dir(),
    )
    talk = Phases(reporter(progress))
    try:
        ca_bundle = authorities(configured.load(), talk)
        with Limit(timeout, lambda: talk.current).holds(), Transport(ca_bundle=ca_bundle) as transport:
            registry = Registry.of(reference, transport)
            subject = find_subject(reference, registry)
            result = attest(subject, registry, sources, key, talk, ca_bundle=ca_bundle)
    finally:
        talk.close()
    signer = None if key is None else str(key.identity) if isinstance(key, Keyless) else key.public.id
    _show(subject, result, signer, as_json=as_json)


def private_key(path: Path, passphrase_file: Path | None) -> PrivateKey:
    """The private key in a file; its passphrase is asked for where it needs one and a person is there.

    Raises:
        UsageError: there is no such key, or its passphrase is missing or wrong.
    """
    from envkit.attest.keys import PassphraseNeededError, read_private

    try:
        return read_private(path, _passphrase(passphrase_file))
    except PassphraseNeededError:
        if not sys.stdin.isatty():
            raise
        return read_private(path, click.prompt(f"Passphrase of {path}", hide_input=True, err=True).encode())


def _passphrase(path: Path | None) -> bytes | None:
    from envkit.ground.errors import UsageError

    if path is None:
        return None
    try:
        found = path.read_bytes().split(b"\n", 1)[0].rstrip(b"\r")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint="--passphrase-file FILE") from error
    if not found:
        raise UsageError(f"{path}: its first line is empty, and that is no passphrase", hint="write one into it")
    return found


def _new_pair(path: Path, passphrase_file: Path | None, *, as_json: bool) -> None:
    from envkit.attest.keys import new_pair

    public, key = new_pair(path, _passphrase(passphrase_file))
    if as_json:
        tree = {"schema": "envkit.key/1", "private": str(path), "public": str(public), "id": key.id, "kind": key.kind}
        click.echo(json.dumps(tree, indent=2))
        return
    click.echo(f"{path}      signs; keep it secret")
    click.echo(f"{public}  checks; give it to everybody")
    click.echo(f"key id {key.id}")


def _show(subject: Subject, result: Result, signer: str | None, *, as_json: bool) -> None:
    place = f"{subject.reference.place}@{subject.digest}"
    if as_json:
        tree = {
            "schema": "envkit.attest/1",
            "image": place,
            "id": subject.id,
            "signer": signer,
            "attached": [
                {"kind": one.kind, "digest": one.digest, "new": one.new, "listed_by": one.listed_by or None}
                for one in result.made
            ],
            "packages": dict(result.packages),
            "locked": result.locked,
            "absent": list(result.absent),
        }
        click.echo(json.dumps(tree, indent=2))
    else:
        click.echo(place)
        for one in result.made:
            what = {"registry": "attached", "tag": "attached, listed under a tag"}.get(one.listed_by, "there already")
            click.echo(f"  {one.kind:<10}  {one.digest}  {what}")
        click.echo(f"  signed by {signer}" if signer is not None else "  unsigned: anybody could have said it")
    if not result.locked:
        click.echo("note: the image was built without a lock, so its packages are listed without hashes", err=True)
    if result.absent:
        some = ", ".join(result.absent[:5]) + (", ..." if len(result.absent) > len(result.absent[:5]) else "")
        click.echo(f"note: the lock names {len(result.absent)} packages that the image lacks: {some}", err=True)
    if result.rpm:
        click.echo("note: packages of RPM are not listed", err=True)
