"""Two broker processes: the replica is killed, paused and cut off; then the master is killed and the replica promoted.

Every confirmed message is stored afterwards, once per confirmation, in the order of its queue.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Answer, Request
from tests.support.port_forwarder import forwarded_port
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, records, send
from tests.support.replicating import eventually

_SECONDS = 120.0
_STORED = (Answer.SUCCESS, Answer.FLUSH_SLAVE_TIMEOUT, Answer.SLAVE_NOT_AVAILABLE)
pytestmark = pytest.mark.timeout(300)


class _Process:
    """A broker that is killed and started again on its store."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self._store = directory / name
        self._log = directory / f"{name}.log"
        self._arguments = arguments
        self.addresses: dict[str, str] = {}
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        free = [flag for name in ("--listen", "--metrics") for flag in (name, "127.0.0.1:0")]
        remoting = ["--listen-remoting", self.addresses.get("remoting", "127.0.0.1:0")]
        command = ["-m", "aerobee_broker", "serve", "--dev", "--store", str(self._store), *free, *remoting]
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *command, *self._arguments, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        await self.ready()

    async def ready(self) -> None:
        """Wait for the next line that names the listening address."""
        assert self.process is not None
        assert self.process.stdout is not None
        async with asyncio.timeout(_SECONDS):
            line = (await self.process.stdout.readline()).decode()
        assert line.startswith("ready"), self._log.read_text()[-3000:]
        self.addresses = dict(part.split("=", 1) for part in line.split()[1:])

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGKILL)
        assert self.process is not None
        await self.process.wait()

    async def connect(self) -> RemotingClient:
        return await RemotingClient.connect(Address.parse(self.addresses["remoting"]))


@asynccontextmanager
async def _running(*processes: _Process) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for found in processes:
            if found.process is not None and found.process.returncode is None:
                await found.kill()


async def test_no_answered_message_is_lost(tmp_path: Path) -> None:
    """The replica fails in each way first, and the master at the end."""
    roles = ("--role", "master", "--listen-replicas", "127.0.0.1:0", "--acks", "1")
    master = _Process(tmp_path, "a", *roles)
    async with _running(master):
        await master.start()
        client = await master.connect()
        ha = (await client.call(Request.EXCHANGE_BROKER_HA_INFO)).fields["masterHaAddress"]
        with forwarded_port(ha) as forwarder:
            config = tmp_path / "b.toml"
            config.write_text(f'[replication]\nmaster_ha = "{forwarder.endpoint}"\n')
            replica = _Process(
                tmp_path,
                "b",
                *("--role", "replica", "--listen-replicas", "127.0.0.1:0", "--config", str(config)),
                *("--master", master.addresses["remoting"]),
            )
            async with _running(replica):
                await replica.start()
                answered = await _through_failures(client, replica, forwarder.lose_answers, forwarder.reset)
                await client.close()
                await master.kill()
                await _command("promote", replica)
                await replica.ready()
                assert (await _command("replication", replica)).startswith("master, log end ")
                found = await _bodies(replica)
    assert len(answered) >= 5 * 20
    assert [body for body in found if body in answered] == sorted(answered)


async def _through_failures(
    client: RemotingClient, replica: _Process, lose_answers: Callable[[], None], reset: Callable[[], None]
) -> set[bytes]:
    """Send 20 messages after each failure, and some while it lasts; returns the confirmed ones."""
    answered: set[bytes] = set()
    number = 0

    async def send_some(count: int) -> bool:
        nonlocal number
        confirmed = 0
        for _ in range(count):
            body = f"{number:06d}".encode()
            number += 1
            code = (await send(client, "T", body, queue_id=0)).code
            assert code in _STORED
            if code == Answer.SUCCESS:
                answered.add(body)
                confirmed += 1
        return confirmed == count

    async def until_confirmed() -> None:
        await eventually(lambda: send_some(1))
        while not await send_some(20):
            pass

    async def killed() -> None:
        await replica.kill()
        await send_some(3)
        await replica.start()

    async def paused() -> None:
        replica.send_signal(signal.SIGSTOP)
        await send_some(1)
        replica.send_signal(signal.SIGCONT)

    async def cut_off() -> None:
        lose_answers()
        await send_some(1)
        reset()

    failures: list[Callable[[], Awaitable[Any]]] = [killed, paused, cut_off, killed]
    await until_confirmed()
    for failure in failures:
        await failure()
        await until_confirmed()
    return answered


async def _command(name: str, found: _Process) -> str:
    """The output of `aerobee promote` and `aerobee replication`."""
    command = [
        sys.executable,
        "-m",
        "aerobee_broker",
        name,
        "--remoting",
        found.addresses["remoting"],
        "--timeout",
        "60",
    ]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _bodies(found: _Process) -> list[bytes]:
    """The bodies in the queue, in order."""
    client = await found.connect()
    bodies: list[bytes] = []
    offset = 0
    while True:
        pulled = await client.call(
            Request.PULL_MESSAGE, pull_fields("T", offset=offset, sys_flag=4, suspendTimeoutMillis=0)
        )
        if pulled.code != Answer.SUCCESS:
            break
        bodies += [record.body for record in records(pulled.body)]
        offset = int(pulled.fields["nextBeginOffset"])
    assert json_body(await client.call(Request.GET_BROKER_HA_STATUS))["master"]
    await client.close()
    return bodies
