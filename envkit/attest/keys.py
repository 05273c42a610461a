"""Keys that sign and verify: Ed25519, which envkit creates, and ECDSA on P-256, which other tools create.

The only module that imports `cryptography`. Private keys are PKCS #8, public keys SubjectPublicKeyInfo, both PEM.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.installation import libraries

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

_MAX_FILE = 1 << 16  # bytes; keys and certificates have a few thousand
_MAX_PASSPHRASE = 1023  # bytes; the limit of OpenSSL
_KINDS = "use Ed25519 or ECDSA on P-256"
_MAKE = "create a key pair: envkit attest --new-key FILE"


@dataclass(frozen=True, slots=True, eq=False)
class PublicKey:
    """A key that verifies signatures; `id` is the SHA-256 of its SubjectPublicKeyInfo, in hexadecimal."""

    id: str
    kind: str  # 'Ed25519' | 'ECDSA P-256'
    _key: PublicKeyTypes

    def fits(self, signature: bytes, data: bytes) -> bool:
        """Return whether this key signed `data`."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - the library is an extra
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519  # noqa: PLC0415

        try:
            if isinstance(self._key, ed25519.Ed25519PublicKey):
                self._key.verify(signature, data)
            elif isinstance(self._key, ec.EllipticCurvePublicKey):
                self._key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
            else:
                return False
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True, eq=False)
class PrivateKey:
    """A key that signs."""

    public: PublicKey
    _key: PrivateKeyTypes

    def sign(self, data: bytes) -> bytes:
        """Return a signature: 64 bytes for Ed25519, DER for ECDSA with SHA-256."""
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519  # noqa: PLC0415

        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(data)
        assert isinstance(self._key, ec.EllipticCurvePrivateKey)
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))


class PassphraseNeededError(UsageError):
    """The key is encrypted, and no passphrase was given."""


def require() -> None:
    """Check that the library is installed.

    Raises:
        EnvironmentProblem: the library is not installed.
    """
    try:
        import cryptography  # noqa: F401, PLC0415
    except ImportError as error:
        raise EnvironmentProblem(
            "signatures need the package cryptography, which is not installed",
            hint=libraries("attest"),
        ) from error


def new_pair(path: Path, passphrase: bytes | None) -> tuple[Path, PublicKey]:
    """Create an Ed25519 key pair: the private key at `path`, with mode 0600, and the public key at `path`.pub.

    Args:
        path: the new file; it must not exist.
        passphrase: encrypts the private key; None: the private key is not encrypted.

    Raises:
        UsageError: one of the files already exists, or the passphrase is too long.
        EnvironmentProblem: the library is missing, or a file cannot be written.
    """
    require()
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    if passphrase is not None and len(passphrase) > _MAX_PASSPHRASE:
        raise UsageError(
            f"the passphrase has {len(passphrase)} bytes; the limit is {_MAX_PASSPHRASE}",
            hint="--passphrase-file with a shorter first line",
        )
    key = ed25519.Ed25519PrivateKey.generate()
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    public_path = path.with_name(f"{path.name}.pub")
    # Both names before the first file is written; `_write` itself refuses a file that appears in between.
    for target in (path, public_path):
        if os.path.lexists(target):
            raise UsageError(f"{target} already exists, and a key is never overwritten", hint="use another name")
    try:
        _write(path, private, 0o600)
        try:
            _write(public_path, public, 0o644)
        except BaseException:
            path.unlink()  # a private key without its public key would block the next attempt
            raise
    except OSError as error:
        raise EnvironmentProblem(f"{error.filename or path} cannot be written: {error.strerror}") from error
    return public_path, _public(key.public_key(), str(path))


def read_private(path: Path, passphrase: bytes | None) -> PrivateKey:
    """Read a private key.

    Raises:
        PassphraseNeededError: the key is encrypted and no passphrase was given.
        UsageError: the file cannot be read, is not a key, has an unsupported kind, or the passphrase is wrong.
        EnvironmentProblem: the library is missing.
    """
    require()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519  # noqa: PLC0415

    data = _read(path)
    if b"ENCRYPTED SIGSTORE PRIVATE KEY" in data or b"ENCRYPTED COSIGN PRIVATE KEY" in data:
        raise UsageError(
            f"{path} is encrypted in cosign's format, which envkit cannot read",
            hint=f"{_MAKE}; or: openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -out FILE",
        )
    try:
        key = serialization.load_pem_private_key(data, passphrase)
    # cryptography raises it for a missing passphrase, and for one that the key does not need.
    except TypeError as error:
        if passphrase is None:
            raise PassphraseNeededError(f"{path} is encrypted", hint="--passphrase-file FILE") from error
        key = _load_plain(path, data)  # a passphrase was given, but the key is not encrypted
    except UnsupportedAlgorithm as error:
        raise UsageError(f"{path} contains an unsupported key type; {_KINDS}", hint=_MAKE) from error
    except ValueError as error:
        encrypted = b"ENCRYPTED" in data
        fault = "wrong passphrase, or the file is damaged" if encrypted else "the file contains no private key"
        raise UsageError(f"{path}: {fault}", hint=_MAKE) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path} contains an unsupported key type; {_KINDS}", hint=_MAKE)
    return PrivateKey(_public(key.public_key(), str(path)), key)


def read_public(path: Path) -> PublicKey:
    """Read a public key.

    Raises:
        UsageError: the file cannot be read, is not a key, or has an unsupported kind.
        EnvironmentProblem: the library is missing.
    """
    require()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    data = _read(path)
    if b"PRIVATE KEY" in data:
        raise UsageError(f"{path} is a private key; check signatures with the public key", hint=f"{path}.pub")
    try:
        return _public(serialization.load_pem_public_key(data), str(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} contains no public key in PEM format", hint=_MAKE) from error


def _public(key: PublicKeyTypes, where: str) -> PublicKey:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519  # noqa: PLC0415

    kind = ""
    if isinstance(key, ed25519.Ed25519PublicKey):
        kind = "Ed25519"
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        kind = "ECDSA P-256"
    if not kind:
        raise UsageError(f"{where} contains an unsupported key type; {_KINDS}", hint=_MAKE)
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(hashlib.sha256(der).hexdigest(), kind, key)


def _load_plain(path: Path, data: bytes) -> PrivateKeyTypes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    try:
        return serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} contains no private key", hint=_MAKE) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint=_MAKE) from error


def _write(path: Path, data: bytes, mode: int) -> None:
    """Create a file with these permissions from the start; it is written completely or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # open(2) applied the umask: under 077 others could not read the public key.
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
