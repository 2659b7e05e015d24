"""SQL subscriptions with filter bitmaps: which records a read skips, and which it must not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.filters import consumer_filters
from aerobee_broker.filters.bloom_filter import BloomFilter
from aerobee_broker.filters.message_filter import filter_of
from aerobee_broker.filters.sql_filter import compile_expression
from aerobee_store.tables import java_json
from tests.support.filtered_store import FILE, FilteredStore

CASES = Path(__file__).parents[3] / "golden" / "cases"
RED, BLUE, CHEAP = "color = 'red'", "color = 'blue'", "price < 10"
MINUTE, DAY = 61, 86_500


def colors(count: int, every: int = 100, color: str = "red") -> list[dict[str, str]]:
    """The properties of messages of which one in `every` has the color; the others are green."""
    return [{"color": color if n % every == 0 else "green"} for n in range(count)]


def content_of(run: FilteredStore) -> dict[str, object]:
    value = java_json.loads(run.disk.contents()[FILE])
    assert isinstance(value, dict)
    return value


def subscriptions(run: FilteredStore) -> dict[tuple[str, str], dict[str, object]]:
    """The subscriptions in the file, by topic and group."""
    topics = json.loads(java_json.dumps(content_of(run)["filterDataByTopic"]))
    return {
        (topic, group): filter_data
        for topic, of_topic in topics.items()
        for group, filter_data in of_topic["groupFilterData"].items()
    }


# --- what is skipped


def test_a_consumer_of_one_percent_reads_one_percent() -> None:
    """Records without a match are not read. Another group, whose subscription is younger, reads them all."""
    run = FilteredStore()
    assert run.read(RED) == []
    run.append(*colors(1000))
    assert run.records_read(RED) == 10
    assert run.read(RED) == list(range(0, 1000, 100))
    assert run.store.stats.bitmap_skips == 2 * 990
    assert run.records_read(RED, "audit") >= 1000
    run.close()


def test_records_in_store_layout() -> None:
    """Appended together they are marked as well."""
    run = FilteredStore()
    run.read(RED)
    run.append_records(*colors(500))
    assert run.records_read(RED) == 5
    assert run.read(RED) == list(range(0, 500, 100))
    run.close()


def test_a_false_positive_costs_a_read() -> None:
    """With a bitmap of one byte for three groups, bits of others are mistaken; the answer is the same."""
    run = FilteredStore(filter_bitmap_groups=3, filter_bitmap_error_percent=50)
    bloom = BloomFilter(3, 50)
    same = [name for n in range(40) if bloom.positions("orders", name := f"g{n}") == bloom.positions("orders", "g0")][
        :2
    ]
    for group, expression in zip(same, (RED, BLUE), strict=True):
        run.read(expression, group)
    run.append(*colors(100, 10), *colors(100, 10, "blue"))
    assert run.records_read(RED, same[0]) == 20
    assert run.read(RED, same[0]) == list(range(0, 100, 10))
    assert run.read(BLUE, same[1]) == list(range(100, 200, 10))
    run.close()


@pytest.mark.parametrize("expression", ["note IS NULL", "NOT (color = 'red')", "note = 'ü' OR price < 10", "TRUE"])
def test_properties_as_a_reader_gets_them(expression: str) -> None:
    """An empty property is not stored, so it is missing; the last of equal names counts."""
    kinds = [{"note": ""}, {"note": "ü"}, {"color": "red", "note": " "}, {"price": "9.5"}, {}, {"color": "blue"}]
    marked, plain = FilteredStore(), FilteredStore(on=False)
    for run in (marked, plain):
        run.read(expression)
        run.append(*kinds * 5)
        run.append_records(*kinds * 5)
    assert marked.read(expression) == plain.read(expression) != []
    marked.close()
    plain.close()


def test_a_read_is_bounded() -> None:
    """One read examines at most 1,024 bitmaps, and 128 records that may match but do not."""
    run = FilteredStore(filter_bitmap_groups=3, filter_bitmap_error_percent=50)
    bloom = BloomFilter(3, 50)
    same = [name for n in range(40) if bloom.positions("orders", name := f"g{n}") == bloom.positions("orders", "g0")][
        :2
    ]
    run.read(RED, same[0])
    run.read(BLUE, same[1])
    run.append_records(*colors(1500, 1500, "yellow"))
    run.append_records(*colors(1500, 4, "blue"))
    wanted = one_read(run, RED, same[0])
    assert wanted(0) == (0, 1024)
    assert wanted(1500) == (128, 1500 + 128 * 4)
    run.close()


def one_read(run: FilteredStore, expression: str, group: str) -> Callable[[int], tuple[int, int]]:
    """A function that reads once from an offset; it returns the number of records read, and the next offset."""

    def read(offset: int) -> tuple[int, int]:
        before = run.store.stats.messages_read
        result = filter_of(expression, is_sql=True).read(run.store, "orders", 0, offset, 32, group)
        assert result.records == []
        return run.store.stats.messages_read - before, result.next_offset

    return read


# --- what must not be skipped


def test_messages_from_before_the_subscription_are_evaluated() -> None:
    """Their bitmaps, if they have any, are of other subscriptions."""
    run = FilteredStore()
    run.read(CHEAP, "audit")
    run.append(*colors(200, 20))
    assert run.read(RED) == list(range(0, 200, 20))
    run.append(*colors(200, 20))
    assert run.read(RED) == list(range(0, 400, 20))
    run.close()


def test_a_changed_expression_begins_anew() -> None:
    """While the old one is in use, the new one is evaluated. Then it takes over, and old bitmaps do not count."""
    run = FilteredStore()
    run.read(RED)
    run.append(*colors(100, 10))
    assert run.read(BLUE) == []
    run.append(*colors(100, 10, "blue"))
    assert run.read(BLUE) == list(range(100, 200, 10)), "evaluated, because RED has the bits"
    assert run.records_read(RED) == 10
    run.clock.advance(MINUTE)
    assert run.read(BLUE) == list(range(100, 200, 10))
    run.append(*colors(100, 10, "blue"))
    assert run.read(BLUE) == list(range(100, 300, 10))
    assert run.records_read(BLUE) >= 200 + 10
    run.clock.advance(MINUTE)
    assert run.read(RED) == list(range(0, 100, 10)), "it had the bits of the first hundred, but came back later"
    run.close()


def test_a_forgotten_subscription_begins_anew() -> None:
    """A day without a read; messages of that time are not marked, and others are no longer counted on."""
    run = FilteredStore()
    run.read(RED)
    run.append(*colors(50, 5))
    run.clock.advance(DAY)
    run.filters.drop_unused()
    run.read(CHEAP, "audit")  # so that bitmaps are still made
    run.append(*colors(50, 5))
    assert run.read(RED) == list(range(0, 100, 5))
    run.append(*colors(50, 5))
    assert run.read(RED) == list(range(0, 150, 5))
    run.close()


def test_more_subscriptions_than_there_may_be() -> None:
    """Of one topic, of all topics, and of too many conditions: evaluated as ever, and not saved."""
    run = FilteredStore(filter_bitmap_groups=2)
    for group in ("a", "b", "c"):
        run.read(RED, group)
    run.append(*colors(50, 5))
    assert [run.read(RED, group) for group in ("a", "b", "c")] == [list(range(0, 50, 5))] * 3
    assert run.records_read(RED, "b") == 10
    assert run.records_read(RED, "c") >= 50
    run.save()
    assert set(subscriptions(run)) == {("orders", "a"), ("orders", "b")}
    run.close()


def test_too_many_conditions_for_one_topic() -> None:
    """They would take too long for each message: later subscriptions are evaluated as ever."""
    run = FilteredStore()
    half = " OR ".join(f"p{n} = {n}" for n in range(consumer_filters.CONDITIONS_PER_TOPIC_MAX // 2))
    for group, expression in (("a", half), ("b", half), ("c", RED)):
        run.read(expression, group)
    run.read(RED, "c", topic="bills")
    run.append(*colors(20, 5))
    assert run.read(RED, "c") == [0, 5, 10, 15]
    run.save()
    assert set(subscriptions(run)) == {("orders", "a"), ("orders", "b"), ("bills", "c")}
    run.close()


def test_light_queues_take_no_subscription() -> None:
    """Their units never have a bitmap, and there may be thousands of them."""
    run = FilteredStore()
    run.read(RED, topic="%LMQ%a")
    run.append({"color": "red", "INNER_MULTI_DISPATCH": "%LMQ%a"}, {"INNER_MULTI_DISPATCH": "%LMQ%a"})
    assert run.read(RED, topic="%LMQ%a") == [0]
    run.save()
    assert not run.disk.exists(FILE)
    run.close()


def test_too_many_subscriptions_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_filters, "COUNT_MAX", 3)
    run = FilteredStore()
    for n in range(5):
        run.append({"color": "red"}, topic=f"t{n}")
        assert run.read(RED, topic=f"t{n}") == [0]
    run.save()
    assert [topic for topic, _ in subscriptions(run)] == ["t0", "t1", "t2"]
    run.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"filter_bitmap_groups": 32}, {"filter_bitmap_groups": 64}),
        (
            {"filter_bitmap_groups": 2, "filter_bitmap_error_percent": 50},
            {"filter_bitmap_groups": 2, "filter_bitmap_error_percent": 33},
        ),
    ],
)
def test_other_settings(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Bitmaps of another size, or of the same size with fewer bits for each subscription, do not count."""
    run = FilteredStore(**before)
    run.read(RED)
    run.append(*colors(200, 20))
    run = run.restart(**after)
    assert run.read(RED) == list(range(0, 200, 20))
    assert run.records_read(RED) >= 200
    run.append(*colors(100, 10))
    assert run.read(RED, offset=200) == list(range(200, 300, 10))
    run = run.restart(**before)
    assert run.read(RED) == [*range(0, 200, 20), *range(200, 300, 10)]
    run.close()


