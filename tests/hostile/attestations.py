"""Hostile attestations: what is attached to an image in a registry, judged by `envkit inspect --key`."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from envkit.attest import dsse
from envkit.attest.attached import ARTIFACT
from envkit.attest.statement import PROVENANCE, SBOM, TYPE, VERIFY
from envkit.image import spec
from envkit.registry.referrers import EMPTY
from tests.engines.lying_registry import PLACE, Liar
from tests.hostile.archives import archive
from tests.hostile.registries import holding
from tests.support.attestations import key

refused = partial(archive, "attestations", code=10, says=("team/train:1",))
accepted = partial(archive, "attestations", gives=("team/train:1",))
NOTE = "https://example.com/note/v1"


class Image:
    """A sound image, a key that is trusted, and what a case attaches."""

    def __init__(self, folder: Path, labels: dict[str, str] | None = None) -> None:
        self.there: Liar = holding(labels)
        self.digest = spec.sha256(self.there.answers[f"{PLACE}/manifests/1"][2])
        self.key = key(folder)
        self.rows: list[Any] = []

    def statement(self, kind: str = NOTE, predicate: Any = None, **changed: Any) -> bytes:
        """A statement about the image, with further or other members."""
        subject = [{"name": "x", "digest": {"sha256": self.digest.removeprefix("sha256:")}}]
        tree = {"_type": TYPE, "subject": subject, "predicateType": kind, "predicate": predicate or {}}
        return json.dumps(tree | changed).encode()

    def sealed(self, payload: bytes | None = None, /, **changed: Any) -> bytes:
        """The envelope of a statement, signed by the trusted key, with other members."""
        tree = json.loads(dsse.seal(self.statement() if payload is None else payload, self.key))
        return json.dumps(tree | changed).encode()

    def attach(self, document: bytes, media_type: str = dsse.MEDIA_TYPE, **changed: Any) -> None:
        """Attach a document; `changed` are members of its manifest."""
        row = self.there.blob(document) | {"mediaType": media_type}
        tree = {"artifactType": ARTIFACT, "config": self.there.blob(b"{}") | {"mediaType": EMPTY}, "layers": [row]}
        data = spec.canonical({"schemaVersion": 2, "subject": {"digest": self.digest}, **tree, **changed})
        self.there.has(spec.sha256(data), data)
        self.rows.append({"digest": spec.sha256(data), "size": len(data)})

    def run(self) -> list[str]:
        """List what is attached; gives the command that judges it."""
        self.there.lists(self.digest, self.rows)
        return ["inspect", self.there.image, "--key", "team.key.pub"]


def attached(folder: Path, document: bytes, media_type: str = dsse.MEDIA_TYPE) -> list[str]:
    """One document that a case made without the image."""
    image = Image(folder)
    image.attach(document, media_type)
    return image.run()


@accepted()
def ok_signed(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed())
    return image.run()


@accepted()
def ok_signed_with_unknown_fields(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(more=1))
    return image.run()


@accepted()
def ok_signed_by_two(folder: Path) -> list[str]:
    image = Image(folder)
    (folder / "other").mkdir()
    payload = image.statement()
    other = json.loads(dsse.seal(payload, key(folder / "other")))["signatures"]
    image.attach(image.sealed(payload, signatures=[*other, *json.loads(image.sealed(payload))["signatures"]]))
    return image.run()


@accepted()
def ok_beside_another_tools_document(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed())
    image.attach(b"anything", artifactType="application/vnd.example+json")
    return image.run()


@refused(code=5)
def nothing_attached(folder: Path) -> list[str]:
    return Image(folder).run()


@refused(says=("is not signed",))
def an_unsigned_bill_of_materials(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.statement(SBOM), dsse.IN_TOTO)
    return image.run()


@refused(says=("key",))
def a_bill_of_materials_signed_by_a_stranger(folder: Path) -> list[str]:
    image = Image(folder)
    (folder / "other").mkdir()
    image.attach(dsse.seal(image.statement(SBOM), key(folder / "other")))
    return image.run()


@refused(code=5, says=("none of 1 attached document is signed by a given key",))
def an_unsigned_note_of_another_tool(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.statement(), dsse.IN_TOTO)
    return image.run()


@refused(says=("does not match",))
def other_words_than_signed(folder: Path) -> list[str]:
    image = Image(folder)
    other = json.loads(image.sealed(image.statement(VERIFY)))["payload"]
    image.attach(image.sealed(payload=other))
    return image.run()


@refused(says=("about",))
def signed_for_another_image(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(image.statement(subject=[{"digest": {"sha256": "a" * 64}}])))
    return image.run()


@refused(says=("about",))
def signed_for_this_image_and_others(folder: Path) -> list[str]:
    image = Image(folder)
    rows = [{"digest": {"sha256": one}} for one in (image.digest.removeprefix("sha256:"), "a" * 64)]
    image.attach(image.sealed(image.statement(subject=rows)))
    return image.run()


@refused(says=("another image",))
def attached_to_another_image(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(), subject={"digest": f"sha256:{'a' * 64}"})
    return image.run()


@refused(says=("not JSON",))
def an_envelope_that_is_no_json(folder: Path) -> list[str]:
    return attached(folder, b"<html>")


@refused(says=("not JSON",))
def an_envelope_of_100_000_brackets(folder: Path) -> list[str]:
    return attached(folder, b"[" * 100_000)


@refused(says=("not JSON",))
def an_envelope_with_a_key_twice(folder: Path) -> list[str]:
    return attached(folder, b'{"payload": "", "payload": "", "payloadType": "", "signatures": []}')


@refused(says=("lacks a field",))
def an_envelope_without_a_payload(folder: Path) -> list[str]:
    image = Image(folder)
    tree = json.loads(image.sealed())
    del tree["payload"]
    image.attach(json.dumps(tree).encode())
    return image.run()


@refused(says=("no signature",))
def an_envelope_without_a_signature(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(signatures=[]))
    return image.run()


@refused(says=("too many",))
def an_envelope_of_10_000_signatures(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(signatures=json.loads(image.sealed())["signatures"] * 10_000))
    return image.run()


@refused(says=("damaged signature",))
def a_signature_that_is_a_number(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(signatures=[7]))
    return image.run()


@refused(says=("base64",))
def a_payload_that_is_not_base64(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(payload="!!!!"))
    return image.run()


@refused(says=("base64",))
def a_payload_that_is_null(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(payload=None))
    return image.run()


@refused(says=("envelope contains",))
def a_payload_of_another_type(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(payloadType="text/\x1b[2J"))
    return image.run()


@refused(says=("statement",))
def signed_words_that_are_no_statement(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(b"[1]"))
    return image.run()


@refused(says=("verification",))
def a_signed_record_that_is_empty(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(image.statement(VERIFY)))
    return image.run()


@refused(says=("no list of components",))
def a_signed_bill_of_a_number(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(image.statement(SBOM, {"components": 7})))
    return image.run()


@accepted()
def ok_a_signed_provenance_of_lists(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(image.statement(PROVENANCE, {"buildDefinition": {"externalParameters": []}})))
    return image.run()


@refused(says=("provenance",))
def a_signed_provenance_of_another_plan(folder: Path) -> list[str]:
    image = Image(folder, {"envkit.plan": f"sha256:{'1' * 64}"})
    outer = {"planDigest": "\x1b[2J"}
    image.attach(image.sealed(image.statement(PROVENANCE, {"buildDefinition": {"externalParameters": outer}})))
    return image.run()


@refused(says=("not an attestation",))
def a_document_of_another_type(folder: Path) -> list[str]:
    return attached(folder, b"{}", "text/html")


@refused(says=("has no document",))
def a_manifest_without_a_document(folder: Path) -> list[str]:
    image = Image(folder)
    image.attach(image.sealed(), layers=[])
    return image.run()


@refused(says=("other bytes",))
def a_document_of_other_bytes(folder: Path) -> list[str]:
    image = Image(folder)
    sealed = image.sealed()
    image.attach(sealed)
    image.there.blob(b"x" * len(sealed), spec.sha256(sealed))
    return image.run()


@refused(says=("does not have it",))
def a_document_that_is_listed_and_not_there(folder: Path) -> list[str]:
    image = Image(folder)
    image.rows.append({"digest": f"sha256:{'a' * 64}", "size": 2})
    return image.run()


@refused(says=("is not a valid descriptor",))
def a_listed_digest_that_is_a_path(folder: Path) -> list[str]:
    image = Image(folder)
    image.rows.append({"digest": "sha256:../../etc/passwd", "size": 2})
    return image.run()


@refused(code=8, says=("1001 attached documents",))
def a_list_of_1001(folder: Path) -> list[str]:
    image = Image(folder)
    image.rows = [{"digest": f"sha256:{'a' * 64}", "size": 2}] * 1001
    return image.run()


@refused(code=2, says=("team.key.pub",))
def a_key_that_is_none(folder: Path) -> list[str]:
    image = Image(folder)
    (folder / "team.key.pub").write_bytes(b"\x00" * 100)
    return image.run()
