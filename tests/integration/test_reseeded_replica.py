"""A replica whose master has removed what follows its log: it copies the log again, with broker processes."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.replication.requests import ReplicationRequests
from tests.support import replicating
from tests.support.broker_process import BrokerProcess, running
from tests.support.port_forwarder import forwarded_port
from tests.support.remoting_client import send
from tests.support.replicating import eventually

pytestmark = pytest.mark.timeout(300)
_SEGMENT = 1 << 20
_CONFIG = f"[listen]\ndrain_seconds = 0.1\n[store]\nsegment_size = {_SEGMENT}\n"
_ROLE = ("--role", "replica", "--master")


@dataclass
class Pair:
    """A master, and a replica that is behind the first segment of the master's log. Both are stopped."""

    master: BrokerProcess
    replica: BrokerProcess
    old: list[bytes]
    """What the replica has."""
    new: list[bytes]
    """What the master has."""

    async def reseeded(self) -> None:
        """Return once the replica has exchanged its log, and has all of the master's."""

        async def is_done() -> bool:
            info = (await self.replica.status())["haClientRuntimeInfo"]
            return not info["reseeding"] and info.get("lag") == 0 and info.get("lacking") == 0

        await self.replica.ready()
        await eventually(is_done)


async def _send(broker: BrokerProcess, count: int, sent: list[bytes], size: int = 100_000) -> None:
    for _ in range(count):
        body = str(len(sent)).encode().ljust(size, b".")
        assert await broker.send(body) == Answer.SUCCESS
        sent.append(body)


@asynccontextmanager
async def _pair(directory: Path, config: str = _CONFIG) -> AsyncIterator[Pair]:
    a = BrokerProcess(directory, "a", "--role", "master", config=_CONFIG)
    b = BrokerProcess(directory, "b", *_ROLE, a.remoting, config=config)
    async with running(a, b):
        await a.start()
        sent: list[bytes] = []
        await a.send(b"alone", "Expired")
        await _send(a, 3, sent)
        await b.start()  # after the topics were made: it serves those that it has copied
        await b.follows(a)
        await b.kill()
        old = sent.copy()
        await a.send(b"more", "Expired")
        await _send(a, 30, sent)
        await _expire(a, 0, 2)
        yield Pair(a, b, old, sent)


async def _expire(broker: BrokerProcess, first: int, end: int) -> None:
    """Stop the broker and remove these of its segments, as retention does with queues that are written."""
    broker.send_signal(signal.SIGTERM)
    assert await broker.ended() == 0
    for number in range(first, end):
        (broker.store / "commitlog" / f"{number * _SEGMENT:020}").unlink()


async def _left(broker: BrokerProcess, sent: list[bytes]) -> list[bytes]:
    """The messages that the master still has, in order."""
    found = await broker.bodies()
    assert found == sent[-len(found) :]
    assert 0 < len(found) < len(sent)
    return found


def _metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(name)))


async def _queue_range(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    client = await broker.connect()
    try:
        asked = [
            await client.call(code, {"topic": topic, "queueId": 0})
            for code in (Request.GET_MIN_OFFSET, Request.GET_MAX_OFFSET)
        ]
    finally:
        await client.close()
    low, high = (int(answer.fields["offset"]) for answer in asked)
    return low, high


async def test_it_copies_the_log_again_and_can_be_promoted(tmp_path: Path) -> None:
    """By itself, and then it is a replica like any other: it follows, and is promoted without force."""
    async with _pair(tmp_path) as pair:
        a, b = pair.master, pair.replica
        await a.start()
        left = await _left(a, pair.new)
        await b.start()
        await pair.reseeded()
        assert "a new copy of its log is made" in b.log
        assert await b.bodies() == left
        assert not (b.store / "reseed").exists()
        assert await a.send(b"after") == Answer.SUCCESS
        await b.follows(a)
        assert await asyncio.to_thread(_metric, b, "aerobee_replica_reseeding") == 0
        await a.kill()
        await b.promote()
        assert await b.bodies() == [*left, b"after"]
        assert await b.send(b"new", "Expired") == Answer.SUCCESS
        assert await _queue_range(b, "Expired") == (2, 3), "readers have the offsets before"


async def test_what_was_deleted_stays_deleted_in_the_new_copy(tmp_path: Path) -> None:
    """The master dies when the copies are exchanged, so nobody can tell the replica afterwards."""
    async with _pair(tmp_path) as pair:
        a, b = pair.master, pair.replica
        await a.start()
        assert await a.send(b"deleted", "Again") == Answer.SUCCESS
        client = await a.connect()
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "Again"})).code == Answer.SUCCESS
        await client.close()
        assert await a.send(b"made again", "Again") == Answer.SUCCESS
        await b.start()
        while "replaces the old one" not in b.log:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.001)
        await b.kill()
        await a.kill()
        await b.start()
        await b.promote("--force")
        assert await b.bodies("Again") == [b"made again"]


