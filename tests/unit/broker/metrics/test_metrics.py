"""The samples of a scrape after known traffic."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aerobee_broker.config import BrokerConfig
from aerobee_broker.counters import families as families_module
from aerobee_broker.counters.families import CounterFamily, GaugeFamily, HistogramFamily, Pieces
from aerobee_broker.metrics import exposition as exposition_module
from aerobee_broker.remoting_wire.codes import Request
from aerobee_proto import admin_v1, v2
from aerobee_store import StoreConfig
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.support.in_process_broker import METADATA, InProcessBroker, in_process_broker, message
from tests.support.remoting_client import remoting_broker, send_fields

BASE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "aerobee"}


async def scrape(broker: InProcessBroker) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and its labels, without the labels that all samples have."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=60) as response:
            return str(response.read().decode())

    samples = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(fetch)):
        assert family.documentation, family.name
        for sample in family.samples:
            if not sample.name.startswith("process_"):
                assert sample.labels.items() >= BASE.items()
            rest = {name: value for name, value in sample.labels.items() if name not in BASE}
            samples[sample.name, frozenset(rest.items())] = sample.value
    return samples


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


async def test_traffic_is_shown(tmp_path: Path) -> None:
    """Three messages are sent, one group receives two and acknowledges one."""
    topic, group = v2.Resource(name="orders"), v2.Resource(name="billing")
    async with in_process_broker(tmp_path) as broker:
        for number in range(3):
            request = v2.SendMessageRequest(messages=[message(message_id=str(number))])
            response = await broker.messaging.SendMessage(request, metadata=METADATA, timeout=60)
            assert response.status.code == v2.Code.OK
        receive = v2.ReceiveMessageRequest(group=group, batch_size=2)
        receive.message_queue.topic.CopyFrom(topic)
        receive.invisible_duration.FromSeconds(60)
        answers = [answer async for answer in broker.messaging.ReceiveMessage(receive, metadata=METADATA, timeout=30)]
        handles = [a.message.system_properties.receipt_handle for a in answers if a.HasField("message")]
        assert len(handles) == 2
        acknowledge = v2.AckMessageRequest(group=group, topic=topic)
        acknowledge.entries.add(receipt_handle=handles[0])
        assert (await broker.messaging.AckMessage(acknowledge, metadata=METADATA)).status.code == v2.Code.OK
        heartbeat = v2.HeartbeatRequest(group=group, client_type=v2.ClientType.SIMPLE_CONSUMER)
        await broker.messaging.Heartbeat(heartbeat, metadata=METADATA)
        shown = await scrape(broker)

    sent = labels(topic="orders", message_type="normal", is_system="false")
    assert shown["rocketmq_messages_in_total", sent] == 3
    assert shown["rocketmq_throughput_in_total", sent] == shown["rocketmq_message_size_sum", sent] > 300
    assert shown["rocketmq_message_size_count", sent] == 3
    assert shown["rocketmq_message_size_bucket", sent | labels(le="1024.0")] == 3
    consumed = labels(topic="orders", consumer_group="billing", is_retry="false", is_system="false")
    assert shown["rocketmq_messages_out_total", consumed] == 2
    assert shown["rocketmq_throughput_out_total", consumed] > 0
    assert shown["aerobee_send_seconds_count", sent] == 3
    assert shown["aerobee_delivery_seconds_count", consumed] == 2
    assert shown["aerobee_acknowledged_messages_total", consumed] == 1
    assert shown["rocketmq_consumer_inflight_messages", consumed] == 1
    assert shown["rocketmq_consumer_ready_messages", consumed] == 1
    assert shown["rocketmq_consumer_lag_messages", consumed] == 2
    assert shown["rocketmq_consumer_lag_latency", consumed] >= 0
    assert (
        0 <= shown["rocketmq_consumer_queueing_latency", consumed] <= shown["rocketmq_consumer_lag_latency", consumed]
    )
    connection = labels(language="java", version="5.2.1", protocol_type="grpc")
    consumer = connection | labels(consumer_group="billing", consume_mode="simple", is_system="false")
    assert shown["rocketmq_consumer_connections", consumer] == 1
    nothing = labels()
    assert shown["rocketmq_topic_number", nothing] == 1
    assert shown["rocketmq_consumer_group_number", nothing] == 1
    assert shown["rocketmq_broker_permission", nothing] == 6
    assert shown["aerobee_clients", nothing] == 1
    assert shown["aerobee_long_polls", nothing] == 0
    store = labels(storage_type="local", storage_medium="disk")
    assert shown["aerobee_store_syncs_total", store] == shown["aerobee_store_sync_seconds_count", store] >= 3
    assert shown["aerobee_store_messages_per_sync_sum", store] >= 3
    assert shown["aerobee_store_segments", store] == 1
    assert shown["aerobee_store_segments_prepared", store] == 0
    assert shown["aerobee_store_allocation_seconds_count", store] == 0
    assert shown["aerobee_store_allocation_failures_total", store] == 0
    assert shown["rocketmq_storage_flush_behind_bytes", store] == 0
    assert shown["aerobee_store_checksum_failures_total", store] == 0
    assert shown["rocketmq_storage_size", store] > 0
    answered = labels(
        protocol_type="grpc",
        request_code="SendMessage",
        response_code="OK",
        is_long_polling="false",
        result="success",
    )
    assert shown["rocketmq_rpc_latency_count", answered] == 3


async def test_failures_are_shown_by_their_code(tmp_path: Path) -> None:
    """The code lets alerts tell client errors from broker errors. An empty receive is a success."""
    async with in_process_broker(tmp_path) as broker:
        await broker.messaging.SendMessage(v2.SendMessageRequest(), metadata=METADATA, timeout=60)
        receive = v2.ReceiveMessageRequest(group=v2.Resource(name="g"), batch_size=1, auto_renew=True)
        receive.message_queue.topic.name = "orders"
        receive.long_polling_timeout.SetInParent()
        async for _ in broker.messaging.ReceiveMessage(receive, metadata=METADATA, timeout=30):
            pass
        shown = await scrape(broker)
    results = {dict(key)["response_code"]: dict(key)["result"] for name, key in shown if name.endswith("latency_count")}
    assert results == {"MESSAGE_CORRUPTED": "process_request_failed", "MESSAGE_NOT_FOUND": "success"}


async def test_delayed_messages_are_shown(tmp_path: Path) -> None:
    """One of two delayed messages is delivered, the other one is recalled."""
    async with in_process_broker(tmp_path) as broker:
        types = [v2.MessageType.DELAY]
        topic = admin_v1.Topic(name="later", read_queue_count=1, accept_message_types=types)
        await broker.administration.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), timeout=60)
        handles = []
        for number, seconds in enumerate((0.2, 100.0)):
            delayed = message("later", message_id=str(number))
            due_ms = time.time_ns() // 1_000_000 + round(seconds * 1000)
            delayed.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
            request = v2.SendMessageRequest(messages=[delayed])
            response = await broker.messaging.SendMessage(request, metadata=METADATA, timeout=60)
            handles.append(response.entries[0].recall_handle)
        recall = v2.RecallMessageRequest(topic=v2.Resource(name="later"), recall_handle=handles[1])
        assert (await broker.messaging.RecallMessage(recall, metadata=METADATA)).status.code == v2.Code.OK
        store = {"storage_type": "local", "storage_medium": "disk"}
        later = labels(topic="later", **store)
        shown = await scrape(broker)
        async with asyncio.timeout(60):
            while shown.get(("rocketmq_timer_dequeue_total", later)) != 1:
                shown = await scrape(broker)
    assert shown["rocketmq_timer_enqueue_total", later] == 2
    assert shown["rocketmq_timing_messages", later] == 1
    for name in ("enqueue_lag", "enqueue_latency", "dequeue_lag", "dequeue_latency"):
        assert shown[f"rocketmq_timer_{name}", labels(**store)] == 0
    assert shown["rocketmq_delay_message_latency_count", later] == 2
    assert shown["rocketmq_delay_message_latency_bucket", labels(topic="later", le="60.0", **store)] == 1
    assert shown["aerobee_timer_lateness_seconds_count", labels(**store)] == 1
    assert shown["aerobee_timer_lost_total", labels(**store)] == 0
    assert shown["rocketmq_messages_in_total", labels(topic="later", message_type="delay", is_system="false")] == 2


async def test_messages_with_a_delay_level_are_shown(tmp_path: Path) -> None:
    """One of two messages is delivered, the other one waits in the queue of its level."""
    clock = TravellingClock()
    async with remoting_broker(tmp_path, clock=clock) as (broker, client):
        for level in (1, 4):
            properties = f"DELAY\x01{level}\x02"
            fields = send_fields("later", properties=properties)
            assert (await client.call(Request.SEND_MESSAGE_V2, fields, b"x")).code == 0
        await clock.advance(2.0)
        store = {"storage_type": "local", "storage_medium": "disk"}
        async with asyncio.timeout(60):
            while (shown := await scrape(broker)).get(("aerobee_level_delay_delivered_total", labels(**store))) != 1:  # noqa: ASYNC110 - scraped
                await asyncio.sleep(0.01)
    assert shown["aerobee_level_delay_waiting_messages", labels(level="1", **store)] == 0
    assert shown["aerobee_level_delay_waiting_messages", labels(level="4", **store)] == 1
    assert shown["aerobee_level_delay_lost_total", labels(**store)] == 0


async def test_every_disk_of_the_log_is_shown(tmp_path: Path) -> None:
    """Each has its path, size and use, like in GetStoreStatus."""
    paths = (tmp_path / "a", tmp_path / "b")
    config = replace(StoreConfig.tiny(tmp_path / "data"), commit_log_paths=paths)
    async with in_process_broker(tmp_path / "data", store=config) as broker:
        shown = await scrape(broker)
        status = await broker.administration.GetStoreStatus(admin_v1.GetStoreStatusRequest(), timeout=60)
    assert [disk.path for disk in status.log_disks] == [str(path) for path in paths]
    for disk in status.log_disks:
        of_path = labels(storage_type="local", storage_medium="disk", path=disk.path)
        assert shown["aerobee_store_log_disk_bytes", of_path] == disk.total_bytes > 0
        assert 0 < shown["aerobee_store_log_disk_used_bytes", of_path] <= disk.total_bytes
        assert 0 < disk.used_bytes <= disk.total_bytes


async def test_an_edited_table_is_counted(tmp_path: Path) -> None:
    """A table edited while the broker was down is loaded as edited and counted."""
    name = "aerobee_store_tables_changed_total"
    async with in_process_broker(tmp_path) as broker:
        samples = await scrape(broker)
        assert [value for (sample, _), value in samples.items() if sample == name] == [0]
        await broker.messaging.SendMessage(v2.SendMessageRequest(messages=[message()]), metadata=METADATA, timeout=60)
    (path,) = tmp_path.rglob("topics.json")
    path.write_bytes(path.read_bytes() + b"\n")
    async with in_process_broker(tmp_path) as broker:
        samples = await scrape(broker)
        assert [value for (sample, _), value in samples.items() if sample == name] == [1]


async def test_a_scrape_is_made_in_steps_and_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run while a family is rendered. A family with too many samples reports how many it leaves out."""
    monkeypatch.setattr(families_module, "SAMPLES_MAX", 100)
    monkeypatch.setattr(exposition_module, "_STEP_SECONDS", 0)
    exposition = exposition_module.Exposition(BrokerConfig.tiny(tmp_path))

    class Large:
        def collect(self) -> Pieces:
            gauge = GaugeFamily("large", "A gauge.", labels=("topic",))
            histogram = HistogramFamily("sliced", "A histogram.", labels=("topic",))
            for number in range(150):
                gauge.add_metric((str(number),), number)
                histogram.add_histogram((str(number),), (1.0, 2.0), (1, 1, 1), 4)
                yield None
            yield from (gauge, histogram)

    exposition.collectors.append(Large())
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others_run = asyncio.create_task(others())
    text = b"".join(await exposition.render()).decode()
    others_run.cancel()
    assert turns > 100
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families["large"].samples) == 100
    assert len(families["sliced"].samples) == 100  # twenty whole series of five
    left_out = {sample.labels["family"]: sample.value for sample in families["aerobee_metrics_left_out"].samples}
    assert left_out == {"large": 50, "sliced": 650}