# --- starts


def test_an_orderly_stop_keeps_the_bitmaps() -> None:
    """The subscriptions go on where they began, and others of the same group do not."""
    run = FilteredStore()
    run.read(RED)
    run.append(*colors(200, 20))
    run = run.restart()
    assert run.records_read(RED) == 10
    assert run.read(RED) == list(range(0, 200, 20))
    run.append(*colors(200, 20))
    assert run.records_read(RED) == 20
    run = run.restart().restart()
    assert run.records_read(RED) == 20
    run.clock.advance(MINUTE)
    run.append(*colors(200, 20, "blue"))
    assert run.read(BLUE) == list(range(400, 600, 20))
    run.close()


@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_after_a_kill_messages_from_before_are_evaluated(end: str) -> None:
    """The subscription is known again, and marked at once; a change that was not saved is not mistaken for it."""
    run = FilteredStore()
    run.read(RED)
    run.save()
    run.append(*colors(100, 10))
    run.clock.advance(MINUTE)
    run.read(BLUE)
    run.append(*colors(100, 10))
    run = run.kill() if end == "kill" else run.power_cut(3)
    assert {key: each["expression"] for key, each in subscriptions(run).items()} == {("orders", "billing"): RED}
    run.append(*colors(100, 10))
    assert run.read(RED) == list(range(0, 300, 10))
    before = run.store.stats.bitmap_skips
    run.read(RED)
    assert run.store.stats.bitmap_skips - before == 90, "only of the last hundred"
    run.close()


