"""TLS beside plaintext: our client and commands, routes, and a certificate replaced while the broker runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from aerobee_broker.cli import main
from aerobee_broker.listening.certificates import development_certificate
from aerobee_client import ConfigurationError, Message, Tls, UnavailableError, connect
from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_proto import v2
from tests.support.front_under_test import FRONT
from tests.support.http2_attacker import begin_of_tls

pytestmark = pytest.mark.timeout(300)
RUST = Path(__file__).parents[1] / "sdk" / "rust"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate followed by its authority; its key is beside it, with the suffix `.key`."""
    path = tmp_path_factory.mktemp("tls") / "broker.crt"
    replace(path)
    return path


def replace(certificate: Path) -> None:
    made = development_certificate("localhost")
    certificate.with_suffix(".key").write_bytes(made.key)
    certificate.write_bytes(made.certificate)
    os.utime(certificate, ns=(0, certificate.stat().st_mtime_ns + 1))


@pytest.fixture(scope="module")
def broker_arguments(certificate: Path) -> Sequence[str]:
    """A broker that listens with and without TLS."""
    files = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_suffix(".key")))
    return ("--dev", "--listen-tls", "127.0.0.1:0", *files)


def endpoint(broker: BrokerProcess) -> str:
    """The broker's address with TLS."""
    assert broker.tls_endpoint is not None
    return broker.tls_endpoint


async def test_tls_and_plaintext_lead_to_the_same_topics(broker: BrokerProcess, certificate: Path) -> None:
    """Both addresses lead to the same topics, in either direction."""
    async with (
        connect(endpoint(broker), tls=Tls(certificate)) as secure,
        connect(broker.endpoint) as plain,
    ):
        for number, (sender, receiver) in enumerate(((secure, plain), (plain, secure))):
            await sender.producer().send(Message(topic="both", body=f"message {number}".encode()))
            consumer = receiver.simple_consumer("readers", "both")
            [received] = await consumer.receive(wait_seconds=10)
            assert received.body == f"message {number}".encode()
            await consumer.ack(received)


async def test_a_route_has_the_address_of_the_connection(broker: BrokerProcess, certificate: Path) -> None:
    """Without an address in the request, the route has the TLS address over TLS and the plaintext one otherwise."""
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    request = v2.QueryRouteRequest(topic=v2.Resource(name="routed"))
    async with (
        grpc.aio.secure_channel(endpoint(broker), credentials) as secure,
        grpc.aio.insecure_channel(broker.endpoint) as plain,
    ):
        for channel, dialled in ((secure, endpoint(broker)), (plain, broker.endpoint)):
            metadata = (("x-mq-client-id", f"client of {dialled}"),)
            stub = v2.MessagingServiceStub(channel)
            response = await stub.QueryRoute(request, metadata=metadata, timeout=60)
            [address] = response.message_queues[0].broker.endpoints.addresses
            assert f"{address.host}:{address.port}" == dialled


@pytest.mark.skipif(FRONT == "grpcio", reason="a port of grpcio has TLS or has not")
async def test_one_port_accepts_tls_and_plaintext(broker: BrokerProcess, certificate: Path, tmp_path: Path) -> None:
    """TLS and plaintext on the plaintext port; --dev alone creates a certificate when one is needed."""
    with run_broker(tmp_path, ["--dev", "--front", "native"]) as alone:
        for dialled, tls in ((alone.endpoint, None), (broker.endpoint, Tls(certificate)), (broker.endpoint, None)):
            async with connect(dialled, tls=tls) as client:
                await client.admin.list_topics()
        host, _, port = alone.endpoint.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # a certificate created on demand cannot be verified
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), timeout=20) as plain,
            context.wrap_socket(plain) as secure,
        ):
            assert secure.selected_alpn_protocol() == "h2"


async def test_errors_name_the_cause(broker: BrokerProcess, certificate: Path, tmp_path: Path) -> None:
    """A certificate of another authority, an address without TLS, and a missing file."""
    other = tmp_path / "other.crt"
    replace(other)
    (tmp_path / "plain").mkdir()
    with run_broker(tmp_path / "plain", ["--front", "grpcio"]) as without_tls:
        for dialled, tls in ((endpoint(broker), Tls(other)), (without_tls.endpoint, Tls(certificate))):
            async with connect(dialled, tls=tls, retry_seconds=1) as client:
                with pytest.raises(UnavailableError, match="no TLS connection to"):
                    await client.admin.list_topics()
    with pytest.raises(ConfigurationError, match=r"nothing\.crt: No such file"):
        connect(endpoint(broker), tls=Tls(tmp_path / "nothing.crt"))