def test_the_text_is_parsed_by_prometheus() -> None:
    """Names, types, escaped labels, and infinite and large values are parsed as they were written."""
    odd = 'a"b\\c\nd, {e}=ü'
    gauge = GaugeFamily("g", "A gauge.", labels=("one", "two"))
    gauge.add_metric((odd, "plain"), 1.5)
    gauge.add_metric(("", "x"), float("inf"))
    counter = CounterFamily("c", "A counter.", labels=("one",))
    counter.add_metric((odd,), 12345678901234567)
    histogram = HistogramFamily("h", "A histogram.", labels=("one",))
    histogram.add_histogram((odd,), (0.5, 10), (1, 2, 3), 7.25)
    text = b"".join(chunk for family in (gauge, counter, histogram) for chunk in family.chunks()).decode()
    read = {family.name: family for family in text_string_to_metric_families(text)}
    assert [(name, family.type, family.documentation) for name, family in read.items()] == [
        ("g", "gauge", "A gauge."),
        ("c", "counter", "A counter."),
        ("h", "histogram", "A histogram."),
    ]
    assert [(sample.labels, sample.value) for sample in read["g"].samples] == [
        ({"one": odd, "two": "plain"}, 1.5),
        ({"one": "", "two": "x"}, float("inf")),
    ]
    assert [(sample.name, sample.labels, sample.value) for sample in read["c"].samples] == [
        ("c_total", {"one": odd}, float(12345678901234567))
    ]
    assert [(sample.name, sample.labels.get("le"), sample.value) for sample in read["h"].samples] == [
        ("h_bucket", "0.5", 1),
        ("h_bucket", "10.0", 3),
        ("h_bucket", "+Inf", 6),
        ("h_count", None, 6),
        ("h_sum", None, 7.25),
    ]