async def test_an_incomplete_copy_survives_every_end(tmp_path: Path) -> None:
    """The replica is killed, and then the master; the old messages stay, and nothing is called 0 bytes behind."""
    async with _pair(tmp_path) as pair:
        a, b = pair.master, pair.replica
        await a.start()
        left = await _left(a, pair.new)
        with forwarded_port(a.replicas) as forwarder:
            (tmp_path / "b.toml").write_text(f'{_CONFIG}[replication]\nmaster_ha = "{forwarder.endpoint}"\n')
            forwarder.hold_answers_after(1_000_000)
            await b.start()

            async def is_incomplete() -> bool:
                info = (await b.status())["haClientRuntimeInfo"]
                return bool(info["reseeding"] and info.get("reseedOffset", 0) > 2 * _SEGMENT + 500_000)

            for end in (b.kill, a.kill):
                await eventually(is_incomplete)
                assert await b.bodies() == pair.old
                assert (await a.status())["inSyncSlaveNums"] == 0
                shown = (await b.command("replication")).stdout
                assert "a new copy of its whole log is made" in shown
                assert ", 0 bytes behind" not in shown
                assert await asyncio.to_thread(_metric, b, "aerobee_replica_reseeding") == 1
                await end()
                if end == b.kill:
                    await b.start()
            refused = await b.command("promote")
            assert refused.returncode != 0
            assert "lacks" in refused.stderr
            assert await b.bodies() == pair.old
            await a.start()
            forwarder.reset()
            await pair.reseeded()
            assert await b.bodies() == left


async def test_a_promotion_by_force_keeps_the_old_copy(tmp_path: Path) -> None:
    """The master died before the new copy was complete: the old one is served, and the new one is gone."""
    async with _pair(tmp_path) as pair:
        a, b = pair.master, pair.replica
        await a.start()
        with forwarded_port(a.replicas) as forwarder:
            (tmp_path / "b.toml").write_text(f'{_CONFIG}[replication]\nmaster_ha = "{forwarder.endpoint}"\n')
            forwarder.hold_answers_after(1_000_000)
            await b.start()

            async def has_begun() -> bool:
                return "reseedOffset" in (await b.status())["haClientRuntimeInfo"]

            await eventually(has_begun)
            await a.kill()
            await b.promote("--force")
        assert await b.bodies() == pair.old
        assert await b.send(b"goes on") == Answer.SUCCESS
        assert await b.bodies() == [*pair.old, b"goes on"]
        assert not (b.store / "reseed").exists()
        await b.kill()
        await b.start("--role", "master")
        assert await b.bodies() == [*pair.old, b"goes on"]


async def test_a_new_replica_knows_where_expired_queues_end(tmp_path: Path) -> None:
    """It began with an empty store, after all messages of a topic had expired."""
    async with _pair(tmp_path) as pair:
        a = pair.master
        await a.start()
        c = BrokerProcess(tmp_path, "c", *_ROLE, a.remoting, config=_CONFIG)
        async with running(c):
            await c.start()
            await c.follows(a)
            await a.kill()
            await c.promote()
            assert await c.send(b"new", "Expired") == Answer.SUCCESS
            assert await _queue_range(c, "Expired") == (2, 3)


async def test_a_master_without_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's masters speak the plain protocol; the copy is theirs, byte for byte."""

    async def refuse(_requests: object, _request: object, _connection: object) -> None:
        raise RemotingError(Answer.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    monkeypatch.setattr(ReplicationRequests, "epochs", refuse)
    a, b = tmp_path / "a", tmp_path / "b"
    async with replicating.master(a) as master:
        async with replicating.replica(b, master.broker.remoting) as replica:
            await send(master.client, "T")
            await replica.follows_to((await master.status())["masterCommitLogMaxOffset"])
            await replica.has_tables()
        for number in range(60):
            await send(master.client, "T", str(number).encode().ljust(1000, b"."))
    for path in sorted((a / "commitlog").iterdir())[:2]:
        path.unlink()
    begin = min(path.name for path in (a / "commitlog").iterdir())
    async with replicating.master(a) as master, replicating.replica(b, master.broker.remoting):

        async def is_exchanged() -> bool:
            return min((path.name for path in (b / "commitlog").iterdir()), default="") == begin

        await eventually(is_exchanged)
    copied = replicating.log_bytes(b)
    assert len(copied) > 40_000
    assert replicating.log_bytes(a).startswith(copied)
    assert not (b / "reseed").exists()
