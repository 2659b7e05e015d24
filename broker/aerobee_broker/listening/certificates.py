"""The certificate of a development broker: an authority, and a certificate that it signs.

Clients that verify certificates, above all Rust's TLS, refuse an authority's own certificate as a server certificate.
So clients trust the authority's certificate, and the server presents its own. The authority's key is discarded after
signing, so trusting it means trusting this one server.
"""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from cryptography import x509

_VALID_DAYS: Final = 30
_EARLIER: Final = datetime.timedelta(hours=1)  # clients' clocks may be slow


class Issued(Struct, frozen=True):
    """All PEM. `certificate` is the server's own, followed by `authority`, which clients trust."""

    key: bytes
    certificate: bytes
    authority: bytes


def development_certificate(host: str) -> Issued:
    """A new certificate that names `host` and this machine, and the authority that signed it."""
    # Imported here, because few brokers make one, and the library takes a tenth of a second to load.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # The number distinguishes the authorities of different starts for clients.
    serial = x509.random_serial_number()
    authority_name = name(f"aerobee for development {serial:x}"[:64])
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    authority = (
        builder(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        builder(name("aerobee"), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    authority_pem = authority.public_bytes(pem)
    return Issued(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        certificate.public_bytes(pem) + authority_pem,
        authority_pem,
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _names(host: str) -> list[x509.GeneralName]:
    """The names by which clients may address this machine."""
    from cryptography import x509

    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    addresses = {ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")}
    try:
        addresses.add(ipaddress.ip_address(host))
    except ValueError:
        if host != "localhost":
            names.append(x509.DNSName(host))
    return [*names, *(x509.IPAddress(address) for address in sorted(addresses, key=str))]
