"""The stores of released versions are opened by this one: nothing is lost, and it writes on."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from aerobee_client import Message, connect
from aerobee_client.testing import run_broker
from aerobee_proto import v2
from aerobee_store.tools.verify import verify
from tests.golden import versions


@pytest.mark.parametrize("version", versions.versions())
async def test_the_store_of_a_version_is_continued(version: str, tmp_path: Path) -> None:
    """Each message is found, each group continues where it was, dead letters and delays are there, and a restart after
    new messages loses none of both."""
    expected = versions.manifest(version)
    store = versions.unpack(version, tmp_path)
    with run_broker(tmp_path, settings=versions.SETTINGS) as broker:
        assert broker.store == store
        async with connect(broker.endpoint) as client:
            for body in expected["orders"]:
                assert [each.body async for each in client.admin.query("orders", key=body)] == [body.encode()]
            assert await versions.dead_letters(client) == expected["dead"]
            await client.producer().send(Message(topic="orders", body=b"new", keys=("new",)))
        broker.kill()
        broker.start()
        async with connect(broker.endpoint) as client:
            received: list[str] = []
            async with client.simple_consumer("billing", "orders") as consumer:
                while len(received) < len(expected["left"]) + 1:
                    for message in await consumer.receive(32):
                        await consumer.ack(message)
                        received.append(message.body.decode())
            assert sorted(received) == sorted([*expected["left"], "new"])
            async with client.simple_consumer("walking", "steps") as walker:
                (step,) = await walker.receive(1)
                assert step.body == b"step 1"
            topics = {topic.name: list(topic.accept_message_types) for topic in await client.admin.list_topics()}
            assert topics["later"] == [v2.MessageType.DELAY]
            assert topics["steps"] == [v2.MessageType.FIFO]
        assert broker.stop() == 0
    assert verify(store).ok


def test_this_version_has_a_store() -> None:
    """The store of a version is written before its release: `python -m tests.golden.versions`."""
    assert importlib.metadata.version("aerobee") in versions.versions()
