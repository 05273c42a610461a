"""Make a certificate for localhost with any validity. openssl before 3.4 cannot make one that is valid later."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(folder: Path, first: int, last: int) -> Path:
    """Return a file with a self-signed certificate and its key.

    Args:
        folder: the folder for the file.
        first: the first day of its validity, in days from today.
        last: the last day, in days from today.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now + timedelta(days=first)).not_valid_after(now + timedelta(days=last))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "localhost.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path
