"""docs/metrics.md compared with a real /metrics: names, types, labels and values after known traffic."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from aerobee_broker.counters.broker_counters import BrokerCounters, ExecutionTimes
from aerobee_proto import admin_v1, v2
from aerobee_store import StoreConfig
from tests.support.in_process_broker import METADATA, InProcessBroker, in_process_broker, message

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
BASE = {"cluster", "node_type", "node_id"}
STORE = {"storage_type", "storage_medium"}
TYPES = {"C": "counter", "G": "gauge", "H": "histogram"}

# Gauges that reach 0 shortly after the last call.
SETTLES = (
    "rocketmq_timer_dequeue_latency",
    "rocketmq_storage_flush_behind_bytes",
    "rocketmq_storage_dispatch_behind_bytes",
)


class Row(NamedTuple):
    """A row of the table of RocketMQ's names. `labels` excludes the common ones."""

    name: str
    type: str
    labels: frozenset[str]


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        match = re.fullmatch(r"\| `(rocketmq_[a-z_*]+)` \| ([CGH-]) \| ([^|]*)\| (.+) \|", line)
        if match:
            labels = {label.strip() for label in match[3].split(",")} - {""}
            if "of the store" in labels:
                labels = labels - {"of the store"} | STORE
            found.append(Row(match[1], match[2], frozenset(labels)))
    return found


