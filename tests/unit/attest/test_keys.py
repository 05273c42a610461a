import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from envkit.attest.keys import PassphraseNeededError, new_pair, read_private, read_public, require
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.installation import libraries


def written(path: Path, made: PrivateKeyTypes) -> Path:
    path.write_bytes(
        made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    path.with_name(f"{path.name}.pub").write_bytes(
        made.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return path


def test_a_new_pair_signs_and_checks_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    public, known = new_pair(tmp_path / "team.key", None)
    assert ((tmp_path / "team.key").stat().st_mode & 0o777, public.name) == (0o600, "team.key.pub")
    key, checks = read_private(tmp_path / "team.key", None), read_public(public)
    assert checks.id == key.public.id == known.id
    assert checks.kind == "Ed25519"
    assert checks.fits(key.sign(b"words"), b"words")
    assert not checks.fits(key.sign(b"words"), b"other words")


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    new_pair(tmp_path / "k", None)
    before = (tmp_path / "k").read_bytes()
    with pytest.raises(UsageError, match="already exists, and a key is never overwritten"):
        new_pair(tmp_path / "k", None)
    assert (tmp_path / "k").read_bytes() == before
    (tmp_path / "k").unlink()
    with pytest.raises(UsageError, match=r"k\.pub already exists"):
        new_pair(tmp_path / "k", None)
    assert not (tmp_path / "k").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be written: No such file or directory"):
        new_pair(tmp_path / "nowhere" / "k", None)


def test_a_passphrase_encrypts_and_is_needed(tmp_path: Path) -> None:
    new_pair(tmp_path / "k", b"open sesame")
    assert b"ENCRYPTED" in (tmp_path / "k").read_bytes()
    key = read_private(tmp_path / "k", b"open sesame")
    assert read_public(tmp_path / "k.pub").fits(key.sign(b"x"), b"x")
    with pytest.raises(PassphraseNeededError, match="k is encrypted") as caught:
        read_private(tmp_path / "k", None)
    assert caught.value.hint == "--passphrase-file FILE"
    with pytest.raises(UsageError, match="wrong passphrase, or the file is damaged"):
        read_private(tmp_path / "k", b"open")


def test_a_passphrase_that_no_key_takes(tmp_path: Path) -> None:
    new_pair(tmp_path / "long", b"x" * 1023)
    with pytest.raises(UsageError, match="the passphrase has 1024 bytes; the limit is 1023"):
        new_pair(tmp_path / "k", b"x" * 1024)
    assert not (tmp_path / "k").exists()


def test_a_passphrase_that_is_not_needed_is_ignored(tmp_path: Path) -> None:
    new_pair(tmp_path / "k", None)
    assert read_private(tmp_path / "k", b"superfluous").public.id == read_public(tmp_path / "k.pub").id


def test_ecdsa_on_p256_as_other_tools_make_it(tmp_path: Path) -> None:
    key = read_private(written(tmp_path / "ec", ec.generate_private_key(ec.SECP256R1())), None)
    public = read_public(tmp_path / "ec.pub")
    assert (public.kind, public.id) == ("ECDSA P-256", key.public.id)
    assert public.fits(key.sign(b"words"), b"words")
    assert not public.fits(key.sign(b"words"), b"word")
    assert not public.fits(b"\0" * 64, b"words")


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: ec.generate_private_key(ec.SECP384R1()), id="P-384"),
        pytest.param(lambda: rsa.generate_private_key(65537, 2048), id="RSA"),
    ],
)
def test_other_kinds_are_refused(tmp_path: Path, made: object) -> None:
    assert callable(made)
    path = written(tmp_path / "k", made())
    with pytest.raises(UsageError, match="an unsupported key type; use Ed25519 or ECDSA on P-256"):
        read_private(path, None)
    with pytest.raises(UsageError, match="an unsupported key type"):
        read_public(tmp_path / "k.pub")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "cosign's format"),
        ("not a key\n", "the file contains no private key"),
        ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n", "wrong passphrase"),
    ],
)
def test_files_that_hold_no_private_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_private(tmp_path / "k", b"word")


def test_a_private_key_checks_nothing(tmp_path: Path) -> None:
    new_pair(tmp_path / "k", None)
    with pytest.raises(UsageError, match="is a private key; check signatures with the public key") as caught:
        read_public(tmp_path / "k")
    assert caught.value.hint == f"{tmp_path / 'k.pub'}"
    (tmp_path / "k.pub").write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    with pytest.raises(UsageError, match="contains no public key in PEM"):
        read_public(tmp_path / "k.pub")
    with pytest.raises(UsageError, match="No such file"):
        read_public(tmp_path / "nothing")


def test_without_the_library_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(EnvironmentProblem, match="need the package cryptography") as caught:
        require()
    assert caught.value.hint == libraries("attest")
