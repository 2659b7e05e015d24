"""Messages in and out of the last minute, hour and day."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.statistics import broker_stats
from aerobee_broker.statistics.broker_stats import (
    OTHERS,
    SAMPLE_SECONDS,
    STAT_SETS,
    BrokerStats,
    GroupTraffic,
    TopicTraffic,
)
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType
from aerobee_store import Message, MessageStore
from aerobee_store.testing import ManualClock
from tests.support.saved_tables import saved


class Harness:
    """A broker's counters, tables and store."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        config = BrokerConfig.tiny(directory)
        self.store = MessageStore.open(config.store, clock=self.clock)
        self.tables = Tables.load(Settings(config), self.clock, self.store.file_system, self.store.in_disk_thread)
        for topic in ("orders", "bills"):
            saved(self.tables.topics).create(TopicConfig.of_type(topic, TopicMessageType.NORMAL, queue_count=1))
        saved(self.tables.groups).create(GroupConfig(name="billing"))
        self.counters = BrokerCounters()
        self.stats = BrokerStats(self.counters, self.tables, self.store, self.clock, lambda *_: None)

    def send(self, topic: str, count: int, milliseconds: float = 2.0, message_type: str = "normal") -> None:
        """Count one request with these messages."""
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
        """Advance the clock and take the samples of that time."""
        for _ in range(round(seconds / SAMPLE_SECONDS)):
            self.clock.advance(SAMPLE_SECONDS)
            self.stats.take()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    with harness.store:
        yield harness


def test_new_traffic_shows_at_once(harness: Harness) -> None:
    """Traffic shows before the first sample, summed over all message types of a topic."""
    harness.send("orders", 3, 2.0)
    harness.send("orders", 1, 4.0, "fifo")
    harness.receive("orders", 2)
    harness.clock.advance(4)
    assert harness.stats.topics("minute") == {"orders": TopicTraffic(4, 400, 2, 6.0)}
    assert harness.stats.groups("minute") == {("orders", "billing"): GroupTraffic(2, 300, 14.0)}
    assert harness.stats.per_second() == (1.0, 0.5)
    assert (harness.stats.messages_in, harness.stats.messages_out) == (4, 2)


def test_traffic_leaves_each_window_in_time(harness: Harness) -> None:
    """Traffic leaves the minute after 1 minute, the hour after 70 minutes, the day after 25 hours."""
    harness.send("orders", 5)
    harness.pass_time(50)
    assert harness.stats.topics("minute")["orders"].messages == 5
    harness.send("bills", 1)
    harness.pass_time(20)
    assert set(harness.stats.topics("minute")) == {"bills"}
    assert set(harness.stats.topics("hour")) == {"bills", "orders"}
    harness.pass_time(3600 + 600)
    assert (harness.stats.topics("minute"), harness.stats.topics("hour")) == ({}, {})
    assert harness.stats.topics("day")["orders"] == TopicTraffic(5, 500, 1, 2.0)
    harness.pass_time(24 * 3600)
    assert harness.stats.topics("day") == {}
    assert harness.stats.messages_in == 6


def test_the_totals_of_today_and_yesterday_were_those_since_the_start(harness: Harness) -> None:
    """The counts are noted when a day of local time begins. A clock that goes back notes nothing."""
    stats = harness.store.stats
    stats.messages_appended, stats.messages_read = 5, 3
    harness.pass_time(20)
    harness.clock.advance(86_400)
    harness.stats.take()
    assert harness.stats.mornings == ((0, 0), (5, 3))
    stats.messages_appended, stats.messages_read = 9, 4
    harness.clock.advance(86_400)
    harness.stats.take()
    assert harness.stats.mornings == ((5, 3), (9, 4))
    harness.clock.advance(-86_400)
    harness.stats.take()
    assert harness.stats.mornings == ((5, 3), (9, 4))


