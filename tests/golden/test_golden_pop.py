"""Stores in which POP consumers of RocketMQ 5.5 had messages in flight, waiting for another attempt, and acknowledged.

Written by its broker and proxy with its gRPC protocol: 24 messages m0 to m23 of topic `orders`, group `billing`.
`pop/NAME.tar.xz` has the store without index and timer files.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aerobee_broker.config import Address, ListenConfig
from aerobee_broker.remoting_wire.codes import Request
from aerobee_client import Client, ReceivedMessage, connect
from aerobee_store import StoreConfig
from aerobee_store.testing import ManualClock
from tests.support import golden
from tests.support.in_process_broker import InProcessBroker, in_process_broker
from tests.support.remoting_client import RemotingClient, records

TOPIC = "orders"
GROUP = "billing"
ALL = {f"m{number}" for number in range(24)}
ACKNOWLEDGED = {
    "in-flight": {"m1", "m4", "m5", "m8", "m11", "m14"},
    "retry-v1": {"m2", "m3", "m8", "m11", "m12", "m13", "m22", "m23"},
    "retry-v2": {"m1", "m8", "m9", "m10", "m20", "m23"},  # of a killed broker, which had not saved all offsets
}
NEW = {"m0", "m2", "m3", "m6", "m7", "m12", "m22", "m23"}  # of `in-flight`: never received
RECEIVED_MS = 1_795_517_221_313  # of `in-flight`; invisible for a minute
LATER_MS = RECEIVED_MS + 3_600_000


@asynccontextmanager
async def serving(store: Path, now_ms: int = LATER_MS) -> AsyncIterator[tuple[InProcessBroker, Client, ManualClock]]:
    clock = ManualClock(now_ms)
    loopback = Address("127.0.0.1", 0)
    listen = ListenConfig(grpc=loopback, metrics=loopback, remoting=loopback, drain_seconds=0.5)
    config = StoreConfig(
        directory=store, segment_size=16 << 20, disk_clean_ratio=1.0, disk_force_clean_ratio=1.0, disk_full_ratio=1.0
    )
    async with (
        in_process_broker(store, store=config, listen=listen, clock=clock) as broker,
        connect(broker.endpoint) as client,
    ):
        yield broker, client, clock


async def received(client: Client, *, finish: bool = True) -> list[ReceivedMessage]:
    """What the group receives now."""
    consumer = client.simple_consumer(GROUP, {TOPIC: "*"})
    found: list[ReceivedMessage] = []
    while messages := await consumer.receive(wait_seconds=0, invisible_seconds=600):
        if finish:
            await consumer.ack(messages)
        found += messages
    return found


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


async def test_messages_stay_invisible_as_long_as_at_rocketmq(tmp_path: Path) -> None:
    """Until then only new messages are delivered; then each one that was not acknowledged, as the second attempt."""
    async with serving(golden.unpack_pop("in-flight", tmp_path), RECEIVED_MS + 59_000) as (_, client, clock):
        assert bodies(await received(client)) == sorted(NEW)
        clock.advance(2)
        again = await received(client)
        assert bodies(again) == sorted(ALL - NEW - ACKNOWLEDGED["in-flight"])
        assert {message.delivery_attempt for message in again} == {2}


@pytest.mark.parametrize("name", ACKNOWLEDGED)
@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_all_that_is_not_acknowledged_comes_once(tmp_path: Path, name: str, end: str) -> None:
    """From the topic and both kinds of retry topic. What is acknowledged here stays finished after a restart."""
    store = golden.unpack_pop(name, tmp_path)
    async with serving(store) as (_, client, _):
        found = await received(client)
        if end == "killed":
            _copy(store, tmp_path / "killed")
    assert set(bodies(found)) == ALL - ACKNOWLEDGED[name]
    assert {message.topic for message in found} == {TOPIC}
    assert max(message.delivery_attempt for message in found) == (
        2 if name == "in-flight" else 3 if name == "retry-v1" else 2
    )
    async with serving(tmp_path / "killed" if end == "killed" else store) as (_, client, _):
        assert await received(client) == []


@pytest.mark.parametrize("name", ACKNOWLEDGED)
async def test_messages_in_flight_here_are_unfinished_for_rocketmq(tmp_path: Path, name: str) -> None:
    """It reads each queue from the committed offset, and has nothing to read in the revive log."""
    store = golden.unpack_pop(name, tmp_path)
    async with serving(store) as (_, client, _):
        found = await received(client, finish=False)
    offsets = json.loads(_with_string_keys(store / "config" / "consumerOffset.json"))["offsetTable"]
    for message in found:
        committed = [offsets[f"{topic}@{GROUP}"] for topic in _topics_of(store) if f"{topic}@{GROUP}" in offsets]
        assert any(queues.get(str(message.queue_id), 0) <= message.queue_offset for queues in committed)
    assert set(bodies(found)) == ALL - ACKNOWLEDGED[name]
    assert "rmq_sys_wheel_timer@CID_RMQ_SYS_REVIVE_GROUP" in offsets


@pytest.mark.parametrize(("name", "flag"), [("retry-v1", "1"), ("retry-v2", "2")])
async def test_pop_consumers_acknowledge_messages_of_retry_topics(tmp_path: Path, name: str, flag: str) -> None:
    """A message has its own topic and the flag of the retry topic. Acknowledgements one by one and in a batch."""
    store = golden.unpack_pop(name, tmp_path)
    async with serving(store) as (broker, _, clock):
        client = await RemotingClient.connect(broker.remoting)
        found = []
        while popped := records((await client.call(Request.POP_MESSAGE, _pop(clock))).body):
            found += popped
        infos = [(record, record.properties["POP_CK"].split(" ")) for record in found]
        assert {record.body.decode() for record in found} == ALL - ACKNOWLEDGED[name]
        assert {record.topic for record in found} == {TOPIC}
        retried = [(record, info) for record, info in infos if info[4] == flag]
        assert {info[4] for _, info in infos} == {"0", flag}
        for record, info in infos:
            if info[4] == "0" or record is retried[0][0]:
                topic = TOPIC if info[4] == "0" else f"%RETRY%{GROUP}{'_+'[int(flag) - 1]}{TOPIC}"
                fields = {"consumerGroup": GROUP, "topic": topic, "queueId": info[6], "offset": info[7]}
                done = await client.call(Request.ACK_MESSAGE, {**fields, "extraInfo": " ".join(info)})
                assert done.code == 0, done.remark
        acks = [
            {"c": GROUP, "t": TOPIC, "r": flag, "so": int(info[7]), "q": int(info[6]), "rq": 0}
            | {"pt": int(info[1]), "it": int(info[2]), "b": "AQ=="}
            for _, info in retried[1:]
        ]
        body = json.dumps({"brokerName": "b", "acks": acks}).encode()
        assert (await client.call(Request.BATCH_ACK_MESSAGE, {}, body)).code == 0
        clock.advance(700)
        assert records((await client.call(Request.POP_MESSAGE, _pop(clock))).body) == []
        await client.close()


def _copy(store: Path, target: Path) -> None:
    """Copy a store. Its files are as large as RocketMQ's, and mostly holes."""
    subprocess.run(["cp", "-R", "--sparse=always", store, target], check=True)


def _pop(clock: ManualClock) -> dict[str, object]:
    return {
        **{"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 600_000},
        **{"pollTime": 0, "bornTime": clock.now_ms(), "initMode": 0, "exp": "*", "expType": "TAG", "order": "false"},
    }


def _topics_of(store: Path) -> list[str]:
    return [path.name for path in (store / "consumequeue").iterdir()]


def _with_string_keys(path: Path) -> str:
    """RocketMQ writes integers as keys."""
    return re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', path.read_text())
