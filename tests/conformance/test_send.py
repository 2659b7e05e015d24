"""Items 82 to 120: successful and refused sends."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from aerobee_proto import admin_v1, v2
from aerobee_store import StoreConfig
from tests.conformance.raw_client import RawClient, duration, message, ordered, timestamp
from tests.support.in_process_broker import in_process_broker

Code = v2.Code
Type = v2.MessageType


def delayed(topic: str, milliseconds: int, body: str = "hello", **system: Any) -> v2.Message:
    """A message that is due at this time (Unix milliseconds)."""
    return message(topic, body, message_type=Type.DELAY, delivery_timestamp=timestamp(milliseconds), **system)


async def code(client: RawClient, *messages: v2.Message) -> int:
    """The code of a send; a failed one has no entries."""
    response = await client.send(*messages)
    if response.status.code != Code.OK:
        assert not response.entries
        assert response.status.message
    return response.status.code


# --- What succeeds ------------------------------------------------------------------------------------------


async def test_082_result(client: RawClient, topic: str) -> None:
    """The overall status and the entry are OK; the entry has the message's id and queue offset."""
    sent = message(topic)
    response = await client.send(sent)
    assert response.status.code == Code.OK
    [entry] = response.entries
    assert entry.status.code == Code.OK
    assert entry.message_id == sent.system_properties.message_id
    assert entry.offset >= 0


async def test_083_batch(client: RawClient, topic: str, group: str) -> None:
    """One entry per message, in order, and all are stored."""
    sent = [message(topic, f"m{number}") for number in range(10)]
    response = await client.send(*sent)
    assert response.status.code == Code.OK
    assert [entry.message_id for entry in response.entries] == [each.system_properties.message_id for each in sent]
    assert {entry.status.code for entry in response.entries} == {Code.OK}
    received = await client.receive_all(topic, group, 10)
    assert sorted(each.body for each in received) == sorted(each.body for each in sent)


async def test_084_transaction_id(client: RawClient, topic: str) -> None:
    """It is not empty, because clients end their transactions with it; it is the message's id."""
    await client.create_topic(topic, Type.TRANSACTION)
    [entry] = await client.sent(message(topic, message_type=Type.TRANSACTION))
    assert entry.transaction_id == entry.message_id != ""


async def test_085_recall_handles(client: RawClient, topic: str) -> None:
    """A delayed message has one, a normal message does not."""
    await client.create_topic(topic, Type.NORMAL, Type.DELAY)
    [late, at_once] = await client.sent(delayed(topic, int(time.time() * 1000) + 3_600_000), message(topic))
    assert late.recall_handle
    assert not at_once.recall_handle


async def test_086_queue_of_the_client(client: RawClient, topic: str, group: str) -> None:
    """Several clients name a queue; with any value the message is accepted and delivered."""
    await client.create_topic(topic, queues=2)
    await client.sent(*(message(topic, f"to {queue}", queue_id=queue) for queue in (0, 1, 7, -1)))
    assert len(await client.receive_all(topic, group, 4)) == 4


async def test_087_message_group_in_one_queue(client: RawClient, topic: str, group: str) -> None:
    """Offsets rise in the order of sending; the message groups of a batch go to their own queues."""
    await client.create_topic(topic, Type.FIFO, queues=8)
    sent = [ordered(topic, f"{name}:{number}", name) for number in range(5) for name in ("order-1", "order-2", "x")]
    await client.sent(*sent[:9])
    assert await code(client, *sent[9:]) == Code.OK
    places: dict[str, list[tuple[int, int, int]]] = {}
    for each in await client.receive_all(topic, group, len(sent)):
        name, number = each.body.decode().split(":")
        system = each.system_properties
        assert system.message_group == name
        places.setdefault(name, []).append((int(number), system.queue_id, system.queue_offset))
    for name, found in places.items():
        found.sort()
        assert [number for number, _, _ in found] == list(range(5)), name
        assert len({queue for _, queue, _ in found}) == 1, f"{name} is in several queues"
        assert [offset for _, _, offset in found] == sorted(offset for _, _, offset in found)


async def test_088_bodies_at_the_limit(client: RawClient, topic: str) -> None:
    """4 MiB are accepted, one more byte is not."""
    assert await code(client, message(topic, b"x" * 4_194_304)) == Code.OK
    assert await code(client, message(topic, b"x" * 4_194_305)) == Code.MESSAGE_BODY_TOO_LARGE


async def test_089_compressed_body(client: RawClient, topic: str, group: str) -> None:
    """The broker neither compresses nor decompresses: bytes and encoding are returned unchanged."""
    body = gzip.compress(b"hello " * 100)
    await client.sent(message(topic, body, body_encoding=v2.Encoding.GZIP))
    received = (await client.receive(topic, group, wait=5)).one
    assert received.body == body
    assert received.system_properties.body_encoding == v2.Encoding.GZIP


