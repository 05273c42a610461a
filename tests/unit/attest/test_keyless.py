import json
import sys
from pathlib import Path

import pytest
from sigstore.verify import Verifier

from envkit.attest import dsse
from envkit.attest.attached import Status, check_document
from envkit.attest.keyless import MEDIA_TYPE, Identity, envelope_of, require, signer_of
from envkit.attest.statement import VERIFY, statement_bytes
from envkit.ground.errors import EnvironmentProblem, IntegrityError
from envkit.ground.installation import libraries
from tests.support.attestations import key, record, subject

WORKFLOW = Identity("https://ci.example.com/team/train", "https://login.example.com")


def bundle(folder: Path) -> bytes:
    """A bundle whose envelope is sound and whose certificate is nothing."""
    envelope = json.loads(dsse.seal(statement_bytes(subject(), VERIFY, record()), key(folder)))
    del envelope["signatures"][0]["keyid"]
    material = {"certificate": {"rawBytes": "AAAA"}, "tlogEntries": []}
    return json.dumps({"mediaType": MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}).encode()


def test_without_an_identity_a_bundle_is_by_somebody(tmp_path: Path) -> None:
    found = check_document(f"sha256:{'e' * 64}", MEDIA_TYPE, bundle(tmp_path), subject(), [])
    assert (found.status, found.kind, found.keyid) == (Status.UNKNOWN_KEY, "verify", None)


@pytest.mark.parametrize("text", [b"{", b"[]", b"{}", b'{"dsseEnvelope": {}}'])
def test_what_is_no_bundle(text: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"bundle|envelope"):
        envelope_of(text)


@pytest.mark.parametrize("change", [None, b"{}"])
def test_a_bundle_that_sigstore_does_not_believe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: bytes | None
) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    data = bundle(tmp_path) if change is None else change
    with pytest.raises(IntegrityError, match="sigstore: "):
        signer_of(data, [WORKFLOW], Verifier.staging(offline=True))


def test_without_the_library_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(EnvironmentProblem, match="need the package sigstore") as caught:
        require()
    assert caught.value.hint == libraries("keyless")


def test_an_identity_is_told_with_its_provider() -> None:
    assert str(WORKFLOW) == "https://ci.example.com/team/train (https://login.example.com)"
