"""Keys that sign and check: Ed25519, which envkit makes, and ECDSA on P-256, as other tools make them.

The only module that knows `cryptography`. Private keys are PKCS #8 and public ones SubjectPublicKeyInfo, both PEM.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.ground.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

_MAX_FILE = 1 << 16  # bytes; keys and certificates have a few thousand
_MAX_PASSPHRASE = 1023  # bytes; OpenSSL takes no more
_KINDS = "use Ed25519 or ECDSA on P-256"
_MAKE = "create a key pair: envkit attest --new-key FILE"


@dataclass(frozen=True, slots=True, eq=False)
class PublicKey:
    """Checks signatures; `id` is the SHA-256 of its SubjectPublicKeyInfo, in hexadecimal."""

    id: str
    kind: str  # 'Ed25519' | 'ECDSA P-256'
    _key: PublicKeyTypes

    def fits(self, signature: bytes, data: bytes) -> bool:
        """Whether the signature is this key's over these bytes."""
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
    """Signs."""

    public: PublicKey
    _key: PrivateKeyTypes

    def sign(self, data: bytes) -> bytes:
        """A signature: 64 bytes of Ed25519, or DER of ECDSA with SHA-256."""
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519  # noqa: PLC0415

        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(data)
        assert isinstance(self._key, ec.EllipticCurvePrivateKey)
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))


class PassphraseNeededError(UsageError):
    """The key is encrypted, and no passphrase was given."""


def require() -> None:
    """See that the library is installed.

    Raises:
        EnvironmentProblem: it is not.
    """
    try:
        import cryptography  # noqa: F401, PLC0415
    except ImportError as error:
        raise EnvironmentProblem(
            "signatures need the package cryptography, which is not installed",
            hint="pip install 'envkit[attest]'",
        ) from error


def new_pair(path: Path, passphrase: bytes | None) -> tuple[Path, PublicKey]:
    """Make an Ed25519 pair: the private key at `path`, for its owner alone, and the public one at `path`.pub.

    Args:
        path: where to; nothing may be there.
        passphrase: encrypts the private key; None leaves it in the clear.

    Raises:
        UsageError: one of the files is there already, or the passphrase is too long.
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
    made = ed25519.Ed25519PrivateKey.generate()
    lock = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    private = made.private_bytes(pem, serialization.PrivateFormat.PKCS8, lock)
    public = made.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    beside = path.with_name(f"{path.name}.pub")
    for target in (path, beside):
        if os.path.lexists(target):
            raise UsageError(f"{target} already exists, and a key is never overwritten", hint="use another name")
    try:
        _write(path, private, 0o600)
        try:
            _write(beside, public, 0o644)
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        raise EnvironmentProblem(f"{error.filename or path} cannot be written: {error.strerror}") from error
    return beside, _public(made.public_key(), str(path))


def read_private(path: Path, passphrase: bytes | None) -> PrivateKey:
    """The private key in a file.

    Raises:
        PassphraseNeededError: it is encrypted, and there is no passphrase.
        UsageError: it cannot be read, is not a key, is of another kind, or the passphrase is wrong.
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
    except TypeError as error:
        if passphrase is None:
            raise PassphraseNeededError(f"{path} is encrypted", hint="--passphrase-file FILE") from error
        key = _load_plain(path, data)  # a passphrase was given, and none is needed
    except UnsupportedAlgorithm as error:
        raise UsageError(f"{path} contains an unsupported key type; {_KINDS}", hint=_MAKE) from error
    except ValueError as error:
        what = "the passphrase is wrong, or the file damaged" if b"ENCRYPTED" in data else "it contains no private key"
        raise UsageError(f"{path}: {what}", hint=_MAKE) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path} contains an unsupported key type; {_KINDS}", hint=_MAKE)
    return PrivateKey(_public(key.public_key(), str(path)), key)


def read_public(path: Path) -> PublicKey:
    """The public key in a file.

    Raises:
        UsageError: it cannot be read, is not a key, or is of another kind.
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
    """A file that nothing else may be at, never readable by more than `mode` says, whole or not there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
