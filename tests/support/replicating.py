"""Masters and replicas in the test's event loop, and peers that only speak the replication protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aerobee_broker import server
from aerobee_broker.config import Address, AuthConfig, BrokerConfig, ListenConfig
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.listening.listeners import Listening
from aerobee_broker.listening.peers import Peers
from aerobee_broker.remoting_wire.codes import Request
from aerobee_store import StoreConfig
from tests.support.in_process_broker import InProcessBroker
from tests.support.remoting_client import RemotingClient, json_body, remoting_broker

_LOOPBACK = Address("127.0.0.1", 0)
_SECONDS = 60.0


@dataclass(slots=True)
class Master:
    """A broker with a replication port, and a connection to it."""

    broker: InProcessBroker
    client: RemotingClient
    ha: Address

    async def status(self) -> Any:
        return json_body(await self.client.call(Request.GET_BROKER_HA_STATUS))


@asynccontextmanager
async def master(
    directory: Path,
    *,
    segment_size: int = 16384,
    namesrv: tuple[str, ...] = (),
    peers: PeersConfig | None = None,
    auth: AuthConfig | None = None,
    remoting_port: int = 0,
    **replication: Any,
) -> AsyncIterator[Master]:
    """A master, on free ports by default."""
    config = ReplicationConfig(**{"role": "master", "listen": "127.0.0.1:0", **replication})
    store = store_config(directory, segment_size)
    changes: dict[str, Any] = {"peers": peers or PeersConfig(), "auth": auth or AuthConfig()}
    changes["remoting_port"] = remoting_port
    identity = Peers.load(peers or PeersConfig())
    changes["tls"] = identity.context_to("127.0.0.1")
    async with remoting_broker(directory, replication=config, store=store, namesrv=namesrv, **changes) as (
        broker,
        client,
    ):
        client.sign = identity.sign
        fields = (await client.call(Request.EXCHANGE_BROKER_HA_INFO)).fields
        yield Master(broker, client, Address.parse(fields["masterHaAddress"]))


def store_config(directory: Path, segment_size: int = 16384) -> StoreConfig:
    """A store with small files."""
    return replace(StoreConfig.tiny(directory), segment_size=segment_size)


@dataclass(slots=True)
class RunningReplica:
    """A replica and a connection to it. `promoted` completes when it serves as a master."""

    client: RemotingClient
    remoting: Address
    promoted: asyncio.Future[Listening]

    async def status(self) -> Any:
        return json_body(await self.client.call(Request.GET_BROKER_HA_STATUS))

    async def follows_to(self, end: int) -> None:
        """Return once its durable log ends at `end`."""

        async def reached() -> bool:
            return bool((await self.status())["haClientRuntimeInfo"]["maxOffset"] >= end)

        await eventually(reached)

    async def has_tables(self) -> None:
        """Return once it has copied all tables."""

        async def copied() -> bool:
            return not (await self.status())["haClientRuntimeInfo"]["tablesMissing"]

        await eventually(copied)

    async def lacks_nothing(self) -> None:
        """Return once it has heard from its master which messages are answered, and has them and all tables."""
        await self.has_tables()

        async def knows() -> bool:
            return bool((await self.status())["haClientRuntimeInfo"].get("lacking") == 0)

        await eventually(knows)

    async def promote(self, *, force: bool = False) -> Listening:
        """Promote it, without `force` once it would lose nothing; returns its addresses as master."""
        if not force:
            await self.lacks_nothing()
        fields = {"masterBrokerId": 1, **({"force": "true"} if force else {})}
        assert (await self.client.call(Request.NOTIFY_BROKER_ROLE_CHANGED, fields)).code == 0
        async with asyncio.timeout(_SECONDS):
            return await self.promoted


@asynccontextmanager
async def replica(
    directory: Path,
    followed: Address | None,
    *,
    segment_size: int = 16384,
    namesrv: tuple[str, ...] = (),
    peers: PeersConfig | None = None,
    auth: AuthConfig | None = None,
    **replication: Any,
) -> AsyncIterator[RunningReplica]:
    """A replica of the broker at this remoting address, or of the one that name servers list.

    It is stopped on exit, which fails if the replica failed. One that exchanges its log has another address then.
    """
    settings = {"role": "replica", "listen": "127.0.0.1:0", "master": str(followed or ""), **replication}
    config = BrokerConfig.tiny(
        directory,
        store=store_config(directory, segment_size),
        listen=ListenConfig(grpc=_LOOPBACK, metrics=_LOOPBACK, remoting=_LOOPBACK, drain_seconds=0.5),
        replication=ReplicationConfig(**settings),
        namesrv=namesrv,
        peers=peers or PeersConfig(),
        auth=auth or AuthConfig(),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[Address] = loop.create_future()
    promoted: asyncio.Future[Listening] = loop.create_future()

    def announce_replica(remoting: Address, _: Address) -> None:
        if not ready.done():
            ready.set_result(remoting)

    running = loop.create_task(
        server.run(
            config,
            stop,
            lambda listening, _: promoted.set_result(listening),
            announce_replica=announce_replica,
        )
    )
    try:
        async with asyncio.timeout(_SECONDS):
            while not (ready.done() or promoted.done() or running.done()):  # noqa: ASYNC110 - one of them
                await asyncio.sleep(0.01)
        if running.done():
            await running  # raises the reason if it did not start
        address = ready.result() if ready.done() else promoted.result().remoting
        assert address is not None
        identity = Peers.load(peers or PeersConfig())
        client = await RemotingClient.connect(address, identity.context_to(address.host))
        client.sign = identity.sign
        try:
            yield RunningReplica(client, address, promoted)
        finally:
            await client.close()
    finally:
        stop.set()
    async with asyncio.timeout(_SECONDS):
        assert await running == 0


async def eventually(ask: Callable[[], Awaitable[bool]]) -> None:
    """Return once `ask` is true."""
    async with asyncio.timeout(_SECONDS):
        while not await ask():  # noqa: ASYNC110 - it happens elsewhere
            await asyncio.sleep(0.01)


def log_bytes(directory: Path) -> bytes:
    """The log of a stopped broker, without trailing zeros."""
    files = sorted((directory / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")
