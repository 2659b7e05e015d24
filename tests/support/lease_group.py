"""Two broker processes of a group with its lease in etcd or in Kubernetes."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerobee_broker.config import Address
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.listening.peers import Peers
from aerobee_broker.remoting_wire.codes import Request
from aerobee_client.testing import AddressKeeper
from tests.support.broker_process import peers_section
from tests.support.etcd import running_etcd
from tests.support.kube_apiserver import running_kube_apiserver
from tests.support.kubernetes import ApiServer, running_stand_in
from tests.support.ports import free_ports
from tests.support.programs import kube_apiserver
from tests.support.remoting_client import RemotingClient, bodies_of, json_body, send
from tests.support.warm_program import WarmProgram, start_warm

_SECONDS = 120.0
_ANSWER_SECONDS = 5.0
LEASE_SECONDS = 6  # long enough that a busy machine alone does not lose the lease


@dataclass(slots=True)
class Member:
    """One broker. `advertise` is the address for replicas that it publishes with the lease."""

    directory: Path
    broker_id: int
    etcd: str = ""
    acks: str = "all"
    advertise: str = ""
    in_sync_seconds: float = 30.0  # a replica that is briefly not scheduled may still take the lease
    lease_seconds: int = LEASE_SECONDS
    environment: dict[str, str] | None = None
    namesrv: str = ""
    lease_settings: str = ""
    """Further lines of the section `replication`: those of a lease that is not in etcd."""
    peers: PeersConfig = field(default_factory=PeersConfig)
    """The section of that name, for the broker and for those who ask for its status."""
    remoting: Address = field(default_factory=lambda: Address("127.0.0.1", free_ports(1)[0]))
    grpc: Address = field(default_factory=lambda: Address("127.0.0.1", free_ports(1)[0]))
    listen_replicas: Address = field(default_factory=lambda: Address("127.0.0.1", free_ports(1)[0]))
    process: WarmProgram | None = None

    @property
    def store(self) -> Path:
        return self.directory / f"store-{self.broker_id}"

    @property
    def log(self) -> str:
        return (self.directory / f"broker-{self.broker_id}.log").read_text()

    def start(self) -> None:
        self.kill()  # what is left of one that has ended
        role = "master" if self.broker_id == 1 else "replica"
        config = self.directory / f"broker-{self.broker_id}.toml"
        config.write_text(
            f"[replication]\nbroker_id = {self.broker_id}\nlease_seconds = {self.lease_seconds}\n"
            f"in_sync_seconds = {self.in_sync_seconds}\n"
            f'advertise = "{self.advertise}"\n{self.lease_settings}[listen]\ndrain_seconds = 0.5\n'
            + peers_section(self.peers)
        )
        listen = ("--listen", str(self.grpc), "--metrics", "127.0.0.1:0")
        command = [
            *("serve", "--dev", "--store", str(self.store), *listen),
            *("--listen-remoting", str(self.remoting), "--listen-replicas", str(self.listen_replicas)),
            *("--role", role, "--acks", self.acks, "--config", str(config)),
            *(("--etcd", self.etcd) if self.etcd else ()),
            *(("--namesrv", self.namesrv) if self.namesrv else ()),
        ]
        log = self.directory / f"broker-{self.broker_id}.log"
        self.process = start_warm("aerobee_broker", command, log=log, environment=self.environment)

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    async def status(self) -> Any:
        """The broker's status; empty if it does not answer."""
        with suppress(OSError, TimeoutError, EOFError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                identity = Peers.load(self.peers)
                client = await RemotingClient.connect(self.remoting, identity.context_to(self.remoting.host))
                client.sign = identity.sign
                try:
                    answered = await client.call(Request.GET_BROKER_HA_STATUS)
                    return json_body(answered) if answered.code == 0 else {}
                finally:
                    await client.close()
        return {}

    async def is_master(self, in_sync: int = 1) -> Any:
        """Its status if it holds the lease with `in_sync` brokers in sync; None if not."""
        found = await self.status()
        if found.get("master") and len(found.get("leaseInSync", ())) >= in_sync and found["leaseSecondsLeft"]:
            return found
        assert self.process is not None
        assert self.process.returncode is None, self.log[-3000:]
        return None

    async def becomes_master(self, in_sync: int = 1) -> Any:
        """Its status once it holds the lease with `in_sync` brokers in sync."""
        async with asyncio.timeout(_SECONDS):
            while (found := await self.is_master(in_sync)) is None:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        return found

    async def becomes_replica(self) -> Any:
        """Its status once it follows a master."""
        async with asyncio.timeout(_SECONDS):
            while True:
                found = await self.status()
                if found and not found["master"] and found["haClientRuntimeInfo"]["connected"]:
                    return found
                await asyncio.sleep(0.05)

    async def send(self, body: bytes, seconds: float = _ANSWER_SECONDS, *, topic: str = "T") -> int | None:
        """The code of the answer; None without an answer."""
        return (await self.send_at(body, seconds, topic=topic))[0]

    async def send_at(self, body: bytes, seconds: float, *, topic: str = "T") -> tuple[int | None, int]:
        """The code of the answer, and the queue offset of a stored message."""
        with suppress(OSError, TimeoutError, EOFError):
            async with asyncio.timeout(seconds):
                client = await RemotingClient.connect(self.remoting)
                try:
                    answered = await send(client, topic, body, queue_id=0)
                    return answered.code, int(answered.fields.get("queueOffset", "-1"))
                finally:
                    await client.close()
        return None, -1

    async def bodies(self) -> list[bytes]:
        """The bodies in the queue, in order."""
        return await bodies_of(self.remoting, "T")


@dataclass(frozen=True, slots=True)
class LeaseService:
    """The service that keeps the lease of a group, at `address`: etcd, or an API server of Kubernetes."""

    address: str
    api_server: ApiServer | None = None
    group: str = "group"

    def member(self, directory: Path, broker_id: int, through: str = "") -> Member:
        """A broker that reaches the service at its address, or at that of a forwarder."""
        address = through or self.address
        if self.api_server is None:
            return Member(directory, broker_id, f"http://{address}", lease_settings=f'etcd_prefix = "/{self.group}"\n')
        settings = self.api_server.settings(self.group, url=f"https://{address}")
        lines = "".join(f'{name} = "{value}"\n' for name, value in settings.items())
        # each request needs a new connection with TLS, which takes long on a busy machine
        return Member(directory, broker_id, lease_settings=lines, lease_seconds=2 * LEASE_SECONDS)


@contextmanager
def running_lease_service(kind: str, directory: Path) -> Iterator[LeaseService]:
    """`kind`: etcd, or kubernetes, which is a kube-apiserver where there is one, and its stand-in elsewhere."""
    if kind == "etcd":
        with running_etcd(directory) as endpoint:
            yield LeaseService(endpoint.removeprefix("http://"))
    else:
        with (running_kube_apiserver if kube_apiserver() else running_stand_in)(directory) as server:
            yield LeaseService(server.url.removeprefix("https://"), server)


async def one_becomes_master(*members: Member, in_sync: int = 1) -> Member:
    """The member that holds the lease, once it does so with `in_sync` brokers in sync."""
    async with asyncio.timeout(_SECONDS):
        for member in itertools.cycle(members):
            if await member.is_master(in_sync) is not None:
                return member
            await asyncio.sleep(0.05)
    raise AssertionError("the cycle has no end")


@asynccontextmanager
async def running(*members: Member) -> AsyncIterator[None]:
    """Start the members, and kill them at the end.

    Ports stay reserved: a broker that is not master does not listen for gRPC.
    """
    keeper = AddressKeeper()
    keeper.keep(*(str(address) for each in members for address in (each.grpc, each.remoting, each.listen_replicas)))
    try:
        for member in members:
            member.start()
        yield
    finally:
        keeper.release()
        for member in members:
            if member.process is not None:
                member.send_signal(signal.SIGCONT)
            member.kill()
