"""Client certificates: which are accepted, and the account each one stands for. Both fronts are tested."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee_broker.cli import main
from aerobee_broker.listening.certificates import development_certificate
from aerobee_client import Credentials, ForbiddenError, Message, Tls, UnavailableError, connect
from aerobee_client.testing import BrokerProcess, run_broker
from tests.support.client_certificates import ClientAuthority

pytestmark = pytest.mark.timeout(300)

SHOP = Credentials("shop", "the shop's secret")
ACCOUNTS = f"""
[accounts.billing]
certificate = 'CN=billing,O=Ex\\, ample'
publish = ["bills"]

[accounts.shop]
secret_key = "{SHOP.secret_key}"
certificate = "CN=shop"
publish = ["orders"]

[accounts.operator]
certificate = "CN=operator"
admin = true
"""


@dataclass(frozen=True)
class Files:
    """The files of a broker with TLS that trusts one authority for clients."""

    authority: ClientAuthority
    arguments: tuple[str, ...]
    trusted: Path

    def tls(self, subject: str, *, days: int = 1) -> Tls:
        """Client options with a new certificate."""
        name = "".join(letter for letter in subject if letter.isalnum())
        return Tls(self.trusted, *self.authority.issue(name, subject, days=days))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("certificates")
    issued = development_certificate("localhost")
    (directory / "broker.crt").write_bytes(issued.certificate)
    (directory / "broker.key").write_bytes(issued.key)
    (directory / "broker-ca.crt").write_bytes(issued.authority)
    authority = ClientAuthority.create(directory / "clients-ca.crt")
    accounts = directory / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    arguments = (
        *("--dev", "--accounts", str(accounts), "--tls-client-ca", str(authority.file)),
        *("--tls-cert", str(directory / "broker.crt"), "--tls-key", str(directory / "broker.key")),
    )
    return Files(authority, arguments, directory / "broker-ca.crt")


@pytest.fixture(scope="module", params=["native", "grpcio"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[str]:
    """The address of a broker that requires certificates."""
    arguments = ("--front", request.param, "--listen-tls", "127.0.0.1:0", *files.arguments)
    with run_broker(tmp_path_factory.mktemp("aerobee"), arguments) as running:
        assert running.tls_endpoint is not None
        yield running.tls_endpoint


async def send(
    endpoint: str, topic: str, tls: Tls | None, credentials: Credentials | None = None, *, retry_seconds: float = 60.0
) -> None:
    async with connect(endpoint, tls=tls, credentials=credentials, retry_seconds=retry_seconds) as client:
        await client.producer().send(Message(topic=topic, body=b"1"))


async def is_not_let_in(endpoint: str, tls: Tls | None, credentials: Credentials | None = None) -> None:
    """Raise AssertionError if TLS accepts the client."""
    with pytest.raises(UnavailableError):
        await send(endpoint, "orders", tls, credentials, retry_seconds=0.1)


async def test_a_certificate_authenticates_an_account(broker: str, files: Files) -> None:
    """The certificate gives the account's permissions without a secret key.

    The whole subject is compared, not only the common name.
    """
    billing = files.tls("CN=billing,O=Ex\\, ample")
    await send(broker, "bills", billing)
    with pytest.raises(ForbiddenError, match="account 'billing' may not"):
        await send(broker, "orders", billing)
    for other in ("CN=billing", "CN=billing,O=Example", "CN=stranger"):
        with pytest.raises(ForbiddenError, match="no account has the certificate 'CN="):
            await send(broker, "bills", files.tls(other))


async def test_a_signature_takes_precedence_over_a_certificate(broker: str, files: Files) -> None:
    """A signature overrides the certificate, which may be a proxy's.

    A wrong signature is refused with any certificate.
    """
    stranger = files.tls("CN=stranger")
    await send(broker, "orders", stranger, SHOP)
    await send(broker, "orders", files.tls("CN=shop"))
    wrong = Credentials("billing", "nobody's")
    for credentials in (wrong, Credentials("shop", "another secret")):
        with pytest.raises(ForbiddenError, match="unknown access key or wrong secret key"):
            await send(broker, "bills", files.tls("CN=shop"), credentials)


async def test_invalid_certificates_are_refused(broker: str, files: Files, tmp_path: Path) -> None:
    """Without a certificate, with another authority's or with an expired one, TLS fails, whatever the credentials."""
    other = ClientAuthority.create(tmp_path / "other-ca.crt")
    for tls in (
        Tls(files.trusted),
        Tls(files.trusted, *other.issue("shop", "CN=shop")),
        files.tls("CN=expired", days=-1),
    ):
        for credentials in (None, SHOP):
            await is_not_let_in(broker, tls, credentials)


