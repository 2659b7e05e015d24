"""Items 121 and 122: hostile, idle and slow peers."""

from __future__ import annotations

import asyncio
import random
import resource
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.frame import Command, encode
from tests.conformance.cluster.test_name_servers import name_server
from tests.support import golden_remoting
from tests.support.remoting_client import RemotingClient, pull_fields, records, remoting_broker, send
from tests.support.replicating import master, replica

IDLE_COUNT = 2000


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the descriptor limit: both ends of the connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * (IDLE_COUNT + 500) + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} open files; this machine allows {hard} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_c121_fuzzed_requests(tmp_path: Path) -> None:
    """Recorded requests with (fixed) changes of fields and bytes are answered or closed, without a crash."""
    chance = random.Random(121)
    requests = [golden for golden in golden_remoting.frames() if golden.is_request]
    async with remoting_broker(tmp_path) as (broker, client):
        assert broker.remoting is not None
        for number in range(400):
            data = bytearray(chance.choice(requests).data)
            for _ in range(chance.randrange(4)):
                data[chance.randrange(4, len(data))] = chance.randrange(256)
            _, writer = await asyncio.open_connection(broker.remoting.host, broker.remoting.port)
            writer.write(data)
            if number % 3 == 0:
                writer.write(data[: chance.randrange(len(data))])
            if number % 2 == 0:
                await asyncio.sleep(0)
            writer.close()
        for code in (*Request, -1, 0, 9999):
            for fields in ({}, {"topic": "\x00", "queueId": "9" * 30, "offset": "-1"}, {"b": "T", "e": "1e9"}):
                for body in (b"", b"{", b"[]", b'{"consumerDataSet":[[]]}', b"\xff" * 20):
                    answered = client.begin(code, fields, body)
                    done, _ = await asyncio.wait([answered], timeout=0.002)
                    if not done:
                        answered.cancel()  # a decision of 0 gets no answer, and a pull may be held
        assert (await send(client, "After")).code == 0


async def _fuzzed(address: Address, chance: random.Random, starts: Sequence[bytes]) -> None:
    """Connections with valid or invalid beginnings and changed bytes; each is closed in the middle of a frame."""
    for number in range(150):
        data = bytearray(chance.choice(starts)) + chance.randbytes(chance.randrange(40))
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(data)
        if number % 2:
            await asyncio.sleep(0)
        writer.transport.abort() if number % 3 else writer.close()


async def test_fuzzed_name_server(tmp_path: Path) -> None:
    """Requests of brokers and clients with bytes changed; registrations and routes still work afterwards."""
    chance = random.Random(122)
    starts = [
        golden.data for golden in golden_remoting.frames() if golden.is_request and "> name server" in golden.link
    ]
    assert starts
    async with name_server(tmp_path / "ns") as address:
        await _fuzzed(address, chance, starts)
        async with remoting_broker(tmp_path / "store", namesrv=(str(address),)) as (_, client):
            assert (await send(client, "After")).code == 0
        asking = await RemotingClient.connect(address)
        assert (await asking.call(Request.GET_BROKER_CLUSTER_INFO)).code == 0
        await asking.close()


async def test_fuzzed_replication(tmp_path: Path) -> None:
    """Reports, handshakes and random bytes at the replication port; a replica still follows afterwards."""
    chance = random.Random(123)
    starts = [
        struct.pack(">q", 0),
        struct.pack(">q", -1),
        struct.pack(">ihhq", 1, 0, 0, 2),
        bytes(64),
        b"GET / HTTP/1.1",
    ]
    async with master(tmp_path / "a") as found:
        assert (await send(found.client, "T")).code == 0
        await _fuzzed(found.ha, chance, starts)
        assert (await send(found.client, "T")).code == 0
        async with replica(tmp_path / "b", found.broker.remoting) as copy:
            await copy.follows_to(int((await found.status())["masterCommitLogMaxOffset"]))


async def test_c122_idle_connections_and_slow_readers(tmp_path: Path, many_files: None) -> None:
    """2,000 idle connections and 500 with a held pull; a client that does not read its answers is not read from."""
    async with remoting_broker(tmp_path) as (broker, client):
        assert broker.remoting is not None
        silent = [
            (await asyncio.open_connection(broker.remoting.host, broker.remoting.port))[1] for _ in range(IDLE_COUNT)
        ]
        idle = [await RemotingClient.connect(broker.remoting) for _ in range(500)]
        for _ in range(10):
            assert (await send(client, "Many", b"x" * 5000)).code == 0
        unread = await asyncio.open_connection(broker.remoting.host, broker.remoting.port)
        writer = unread[1]
        fields = {name: str(value) for name, value in pull_fields("Many").items()}
        pull = encode(Command(Request.PULL_MESSAGE, fields=fields, body=b"x" * 65536))
        stuck = False
        for _ in range(2000):
            writer.write(pull)
            try:
                async with asyncio.timeout(1):
                    await writer.drain()
            except TimeoutError:
                stuck = True
                break
        assert stuck, "the broker read 128 MiB of requests whose answers nobody read"
        waiting = pull_fields("Many", offset=10, sys_flag=6) | {"suspendTimeoutMillis": 100_000}
        held = [other.begin(Request.PULL_MESSAGE, waiting) for other in idle]
        await client.call(106)
        await send(client, "Many", b"now")
        for answer in held:
            assert [record.body for record in records((await answer).body)] == [b"now"]
        writer.transport.abort()
        for other in idle:
            await other.close()
        for connection in silent:
            assert not connection.is_closing()
            connection.close()
