"""Broker processes with fixed addresses, which tests kill, pause, and start again with other arguments."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aerobee_broker.config import Address
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.listening.peers import Peers
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_client.testing import AddressKeeper
from tests.support.ports import free_ports
from tests.support.remoting_client import RemotingClient, bodies_of, json_body, send
from tests.support.warm_program import WarmProgram, run_warm, start_warm

SECONDS: Final = 120.0


class BrokerProcess:
    """A broker on one store, with the same addresses in every life."""

    def __init__(
        self, directory: Path, name: str, *arguments: str, config: str = "", peers: PeersConfig | None = None
    ) -> None:
        """`arguments` of `aerobee serve` besides store and addresses; `config`: the text of its settings file.

        `peers`: the section of that name, for the broker and for those who ask it.
        """
        self.name = name
        self.store = directory / name
        self.arguments = arguments
        self._peers = peers or PeersConfig()
        self._identity = Peers.load(self._peers)
        self._log = directory / f"{name}.log"
        self._config = directory / f"{name}.toml"
        self._config.write_text(config + peers_section(self._peers))
        self.grpc, self.remoting, self.metrics, self.replicas = (f"127.0.0.1:{port}" for port in free_ports(4))
        self.process: WarmProgram | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def launch(self, *arguments: str) -> None:
        """Start the process without waiting. `arguments` replace the earlier ones, if there are any."""
        self.arguments = arguments or self.arguments
        command = ["serve", "--dev", "--store", str(self.store), "--config", str(self._config)]
        ports = ["--listen", self.grpc, "--metrics", self.metrics, "--listen-remoting", self.remoting]
        if "--role" in self.arguments:
            ports += ["--listen-replicas", self.replicas]
        self.process = start_warm("aerobee_broker", [*command, *ports, *self.arguments], log=self._log)

    async def start(self, *arguments: str) -> None:
        """Start the process and wait until it serves clients, or as a replica."""
        await self.launch(*arguments)
        await self.ready()

    async def ready(self) -> str:
        """Wait for the next line that names the addresses; returns it."""
        assert self.process is not None
        async with asyncio.timeout(SECONDS):
            line = (await self.process.line()).decode()
        assert line.startswith("ready"), self.log[-3000:]
        return line

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        """End the process, as a crash does."""
        if self.process is not None:
            self.send_signal(signal.SIGCONT)
            self.send_signal(signal.SIGKILL)
            await self.process.ended()

    async def ended(self) -> int:
        """The exit code, once the process has ended."""
        assert self.process is not None
        async with asyncio.timeout(SECONDS):
            return await self.process.ended()

    async def connect(self) -> RemotingClient:
        return await RemotingClient.connect(Address.parse(self.remoting))

    async def status(self) -> Any:
        """The answer about replication."""
        address = Address.parse(self.remoting)
        client = await RemotingClient.connect(address, self._identity.context_to(address.host))
        client.sign = self._identity.sign
        try:
            return json_body(await client.call(Request.GET_BROKER_HA_STATUS))
        finally:
            await client.close()

    async def send(self, body: bytes, topic: str = "T") -> Answer:
        """Send a message to queue 0; returns the code of the answer."""
        client = await self.connect()
        try:
            return Answer((await send(client, topic, body, queue_id=0)).code)
        finally:
            await client.close()

    async def bodies(self, topic: str = "T") -> list[bytes]:
        """The bodies in queue 0, in order."""
        return await bodies_of(Address.parse(self.remoting), topic)

    async def command(self, name: str, *arguments: str, proves: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `aerobee promote` or `aerobee replication` for this broker. `proves`: with what its peers have."""
        command = [name, "--remoting", self.remoting, "--timeout", "60"]
        command += peer_arguments(self._peers) if proves else []
        return await run_warm("aerobee_broker", [*command, *arguments], seconds=SECONDS)

    async def promote(self, *arguments: str) -> str:
        """Make this replica the master by the command; returns its output once the broker serves."""
        done = await self.command("promote", *arguments)
        assert done.returncode == 0, done.stderr
        await self.ready()
        return done.stdout

    async def follows(self, master: BrokerProcess) -> None:
        """Return once this replica has all of its master's log, and its tables, without which it is not promoted."""
        async with asyncio.timeout(SECONDS):
            while True:
                end = (await master.status())["masterCommitLogMaxOffset"]
                found = await self.status()
                info = found["haClientRuntimeInfo"]
                if not found["master"] and info["connected"] and not info["tablesMissing"] and info["maxOffset"] >= end:
                    return
                await asyncio.sleep(0.05)

    async def counts(self, replicas: int = 1) -> None:
        """Return once so many replicas of this master are in sync."""
        async with asyncio.timeout(SECONDS):
            while (await self.status())["inSyncSlaveNums"] < replicas:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(*brokers: BrokerProcess) -> AsyncIterator[None]:
    """Kill the brokers at the end. Their ports stay reserved while they are stopped."""
    keeper = AddressKeeper()
    keeper.keep(*(address for each in brokers for address in (each.grpc, each.remoting, each.replicas)))
    try:
        yield
    finally:
        keeper.release()
        for each in brokers:
            await each.kill()


_PROOFS: Final = ("secret_key_file", "certificate", "key", "authorities")


def peer_arguments(peers: PeersConfig) -> list[str]:
    """The options of commands for what brokers prove to each other."""
    found = [(name, getattr(peers, name)) for name in _PROOFS]
    return [part for name, path in found if path is not None for part in (f"--{name.replace('_', '-')}", str(path))]


def peers_section(peers: PeersConfig) -> str:
    """The section of a settings file for what brokers prove to each other; empty if they prove nothing."""
    lines = [f'{name} = "{path}"' for name in _PROOFS if (path := getattr(peers, name)) is not None]
    return "\n".join(["\n[peers]", *lines, ""]) if lines else ""
