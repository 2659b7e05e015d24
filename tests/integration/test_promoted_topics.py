"""Topics of a promoted replica whose tables are older than its log."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.replication import replica as replica_module
from aerobee_client import Message, connect
from aerobee_store import MessageStore
from tests.support.remoting_client import json_body
from tests.support.replicating import Master, RunningReplica, eventually, master, replica, store_config


async def _store(found: Master, topic: str, *, create: bool = True) -> str:
    """Store one message, in a new topic; returns the message's id."""
    async with connect(found.broker.endpoint) as client:
        if create:
            await client.admin.create_topic(topic, queue_count=2)
        return (await client.producer().send(Message(topic=topic, body=topic.encode()))).message_id


async def _topics(found: RunningReplica) -> set[str]:
    return set(json_body(await found.client.call(Request.GET_ALL_TOPIC_CONFIG))["topicConfigTable"])


async def _copied(following: RunningReplica, topic: str) -> None:
    """Return once the replica has the topic."""

    async def copied() -> bool:
        return topic in await _topics(following)

    await eventually(copied)


async def _everything(found: Master, following: RunningReplica) -> None:
    end = json_body(await found.client.call(Request.GET_BROKER_RUNTIME_INFO))["table"]["commitLogMaxOffset"]
    await following.follows_to(int(end))


def _ids(directory: Path, topic: str) -> list[str | None]:
    """The ids of the messages of a topic in the store of a stopped broker."""
    with MessageStore.open(store_config(directory)) as store:
        return [
            record.unique_key
            for queue_id in store.queue_ids(topic)
            for record in store.read(topic, queue_id, store.queue_range(topic, queue_id)[0], max_count=9).records
        ]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_topic_that_was_not_copied_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    """The master dies before its tables are copied again; a consumer receives the new topic's confirmed message."""
    monkeypatch.setattr(replica_module, "METADATA_SECONDS", 3600.0)
    async with AsyncExitStack() as masters, AsyncExitStack() as replicas:
        found = await masters.enter_async_context(master(tmp_path / "a"))
        address = found.broker.remoting
        await _store(found, "early")
        following = await replicas.enter_async_context(replica(tmp_path / "b", address))
        await _copied(following, "early")
        message_id = await _store(found, "late")
        await _everything(found, following)
        assert "late" not in await _topics(following)
        if restarted:
            await replicas.aclose()
            await masters.aclose()
            following = await replicas.enter_async_context(replica(tmp_path / "b", address))
        listening = await following.promote(force=restarted)
        async with connect(str(listening.grpc)) as client:
            assert "late" in {topic.name for topic in await client.admin.list_topics()}
            await client.admin.create_group("readers")
            async with client.simple_consumer("readers", "late") as consumer:
                assert [message.message_id for message in await consumer.receive()] == [message_id]


async def test_a_group_that_was_not_copied_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are lost with the master, but its acknowledgements are in the log: only the other message comes."""
    monkeypatch.setattr(replica_module, "METADATA_SECONDS", 3600.0)
    async with master(tmp_path / "a") as found, AsyncExitStack() as replicas:
        first = await _store(found, "orders")
        following = await replicas.enter_async_context(replica(tmp_path / "b", found.broker.remoting))
        await _copied(following, "orders")
        second = await _store(found, "orders", create=False)
        async with connect(found.broker.endpoint) as client:
            await client.admin.create_group("readers")
            async with client.simple_consumer("readers", "orders") as consumer:
                (received,) = await consumer.receive(1)
                await consumer.ack(received)
        await _everything(found, following)
        listening = await following.promote(force=False)
        async with connect(str(listening.grpc)) as client:
            assert "readers" not in {group.name for group in await client.admin.list_groups()}
            await client.admin.create_group("readers")
            async with client.simple_consumer("readers", "orders") as consumer:
                left = [*await consumer.receive(2), *await consumer.receive(2, wait_seconds=0)]
        assert sorted(each.message_id for each in (received, *left)) == sorted([first, second])


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_deleted_topic_is_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    """A promoted replica creates topics for queues without one, but not for a topic that the master had deleted."""
    monkeypatch.setattr(replica_module, "METADATA_SECONDS", 0.02)
    async with master(tmp_path / "a") as found:
        await _store(found, "deleted")
        async with AsyncExitStack() as stack:
            following = await stack.enter_async_context(replica(tmp_path / "b", found.broker.remoting))
            await _everything(found, following)
            await _copied(following, "deleted")
            async with connect(found.broker.endpoint) as client:
                await client.admin.delete_topic("deleted")

            async def gone() -> bool:
                return "deleted" not in await _topics(following)

            await eventually(gone)
            if restarted:
                await stack.aclose()
                following = await stack.enter_async_context(replica(tmp_path / "b", found.broker.remoting))
            listening = await following.promote()
            async with connect(str(listening.grpc)) as client:
                assert await client.admin.list_topics() == []


async def test_queues_of_a_deleted_topic_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later topic of the same name has only its own messages, at the offsets that the master gave them."""
    monkeypatch.setattr(replica_module, "METADATA_SECONDS", 0.02)
    async with master(tmp_path / "a") as found:
        await _store(found, "again")
        async with replica(tmp_path / "b", found.broker.remoting) as following:
            await _everything(found, following)
            await _copied(following, "again")
            async with connect(found.broker.endpoint) as client:
                await client.admin.delete_topic("again")

            async def gone() -> bool:
                return not (tmp_path / "b" / "consumequeue" / "again").exists()

            await eventually(gone)
            message_id = await _store(found, "again")
            await _everything(found, following)
            await _copied(following, "again")
            await following.promote()
    assert _ids(tmp_path / "b", "again") == [message_id]


async def test_a_topic_deleted_and_made_again_between_two_copies_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica never sees the master's topics without it; the promoted replica has no old message."""
    monkeypatch.setattr(replica_module, "METADATA_SECONDS", 3600.0)
    async with master(tmp_path / "a") as found:
        await _store(found, "again")
        async with AsyncExitStack() as stack:
            following = await stack.enter_async_context(replica(tmp_path / "b", found.broker.remoting))
            await _everything(found, following)
            await _copied(following, "again")
            await stack.aclose()
            async with connect(found.broker.endpoint) as client:
                await client.admin.delete_topic("again")
            message_id = await _store(found, "again")
            following = await stack.enter_async_context(replica(tmp_path / "b", found.broker.remoting))
            await _everything(found, following)

            async def heard() -> bool:
                return bool((await following.status())["haClientRuntimeInfo"]["tablesCopied"])

            await eventually(heard)
            await following.promote()
    assert _ids(tmp_path / "b", "again") == [message_id]
