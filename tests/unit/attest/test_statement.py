import json

import pytest
from google.protobuf import json_format
from in_toto_attestation.v1.statement import Statement as TheirStatement
from in_toto_attestation.v1.statement_pb2 import Statement as Message

from envkit.attest.statement import VERIFY, read_statement, require_subject, statement_bytes
from envkit.ground.errors import IntegrityError
from tests.support.attestations import CONFIG_DIGEST, MANIFEST_DIGEST, record, subject


def test_a_statement_is_one_for_in_totos_own_library() -> None:
    data = statement_bytes(subject(), VERIFY, record())
    message = json_format.Parse(data, Message())
    TheirStatement.copy_from_pb(message).validate()
    assert [one.digest["sha256"] for one in message.subject] == [MANIFEST_DIGEST[7:], CONFIG_DIGEST[7:]]
    assert message.predicate_type == VERIFY


def test_a_statement_comes_back_and_equal_ones_are_equal_bytes() -> None:
    data = statement_bytes(subject(), VERIFY, {"b": 1, "a": "é"})
    assert data == statement_bytes(subject(), VERIFY, {"a": "é", "b": 1})
    found = read_statement(data)
    assert (found.predicate_type, dict(found.predicate)) == (VERIFY, {"a": "é", "b": 1})
    require_subject(found, subject())


@pytest.mark.parametrize("digests", [[CONFIG_DIGEST], [MANIFEST_DIGEST, f"sha256:{'c' * 64}"], [f"sha256:{'c' * 64}"]])
def test_a_statement_about_another_image_is_refused(digests: list[str]) -> None:
    tree = json.loads(statement_bytes(subject(), VERIFY, {"a": 1}))
    tree["subject"] = [{"digest": {"sha256": one[7:]}} for one in digests]
    with pytest.raises(IntegrityError, match="not about this image"):
        require_subject(read_statement(json.dumps(tree).encode()), subject())


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"_type": "https://in-toto.io/Statement/v0.1"}',
        '{"_type": "https://in-toto.io/Statement/v1", "predicateType": "x", "predicate": {}, "subject": []}',
        '{"_type": "https://in-toto.io/Statement/v1", "predicateType": "x", "predicate": {}, "subject": [{}]}',
        '{"_type": "https://in-toto.io/Statement/v1", "predicateType": 1, "predicate": {}, "subject": [{}]}',
    ],
)
def test_what_is_no_statement(text: str) -> None:
    with pytest.raises(IntegrityError, match="statement"):
        read_statement(text.encode())
