"""Filter bitmaps in a running broker: every way to read with an SQL expression skips records, also after a restart."""

from __future__ import annotations

import asyncio
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.remoting_wire.codes import Request
from aerobee_proto import v2
from aerobee_store import StoreConfig
from aerobee_store.tables import java_json
from tests.conformance.raw_client import RawClient, duration, message, resource
from tests.support.in_process_broker import InProcessBroker
from tests.support.remoting_client import RemotingClient, pull_fields, records, remoting_broker

SQL = v2.FilterType.SQL
WANTED, COUNT = "n = 37", 40


async def skips(broker: InProcessBroker) -> int:
    """The messages that reads have skipped by their bitmaps so far."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=60) as response:
            return str(response.read().decode())

    text = await asyncio.to_thread(fetch)
    (line,) = (each for each in text.splitlines() if each.startswith("aerobee_store_bitmap_skips_total{"))
    return int(float(line.rpartition(" ")[2]))


async def read_in_every_way(client: RawClient, remoting: RemotingClient, topic: str) -> dict[str, list[str]]:
    """What a receive, a pull, a pull by remoting and a POP give, each for a group of its own."""
    request = v2.PullMessageRequest(
        group=resource("puller"),
        message_queue=v2.MessageQueue(topic=resource(topic), id=0),
        batch_size=32,
        filter_expression=v2.FilterExpression(type=SQL, expression=WANTED),
        long_polling_timeout=duration(0),
    )
    call = client.stub.PullMessage(request, metadata=client.metadata, timeout=60)
    pulled = [each.message.body.decode() async for each in call if each.HasField("message")]
    received = await client.receive(topic, "receiver", expression=WANTED, filter_type=SQL)
    fields = pull_fields(topic, sys_flag=4, subscription=WANTED, expressionType="SQL92", suspendTimeoutMillis=0)
    remote = await remoting.call(Request.PULL_MESSAGE, fields)
    pop = {
        "consumerGroup": "popper",
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "SQL92",
        "exp": WANTED,
    }
    popped = await remoting.call(Request.POP_MESSAGE, pop)
    return {
        "pull": pulled,
        "receive": received.bodies,
        "remoting": [found.body.decode() for found in records(remote.body)],
        "pop": [found.body.decode() for found in records(popped.body)],
    }


async def test_every_read_skips_records(tmp_path: Path) -> None:
    """Receive, pull and POP of both protocols get the one message, and skip the others by their bitmaps."""
    changes: dict[str, Any] = {
        "store": replace(StoreConfig.tiny(tmp_path / "store"), queue_extensions=True),
        "delivery": DeliveryConfig(filter_bitmaps=True, initial_position="earliest"),
    }
    async with remoting_broker(tmp_path / "store", **changes) as (broker, remoting):
        client = RawClient(broker.channel)
        topic = await client.create_topic("orders")
        nothing: dict[str, list[str]] = {"pull": [], "receive": [], "remoting": [], "pop": []}
        assert await read_in_every_way(client, remoting, topic) == nothing
        await client.sent(*(message(topic, f"{n}", properties={"n": f"{n}"}) for n in range(COUNT)))
        assert await skips(broker) == 0
        assert await read_in_every_way(client, remoting, topic) == {way: ["37"] for way in nothing}
        assert await skips(broker) == 4 * (COUNT - 1)
    stored = java_json.loads((tmp_path / "store" / "config" / "consumerFilter.json").read_bytes())
    assert isinstance(stored, dict)
    assert set(stored["filterDataByTopic"]["orders"]["groupFilterData"]) == {"puller", "receiver", "CG", "popper"}
    async with remoting_broker(tmp_path / "store", **changes) as (broker, remoting):
        client = RawClient(broker.channel)
        again = await read_in_every_way(client, remoting, topic)
        assert (again["pull"], again["remoting"]) == (["37"], ["37"])
        assert await skips(broker) >= 2 * (COUNT - 1)
