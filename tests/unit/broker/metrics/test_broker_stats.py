"""What came and went in the last minute, hour and day."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_broker.config import BrokerConfig
from aerobee_broker.metrics import broker_stats
from aerobee_broker.metrics.broker_stats import (
    OTHERS,
    SAMPLE_SECONDS,
    STAT_SETS,
    BrokerStats,
    GroupTraffic,
    TopicTraffic,
)
from aerobee_broker.metrics.counters import BrokerCounters
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.tables import Tables
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType
from aerobee_store import Message, MessageStore
from aerobee_store.testing import ManualClock


class World:
    """A broker's counters, tables and store, without the broker."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        config = BrokerConfig.tiny(directory)
        self.store = MessageStore.open(config.store, clock=self.clock)
        self.tables = Tables.load(config, self.clock, self.store.file_system, self.store.in_disk_thread)
        for topic in ("orders", "bills"):
            self.tables.topics.create(TopicConfig.of_type(topic, TopicMessageType.NORMAL, queue_count=1))
        self.tables.groups.create(GroupConfig(name="billing"))
        self.counters = BrokerCounters()
        self.stats = BrokerStats(self.counters, self.tables, self.store, self.clock)

    def send(self, topic: str, count: int, milliseconds: float = 2.0, message_type: str = "normal") -> None:
        """One request."""
        sent = self.counters.sent_to(topic, message_type)
        for _ in range(count):
            sent.add(100)
        sent.milliseconds.observe(milliseconds)

    def receive(self, topic: str, count: int, group: str = "billing") -> None:
        received = self.counters.received_by(topic, group)
        received.messages += count
        received.bytes += 150 * count
        for _ in range(count):
            received.milliseconds.observe(7)

    def pass_time(self, seconds: float) -> None:
        """With the samples that belong to it."""
        for _ in range(round(seconds / SAMPLE_SECONDS)):
            self.clock.advance(SAMPLE_SECONDS)
            self.stats.take()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with world.store:
        yield world


def test_what_came_shows_at_once(world: World) -> None:
    """Before the first sample, too; of all message types of a topic together."""
    world.send("orders", 3, 2.0)
    world.send("orders", 1, 4.0, "fifo")
    world.receive("orders", 2)
    world.clock.advance(4)
    assert world.stats.topics("minute") == {"orders": TopicTraffic(4, 400, 2, 6.0)}
    assert world.stats.groups("minute") == {("orders", "billing"): GroupTraffic(2, 300, 14.0)}
    assert world.stats.per_second() == (1.0, 0.5)
    assert (world.stats.messages_in, world.stats.messages_out) == (4, 2)


def test_each_window_forgets_in_its_time(world: World) -> None:
    """After a minute, an hour and its ten minutes, a day and its hour; what is idle takes no place in any slot."""
    world.send("orders", 5)
    world.pass_time(50)
    assert world.stats.topics("minute")["orders"].messages == 5
    world.send("bills", 1)
    world.pass_time(20)
    assert set(world.stats.topics("minute")) == {"bills"}
    assert set(world.stats.topics("hour")) == {"bills", "orders"}
    world.pass_time(3600 + 600)
    assert (world.stats.topics("minute"), world.stats.topics("hour")) == ({}, {})
    assert world.stats.topics("day")["orders"] == TopicTraffic(5, 500, 1, 2.0)
    world.pass_time(24 * 3600)
    assert world.stats.topics("day") == {}
    assert world.stats.messages_in == 6


def test_rates_are_over_what_has_passed(world: World) -> None:
    """At first the time since the start, later the whole window."""
    world.send("orders", 30)
    world.pass_time(30)
    assert world.stats.per_second() == (1.0, 0.0)
    assert world.stats.seconds("hour") == 30
    world.pass_time(30)
    assert world.stats.per_second() == (0.5, 0.0)
    world.pass_time(7200)
    assert world.stats.per_second() == (0.0, 0.0)
    assert 3600 <= world.stats.seconds("hour") < 4200 + SAMPLE_SECONDS
    assert world.stats.seconds("minute") == 60


