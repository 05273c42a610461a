"""Certificates of an authority of one's own, made by openssl, for servers on loopback."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.world import apt

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
HERE = "DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True)
class Authority:
    """A key that signs, and the certificate that others trust."""

    folder: Path
    bundle: Path

    def sign(self, names: str = HERE, *, days: int = 1) -> tuple[Path, Path]:
        """A server's certificate and key; negative `days` make one that has expired."""
        request, key, made = (self.folder / f"server.{end}" for end in ("csr", "key", "pem"))
        _openssl("req", *_KEY, "-keyout", str(key), "-out", str(request), "-subj", "/CN=server")
        extensions = self.folder / "extensions"
        extensions.write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid,issuer\n")
        signer = ("-CA", str(self.bundle), "-CAkey", str(self.folder / "authority.key"), "-CAcreateserial")
        limits = ("-days", str(days), "-extfile", str(extensions))
        _openssl("x509", "-req", "-in", str(request), *signer, *limits, "-out", str(made))
        return made, key


def authority(folder: Path) -> Authority:
    """A new authority with its files in a folder."""
    folder.mkdir()
    bundle = folder / "authority.pem"
    name = ("-subj", "/CN=An authority", "-days", "2")
    _openssl("req", "-x509", *_KEY, "-keyout", str(folder / "authority.key"), "-out", str(bundle), *name)
    return Authority(folder, bundle)


def _openssl(*arguments: str) -> None:
    command = apt.require("openssl", "openssl")
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