def ours() -> set[str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `aerobee_")]
    return {name for line in lines for name in re.findall(r"`(aerobee_[a-z_]+)`", line.split("|")[1])}


class Labels(NamedTuple):
    """A sample's labels as texts such as `topic=orders`."""

    values: frozenset[str]

    def has(self, *wanted: str) -> bool:
        return self.values >= set(wanted)


Check = Callable[[float], bool]


def exactly(value: float) -> Check:
    return lambda found: found == value


def between(low: float, high: float) -> Check:
    return lambda found: low <= found <= high


ORDERS = ("topic=orders", "is_system=false")
BILLING = ("topic=orders", "consumer_group=billing", "is_retry=false", "is_system=false")
OK_SEND = ("protocol_type=grpc", "request_code=SendMessage", "response_code=OK", "result=success")

# The samples after `traffic`: name -> (some labels of the sample, check of its value). Histograms by their count.
EXPECTED: dict[str, list[tuple[tuple[str, ...], Check]]] = {
    "rocketmq_messages_in_total": [
        ((*ORDERS, "message_type=normal"), exactly(5)),
        (("topic=later", "message_type=delay"), exactly(3)),
        (("topic=payments", "message_type=transaction"), exactly(1)),
    ],
    "rocketmq_throughput_in_total": [((*ORDERS, "message_type=normal"), between(5 * 100, 5 * 200))],
    "rocketmq_message_size": [((*ORDERS, "message_type=normal"), exactly(5))],
    # Four deliveries and one redelivery.
    "rocketmq_messages_out_total": [(BILLING, exactly(5))],
    "rocketmq_throughput_out_total": [(BILLING, between(5 * 100, 5 * 1000))],
    "rocketmq_processor_watermark": [
        (("processor=pull",), exactly(0)),
        (("processor=send",), exactly(0)),
        (("processor=admin",), exactly(0)),
    ],
    "rocketmq_broker_permission": [((), exactly(6))],
    "rocketmq_topic_number": [((), exactly(4))],  # orders, later, payments, the dead letters
    "rocketmq_consumer_group_number": [((), exactly(2))],
    "rocketmq_producer_connections": [(("language=java", "version=5.2.1", "protocol_type=grpc"), exactly(1))],
    "rocketmq_consumer_connections": [
        (("consumer_group=billing", "consume_mode=simple", "is_system=false", "protocol_type=grpc"), exactly(1))
    ],
    # Five messages; one acknowledged, one a dead letter, one delivered again, one in flight, one untouched.
    "rocketmq_consumer_lag_messages": [(BILLING, exactly(3))],
    "rocketmq_consumer_lag_latency": [(BILLING, between(1, 60_000))],
    "rocketmq_consumer_inflight_messages": [(BILLING, exactly(2))],
    "rocketmq_consumer_queueing_latency": [(BILLING, between(1, 60_000))],
    "rocketmq_consumer_ready_messages": [(BILLING, exactly(1))],
    "rocketmq_send_to_dlq_messages_total": [
        (("consumer_group=billing", "topic=%DLQ%billing", "is_system=false"), exactly(1))
    ],
    "rocketmq_commit_messages_total": [(("topic=payments",), exactly(1))],
    "rocketmq_rollback_messages_total": [(("topic=payments",), exactly(1))],
    "rocketmq_finish_message_latency": [(("topic=payments",), exactly(1))],
    "rocketmq_half_messages": [(("topic=payments",), exactly(1))],
    # orders, later and payments; a system name and an invalid one were refused.
    "rocketmq_topic_create_execution_time": [
        (("invocation_status=success", "is_system=false"), exactly(3)),
        (("invocation_status=failure", "is_system=false"), exactly(1)),
        (("invocation_status=failure", "is_system=true"), exactly(1)),
    ],
    "rocketmq_consumer_group_create_execution_time": [
        (("invocation_status=success", "is_system=false"), exactly(2)),
        (("invocation_status=failure", "is_system=false"), exactly(1)),
    ],
    "rocketmq_rpc_latency": [((*OK_SEND, "is_long_polling=false"), exactly(11))],
    "rocketmq_storage_size": [((), between(1, 1 << 60))],
    "rocketmq_storage_flush_behind_bytes": [((), exactly(0))],
    "rocketmq_storage_dispatch_behind_bytes": [((), exactly(0))],
    "rocketmq_storage_message_reserve_time": [((), between(1, 60_000))],
    "rocketmq_timer_enqueue_lag": [((), exactly(0))],
    "rocketmq_timer_enqueue_latency": [((), exactly(0))],
    "rocketmq_timer_dequeue_lag": [((), exactly(0))],
    "rocketmq_timer_dequeue_latency": [((), exactly(0))],
    "rocketmq_timing_messages": [(("topic=later",), exactly(2))],
    "rocketmq_timer_enqueue_total": [(("topic=later",), exactly(3))],
    "rocketmq_timer_dequeue_total": [(("topic=later",), exactly(1))],
    "rocketmq_timer_message_snapshot": [
        (("timer_bound_s=60",), exactly(1)),
        (("timer_bound_s=3600",), exactly(1)),
        (("timer_bound_s=900",), exactly(0)),
        (("timer_bound_s=86400",), exactly(0)),
    ],
    "rocketmq_delay_message_latency": [(("topic=later",), exactly(3))],
    "rocketmq_pop_revive_retry_messages_total": [
        (("consumer_group=billing", "topic=orders", "put_status=PUT_OK"), exactly(1))
    ],
    "rocketmq_pop_revive_latency": [(("queue_id=0",), exactly(0))],
    "rocketmq_pop_checkpoint_buffer_size": [((), exactly(2))],
}

# Some of our own names, after the same traffic.
OURS: dict[str, list[tuple[tuple[str, ...], Check]]] = {
    "aerobee_send_seconds": [((*ORDERS, "message_type=normal"), exactly(5))],
    "aerobee_delivery_seconds": [(BILLING, exactly(5))],
    "aerobee_acknowledged_messages_total": [(BILLING, exactly(1))],
    "aerobee_clients": [((), exactly(2))],
    "aerobee_long_polls": [((), exactly(0))],
    "aerobee_store_syncs_total": [((), between(5, 100))],
    "aerobee_store_sync_seconds": [((), between(5, 100))],
    "aerobee_store_messages_per_sync": [((), between(5, 100))],
    "aerobee_store_segments": [((), exactly(1))],
    "aerobee_store_segments_prepared": [((), exactly(0))],
    "aerobee_store_allocation_seconds": [((), exactly(0))],
    "aerobee_store_allocation_failures_total": [((), exactly(0))],
    "aerobee_store_checksum_failures_total": [((), exactly(0))],
    "aerobee_timer_lateness_seconds": [((), exactly(1))],
    "aerobee_timer_lost_total": [((), exactly(0))],
}
# Buckets of histograms: name -> (label, upper limit, count).
BUCKETS = {
    "rocketmq_message_size": ("topic=orders", "1024.0", 5),
    "rocketmq_delay_message_latency": ("topic=later", "60.0", 2),
}


async def traffic(broker: InProcessBroker) -> None:
    """The workload for EXPECTED and OURS."""
    call = broker.messaging
    await create(broker)
    for number in range(5):
        await send(broker, message(message_id=f"order-{number}"))
    now_ms = time.time_ns() // 1_000_000
    for seconds in (0.05, 30, 1800):
        delayed = message("later", message_id=f"later-{seconds}")
        delayed.system_properties.delivery_timestamp.FromMilliseconds(now_ms + round(seconds * 1000))
        await send(broker, delayed)
    for name, resolution in (
        ("commit", v2.TransactionResolution.COMMIT),
        ("rollback", v2.TransactionResolution.ROLLBACK),
        ("half", None),
    ):
        half = message("payments", message_id=name)
        half.system_properties.message_type = v2.MessageType.TRANSACTION
        entry = (await send(broker, half)).entries[0]
        if resolution is not None:
            end = v2.EndTransactionRequest(
                topic=v2.Resource(name="payments"),
                message_id=name,
                transaction_id=entry.transaction_id,
                resolution=resolution,
            )
            assert (await call.EndTransaction(end, metadata=METADATA, timeout=60)).status.code == v2.Code.OK
    first = await receive(broker, 4)
    group, topic = v2.Resource(name="billing"), v2.Resource(name="orders")
    acknowledge = v2.AckMessageRequest(group=group, topic=topic)
    acknowledge.entries.add(receipt_handle=first[0])
    assert (await call.AckMessage(acknowledge, metadata=METADATA, timeout=60)).status.code == v2.Code.OK
    give_up = v2.ForwardMessageToDeadLetterQueueRequest(group=group, topic=topic, receipt_handle=first[1])
    assert (
        await call.ForwardMessageToDeadLetterQueue(give_up, metadata=METADATA, timeout=60)
    ).status.code == v2.Code.OK
    give_back = v2.ChangeInvisibleDurationRequest(group=group, topic=topic, receipt_handle=first[2])
    give_back.invisible_duration.FromMilliseconds(0)
    assert (await call.ChangeInvisibleDuration(give_back, metadata=METADATA, timeout=60)).status.code == v2.Code.OK
    assert len(await receive(broker, 1)) == 1
    for kind, client_id in ((v2.ClientType.SIMPLE_CONSUMER, METADATA[0][1]), (v2.ClientType.PRODUCER, "producer")):
        heartbeat = v2.HeartbeatRequest(group=group, client_type=kind)
        await call.Heartbeat(heartbeat, metadata=(("x-mq-client-id", client_id), *METADATA[1:]), timeout=60)


async def create(broker: InProcessBroker) -> None:
    """Create three topics and two groups, and try three invalid ones."""
    administration = broker.administration
    for name, kind in (
        ("orders", v2.MessageType.NORMAL),
        ("later", v2.MessageType.DELAY),
        ("payments", v2.MessageType.TRANSACTION),
        ("rmq_sys_mine", v2.MessageType.NORMAL),
        ("not a name", v2.MessageType.NORMAL),
    ):
        topic = admin_v1.Topic(name=name, read_queue_count=1, accept_message_types=[kind])
        await administration.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), timeout=60)
    for name in ("shipping", "not a name"):
        await administration.CreateGroup(admin_v1.CreateGroupRequest(group=admin_v1.Group(name=name)), timeout=60)


async def send(broker: InProcessBroker, wire: v2.Message) -> v2.SendMessageResponse:
    if wire.system_properties.HasField("delivery_timestamp"):
        wire.system_properties.message_type = v2.MessageType.DELAY
    response: v2.SendMessageResponse = await broker.messaging.SendMessage(
        v2.SendMessageRequest(messages=[wire]), metadata=METADATA, timeout=5
    )
    assert response.status.code == v2.Code.OK, response
    return response


async def receive(broker: InProcessBroker, count: int) -> list[str]:
    """Receive messages and return their receipt handles."""
    request = v2.ReceiveMessageRequest(group=v2.Resource(name="billing"), batch_size=count)
    request.message_queue.topic.name = "orders"
    request.invisible_duration.FromSeconds(60)
    answers = [answer async for answer in broker.messaging.ReceiveMessage(request, metadata=METADATA, timeout=30)]
    return [a.message.system_properties.receipt_handle for a in answers if a.HasField("message")]


async def families(broker: InProcessBroker) -> dict[str, Metric]:
    """The metric families by their names in the table; counters end with `_total`."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=60) as response:
            return str(response.read().decode())

    found = text_string_to_metric_families(await asyncio.to_thread(fetch))
    return {family.name + "_total" * (family.type == "counter"): family for family in found}


def samples(family: Metric, of_histogram: str = "_count") -> list[tuple[Labels, float]]:
    """The values; for a histogram the counts."""
    name = {"counter": family.name + "_total", "histogram": family.name + of_histogram}.get(family.type, family.name)
    return [
        (Labels(frozenset(f"{key}={value}" for key, value in sample.labels.items())), sample.value)
        for sample in family.samples
        if sample.name == name
    ]


async def test_every_row_is_shown_with_its_type_labels_and_value(tmp_path: Path) -> None:
    """The table, EXPECTED and /metrics have the same names. Metrics marked as left out are absent."""
    table = rows()
    shown_rows = {row.name: row for row in table if row.type != "-"}
    left_out = {row.name for row in table if row.type == "-"}
    assert shown_rows.keys() == EXPECTED.keys()
    assert len(left_out) == 6
    async with in_process_broker(tmp_path) as broker:
        await traffic(broker)
        async with asyncio.timeout(60):
            while True:
                found = await families(broker)
                settled = [samples(found[name])[0][1] == 0 for name in SETTLES]
                if samples(found["rocketmq_timer_dequeue_total"]) and all(settled):
                    break
                await asyncio.sleep(0.02)
    assert {name for name in found if name.startswith("rocketmq_")} == shown_rows.keys()
    for name, row in shown_rows.items():
        family = found[name]
        assert family.type == TYPES[row.type], name
        values = samples(family)
        for labels, _ in values:
            assert {label.partition("=")[0] for label in labels.values} == BASE | row.labels, name
    for name, checks in {**EXPECTED, **OURS}.items():
        values = samples(found[name])
        for wanted, check in checks:
            matching = [value for labels, value in values if labels.has(*wanted)]
            assert len(matching) == 1, (name, wanted, values)
            assert check(matching[0]), (name, wanted, matching[0])
    for name, (label, limit, count) in BUCKETS.items():
        assert [value for labels, value in samples(found[name], "_bucket") if labels.has(label, f"le={limit}")] == [
            count
        ]


async def test_our_own_names_are_in_the_page(tmp_path: Path) -> None:
    """The page explains exactly the names in /metrics. Only a pool has free buffers."""
    store = replace(StoreConfig.tiny(tmp_path), flush="async", write_mode="pool")
    async with in_process_broker(tmp_path, store=store) as broker:
        found = await families(broker)
    shown = {name for name in found if name.startswith("aerobee_")}
    assert shown == ours()


async def test_a_waiting_receive_is_not_load(tmp_path: Path) -> None:
    """A waiting receive counts as a long poll, so idle consumers do not raise the watermark of `pull`."""
    async with in_process_broker(tmp_path) as broker:
        await create(broker)
        request = v2.ReceiveMessageRequest(group=v2.Resource(name="billing"), batch_size=1)
        request.message_queue.topic.name = "orders"
        request.invisible_duration.FromSeconds(60)
        request.long_polling_timeout.FromSeconds(20)
        waiting = broker.messaging.ReceiveMessage(request, metadata=METADATA, timeout=30)
        async with asyncio.timeout(60):
            while True:
                found = await families(broker)
                if samples(found["aerobee_long_polls"])[0][1] == 1:
                    break
                await asyncio.sleep(0.01)
        found = await families(broker)  # the receive may have begun to wait during the previous scrape
        waiting.cancel()
    values = {tuple(sorted(labels.values)): value for labels, value in samples(found["rocketmq_processor_watermark"])}
    assert [value for labels, value in values.items() if "processor=pull" in labels] == [0]


def test_execution_times_distinguish_success_and_failure() -> None:
    """A block that raises counts as failed, and the exception propagates."""
    times = ExecutionTimes()
    with times.measure(is_system=False):
        pass
    with pytest.raises(KeyError), times.measure(is_system=True):
        raise KeyError
    assert {key: histogram.count for key, histogram in times.histograms.items()} == {(True, False): 1, (False, True): 1}


def test_running_calls_are_kept_by_method() -> None:
    """Two calls with the same method return the same counter."""
    counters = BrokerCounters()
    counters.running("service", "Send").count += 1
    assert counters.running("service", "Send").count == 1
    assert counters.running("service", "Receive").count == 0