def test_a_run_without_bitmaps_in_between() -> None:
    """Messages of that run have none, and the subscriptions begin anew."""
    run = FilteredStore()
    run.read(RED)
    run.append(*colors(100, 10))
    run = run.restart(on=False)
    run.append(*colors(100, 10))
    assert run.read(RED) == list(range(0, 200, 10))
    run = run.restart()
    run.append(*colors(100, 10))
    assert run.read(RED) == list(range(0, 300, 10))
    before = run.store.stats.bitmap_skips
    run.read(RED)
    assert run.store.stats.bitmap_skips - before == 90, "only of the last hundred"
    run.close()


@pytest.mark.parametrize("edit", ["expression", "begin", "logEnd", "copy"])
def test_an_edited_file_is_not_trusted(edit: str) -> None:
    """Another expression, other numbers, or an earlier file: the subscriptions begin anew."""
    run = FilteredStore()
    run.append(*colors(100, 10))
    run.read(BLUE)
    run.append(*colors(100, 10))
    run.close()
    data = run.disk.contents()[FILE]
    bits = run.filters.bits("orders", "billing", BLUE, compile_expression(BLUE))
    assert bits is not None
    begin = f'"billing":{bits.begin}'.encode()
    assert begin in data
    changed = {
        "expression": data.replace(b"'blue'", b"'red'"),
        "begin": data.replace(begin, b'"billing":0').replace(b"'blue'", b"'red'"),
        "logEnd": data.replace(b'"logEnd":', b'"logEnd":1'),
        "copy": b"{",
    }[edit]
    if edit == "copy":
        run.disk.write_new(FILE.with_suffix(".json.bak"), data)
    run.disk.unlink(FILE)
    run.disk.write_new(FILE, changed)
    run = run.next()
    expression = RED if b"'red'" in changed else BLUE
    assert ("orders", "billing") in subscriptions(run)
    assert run.read(expression) == (list(range(0, 200, 10)) if expression == RED else [])
    assert run.records_read(expression) >= 200
    run.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"filterDataByTopic":5}', b'{"filterDataByTopic":{"t":{"groupFilterData":{"g":3}}}}'],
)
def test_an_unusable_file_is_no_obstacle(content: bytes) -> None:
    """The store opens, without the subscriptions, and the next stop saves them."""
    run = FilteredStore()
    run.append(*colors(10, 5))
    run.close()
    run.disk.write_new(FILE, content)
    run = run.next()
    assert run.read(RED) == [0, 5]
    run.close()
    assert set(subscriptions(run)) == {("orders", "billing")}