async def test_090_no_encoding(client: RawClient, topic: str, group: str) -> None:
    """It is delivered as IDENTITY: clients reject an unspecified one."""
    await client.sent(message(topic))
    assert (await client.receive(topic, group, wait=5)).one.system_properties.body_encoding == v2.Encoding.IDENTITY


async def test_091_born_host_and_time(client: RawClient, topic: str, group: str) -> None:
    """A missing birth host is replaced by the connection's address; the birth time keeps its milliseconds."""
    await client.sent(message(topic, born_timestamp=timestamp(1_700_000_000_123)))
    system = (await client.receive(topic, group, wait=5)).one.system_properties
    assert system.born_host == "127.0.0.1"
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123
    await client.sent(message(topic, born_host="my.host"))
    system = (await client.receive(topic, group, wait=5)).one.system_properties
    assert system.born_host == "my.host"
    assert abs(system.born_timestamp.ToMilliseconds() / 1000 - time.time()) < 60, "the broker's time stands in"


async def test_092_properties_of_the_application(client: RawClient, topic: str, group: str) -> None:
    """User properties, tag, keys and trace context are unchanged, in any script."""
    properties = {"plain": "value", "größe": "70 €", "Ключ": "значение", "🚀": "世界", "empty": ""}
    sent = message(
        topic,
        "тело",
        properties=properties,
        tag="grüße",
        keys=["first", "zweiter", "третий"],
        trace_context="00-ab-cd-01",
    )
    await client.sent(sent)
    received = (await client.receive(topic, group, wait=5)).one
    assert dict(received.user_properties) == properties
    for name in ("tag", "keys", "trace_context"):
        assert getattr(received.system_properties, name) == getattr(sent.system_properties, name)
    set_fields = {field.name for field, _ in received.system_properties.ListFields()}
    assert not set_fields & {"message_group", "lite_topic", "priority", "delivery_timestamp", "dead_letter_queue"}


async def test_093_key_with_a_space(client: RawClient, topic: str, group: str) -> None:
    """It stays one key."""
    await client.sent(message(topic, keys=["one key", "another"]))
    assert list((await client.receive(topic, group, wait=5)).one.system_properties.keys) == ["one key", "another"]


@pytest.mark.parametrize(
    "message_id", ["x", "order 17 / größe", "01" + "F" * 32, "a" * 1000], ids=lambda text: text[:20]
)
async def test_094_any_message_id(client: RawClient, topic: str, group: str, message_id: str) -> None:
    """The client's id is returned and delivered, whatever it is."""
    [entry] = await client.sent(message(topic, message_id=message_id))
    assert entry.message_id == message_id
    assert (await client.receive(topic, group, wait=5)).one.system_properties.message_id == message_id


async def test_095_same_id_sent_twice(client: RawClient, topic: str, group: str) -> None:
    """A client without an answer retries with the same id: OK, and it is delivered at least once."""
    sent = message(topic)
    await client.sent(sent, sent)
    received = await client.receive_all(topic, group, 2, wait=1)
    assert {each.system_properties.message_id for each in received} == {sent.system_properties.message_id}


async def test_096_due_in_the_past(client: RawClient, topic: str, group: str) -> None:
    """It is delivered at once, and cannot be recalled."""
    await client.create_topic(topic, Type.DELAY)
    sent = await client.sent(delayed(topic, 1_000_000_000_000), delayed(topic, int(time.time() * 1000)))
    assert [entry.recall_handle for entry in sent] == ["", ""]
    assert len(await client.receive_all(topic, group, 2)) == 2


async def test_097_durable(client: RawClient, topic: str) -> None:
    """With sync flush an answered message is durable: a sync after its arrival covered it to its end."""
    await client.sent(message(topic, "before"))
    before = await client.admin.GetStoreStatus(admin_v1.GetStoreStatusRequest(), timeout=60)
    await client.sent(message(topic, "x" * 10_000))
    after = await client.admin.GetStoreStatus(admin_v1.GetStoreStatusRequest(), timeout=60)
    assert after.flushed_physical_offset >= before.max_physical_offset + 10_000
    assert after.fsync_count > before.fsync_count


async def test_098_before_settings(client: RawClient, topic: str) -> None:
    """The Python client does not wait for its settings, so its first message often arrives earlier."""
    assert await code(client.other(), message(topic)) == Code.OK


async def test_099_priority_zero(client: RawClient, topic: str, group: str) -> None:
    """Node.js's client writes priority 0 and type NORMAL: the message is a normal one."""
    await client.sent(message(topic, priority=0))
    assert (await client.receive(topic, group, wait=5)).one.system_properties.message_type == Type.NORMAL


