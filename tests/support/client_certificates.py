"""A CA for client certificates, and the certificates it signs."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class ClientAuthority:
    """`file` is its certificate, PEM. Client certificates are written beside it."""

    file: Path
    _key: ec.EllipticCurvePrivateKey
    _name: x509.Name

    @classmethod
    def create(cls, file: Path) -> Self:
        """A new authority, whose certificate replaces the content of `file`."""
        key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string(f"CN={file.stem}")
        file.write_bytes(_certificate(name, key.public_key(), name, key, is_authority=True))
        return cls(file, key, name)

    def issue(self, file_name: str, subject: str, *, days: int = 1) -> tuple[Path, Path]:
        """A certificate and its key for a subject in RFC 4514 form. Negative `days`: already expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name.from_rfc4514_string(subject)
        certificate = _certificate(name, key.public_key(), self._name, self._key, is_authority=False, days=days)
        files = self.file.with_name(f"{file_name}.crt"), self.file.with_name(f"{file_name}.key")
        files[0].write_bytes(certificate)
        files[1].write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return files


def _certificate(
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
    days: int = 1,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=3))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
        .public_bytes(_PEM)
    )
