import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope as TheirEnvelope
from securesystemslib.signer import SSlibKey

from envkit.attest import dsse
from envkit.attest.keys import PrivateKey
from envkit.ground.errors import IntegrityError
from tests.support.attestations import key

PAYLOAD = b'{"_type":"https://in-toto.io/Statement/v1"}'


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return key(tmp_path_factory.mktemp("keys"))


def test_what_is_signed_is_the_specifications_own_example() -> None:
    said = dsse.pae("http://example.com/HelloWorld", b"hello world")
    assert said == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_an_envelope_comes_back(signer: PrivateKey, stranger: PrivateKey) -> None:
    envelope = dsse.unseal(dsse.seal(PAYLOAD, signer))
    assert envelope.payload == PAYLOAD
    assert envelope.signed_by([stranger.public, signer.public]) is signer.public
    assert envelope.signed_by([stranger.public]) is None
    assert envelope.signed_by([]) is None


def test_another_implementation_checks_it(signer: PrivateKey, tmp_path: Path) -> None:
    mine = key(tmp_path)
    theirs = TheirEnvelope.from_dict(json.loads(dsse.seal(PAYLOAD, mine)))
    public = (tmp_path / "team.key.pub").read_text()
    known = SSlibKey(mine.public.id, "ed25519", "ed25519", {"public": _raw(public)})
    assert list(theirs.verify([known], 1)) == [mine.public.id]
    assert theirs.pae() == dsse.pae(dsse.IN_TOTO, PAYLOAD)
    assert signer.public.id != mine.public.id


def _raw(pem: str) -> str:
    """The 32 bytes at the end of an Ed25519 key's SubjectPublicKeyInfo, in hexadecimal."""
    return base64.b64decode("".join(pem.splitlines()[1:-1]))[-32:].hex()


@given(data=st.data())
def test_no_changed_bit_gives_another_signed_document(data: st.DataObject, signer: PrivateKey) -> None:
    sealed = bytearray(dsse.seal(PAYLOAD, signer))
    at = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[at // 8] ^= 1 << at % 8
    try:
        envelope = dsse.unseal(bytes(sealed))
        found = envelope.signed_by([signer.public])
    except IntegrityError:
        return
    # A changed `keyid` in quotes is an unknown field.
    assert found is None or envelope.payload == PAYLOAD


def test_a_signature_that_names_the_key_and_does_not_fit_is_no_strangers(signer: PrivateKey) -> None:
    tree = json.loads(dsse.seal(PAYLOAD, signer))
    tree["payload"] = base64.b64encode(PAYLOAD + b" ").decode()
    with pytest.raises(IntegrityError, match="does not match the signed document"):
        dsse.unseal(json.dumps(tree).encode()).signed_by([signer.public])
    tree = json.loads(dsse.seal(PAYLOAD, signer))
    tree["signatures"][0]["keyid"] = "somebody else"
    with pytest.raises(IntegrityError, match="claims the key 'somebody else'"):
        dsse.unseal(json.dumps(tree).encode()).signed_by([signer.public])


def test_envelopes_of_other_tools_need_no_key_id(signer: PrivateKey) -> None:
    tree = json.loads(dsse.seal(PAYLOAD, signer))
    del tree["signatures"][0]["keyid"]
    assert dsse.unseal(json.dumps(tree, indent=2).encode()).signed_by([signer.public]) is signer.public


def test_unknown_fields_are_ignored(signer: PrivateKey) -> None:
    tree = json.loads(dsse.seal(PAYLOAD, signer)) | {"payloadUtf8": "{}"}
    tree["signatures"][0]["cert"] = "x"
    assert dsse.unseal(json.dumps(tree).encode()) == dsse.unseal(dsse.seal(PAYLOAD, signer))


def test_both_alphabets_of_base64_are_accepted(signer: PrivateKey) -> None:
    payload = b'{"a":"\xfb\xff\xbf"}'
    tree = json.loads(dsse.seal(payload, signer))
    tree["payload"] = base64.urlsafe_b64encode(payload).decode()
    assert set(tree["payload"]) >= {"-", "_"}
    tree["signatures"][0]["sig"] = tree["signatures"][0]["sig"].translate(str.maketrans("+/", "-_"))
    assert dsse.unseal(json.dumps(tree).encode()) == dsse.unseal(dsse.seal(payload, signer))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "lacks a field"),
        ('{"payload": "", "payloadType": "x"}', "lacks a field"),
        ('{"payload": "", "payload": "", "payloadType": "x", "signatures": []}', "not JSON"),
        ('{"payload": "", "payloadType": "text/plain", "signatures": [{"sig": ""}]}', "contains 'text/plain'"),
        (f'{{"payload": "", "payloadType": "{dsse.IN_TOTO}", "signatures": []}}', "no signature"),
        (
            f'{{"payload": "=", "payloadType": "{dsse.IN_TOTO}", "signatures": [{{"sig": ""}}]}}',
            "payload is not base64",
        ),
        (
            f'{{"payload": "QQ==", "payloadType": "{dsse.IN_TOTO}", "signatures": [{{"sig": "QR=="}}]}}',
            "is not canonical base64",
        ),
        (
            f'{{"payload": "QQ==", "payloadType": "{dsse.IN_TOTO}", "signatures": [{{"keyid": 1}}]}}',
            "damaged signature",
        ),
        (f'{{"payload": "QQ==", "payloadType": "{dsse.IN_TOTO}", "signatures": [{{"keyid": ""}}]}}', "not base64"),
    ],
)
def test_what_is_no_envelope(text: str, said: str) -> None:
    with pytest.raises(IntegrityError, match=said):
        dsse.unseal(text.encode())