# --- What fails ---------------------------------------------------------------------------------------------


async def test_100_empty_request(client: RawClient) -> None:
    """MESSAGE_CORRUPTED."""
    assert await code(client) == Code.MESSAGE_CORRUPTED


async def test_101_two_topics(client: RawClient, topic: str) -> None:
    """MESSAGE_CORRUPTED; one name in two namespaces means two topics."""
    assert await code(client, message(topic), message(f"{topic}-b")) == Code.MESSAGE_CORRUPTED
    assert await code(client, message(topic), message(topic, namespace="shop")) == Code.MESSAGE_CORRUPTED


@pytest.mark.parametrize(
    "name", ["", "  ", "a b", "a.b", "t" * 128, "TBW102", "rmq_sys_x"], ids=lambda name: repr(name[:9])
)
async def test_102_illegal_topic(client: RawClient, name: str) -> None:
    """A blank, illegal or overlong name, or the broker's own topic."""
    assert await code(client, message(name)) == Code.ILLEGAL_TOPIC


async def test_103_unknown_topic(strict_client: RawClient, topic: str) -> None:
    """TOPIC_NOT_FOUND without automatic creation."""
    assert await code(strict_client, message(topic)) == Code.TOPIC_NOT_FOUND


async def test_104_empty_body(client: RawClient, topic: str) -> None:
    """MESSAGE_BODY_EMPTY."""
    assert await code(client, message(topic, b"")) == Code.MESSAGE_BODY_EMPTY


async def test_105_number_of_properties(client: RawClient, topic: str) -> None:
    """128 are accepted, 129 are not."""
    for count, expected in ((128, Code.OK), (129, Code.MESSAGE_PROPERTIES_TOO_LARGE)):
        assert await code(client, message(topic, properties={f"p{n}": "v" for n in range(count)})) == expected


async def test_106_size_of_properties(client: RawClient, topic: str) -> None:
    """Names, values, tag and keys together may have 16,384 bytes of UTF-8, not one more."""
    for size, expected in ((16_384, Code.OK), (16_385, Code.MESSAGE_PROPERTIES_TOO_LARGE)):
        value = "ü" * 100 + "x" * (size - 200 - len("name") - len("tag") - len("key1") - len("key2"))
        big = message(topic, properties={"name": value}, tag="tag", keys=["key1", "key2"])
        assert await code(client, big) == expected


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TRAN_MSG", "__BORNHOST", "__CRC32#"])
async def test_107_reserved_names(client: RawClient, topic: str, name: str) -> None:
    """ILLEGAL_MESSAGE_PROPERTY_KEY; in another case it is an ordinary name."""
    assert await code(client, message(topic, properties={name: "v"})) == Code.ILLEGAL_MESSAGE_PROPERTY_KEY
    assert await code(client, message(topic, properties={f"{name}x": "v"})) == Code.OK


@pytest.mark.parametrize("character", ["\x00", "\x01", "\n", "\x1f", "\x7f", "\x9f"], ids=repr)
async def test_108_control_characters(client: RawClient, topic: str, character: str) -> None:
    """In a name or a value: ILLEGAL_MESSAGE_PROPERTY_KEY."""
    for properties in ({f"a{character}": "v"}, {"a": f"v{character}w"}):
        assert await code(client, message(topic, properties=properties)) == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


async def test_109_illegal_tags(client: RawClient, topic: str) -> None:
    """Blanks, a bar, a control character; an empty tag means none."""
    for tag in ("  ", "a|b", "a\tb"):
        assert await code(client, message(topic, tag=tag)) == Code.ILLEGAL_MESSAGE_TAG, tag
    assert await code(client, message(topic, tag="")) == Code.OK


async def test_110_illegal_keys(client: RawClient, topic: str) -> None:
    """Blanks or a control character in any key."""
    for key in (" ", "a\nb"):
        assert await code(client, message(topic, keys=["fine", key])) == Code.ILLEGAL_MESSAGE_KEY, key


async def test_111_illegal_message_groups(client: RawClient, topic: str) -> None:
    """63 bytes are accepted, 64 are not, nor are blanks or control characters."""
    await client.create_topic(topic, Type.FIFO)
    for group in ("g" * 63, "ü" * 31):
        assert await code(client, ordered(topic, "fine", group)) == Code.OK
    for group in ("g" * 64, "ü" * 32, "  ", "a\x00b"):
        assert await code(client, ordered(topic, "bad", group)) == Code.ILLEGAL_MESSAGE_GROUP, group


@pytest.mark.parametrize("message_id", ["", "  "], ids=repr)
async def test_112_blank_message_id(client: RawClient, topic: str, message_id: str) -> None:
    """ILLEGAL_MESSAGE_ID."""
    assert await code(client, message(topic, message_id=message_id)) == Code.ILLEGAL_MESSAGE_ID