def test_appends_after_the_stop_get_no_bitmaps() -> None:
    """Delivery state that is still saved must not make the file wrong: nothing is skipped then."""
    run = FilteredStore()
    run.read(RED)
    run.append(*colors(100, 10))
    asyncio.run(run.filters.close())
    run.append(*colors(100, 10))
    run.store.close()
    run = run.next()
    assert run.read(RED) == list(range(0, 200, 10))
    assert run.records_read(RED) >= 200
    run.close()


# --- RocketMQ's file


def rocketmq_file(case: str) -> bytes:
    content = json.loads((CASES / case / "manifest.json").read_text())["json"]["config/consumerFilter.json"]
    return json.dumps(content).encode()


def test_a_file_of_rocketmq() -> None:
    """Its subscriptions are known before their consumers return. A stop writes what RocketMQ needs to go on."""
    empty = FilteredStore()
    empty.close()
    empty.disk.make_directory(FILE.parent)
    empty.disk.write_new(FILE, rocketmq_file("java-json"))
    theirs = json.loads(rocketmq_file("java-json"))["filterDataByTopic"]
    run = empty.next()
    running = subscriptions(run)
    assert set(running) == {("OrderPaid", "billing"), ("stock_moved", "picker"), ("Click-Stream", "GID_OrderPaid")}
    assert all("bloomFilterData" not in each for each in running.values()), "RocketMQ forgets them after a kill"
    assert "aerobee" not in content_of(run)
    run.append(*[{"amount": str(n)} for n in range(100)], topic="OrderPaid")
    assert run.read("amount > 10", topic="OrderPaid") == list(range(11, 100))
    assert run.store.stats.bitmap_skips == 11
    run.clock.advance(5)
    run.close()
    for (topic, group), ours in subscriptions(run).items():
        expected = theirs[topic]["groupFilterData"][group]
        names = ("bloomFilterData", "clientVersion", "consumerGroup", "expression", "expressionType", "topic")
        assert {name: ours[name] for name in names} == {name: expected[name] for name in names}
        assert ours.keys() == expected.keys()
        assert ours["bornTime"] == run.clock.now_ms(), "RocketMQ evaluates everything from before"
        assert ours["dead"] is (group != "billing")
        assert (ours["deadTime"] == 0) is (group == "billing")


def test_expressions_that_only_rocketmq_accepts() -> None:
    """They are left out; so are subscriptions by tag."""
    filters = {
        group: {"expression": expression, "expressionType": kind, "consumerGroup": group, "topic": "orders"}
        for group, expression, kind in (
            ("good", RED, "SQL92"),
            ("bad", "color ===", "SQL92"),
            ("tag", "TagA", "TAG"),
            ("none", "", "SQL92"),
        )
    }
    empty = FilteredStore()
    empty.close()
    empty.disk.make_directory(FILE.parent)
    content = {"filterDataByTopic": {"orders": {"groupFilterData": filters, "topic": "orders"}}, "later": [1]}
    empty.disk.write_new(FILE, json.dumps(content).encode())
    run = empty.next()
    assert set(subscriptions(run)) == {("orders", "good")}
    assert content_of(run)["later"] == [1], "fields of a later release stay"
    run.close()