def test_rates_are_over_the_elapsed_time(harness: Harness) -> None:
    """Rates are over the time since the start at first, later over the whole window."""
    harness.send("orders", 30)
    harness.pass_time(30)
    assert harness.stats.per_second() == (1.0, 0.0)
    assert harness.stats.seconds("hour") == 30
    harness.pass_time(30)
    assert harness.stats.per_second() == (0.5, 0.0)
    harness.pass_time(7200)
    assert harness.stats.per_second() == (0.0, 0.0)
    assert 3600 <= harness.stats.seconds("hour") < 4200 + SAMPLE_SECONDS
    assert harness.stats.seconds("minute") == 60


def test_stat_sets_under_their_names(harness: Harness) -> None:
    """Sum, times, rate and average are those of RocketMQ's commands; unknown names give zeros."""
    harness.send("orders", 3, 2.0)
    harness.send("orders", 1, 4.0)
    harness.send("rmq_sys_x", 6, 1.0)
    harness.receive("orders", 2)
    harness.counters.received_by("orders", "billing").acknowledged += 1
    harness.counters.received_by("orders", "billing").changed += 4
    harness.pass_time(10)
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
        for window in get_args(broker_stats.Window):
            item = harness.stats.item(name, key, window)
            assert (item.sum, item.times, item.per_second, item.average) == pytest.approx(values), name
    assert {name for name, _ in expected} <= set(STAT_SETS)
    with pytest.raises(KeyError):
        harness.stats.item("TOPIC_PUT_LUCK", "orders", "minute")


def test_dead_letters_of_a_group(harness: Harness) -> None:
    """Dead letters are counted by the offsets of the dead-letter queue."""
    harness.store.append([Message("%DLQ%billing", 0, b"x"), Message("%DLQ%billing", 0, b"y")])
    harness.store.flush()
    assert harness.stats.item("DLQ_PUT_NUMS", "%DLQ%billing@billing", "minute").sum == 2
    harness.pass_time(70)
    assert harness.stats.item("DLQ_PUT_NUMS", "%DLQ%billing@billing", "minute").sum == 0


def test_counters_of_deleted_topics_and_groups_are_dropped(harness: Harness) -> None:
    """Counters of a deleted topic or group are dropped after a minute; the totals do not decrease."""
    harness.send("orders", 3)
    harness.send("bills", 2)
    harness.receive("orders", 1)
    harness.receive("bills", 1)
    harness.pass_time(60)
    assert len(harness.counters.sent) == len(harness.counters.received) == 2
    saved(harness.tables.topics).delete("orders")
    harness.pass_time(60)
    assert set(harness.counters.sent) == {("bills", "normal")}
    assert set(harness.counters.received) == {("bills", "billing")}
    saved(harness.tables.groups).delete("billing")
    harness.pass_time(60)
    assert harness.counters.received == {}
    assert (harness.stats.messages_in, harness.stats.messages_out) == (5, 2)
    assert harness.stats.topics("hour")["orders"].messages == 3
    harness.pass_time(3600 + 600)
    assert harness.stats.topics("hour") == {}