async def test_113_too_far_ahead(client: RawClient, topic: str) -> None:
    """ILLEGAL_DELIVERY_TIME after more than forty days."""
    await client.create_topic(topic, Type.DELAY)
    latest = int(time.time() * 1000) + 40 * 86_400_000
    assert await code(client, delayed(topic, latest)) == Code.OK
    assert await code(client, delayed(topic, latest + 60_000)) == Code.ILLEGAL_DELIVERY_TIME


_KINDS: dict[v2.MessageType.ValueType, dict[str, Any]] = {
    Type.NORMAL: {},
    Type.FIFO: {"message_group": "g"},
    Type.DELAY: {"delivery_timestamp": timestamp(1_000_000_000_000)},
    Type.TRANSACTION: {},
}


@pytest.mark.parametrize("kind", _KINDS, ids=Type.Name)
async def test_114_wrong_type(client: RawClient, topic: str, kind: v2.MessageType.ValueType) -> None:
    """A topic accepts its own type; any other is MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, even when mislabelled."""
    await client.create_topic(topic, kind)
    for other, fields in _KINDS.items():
        if other != kind:
            conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
            assert await code(client, message(topic, message_type=other, **fields)) == conflict, Type.Name(other)
    if kind != Type.FIFO:
        mislabelled = message(topic, message_type=Type.NORMAL, message_group="g")
        assert await code(client, mislabelled) == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_115_mixed_topic(client: RawClient, topic: str) -> None:
    """It accepts all four types."""
    await client.create_topic(topic, *_KINDS)
    for kind, fields in _KINDS.items():
        assert await code(client, message(topic, message_type=kind, **fields)) == Code.OK, Type.Name(kind)


async def test_116_recovery_duration(client: RawClient, topic: str) -> None:
    """At most one hour before the check, not one second more."""
    await client.create_topic(topic, Type.TRANSACTION)
    for seconds, expected in ((3600, Code.OK), (3601, Code.BAD_REQUEST)):
        half = message(topic, message_type=Type.TRANSACTION, orphaned_transaction_recovery_duration=duration(seconds))
        assert await code(client, half) == expected


async def test_117_read_only(client: RawClient, topic: str) -> None:
    """FORBIDDEN."""
    await client.create_topic(topic, permission=v2.Permission.READ)
    assert await code(client, message(topic)) == Code.FORBIDDEN


async def test_118_one_bad_message(client: RawClient, topic: str, group: str) -> None:
    """The whole request fails with that message's code, without entries, and nothing is stored."""
    good = [message(topic, f"good {number}") for number in range(3)]
    assert await code(client, *good[:2], message(topic, b""), good[2]) == Code.MESSAGE_BODY_EMPTY
    assert (await client.receive(topic, group, wait=0.2)).code == Code.MESSAGE_NOT_FOUND
    await client.sent(message(topic, "later"))
    assert (await client.receive(topic, group, wait=5)).bodies == ["later"]


async def test_119_digests(client: RawClient, topic: str) -> None:
    """A wrong MD5 or SHA-1 is MESSAGE_CORRUPTED; CRC-32 has three spellings and is not compared."""
    md5, sha1 = hashlib.md5(b"hello").hexdigest(), hashlib.sha1(b"hello").hexdigest()
    for kind, checksum, expected in (
        (v2.DigestType.MD5, md5.upper(), Code.OK),
        (v2.DigestType.MD5, md5, Code.OK),
        (v2.DigestType.MD5, "0" * 32, Code.MESSAGE_CORRUPTED),
        (v2.DigestType.SHA1, sha1, Code.OK),
        (v2.DigestType.SHA1, md5, Code.MESSAGE_CORRUPTED),
        (v2.DigestType.CRC32, "3610A686", Code.OK),
        (v2.DigestType.CRC32, "907060870", Code.OK),
        (v2.DigestType.CRC32, "whatever", Code.OK),
    ):
        digest = v2.Digest(type=kind, checksum=checksum)
        assert await code(client, message(topic, "hello", body_digest=digest)) == expected, digest


async def test_120_full_store(tmp_path: Path, topic: str) -> None:
    """A full disk gets an answer instead of a hang."""
    store = dataclasses.replace(
        StoreConfig.tiny(tmp_path), disk_full_ratio=1e-9, disk_clean_ratio=1e-9, disk_force_clean_ratio=1e-9
    )
    async with in_process_broker(tmp_path, store=store) as broker:
        client = RawClient(broker.channel)
        assert await code(client, message(topic)) in (Code.TOO_MANY_REQUESTS, Code.INTERNAL_SERVER_ERROR)
        assert (await client.heartbeat(kind=v2.ClientType.PRODUCER)) == Code.OK
