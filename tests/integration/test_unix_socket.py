"""gRPC on a Unix socket: permissions to connect, and the life of the socket file."""

from __future__ import annotations

import asyncio
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from aerobee_broker.config import Address, BrokerConfig, ListenConfig
from aerobee_client.testing import BrokerProcess
from aerobee_proto import admin_v1, v2
from aerobee_store.errors import ConfigError
from tests.support.front_under_test import needs_native
from tests.support.in_process_broker import METADATA

pytestmark = needs_native


class UnixBroker(BrokerProcess):
    """A broker on a Unix socket."""

    def __init__(self, directory: Path, path: Path, *arguments: str) -> None:
        super().__init__(directory / "store", directory / "broker.log", ["--dev", *arguments])
        self.endpoint = f"unix:{path}"


async def send(endpoint: str) -> v2.SendMessageResponse:
    message = v2.Message(topic=v2.Resource(name="local"), body=b"1")
    message.system_properties.message_id = "A1"
    message.system_properties.message_type = v2.MessageType.NORMAL
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel: Any
    async with grpc.aio.insecure_channel(endpoint, options) as channel:
        stub: Any = v2.MessagingServiceStub(channel)
        call = stub.SendMessage(v2.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=20)
        answer: v2.SendMessageResponse = await call
        return answer


async def test_a_client_of_the_same_machine(tmp_path: Path) -> None:
    """A killed broker leaves the file, and the next one replaces it; a clean stop removes it."""
    path = tmp_path / "broker.sock"
    broker = UnixBroker(tmp_path, path)
    try:
        broker.start()
        assert broker.endpoint == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await send(broker.endpoint)).status.code == v2.Code.OK
        broker.kill()
        assert path.is_socket()
        broker.start()
        assert (await send(broker.endpoint)).entries[0].offset >= 0
        assert broker.stop() == 0
        assert not path.exists()
    finally:
        broker.close()


async def test_a_client_is_disconnected(tmp_path: Path) -> None:
    """Its connection ends, and the others of the same socket stay."""
    path = tmp_path / "broker.sock"
    broker = UnixBroker(tmp_path, path)
    options = [("grpc.use_local_subchannel_pool", 1)]
    broker.start()
    first: Any
    second: Any
    try:
        async with (
            asyncio.timeout(60),
            grpc.aio.insecure_channel(broker.endpoint, options) as first,
            grpc.aio.insecure_channel(broker.endpoint, options) as second,
        ):
            for channel, client_id in ((first, "first"), (second, "second")):
                asked = v2.QueryRouteRequest(topic=v2.Resource(name="local"))
                await v2.MessagingServiceStub(channel).QueryRoute(asked, metadata=(("x-mq-client-id", client_id),))
                assert channel.get_state() is grpc.ChannelConnectivity.READY
            request = admin_v1.DisconnectClientRequest(client_id="first")
            admin = admin_v1.AdminServiceStub(second)
            answer = await admin.DisconnectClient(request, metadata=(("x-mq-client-id", "second"),))
            assert answer.status.code == v2.Code.OK
            await first.wait_for_state_change(grpc.ChannelConnectivity.READY)
            assert second.get_state() is grpc.ChannelConnectivity.READY
    finally:
        broker.close()


async def test_permissions(tmp_path: Path) -> None:
    """Other users may connect if the operator allows it."""
    path = tmp_path / "broker.sock"
    broker = UnixBroker(tmp_path, path)
    broker._settings["listen.unix_mode"] = "666"
    try:
        broker.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        broker.close()


@pytest.mark.parametrize("kind", ["used", "file"])
def test_files_that_are_not_replaced(tmp_path: Path, kind: str) -> None:
    """A socket in use by another process, and a file that is not a socket."""
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as used:
        if kind == "used":
            used.bind(str(path))
            used.listen()
        else:
            path.write_bytes(b"precious")
        arguments = ["--store", str(tmp_path / "store"), "--listen", f"unix:{path}", "--metrics", "127.0.0.1:0"]
        result = subprocess.run(
            [sys.executable, "-m", "aerobee_broker", "serve", *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert result.returncode == 1
    cause = "Address already in use" if kind == "used" else "the file exists and is not a socket"
    assert f"listen.grpc: cannot listen on unix:{path}: {cause}" in result.stderr
    assert path.exists()


def test_settings_that_are_refused(tmp_path: Path) -> None:
    """A Unix socket for a port other than gRPC, an invalid mode, a path that is too long, grpcio's server."""
    unix, loopback = Address.parse("unix:/run/a.sock"), Address("127.0.0.1", 0)
    assert unix.unix_path == Path("/run/a.sock")
    assert unix.is_loopback
    assert loopback.unix_path is None
    with pytest.raises(ConfigError, match=r"listen\.metrics: unix:/run/a\.sock is a Unix socket"):
        BrokerConfig.tiny(tmp_path, listen=ListenConfig(grpc=loopback, metrics=unix))
    with pytest.raises(ConfigError, match=r"listen\.unix_mode: '888'"):
        BrokerConfig.tiny(tmp_path, listen=ListenConfig(grpc=unix, metrics=loopback, unix_mode="888"))
    with pytest.raises(ConfigError, match=r"Unix socket needs listen\.front"):
        BrokerConfig.tiny(tmp_path, listen=ListenConfig(grpc=unix, metrics=loopback, front="grpcio"))
    with pytest.raises(ValueError, match="1 to 107 bytes"):
        Address.parse("unix:" + "x" * 108)