def test_a_slot_has_a_maximum_of_entries(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The busiest topics are kept by name, all others are summed."""
    monkeypatch.setattr(broker_stats, "KEYS_MAX", 3)
    for number in range(6):
        harness.send(f"topic-{number}", number + 1)
    harness.pass_time(10)
    found = {topic: traffic.messages for topic, traffic in harness.stats.topics("minute").items()}
    assert found == {"topic-5": 6, "topic-4": 5, OTHERS: 1 + 2 + 3 + 4}


def _sum(harness: Harness, stat_set: str, key: str) -> float:
    return harness.stats.item(stat_set, key, "day").sum


def test_queues_of_deleted_topics_and_groups_are_dropped(harness: Harness) -> None:
    """Within a minute their entries leave every window, also those before a topic is created again."""
    for topic in ("orders", "bills"):
        harness.counters.sent_to_queue(topic, 0, 2, 200)
        harness.counters.received_from_queue(topic, 0, "billing", 2, 300)
    harness.pass_time(60)
    saved(harness.tables.topics).delete("orders")
    harness.pass_time(60)
    saved(harness.tables.topics).create(TopicConfig.of_type("orders", TopicMessageType.NORMAL, queue_count=1))
    for stat_set, rest in (("QUEUE_PUT_NUMS", ""), ("QUEUE_GET_NUMS", "@billing")):
        assert (_sum(harness, stat_set, f"orders@0{rest}"), _sum(harness, stat_set, f"bills@0{rest}")) == (0, 2)
    saved(harness.tables.groups).delete("billing")
    harness.pass_time(60)
    assert (_sum(harness, "QUEUE_GET_NUMS", "bills@0@billing"), _sum(harness, "QUEUE_PUT_SIZE", "bills@0")) == (0, 200)


def test_idle_queues_have_no_counters(harness: Harness) -> None:
    """A sample takes the counters of queues away; their traffic stays in the windows."""
    harness.counters.sent_to_queue("orders", 0, 3, 300)
    harness.counters.received_from_queue("orders", 0, "billing", 1, 150)
    harness.pass_time(10)
    assert (harness.counters.sent_to_queues, harness.counters.received_from_queues) == ({}, {})
    harness.counters.sent_to_queue("orders", 0, 1, 100)
    item = harness.stats.item("QUEUE_PUT_NUMS", "orders@0", "minute")
    assert (item.sum, item.times, item.per_second, item.average) == (4, 2, 0.4, 2)
    assert _sum(harness, "QUEUE_GET_SIZE", "orders@0@billing") == 150
    harness.pass_time(70)
    assert harness.stats.item("QUEUE_PUT_NUMS", "orders@0", "minute").sum == 0


def test_an_hour_has_a_maximum_of_entries(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other queues in each sample do not make the slots of an hour larger than the limit."""
    monkeypatch.setattr(broker_stats, "KEYS_MAX", 3)
    for number in range(9):
        harness.counters.sent_to_queue("orders", number, 9 - number, 100)
        harness.pass_time(10)
    entries = harness.stats._sent_queues._open["hour"].traffic
    assert len(entries) == 3
    assert sum(traffic.messages for traffic in entries.values()) == sum(range(10))
    assert _sum(harness, "QUEUE_PUT_NUMS", "orders@0") == 9


def test_all_slots_together_have_a_maximum_of_entries(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """When they have as many, a new slot keeps its busiest entries; when the old ones end, there is space again."""
    monkeypatch.setattr(broker_stats, "KEYS_MIN", 2)
    monkeypatch.setattr(broker_stats, "ENTRIES_MAX", 40)
    counts = []
    for sample in range(12):
        for number in range(20):
            harness.counters.sent_to_queue("orders", number + 20 * sample, 20 - number, 100)
        harness.pass_time(10)
        counts.append(harness.stats._sent_queues.entry_count)
    assert max(counts) <= 40 + 8 * 2  # the slots of a minute, and those of hour and day that grow
    assert _sum(harness, "QUEUE_PUT_NUMS", "(others)@-1") + _sum(harness, "QUEUE_PUT_NUMS", "orders@220") > 0
    total = sum(traffic.messages for traffic in harness.stats._sent_queues.total("day", 0).traffic.values())
    assert total == 12 * sum(range(21)), "nothing is lost"
    harness.pass_time(26 * 3600)
    harness.counters.sent_to_queue("orders", 1, 7, 100)
    harness.pass_time(10)
    assert _sum(harness, "QUEUE_PUT_NUMS", "orders@1") == 7


def test_what_comes_from_the_disk(tmp_path: Path) -> None:
    """The log beyond 40 % of the memory; each sample moves the boundary."""
    harness = Harness(tmp_path)
    with harness.store:
        stats = BrokerStats(
            harness.counters, harness.tables, harness.store, harness.clock, lambda *_: None, memory_bytes=1000
        )
        assert harness.counters.disk_end == 0
        place = harness.store.append([Message("orders", 0, bytes(2000))])[-1]
        assert harness.counters.disk_end == 0
        stats.take()
        assert harness.counters.disk_end == place.end - 400
