"""What a whole broker of ours leaves, for RocketMQ's store, its timer and its reading of configuration files."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from pathlib import Path

import pytest

from aerobee_client import Message, connect
from aerobee_client.testing import run_broker
from aerobee_proto import v2
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.tables import java_json
from aerobee_store.timer.checkpoint import TimerCheckpointFile
from aerobee_store.tools.verify import verify
from tests.java_store.conftest import MARKS, Open
from tests.java_store.contents import SIZES
from tests.java_store.java_program import JavaStore, Release

pytestmark = MARKS

GROUP = "billing"
TIMER_TOPIC = "rmq_sys_wheel_timer"
_CONFIG = f"""\
[store]
segment_size = {SIZES[0]}
body_size_max = 16384
queue_file_size = {SIZES[1]}
index_slot_count = {SIZES[2]}
index_entry_count = {SIZES[3]}
disk_headroom = 0
disk_clean_ratio = 1.0
disk_force_clean_ratio = 1.0
disk_full_ratio = 1.0
"""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Of a broker with small files."""
    config = tmp_path / "aerobee.toml"
    config.write_text(_CONFIG)
    return ["--dev", "--config", str(config)]


async def fill(endpoint: str, delays: list[float]) -> tuple[dict[str, str], list[str]]:
    """Topics, groups, messages of all kinds, acknowledgements.

    Message id -> body of those without a delay, and the bodies of those that GROUP has acknowledged.
    """
    async with connect(endpoint) as client:
        types = (v2.MessageType.NORMAL, v2.MessageType.FIFO, v2.MessageType.DELAY)
        await client.admin.create_topic("orders", queue_count=2, message_types=types)
        await client.admin.create_group(GROUP, max_attempts=5)
        producer = client.producer()
        sent = {}
        for number in range(60):
            body, group = f"order {number}".encode(), f"g{number % 3}" if number % 2 else None
            message = Message(topic="orders", body=body, tag="red", keys=(f"k{number}",), message_group=group)
            result = await producer.send(message)
            sent[result.message_id] = body.decode()
        now_ms = time.time_ns() // 1_000_000
        for number, delay in enumerate(delays):
            timestamp = now_ms + round(delay * 1000)
            await producer.send(Message(topic="orders", body=f"late {number}".encode(), delivery_timestamp=timestamp))
        async with asyncio.timeout(30):
            consumer = client.simple_consumer(GROUP, {"orders": "*"})
            finished: list[str] = []
            while len(finished) < 30:
                messages = await consumer.receive()
                await consumer.ack(messages)
                finished += [message.body.decode() for message in messages]
        return sent, finished


async def received(endpoint: str, group: str, count: int, seconds: float) -> list[str]:
    """The bodies that a new group gets, acknowledged, until there are so many and for two seconds no more."""
    async with connect(endpoint) as client:
        consumer = client.simple_consumer(group, {"orders": "*"})
        bodies: list[str] = []
        async with asyncio.timeout(seconds):
            while len(bodies) < count:
                messages = await consumer.receive(wait_seconds=2)
                await consumer.ack(messages)
                bodies += [message.body.decode() for message in messages]
        messages = await consumer.receive(wait_seconds=2)
        return bodies + [message.body.decode() for message in messages]


def java_bodies(store: JavaStore, topic: str, queue_ids: list[int]) -> list[str]:
    """Of every message of these queues."""
    lines = [line for queue_id in queue_ids for line in store.ask("read", topic, queue_id)]
    return [bytes.fromhex(line[6]).decode(errors="replace") for line in lines if line[0] == "message"]


@pytest.mark.parametrize("killed", [False, True])
def test_java_reads_a_brokers_store(
    release: Release, java: Open, tmp_path: Path, arguments: list[str], killed: bool
) -> None:
    """Messages by queue and by message id, the system topics, and every table; then the broker goes on."""
    with run_broker(tmp_path, arguments) as broker:
        sent, finished = asyncio.run(fill(broker.endpoint, [3600.0]))
        if killed:
            broker.kill()
        else:
            assert broker.stop() == 0
        with java(broker.store) as store:
            assert sorted(java_bodies(store, "orders", [0, 1])) == sorted(sent.values())
            for message_id in sent:
                assert len(store.ask("query", "orders", message_id)) == 1
            assert java_bodies(store, TIMER_TOPIC, [0]) == ["late 0"]
            assert java_bodies(store, "rmq_sys_AEROBEE_DELIVERY", [0])
            tables = written_by_java(store, release, broker.store)
        for path, text in tables.items():
            path.write_text(text)
        broker.start()
        bodies = asyncio.run(received(broker.endpoint, "late", len(sent), 60))
        assert sorted(bodies) == sorted(sent.values())
        rest = asyncio.run(received(broker.endpoint, GROUP, len(sent) - len(finished), 60))
        assert sorted(rest + finished) == sorted(sent.values()), "what was acknowledged stays acknowledged"


def written_by_java(store: JavaStore, release: Release, directory: Path) -> dict[Path, str]:
    """Each table that RocketMQ's store library knows, read and written by it: nothing that it knows is lost."""
    tables = {}
    for kind in ("topics", "subscriptionGroup", "consumerOffset"):
        path = directory / "config" / f"{kind}.json"
        if not path.exists():
            assert kind == "consumerOffset", "written every five seconds; the others before a change is answered"
            continue
        ((_, answer),) = store.ask("table", kind, path.read_bytes().hex())
        text = bytes.fromhex(answer).decode()
        ours, theirs = java_json.loads(path.read_text()), java_json.loads(text)
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        assert_kept(kind, theirs, ours)
        tables[path] = text
    assert len(tables) >= 2
    return tables