def test_stat_sets_under_their_names(world: World) -> None:
    """Sum, times, rate and average, as RocketMQ's commands show them; zeros for what there is not."""
    world.send("orders", 3, 2.0)
    world.send("orders", 1, 4.0)
    world.send("rmq_sys_x", 6, 1.0)
    world.receive("orders", 2)
    world.counters.received_by("orders", "billing").acknowledged += 1
    world.counters.received_by("orders", "billing").changed += 4
    world.pass_time(10)
    expected = {
        ("TOPIC_PUT_NUMS", "orders"): (4, 2, 0.4, 2),
        ("TOPIC_PUT_SIZE", "orders"): (400, 2, 40, 200),
        ("TOPIC_PUT_LATENCY", "orders"): (6, 2, 0.6, 3),
        ("GROUP_GET_NUMS", "orders@billing"): (2, 2, 0.2, 1),
        ("GROUP_GET_SIZE", "orders@billing"): (300, 2, 30, 150),
        ("GROUP_GET_LATENCY", "orders@billing"): (14, 2, 1.4, 7),
        ("GROUP_ACK_NUMS", "orders@billing"): (1, 1, 0.1, 1),
        ("GROUP_CK_NUMS", "orders@billing"): (4, 4, 0.4, 1),
        ("BROKER_PUT_NUMS", ""): (10, 3, 1, 10 / 3),
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", ""): (4, 2, 0.4, 2),
        ("BROKER_GET_NUMS", ""): (2, 2, 0.2, 1),
        ("BROKER_ACK_NUMS", ""): (1, 1, 0.1, 1),
        ("TOPIC_PUT_NUMS", "nobody"): (0, 0, 0, 0),
        ("GROUP_GET_NUMS", "orders@nobody"): (0, 0, 0, 0),
    }
    for (name, key), values in expected.items():
        for window in broker_stats.WINDOWS:
            item = world.stats.item(name, key, window)
            assert (item.sum, item.times, item.per_second, item.average) == pytest.approx(values), name
    assert {name for name, _ in expected} <= set(STAT_SETS)
    with pytest.raises(KeyError):
        world.stats.item("TOPIC_PUT_LUCK", "orders", "minute")


def test_dead_letters_of_a_group(world: World) -> None:
    """They are read off the queue of its dead letters."""
    world.store.append([Message("%DLQ%billing", 0, b"x"), Message("%DLQ%billing", 0, b"y")])
    world.store.flush()
    assert world.stats.item("DLQ_PUT_NUMS", "%DLQ%billing@billing", "minute").sum == 2
    world.pass_time(70)
    assert world.stats.item("DLQ_PUT_NUMS", "%DLQ%billing@billing", "minute").sum == 0


def test_counters_of_what_is_gone_are_dropped(world: World) -> None:
    """A topic or group that was deleted takes no memory after a minute, and the totals do not go back."""
    world.send("orders", 3)
    world.send("bills", 2)
    world.receive("orders", 1)
    world.receive("bills", 1)
    world.pass_time(60)
    assert len(world.counters.sent) == len(world.counters.received) == 2
    world.tables.topics.delete("orders")
    world.pass_time(60)
    assert set(world.counters.sent) == {("bills", "normal")}
    assert set(world.counters.received) == {("bills", "billing")}
    world.tables.groups.delete("billing")
    world.pass_time(60)
    assert world.counters.received == {}
    assert (world.stats.messages_in, world.stats.messages_out) == (5, 2)
    assert world.stats.topics("hour")["orders"].messages == 3
    world.pass_time(3600 + 600)
    assert world.stats.topics("hour") == {}


def test_a_slot_tells_so_many_apart(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The busiest by name, all others together."""
    monkeypatch.setattr(broker_stats, "KEYS_MAX", 3)
    for number in range(6):
        world.send(f"topic-{number}", number + 1)
    world.pass_time(10)
    found = {topic: traffic.messages for topic, traffic in world.stats.topics("minute").items()}
    assert found == {"topic-5": 6, "topic-4": 5, OTHERS: 1 + 2 + 3 + 4}