async def test_the_services_of_operators(broker: str, files: Files) -> None:
    """These services need no client id, and still see the account."""
    async with connect(broker, tls=files.tls("CN=operator")) as client:
        await client.admin.list_topics()
    async with connect(broker, tls=files.tls("CN=shop")) as client:
        with pytest.raises(ForbiddenError, match="admin = true"):
            await client.admin.list_topics()


def test_commands_take_a_certificate(
    broker: str, files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The certificate comes from a flag or the environment; without its key it is refused before connecting."""
    certificate, key = files.authority.issue("operator", "CN=operator")
    command = ["topic", "list", "--endpoint", broker, "--tls-ca", str(files.trusted)]
    assert main([*command, "--tls-cert", str(certificate), "--tls-key", str(key)]) == 0
    assert main([*command, "--tls-cert", str(certificate)]) == 1
    assert "needs its key" in capsys.readouterr().err
    monkeypatch.setenv("AEROBEE_CERT_FILE", str(certificate))
    monkeypatch.setenv("AEROBEE_KEY_FILE", str(key))
    assert main(command) == 0


@pytest.fixture
def optional(tmp_path: Path, files: Files) -> Iterator[BrokerProcess]:
    """A broker that asks for certificates but also accepts clients without one."""
    settings = {"tls.client_certificates": "optional"}
    with run_broker(tmp_path, ("--front", "native", *files.arguments), settings=settings) as running:
        yield running


async def test_optional_certificates(optional: BrokerProcess, files: Files, tmp_path: Path) -> None:
    """Clients without a certificate sign, with or without TLS; another authority's certificate is still refused."""
    await send(optional.endpoint, "bills", files.tls("CN=billing,O=Ex\\, ample"))
    await send(optional.endpoint, "orders", Tls(files.trusted), SHOP)
    await send(optional.endpoint, "orders", None, SHOP)
    for tls in (Tls(files.trusted), None):
        with pytest.raises(ForbiddenError, match="requires credentials"):
            await send(optional.endpoint, "orders", tls)
    other = ClientAuthority.create(tmp_path / "other-ca.crt")
    await is_not_let_in(optional.endpoint, Tls(files.trusted, *other.issue("shop", "CN=shop")))


async def test_a_port_that_requires_certificates_refuses_plaintext(tmp_path: Path, files: Files) -> None:
    """Otherwise a client without a certificate could skip TLS. Changed authorities apply to new connections."""
    authorities = tmp_path / "authorities.crt"
    authorities.write_bytes(files.authority.file.read_bytes())
    arguments = [str(authorities) if text == str(files.authority.file) else text for text in files.arguments]
    with run_broker(tmp_path, ("--front", "native", *arguments)) as running:
        await send(running.endpoint, "orders", files.tls("CN=shop"))
        await is_not_let_in(running.endpoint, None, SHOP)
        other = ClientAuthority.create(tmp_path / "other-ca.crt")
        authorities.write_bytes(other.file.read_bytes())
        os.utime(authorities, ns=(0, authorities.stat().st_mtime_ns + 1))
        await send(running.endpoint, "orders", Tls(files.trusted, *other.issue("shop", "CN=shop")))
        await is_not_let_in(running.endpoint, files.tls("CN=shop"))
