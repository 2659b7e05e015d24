"""The certificate of the TLS listener: validation and reloading."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from aerobee_broker.config import Address, BrokerConfig, ListenConfig, TlsConfig
from aerobee_broker.listening.certificate_files import CertificateFiles
from aerobee_broker.listening.certificates import development_certificate
from aerobee_store.errors import ConfigError

LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key."""
    certificate, key = tmp_path / "broker.crt", tmp_path / "broker.key"
    write_pair(certificate, key)
    return certificate, key


def write_pair(certificate: Path, key: Path) -> None:
    made = development_certificate("broker.example.com")
    key.write_bytes(made.key)
    certificate.write_bytes(made.certificate)
    for path in (certificate, key):  # some file systems have coarse timestamps
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def test_a_certificate_made_for_development_names_this_machine_and_the_address(tmp_path: Path) -> None:
    """A separate authority signs the server's certificate. Each call makes new ones, with the given name or address."""
    issued = development_certificate("broker.example.com")
    server, authority = x509.load_pem_x509_certificates(issued.certificate)
    assert x509.load_pem_x509_certificate(issued.authority) == authority
    server.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "broker.example.com"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    (tmp_path / "both.pem").write_bytes(issued.key + issued.certificate)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "both.pem")
    numbered = development_certificate("10.1.2.3")
    assert numbered.authority != issued.authority
    (server, _) = x509.load_pem_x509_certificates(numbered.certificate)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "10.1.2.3" in [str(each) for each in names.get_values_for_type(x509.IPAddress)]


def test_the_certificate_is_read_again_only_after_a_change(files: tuple[Path, Path]) -> None:
    """The files are checked for each connection but read only after a change."""
    reader = CertificateFiles(*files)
    reader.load()
    assert reader.load_if_changed() is None
    write_pair(*files)
    assert reader.load_if_changed() is not None
    assert reader.load_if_changed() is None


def test_an_invalid_certificate_replaces_no_valid_one(
    files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A key without its new certificate is logged once. Both are loaded when the certificate is there."""
    certificate, key = files
    reader = CertificateFiles(certificate, key)
    reader.load()
    made = development_certificate("localhost")
    key.write_bytes(made.key)
    with caplog.at_level(logging.ERROR):
        assert reader.load_if_changed() is None
        assert reader.load_if_changed() is None
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "certificate not replaced, the previous one stays in use"
    ]
    certificate.write_bytes(made.certificate)
    assert reader.load_if_changed() is not None


def test_files_without_a_certificate_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Missing and swapped files and a key with a password are refused with the setting and the path."""
    certificate, key = files
    with pytest.raises(ConfigError, match=r"tls\.key: .*nothing\.key: No such file"):
        CertificateFiles(certificate, tmp_path / "nothing.key").load()
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        CertificateFiles(key, certificate).load()
    locked = tmp_path / "locked.key"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="without a password"):
        CertificateFiles(certificate, locked).load()


def test_authorities_of_clients_are_files_of_certificates(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Missing, empty and invalid files are refused with the setting and the path. A change is loaded."""
    certificate, key = files
    nothing, empty, binary = (tmp_path / name for name in ("nothing.crt", "empty.crt", "binary.crt"))
    empty.touch()
    binary.write_bytes(b"\xff")
    for authorities in (nothing, empty, key, binary):
        with pytest.raises(ConfigError, match=r"tls\.client_authorities: .*" + authorities.name):
            CertificateFiles(certificate, key, authorities).load()
    authorities = tmp_path / "authorities.crt"
    authorities.write_bytes(certificate.read_bytes())
    reader = CertificateFiles(certificate, key, authorities)
    assert reader.load().authorities == certificate.read_bytes()
    assert reader.load_if_changed() is None
    os.utime(authorities, ns=(0, 1))
    assert reader.load_if_changed() is not None


def test_settings_of_client_certificates_fit_the_front(tmp_path: Path, files: tuple[Path, Path]) -> None:
    """Client certificates need a TLS listener; optional ones need the native front. They may exclude plaintext."""
    required = TlsConfig(certificate=files[0], key=files[1], client_authorities=files[0])
    optional = replace(required, client_certificates="optional")
    with pytest.raises(ConfigError, match=r"tls\.client_authorities: no listener uses TLS; set tls\.certificate"):
        BrokerConfig.tiny(tmp_path, tls=TlsConfig(client_authorities=files[0]), dev=False)
    with pytest.raises(ConfigError, match=r"tls\.client_authorities: .*and listen\.tls"):
        BrokerConfig.tiny(tmp_path, listen=ListenConfig(front="grpcio"), tls=required)
    listen = ListenConfig(front="grpcio", tls=LOOPBACK)
    with pytest.raises(ConfigError, match=r'tls\.client_certificates: "optional" needs listen\.front = "native"'):
        BrokerConfig.tiny(tmp_path, listen=listen, tls=optional)
    assert BrokerConfig.tiny(tmp_path, tls=required).is_plaintext_refused
    assert not BrokerConfig.tiny(tmp_path, tls=optional).is_plaintext_refused
    assert not BrokerConfig.tiny(tmp_path, tls=required, listen=ListenConfig(tls=LOOPBACK)).is_plaintext_refused
    assert not BrokerConfig.tiny(tmp_path).is_plaintext_refused


def test_a_certificate_is_created_for_development_only(tmp_path: Path, files: tuple[Path, Path]) -> None:
    """Outside dev mode a certificate must be configured."""
    listen = ListenConfig(grpc=LOOPBACK, metrics=LOOPBACK, tls=LOOPBACK)
    BrokerConfig.tiny(tmp_path, listen=listen)
    with pytest.raises(ConfigError, match=r"listen\.tls: needs the PEM files tls\.certificate and tls\.key"):
        BrokerConfig.tiny(tmp_path, listen=listen, dev=False)
    given = TlsConfig(certificate=files[0], key=files[1])
    BrokerConfig.tiny(tmp_path, listen=listen, tls=given, dev=False)


def test_settings_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """A certificate without key or listener and an advertised address without listener are refused."""
    with pytest.raises(ConfigError, match=r"tls\.key: missing"):
        BrokerConfig.tiny(tmp_path, tls=TlsConfig(certificate=Path("a")))
    with pytest.raises(ConfigError, match=r"tls\.certificate: no listener uses it"):
        BrokerConfig.tiny(
            tmp_path, listen=ListenConfig(front="grpcio"), tls=TlsConfig(certificate=Path("a"), key=Path("b"))
        )
    with pytest.raises(ConfigError, match=r"listen\.advertise_tls: no listener uses TLS"):
        BrokerConfig.tiny(tmp_path, listen=ListenConfig(front="grpcio", advertise_tls=Address("b", 1)))
    with pytest.raises(ConfigError, match=r"listen\.advertise_tls: clients cannot connect to port 0"):
        BrokerConfig.tiny(tmp_path, listen=ListenConfig(tls=LOOPBACK, advertise_tls=Address("b", 0)))
