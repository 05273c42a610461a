"""Keyless signatures with sigstore, based on an identity from an identity provider.

The only module that imports `sigstore`. A bundle has the envelope, a certificate for the signer's identity that was
valid for minutes, and a proof that the signature is in a public log. No secret is stored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.attest.dsse import Envelope, unseal
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError
from envkit.ground.installation import libraries
from envkit.image.spec import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.x509 import Certificate
    from sigstore.verify import Verifier

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity from an identity provider: a mail address, or the URL of a CI workflow."""

    name: str
    issuer: str  # URL of the provider

    def __str__(self) -> str:
        return f"{self.name} ({self.issuer})"


def require() -> None:
    """Check that the library is installed.

    Raises:
        EnvironmentProblem: the library is not installed.
    """
    try:
        import sigstore  # noqa: F401, PLC0415
    except ImportError as error:
        raise EnvironmentProblem(
            "keyless signatures need the package sigstore, which is not installed",
            hint=libraries("keyless"),
        ) from error


def envelope_of(data: bytes) -> Envelope:
    """Return the unchecked envelope of a bundle.

    Raises:
        IntegrityError: the bundle is invalid.
    """
    try:
        tree: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise IntegrityError("the bundle is not JSON") from error
    inner = tree.get("dsseEnvelope") if isinstance(tree, dict) else None
    if not isinstance(inner, dict):
        raise IntegrityError("the bundle contains no envelope")
    return unseal(canonical(inner))


def signer_of(data: bytes, identities: Sequence[Identity], verifier: Verifier | None = None) -> Identity | None:
    """Return the identity that signed a bundle; None if the bundle is valid but signed by another identity.

    Args:
        data: the bundle.
        identities: the trusted identities.
        verifier: has the roots of trust; None: those of sigstore's public instance, fetched over the network, or
            those of the library if the network is unreachable.

    Raises:
        IntegrityError: signature, certificate or the log's proof do not match.
        EnvironmentProblem: the library is missing.
    """
    require()
    from sigstore.errors import VerificationError  # noqa: PLC0415 - the library is an extra
    from sigstore.models import Bundle  # noqa: PLC0415
    from sigstore.verify import policy  # noqa: PLC0415

    recorder, trusted_roots = _CertificateRecorder(), verifier or _public()
    try:
        _, payload = trusted_roots.verify_dsse(Bundle.from_json(data), recorder)
    except Exception as error:  # the libraries below raise arbitrary exceptions for a damaged bundle
        raise IntegrityError(f"sigstore: {' '.join(str(error).split())[:200]}") from error
    # Two parsers read the bundle. What sigstore has verified must be what envkit uses.
    if recorder.certificate is None or payload != envelope_of(data).payload:
        raise IntegrityError("sigstore: the bundle is for another document")
    for identity in identities:
        try:
            policy.Identity(identity=identity.name, issuer=identity.issuer).verify(recorder.certificate)
        except VerificationError:
            continue
        return identity
    return None


class Keyless:
    """Signs with the identity of the CI job, or of the user who logs in with a browser."""

    media_type = MEDIA_TYPE

    def __init__(self) -> None:
        require()
        from sigstore.models import ClientTrustConfig  # noqa: PLC0415
        from sigstore.oidc import IdentityToken, Issuer, detect_credential  # noqa: PLC0415
        from sigstore.sign import SigningContext  # noqa: PLC0415

        try:
            trust = ClientTrustConfig.production()
            # The token that a CI system gives to its job; None on other machines.
            ambient = detect_credential()
            issuer = trust.signing_config.get_oidc_url()
            self._token = IdentityToken(ambient) if ambient else Issuer(issuer).identity_token()
            self._context = SigningContext.from_trust_config(trust)
        except Exception as error:  # the library's exceptions have no common base class
            raise _failed(error) from error
        self.identity = Identity(self._token.identity, self._token.federated_issuer)

    def seal(self, payload: bytes) -> bytes:
        """Sign an in-toto statement and return the bundle.

        Raises:
            EngineError: sigstore's services refuse or are unreachable.
        """
        from sigstore.dsse import Statement  # noqa: PLC0415

        try:
            with self._context.signer(self._token) as signer:
                return signer.sign_dsse(Statement(payload)).to_json().encode()
        except Exception as error:
            raise _failed(error) from error


class _CertificateRecorder:
    """A policy that accepts every certificate and stores it, so that the identity can be checked afterwards."""

    def __init__(self) -> None:
        self.certificate: Certificate | None = None

    def verify(self, cert: Certificate) -> None:
        self.certificate = cert


def _public() -> Verifier:
    from sigstore.errors import Error  # noqa: PLC0415
    from sigstore.verify import Verifier  # noqa: PLC0415

    try:
        return Verifier.production()
    except Error:
        return Verifier.production(offline=True)


def _failed(error: Exception) -> EngineError:
    message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return EngineError(
        f"sigstore cannot sign: {message}",
        hint="sign with a key instead: --key FILE (create one with envkit attest --new-key FILE)",
    )