def assert_kept(name: str, theirs: object, ours: object) -> None:
    """All that RocketMQ has written is what we had; an older release leaves out fields that it does not know."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs.keys() & ours.keys():
            assert_kept(f"{name}.{key}", theirs[key], ours[key])
        if name.endswith("Table"):
            assert theirs.keys() == ours.keys(), name
    else:
        assert theirs == ours, name


def test_javas_timer_delivers_what_our_broker_has_stored(
    release: Release, java: Open, tmp_path: Path, arguments: list[str]
) -> None:
    """A killed broker's delayed messages are delivered by RocketMQ's timer, once; later ones wait on."""
    if release.major < 5:
        pytest.skip("release 4 has no timer")
    with run_broker(tmp_path, arguments) as broker:
        sent, _ = asyncio.run(fill(broker.endpoint, [8.0, 9.0, 10.5, 3600.0]))
        wait_enqueued(broker.store, 4)  # so that RocketMQ goes on with our wheel and log, and makes none of its own
        broker.kill()
        early = ["late 0", "late 1", "late 2"]
        with java(broker.store, timerWheelEnable=True) as store:
            deadline = time.monotonic() + 40
            while not set(early) <= set(java_bodies(store, "orders", [0, 1])):
                assert time.monotonic() < deadline, java_bodies(store, "orders", [0, 1])
                time.sleep(0.2)
            # What it delivered since its last note, it would deliver again, and so do we.
            wait_read_time(broker.store, time.time_ns() // 1_000_000)
            java_timer_is_verified(broker.store)
        java_timer_is_verified(broker.store)
        broker.start()
        bodies = asyncio.run(received(broker.endpoint, "late", len(sent) + 3, 60))
        assert sorted(bodies) == sorted([*sent.values(), *early])
        with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=30) as response:
            metrics = response.read().decode()
        (waiting,) = re.findall(r'^rocketmq_timing_messages{.*topic="orders".*} (\S+)$', metrics, re.MULTILINE)
        assert float(waiting) == 1


@pytest.mark.parametrize("killed", [False, True])
def test_our_broker_delivers_what_javas_timer_has_stored(
    release: Release, java: Open, tmp_path: Path, arguments: list[str], killed: bool
) -> None:
    """Messages on RocketMQ's wheel, delivered by it before it ends, or by us after, each once."""
    if release.major < 5:
        pytest.skip("release 4 has no timer")
    with run_broker(tmp_path, arguments) as broker:
        asyncio.run(fill(broker.endpoint, []))
        assert broker.stop() == 0
        store = java(broker.store, timerWheelEnable=True)
        with store:
            before = java_bodies(store, "orders", [0, 1])
            now_ms = time.time_ns() // 1_000_000
            for number, delay_ms in enumerate((2_500, 3_500, 30_000, 32_000)):
                put_timed(store, f"timed {number}", now_ms + delay_ms)
            deadline = time.monotonic() + 15
            while not {"timed 0", "timed 1"} <= set(java_bodies(store, "orders", [0, 1])):
                assert time.monotonic() < deadline, java_bodies(store, "orders", [0, 1])
                time.sleep(0.2)
            wait_read_time(broker.store, time.time_ns() // 1_000_000)
            java_timer_is_verified(broker.store)
            if killed:
                store.kill()
        in_time = time.time_ns() // 1_000_000 < now_ms + 29_000
        java_timer_is_verified(broker.store)
        broker.start()
        bodies = asyncio.run(received(broker.endpoint, "late", len(before) + 4, 60))
        assert set(bodies) == {*before, *(f"timed {number}" for number in range(4))}
        # On a slow machine RocketMQ may have delivered the last two and not have noted it.
        again = {body for body in bodies if bodies.count(body) > 1}
        assert again == set() if in_time else again <= {"timed 2", "timed 3"}


def wait_enqueued(directory: Path, count: int) -> None:
    """Until our timer has noted that so many messages are on its wheel, durably."""
    file = TimerCheckpointFile(DiskFileSystem(), directory / "config" / "timercheck")
    deadline = time.monotonic() + 15
    while (checkpoint := file.load()) is None or checkpoint.queue_offset < count:
        assert time.monotonic() < deadline, checkpoint
        time.sleep(0.1)


def wait_read_time(directory: Path, time_ms: int) -> None:
    """Until RocketMQ has noted that what was due at this time is done."""
    file = TimerCheckpointFile(DiskFileSystem(), directory / "config" / "timercheck")
    deadline = time.monotonic() + 15
    while (checkpoint := file.load()) is None or checkpoint.read_time_ms <= time_ms:
        assert time.monotonic() < deadline, checkpoint
        time.sleep(0.2)


def java_timer_is_verified(directory: Path) -> None:
    """Nothing is said against the timer's files as RocketMQ writes them, while it is open, closed, or killed."""
    report = verify(directory, index_slot_count=SIZES[2], index_entry_count=SIZES[3])
    assert report.timer_units > 0
    assert [finding for finding in report.findings if finding.kind.startswith("timer-")] == []


def put_timed(store: JavaStore, body: str, deliver_ms: int) -> None:
    """As RocketMQ's broker rewrites a delayed message before it gives it to the store."""
    out_ms = deliver_ms - 1000 if deliver_ms % 1000 == 0 else deliver_ms // 1000 * 1000
    properties = {
        "TIMER_DELIVER_MS": str(deliver_ms),
        "TIMER_OUT_MS": str(out_ms),
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
        "UNIQ_KEY": body.replace(" ", "-"),
    }
    text = "".join(f"{name}\1{value}\2" for name, value in properties.items())
    ((_, status, *_),) = store.ask("put", TIMER_TOPIC, 0, text.encode().hex(), body.encode().hex())
    assert status == "PUT_OK"
