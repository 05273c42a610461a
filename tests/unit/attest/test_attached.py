import json

import pytest

from envkit.attest import dsse
from envkit.attest.attached import ARTIFACT, Status, artifact, check_document
from envkit.attest.keys import PrivateKey
from envkit.attest.provenance import provenance
from envkit.attest.statement import PROVENANCE, SBOM, VERIFY, statement_bytes
from envkit.attest.subject import Subject
from envkit.ground.errors import IntegrityError
from tests.support.attestations import key, record, subject
from tests.support.plans import shipped_plan

DIGEST = f"sha256:{'e' * 64}"


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return key(tmp_path_factory.mktemp("keys"))


def said(of: Subject | None = None) -> bytes:
    return statement_bytes(of or subject(), VERIFY, record())


def test_a_signature_by_a_given_key_is_valid(team: PrivateKey, stranger: PrivateKey) -> None:
    sealed = dsse.seal(said(), team)
    found = check_document(DIGEST, dsse.MEDIA_TYPE, sealed, subject(), [stranger.public, team.public])
    assert (found.status, found.kind, found.keyid) == (Status.VALID, "verify", team.public.id)
    assert found.payload == said()


def test_a_signature_by_another_key_is_told_with_the_key_it_names(team: PrivateKey, stranger: PrivateKey) -> None:
    sealed = dsse.seal(said(), stranger)
    for keys in ([], [team.public]):
        found = check_document(DIGEST, dsse.MEDIA_TYPE, sealed, subject(), keys)
        assert (found.status, found.keyid) == (Status.UNKNOWN_KEY, stranger.public.id)


def test_a_bare_statement_is_unsigned(team: PrivateKey) -> None:
    found = check_document(DIGEST, dsse.IN_TOTO, said(), subject(), [team.public])
    assert (found.status, found.keyid) == (Status.UNSIGNED, None)


def test_a_statement_of_another_kind_keeps_its_type() -> None:
    payload = statement_bytes(subject(), "https://example.com/note/v1", {"a": 1})
    assert check_document(DIGEST, dsse.IN_TOTO, payload, subject(), []).kind == "https://example.com/note/v1"


def test_what_is_broken_is_refused_whoever_signed_it(team: PrivateKey) -> None:
    edited = {**record(), "baseline": {"changed": True}}
    plan = shipped_plan()
    other = provenance(subject(), plan, None)
    for image, payload, why in (
        (subject(), statement_bytes(subject(), VERIFY, edited), "changed after it was written"),
        (
            subject(plan=f"sha256:{'9' * 64}"),
            statement_bytes(subject(), PROVENANCE, other),
            "the provenance is of the plan",
        ),
        (subject(), b"{}", "not a statement"),
        (subject(), statement_bytes(subject(), SBOM, {"components": 7}), "the SBOM has no list of components"),
    ):
        with pytest.raises(IntegrityError, match=why):
            check_document(DIGEST, dsse.MEDIA_TYPE, dsse.seal(payload, team), image, [team.public])
    with pytest.raises(IntegrityError, match="which is not an attestation"):
        check_document(DIGEST, "text/plain", said(), subject(), [])


def test_a_provenance_of_the_images_plan_is_taken(team: PrivateKey) -> None:
    plan = shipped_plan()
    image = subject(plan=plan.digest)
    payload = statement_bytes(image, PROVENANCE, provenance(image, plan, None))
    assert check_document(DIGEST, dsse.MEDIA_TYPE, dsse.seal(payload, team), image, [team.public]).kind == "provenance"


def test_what_is_attached_names_the_image_and_what_it_says(team: PrivateKey) -> None:
    sealed = dsse.seal(said(), team)
    signed, bare = artifact(said(), VERIFY, sealed), artifact(said(), VERIFY, None)
    assert (signed.media_type, bare.media_type) == (dsse.MEDIA_TYPE, dsse.IN_TOTO)
    tree = json.loads(signed.manifest(subject().descriptor))
    assert tree["artifactType"] == ARTIFACT
    assert tree["subject"]["digest"] == subject().digest
    assert tree["annotations"] == {"in-toto.io/predicate-type": VERIFY}
    assert tree["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "size": 2,
    }