def test_commands_support_tls(
    broker: BrokerProcess,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Commands take TLS from a flag or the environment.

    Without them they use plaintext, and the error on a TLS address suggests TLS.
    """
    command = ["topic", "list", "--endpoint", endpoint(broker)]
    assert main([*command, "--tls-ca", str(certificate)]) == 0
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "no broker answers" in error
    assert "use TLS if it listens with TLS there" in error
    monkeypatch.setenv("AEROBEE_CA_FILE", str(certificate))
    assert main(command) == 0


async def test_a_replaced_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    """The broker is not restarted, and existing connections stay open."""
    certificate = tmp_path / "broker.crt"
    replace(certificate)
    files = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_suffix(".key")))
    with run_broker(tmp_path, ("--dev", "--listen-tls", "127.0.0.1:0", *files)) as broker:
        async with connect(endpoint(broker), tls=Tls(certificate)) as connected:
            await connected.admin.list_topics()
            replace(certificate)
            async with connect(endpoint(broker), tls=Tls(certificate)) as newcomer:
                await newcomer.admin.list_topics()
            await connected.admin.list_topics()
        assert "certificate replaced" in broker.log_text()


async def test_a_stop_does_not_wait_for_the_end_of_tls(tmp_path: Path, certificate: Path) -> None:
    """grpcio's client does not answer TLS's close_notify: the stop waits one second, not the drain timeout."""
    files = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_suffix(".key")))
    arguments = ("--dev", "--front", "native", *files)
    with run_broker(tmp_path, arguments, settings={"listen.drain_seconds": 60.0}) as broker:
        async with connect(broker.endpoint, tls=Tls(certificate)) as client:
            await client.producer().send(Message(topic="both", body=b"1"))
        began = time.monotonic()
        assert await asyncio.to_thread(broker.stop) == 0
        assert time.monotonic() - began < 20


@pytest.mark.skipif(FRONT == "grpcio", reason="of the native front")
async def test_a_stop_does_not_wait_for_a_handshake_that_goes_no_further(tmp_path: Path, certificate: Path) -> None:
    """A stranger with one begun handshake made every stop as long as the drain timeout."""
    files = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_suffix(".key")))
    with run_broker(
        tmp_path, ("--dev", "--front", "native", *files), settings={"listen.drain_seconds": 60.0}
    ) as broker:
        host, _, port = broker.endpoint.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as stranger:
            stranger.sendall(begin_of_tls())
            assert stranger.recv(1), "the broker answers the handshake"
            began = time.monotonic()
            assert await asyncio.to_thread(broker.stop) == 0
            assert time.monotonic() - began < 20


def test_a_development_certificate_is_created(tmp_path: Path) -> None:
    """A client that verifies nothing, like those of several SDKs, gets HTTP/2 over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with run_broker(tmp_path, ("--dev", "--listen-tls", "127.0.0.1:0")) as broker:
        host, _, port = endpoint(broker).rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=60) as raw,
            context.wrap_socket(raw, server_hostname=host) as connection,
        ):
            assert connection.selected_alpn_protocol() == "h2"


async def test_the_authority_of_a_development_broker_can_be_trusted(tmp_path: Path) -> None:
    """Its certificate is in the store. A client that trusts it verifies the broker's certificate and name."""
    with run_broker(tmp_path, ("--dev", "--listen-tls", "127.0.0.1:0")) as broker:
        authority = broker.store / "config" / "dev-ca.crt"
        assert f"trust {authority}" in broker.log_text()
        async with connect(endpoint(broker), tls=Tls(authority)) as client:
            await client.admin.list_topics()
        context = ssl.create_default_context(cafile=str(authority))
        host, _, port = endpoint(broker).rpartition(":")
        for name in (host, "localhost"):
            with (
                socket.create_connection((host, int(port)), timeout=60) as raw,
                context.wrap_socket(raw, server_hostname=name) as connection,
            ):
                assert connection.version() == "TLSv1.3"


@pytest.mark.toolchain
@pytest.mark.timeout(900)
@pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="Rust runs with `make test-sdks`")
@pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo on the PATH")
@pytest.mark.sdk("Rust (TLS alone)")
def test_rust_accepts_the_certificate_of_a_development_broker(tmp_path: Path) -> None:
    """Its TLS rejects an authority's own certificate as a server certificate."""
    build = Path(__file__).parents[2] / "build" / "sdks" / "rust"
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target-dir", str(build)]
    subprocess.run(command, cwd=RUST, check=True)
    with run_broker(tmp_path, ("--dev", "--listen-tls", "127.0.0.1:0")) as broker:
        authority, port = broker.store / "config" / "dev-ca.crt", endpoint(broker).rpartition(":")[2]
        program = [str(build / "release" / "tls-client"), str(authority), "localhost", port]
        done = subprocess.run(program, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "TLSv1_3", "")
