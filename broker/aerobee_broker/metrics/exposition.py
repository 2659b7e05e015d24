"""The broker's values under RocketMQ's metric names, and other values under `aerobee_`.

Nothing is counted here: stores, tables and counters hold plain numbers, and a scrape reads them all at once, on the
event loop, which is the only writer of most of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import ProcessCollector as SystemCollector

from aerobee_broker.config import BrokerConfig
from aerobee_broker.counters.broker_counters import MESSAGE_SIZE_BOUNDS, ExecutionTimes
from aerobee_broker.counters.families import CounterFamily, Family, GaugeFamily, HistogramFamily, Pieces
from aerobee_broker.limits.loop_share import LoopShare, step_started
from aerobee_broker.metrics.process_metrics import LABELS as _BROKER
from aerobee_broker.metrics.process_metrics import ProcessCollector, add_histogram
from aerobee_broker.metrics.timer_metrics import LevelDelayCollector, TimerCollector
from aerobee_broker.parts import BrokerParts
from aerobee_broker.tables.consumer_groups import is_system_group
from aerobee_broker.tables.topics import dead_letter_topic, is_system_topic, split_light_topic_name
from aerobee_proto import v2
from aerobee_store import MessageStore
from aerobee_store.clock import Clock
from aerobee_store.records.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from aerobee_store.stats import StoreStats
from aerobee_store.store_status import StoreStatus

_T = TypeVar("_T")
_STORE: Final = (*_BROKER, "storage_type", "storage_medium")
_FAMILY: Final = ("family",)
_STEP_SECONDS: Final = 0.001
_SERIES_PER_STEP: Final = 8  # topics or groups: approximate limit per step
_PERMISSION_READ: Final = 4
_PERMISSION_WRITE: Final = 2
_CONSUME_MODES: Final = {
    v2.ClientType.PUSH_CONSUMER: "push",
    v2.ClientType.SIMPLE_CONSUMER: "simple",
    v2.ClientType.PULL_CONSUMER: "pull",
    v2.ClientType.LITE_PUSH_CONSUMER: "lite_push",
    v2.ClientType.LITE_SIMPLE_CONSUMER: "lite_simple",
}

_PROCESSORS: Final = {
    "SendMessage": "send",
    "RecallMessage": "send",
    "ReceiveMessage": "pull",
    "PullMessage": "pull",
    "AckMessage": "ack",
    "ChangeInvisibleDuration": "ack",
    "ForwardMessageToDeadLetterQueue": "ack",
    "QueryMessage": "query_message",
    "Heartbeat": "heartbeat",
    "NotifyClientTermination": "client_manager",
    "QueryOffset": "consumer_manager",
    "GetOffset": "consumer_manager",
    "UpdateOffset": "consumer_manager",
    "EndTransaction": "transaction",
}
"""RocketMQ's label for the processor of a method; all others are `admin`."""


class Collector(Protocol):
    """A source of metrics."""

    def collect(self) -> Pieces:
        """Yields families; None where other tasks may run."""


class Exposition:
    """All collectors. Without sources, only the process."""

    def __init__(self, config: BrokerConfig | None, further: Sequence[Collector] = ()) -> None:
        """`further` may change; these collectors are shown as well. `config`: of a broker, for `attach`."""
        self._config = config
        self._further = further
        self._process = CollectorRegistry()
        self.collectors: list[Collector] = []
        self._rendering = asyncio.Lock()
        self._loop_share = LoopShare()  # a separate share: searches of clients must not delay a scrape
        SystemCollector(registry=self._process)

    def attach(self, sources: BrokerParts | None) -> None:
        """Show this broker, too, from now on; None: stop showing it."""
        self.collectors.clear()
        if sources is not None:
            assert self._config is not None, "only a broker is attached"
            self.collectors += (
                _BrokerCollector(self._config, sources),
                _StoreCollector(self._config, sources.store, sources.clock),
                TimerCollector(self._config, sources.timer),
                LevelDelayCollector(self._config, sources.level_delay),
            )

    async def render(self) -> list[bytes]:
        """The text of /metrics, in pieces. Made in short steps, which take a bounded share of the event loop.

        When cancelled, it ends after the current step. A family shows a limited number of samples;
        `aerobee_metrics_left_out` counts the others.
        """
        async with self._rendering:
            left_out = GaugeFamily(
                "aerobee_metrics_left_out",
                "Samples of a family beyond its limit, which are not shown.",
                labels=_FAMILY,
            )
            started = step_started()
            parts = [generate_latest(self._process)]
            for collector in (*self.collectors, *self._further):
                for family in collector.collect():
                    if family is not None:
                        parts += family.chunks()
                        if family.left_out:
                            left_out.add_metric((family.name,), family.left_out)
                    if step_started() - started > _STEP_SECONDS:
                        await self._loop_share.pause(started)
                        started = step_started()
            parts += left_out.chunks()
            await self._loop_share.pause(started)
            return parts


class _BrokerCollector:
    def __init__(self, config: BrokerConfig, sources: BrokerParts) -> None:
        self._base = (config.cluster, "broker", config.name)
        self._store = sources.store
        self._tables = sources.tables
        self._clients = sources.clients
        self._deliveries = sources.deliveries
        self._transactions = sources.transactions
        self._counters = sources.counters
        self._process = ProcessCollector(self._base, sources.loop_delay, sources.ledger)
        self._clock = sources.clock

    def collect(self) -> Pieces:
        yield from self._traffic()
        yield from self._deliveries_out()
        yield from self._transaction_outcomes()
        yield from self._rpc()
        yield self._watermark()
        yield from self._creations()
        flags = self._store.running.flags
        permission = _PERMISSION_READ * flags.readable + _PERMISSION_WRITE * flags.writable
        yield self._gauge("rocketmq_broker_permission", "Permissions of the broker: 2 write, 4 read.", permission)
        topics = sum(1 for topic in self._tables.topics if not is_system_topic(topic.name))
        yield self._gauge("rocketmq_topic_number", "Topics, excluding the broker's own.", topics)
        groups = sum(1 for group in self._tables.groups if not is_system_group(group.name))
        yield self._gauge("rocketmq_consumer_group_number", "Consumer groups, excluding the broker's own.", groups)
        yield from self._connections()
        yield from self._consumers()
        yield self._gauge(
            "aerobee_long_polls", "Receives that wait for a message.", self._deliveries.long_polling.waiting_count
        )
        yield from self._front()
        yield from self._table_bytes()
        yield from self._process.collect()
        yield self._gauge("aerobee_clients", "Clients that sent a call within the expiry time.", len(self._clients))

    def _table_bytes(self) -> Pieces:
        space = self._tables.space
        sizes = GaugeFamily(
            "aerobee_table_bytes", "Memory of topics, groups and positions, by kind.", labels=(*_BROKER, "of")
        )
        for kind, size in space.sizes.items():
            sizes.add_metric((*self._base, kind), size)
        yield sizes
        yield self._gauge(
            "aerobee_table_bytes_max", "Memory that topics, groups and positions may take together.", space.max or 0
        )

    def _front(self) -> Pieces:
        front = self._counters.front
        yield self._gauge("aerobee_front_connections", "Open connections.", front.connections)
        yield self._gauge("aerobee_front_calls", "Calls whose handlers run or wait.", front.calls)
        accepted = CounterFamily("aerobee_front_connections_accepted", "Connections since the start.", labels=_BROKER)
        accepted.add_metric(self._base, front.accepted)
        yield accepted
        refused = CounterFamily(
            "aerobee_front_refused", "Connections and calls ended by a bound.", labels=(*_BROKER, "bound")
        )
        for bound, count in front.refused.items():
            refused.add_metric((*self._base, bound), count)
        yield refused

    def _gauge(self, name: str, text: str, value: float) -> Family:
        gauge = GaugeFamily(name, text, labels=_BROKER)
        gauge.add_metric(self._base, value)
        return gauge

    def _traffic(self) -> Pieces:
        labels = (*_BROKER, "topic", "message_type", "is_system")
        messages = CounterFamily("rocketmq_messages_in", "Messages stored.", labels=labels)
        size = CounterFamily("rocketmq_throughput_in", "Bytes of stored records.", labels=labels)
        sizes = HistogramFamily("rocketmq_message_size", "Size of a stored record in bytes.", labels=labels)
        latency = HistogramFamily(
            "aerobee_send_seconds", "Time from a send until its messages are stored, per request.", labels=labels
        )
        for ((topic, message_type), sent), pauses in _in_steps(self._counters.sent.items()):
            if pauses:
                yield None
            if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
                continue  # RocketMQ counts only new ones
            values = (*self._base, topic, message_type, _flag(is_system_topic(topic)))
            messages.add_metric(values, sent.messages)
            size.add_metric(values, sent.bytes)
            sizes.add_histogram(values, MESSAGE_SIZE_BOUNDS, sent.sizes, sent.bytes)
            if sent.milliseconds.count:
                add_histogram(latency, values, sent.milliseconds, divisor=1000)
        yield from (messages, size, sizes, latency)

    def _deliveries_out(self) -> Pieces:
        labels = (*_BROKER, "topic", "consumer_group", "is_retry", "is_system")
        messages = CounterFamily("rocketmq_messages_out", "Messages delivered.", labels=labels)
        size = CounterFamily("rocketmq_throughput_out", "Bytes of delivered messages.", labels=labels)
        acknowledged = CounterFamily(
            "aerobee_acknowledged_messages", "Messages acknowledged by the group.", labels=labels
        )
        changed = CounterFamily(
            "aerobee_changed_invisible_times", "Messages whose invisible time the group has changed.", labels=labels
        )
        latency = HistogramFamily(
            "aerobee_delivery_seconds", "Time from the storing of a message to its delivery.", labels=labels
        )
        for ((topic, group), received), pauses in _in_steps(self._counters.received.items()):
            if pauses:
                yield None
            values = (*self._base, topic, group, _flag(_is_retry(topic)), _flag(_is_system(topic, group)))
            messages.add_metric(values, received.messages)
            size.add_metric(values, received.bytes)
            acknowledged.add_metric(values, received.acknowledged)
            changed.add_metric(values, received.changed)
            if received.milliseconds.count:
                add_histogram(latency, values, received.milliseconds, divisor=1000)
        yield from (messages, size, acknowledged, changed, latency)

    def _transaction_outcomes(self) -> Pieces:
        labels = (*_BROKER, "topic")
        committed = CounterFamily("rocketmq_commit_messages", "Committed transactional messages.", labels=labels)
        rolled_back = CounterFamily("rocketmq_rollback_messages", "Transactional messages rolled back.", labels=labels)
        given_up = CounterFamily(
            "aerobee_transactions_given_up", "Transactional messages without a decision in time.", labels=labels
        )
        half = GaugeFamily(
            "rocketmq_half_messages", "Transactional messages waiting for their decision.", labels=labels
        )
        latency = HistogramFamily(
            "rocketmq_finish_message_latency",
            "Seconds from a transactional message to its commit; RocketMQ's only duration in seconds.",
            labels=labels,
        )
        for (topic, count), pauses in _in_steps(self._transactions.topics.items()):
            if pauses:
                yield None
            values = (*self._base, topic)
            committed.add_metric(values, count.committed)
            rolled_back.add_metric(values, count.rolled_back)
            given_up.add_metric(values, count.given_up)
            half.add_metric(values, count.half)
            if count.finish_seconds.count:
                add_histogram(latency, values, count.finish_seconds)
        yield from (committed, rolled_back, given_up, half, latency)

    def _rpc(self) -> Pieces:
        labels = (*_BROKER, "protocol_type", "request_code", "response_code", "is_long_polling", "result")
        family = HistogramFamily("rocketmq_rpc_latency", "Milliseconds from a call to its answer.", labels=labels)
        for (_, method, code), histogram in list(self._counters.rpc_milliseconds.items()):
            if histogram.count:
                # A receive that finds nothing is not a failure.
                result = "success" if code in ("OK", "MESSAGE_NOT_FOUND") else "process_request_failed"
                long_polling = _flag(method in ("ReceiveMessage", "PullMessage"))
                add_histogram(family, (*self._base, "grpc", method, code, long_polling, result), histogram)
        yield family

    def _watermark(self) -> Family:
        """RocketMQ's queue lengths: here every call starts at once, so this is the number of running calls."""
        family = GaugeFamily(
            "rocketmq_processor_watermark",
            "Calls in progress, excluding those that wait for messages.",
            labels=(*_BROKER, "processor"),
        )
        counts = dict.fromkeys((*_PROCESSORS.values(), "admin"), 0)
        for (_, method), running in self._counters.running_calls.items():
            counts[_PROCESSORS.get(method, "admin")] += running.count
        counts["pull"] = max(0, counts["pull"] - self._deliveries.long_polling.waiting_count)
        for processor, count in counts.items():
            family.add_metric((*self._base, processor), count)
        return family

    def _creations(self) -> Pieces:
        for what, times in (
            ("topic", self._tables.topic_creations),
            ("consumer_group", self._tables.group_creations),
        ):
            yield self._execution_times(what, times)

    def _execution_times(self, what: str, times: ExecutionTimes) -> Family:
        family = HistogramFamily(
            f"rocketmq_{what}_create_execution_time",
            "Milliseconds to create one, until it was on disk.",
            labels=(*_BROKER, "invocation_status", "is_system"),
        )
        for (succeeded, is_system), histogram in times.histograms.items():
            status = "success" if succeeded else "failure"
            add_histogram(family, (*self._base, status, _flag(is_system)), histogram)
        return family

    def _connections(self) -> Pieces:
        producers: Counter[tuple[str, ...]] = Counter()
        consumers: Counter[tuple[str, ...]] = Counter()
        for client, pauses in _in_steps(self._clients.all()):
            if pauses:
                yield None
            kind = (client.language.lower(), client.version)
            if client.is_consumer and client.group is not None:
                mode = _CONSUME_MODES.get(client.client_type, "unspecified")
                system = _flag(is_system_group(client.group))
                consumers[(client.group, *kind, mode, "grpc", system)] += 1
            elif client.client_type == v2.ClientType.PRODUCER:
                producers[(*kind, "grpc")] += 1
        family = GaugeFamily(
            "rocketmq_producer_connections",
            "Connected producers.",
            labels=(*_BROKER, "language", "version", "protocol_type"),
        )
        for values, count in producers.items():
            family.add_metric((*self._base, *values), count)
        yield family
        family = GaugeFamily(
            "rocketmq_consumer_connections",
            "Connected consumers.",
            labels=(
                *_BROKER,
                *("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
            ),
        )
        for values, count in consumers.items():
            family.add_metric((*self._base, *values), count)
        yield family

    def _consumers(self) -> Pieces:
        labels = (*_BROKER, "consumer_group", "topic", "is_retry", "is_system")
        lag = GaugeFamily(
            "rocketmq_consumer_lag_messages", "Messages that the group has not acknowledged.", labels=labels
        )
        latency = GaugeFamily(
            "rocketmq_consumer_lag_latency",
            "Age in milliseconds of the oldest message that the group has not acknowledged.",
            labels=labels,
        )
        inflight = GaugeFamily(
            "rocketmq_consumer_inflight_messages", "Messages delivered and not acknowledged.", labels=labels
        )
        ready = GaugeFamily("rocketmq_consumer_ready_messages", "Messages that could be delivered now.", labels=labels)
        queueing = GaugeFamily(
            "rocketmq_consumer_queueing_latency",
            "Age in milliseconds of the oldest deliverable message that the group has not received.",
            labels=labels,
        )
        now_ms = self._clock.now_ms()
        total_inflight = 0
        for group, pauses in _in_steps(self._tables.groups):
            if pauses:
                yield None
            progress = yield from self._progress(group.name, now_ms)
            for topic, (lag_count, inflight_count, ready_count, age_ms, waiting_ms) in progress.items():
                key = (*self._base, group.name, topic, _flag(_is_retry(topic)), _flag(_is_system(topic, group.name)))
                lag.add_metric(key, lag_count)
                inflight.add_metric(key, inflight_count)
                total_inflight += inflight_count
                ready.add_metric(key, ready_count)
                latency.add_metric(key, age_ms)
                queueing.add_metric(key, waiting_ms)
        yield from (lag, latency, inflight, ready, queueing)
        yield from self._dead_letters()
        yield from self._revived(total_inflight)

    def _progress(self, group: str, now_ms: int) -> Generator[None, None, dict[str, list[int]]]:
        """By topic: lag, in flight, ready, milliseconds since the oldest not acknowledged and not taken were stored."""
        sums: dict[str, list[int]] = {}
        for number, queue in enumerate(self._deliveries.statuses(group), 1):
            if number % _SERIES_PER_STEP == 0:
                yield None
            split = split_light_topic_name(queue.topic)  # thousands of these would be too many labels
            values = sums.setdefault(queue.topic if split is None else split[0], [0, 0, 0, 0, 0])
            values[0] += queue.lag
            values[1] += queue.in_flight
            values[2] += queue.ready
            if queue.lag:
                stored = self._store.store_timestamp_at(queue.topic, queue.queue_id, queue.commit_offset)
                if stored is not None:
                    values[3] = max(values[3], now_ms - stored)
            if queue.ready_offset is not None:
                stored = self._store.store_timestamp_at(queue.topic, queue.queue_id, queue.ready_offset)
                if stored is not None:
                    values[4] = max(values[4], now_ms - stored)
        return sums

    def _dead_letters(self) -> Pieces:
        family = CounterFamily(
            "rocketmq_send_to_dlq_messages",
            "Messages that became dead letters of the group.",
            labels=(*_BROKER, "consumer_group", "topic", "is_system"),
        )
        for group, pauses in _in_steps(self._tables.groups):
            if pauses:
                yield None
            # Its dead letters are the only messages of this topic, and their number survives a restart.
            topic = dead_letter_topic(group.name)
            count = self._store.queue_range(topic, 0)[1]
            if count:
                family.add_metric((*self._base, group.name, topic, _flag(is_system_group(group.name))), count)
        yield family

    def _revived(self, in_flight: int) -> Pieces:
        """Messages that became visible again because they were not acknowledged in time: RocketMQ's revive."""
        family = CounterFamily(
            "rocketmq_pop_revive_retry_messages",
            "Messages that became visible again after their invisible time.",
            labels=(*_BROKER, "consumer_group", "topic", "put_status"),
        )
        for ((topic, group), count), pauses in _in_steps(self._deliveries.stats.expired_of.items()):
            if pauses:
                yield None
            family.add_metric((*self._base, group, topic, "PUT_OK"), count)
        yield family
        late = GaugeFamily(
            "rocketmq_pop_revive_latency",
            "Lateness in milliseconds of the next such message.",
            labels=(*_BROKER, "queue_id"),
        )
        late.add_metric((*self._base, "0"), self._deliveries.expiry_late_ms)
        yield late
        yield self._gauge("rocketmq_pop_checkpoint_buffer_size", "Deliveries in memory that have not ended.", in_flight)


class _StoreCollector:
    def __init__(self, config: BrokerConfig, store: MessageStore, clock: Clock) -> None:
        self._base = (config.cluster, "broker", config.name, "local", "disk")
        self._store = store
        self._clock = clock

    def collect(self) -> Pieces:
        status, stats = self._store.status(), self._store.stats
        yield from self._positions(status, stats)
        yield from self._syncs_and_appends(stats)
        yield from self._reads(stats)
        yield from self._segments(status, stats)
        yield from self._damage_and_recovery(status, stats)
        yield from self._retention(stats)
        yield from self._disks(status)

    def _positions(self, status: StoreStatus, stats: StoreStats) -> Pieces:
        oldest = status.oldest_timestamp
        unsynced = status.wrote - status.flushed
        yield self._gauge("rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not synced.", unsynced)
        behind = status.wrote - status.dispatched
        yield self._gauge(
            "rocketmq_storage_dispatch_behind_bytes", "Bytes of the log that are not dispatched to queues.", behind
        )
        yield self._gauge(
            "aerobee_store_dispatch_waiting_messages",
            "Stored messages that wait for the disk, or for queues and index.",
            self._store.waiting_count,
        )
        yield self._counter(
            "aerobee_store_busy_refusals",
            "Appends refused because too many messages were waiting.",
            stats.busy_refusals,
        )
        yield self._gauge(
            "rocketmq_storage_message_reserve_time",
            "Age of the oldest message in milliseconds.",
            0 if oldest is None else max(0, self._clock.now_ms() - oldest),
        )
        yield self._gauge(
            "aerobee_store_unsynced_seconds",
            "Time since the answer for the oldest byte that a power cut could lose.",
            status.unsynced_seconds,
        )

    def _syncs_and_appends(self, stats: StoreStats) -> Pieces:
        yield self._counter("aerobee_store_syncs", "Syncs of the log.", stats.sync_seconds.count)
        yield self._counter(
            "aerobee_store_sync_failures", "Failed syncs; the first ends the broker.", stats.sync_failures
        )
        family = HistogramFamily("aerobee_store_sync_seconds", "Duration of a sync of the log.", labels=_STORE)
        add_histogram(family, self._base, stats.sync_seconds)
        yield family
        family = HistogramFamily("aerobee_store_messages_per_sync", "Messages made durable by one sync.", labels=_STORE)
        add_histogram(family, self._base, stats.messages_per_sync)
        yield family
        yield self._counter(
            "aerobee_store_appended_messages",
            "Messages appended to the log, including the broker's own.",
            stats.messages_appended,
        )
        yield self._counter(
            "aerobee_store_appended_bytes",
            "Bytes appended to the log, including the broker's own.",
            stats.bytes_appended,
        )
        for name, text, histogram in (
            ("aerobee_store_record_bytes", "Size of an appended record in bytes.", stats.record_bytes),
            (
                "aerobee_store_stored_seconds",
                "Time that a send waited for its records to be stored.",
                stats.stored_seconds,
            ),
            ("aerobee_store_read_seconds", "Duration of a read of a queue.", stats.read_seconds),
        ):
            family = HistogramFamily(name, text, labels=_STORE)
            add_histogram(family, self._base, histogram)
            yield family

    def _reads(self, stats: StoreStats) -> Pieces:
        reads = CounterFamily(
            "aerobee_store_reads", "Reads of a queue, by result: found or missed.", labels=(*_STORE, "result")
        )
        reads.add_metric((*self._base, "found"), stats.reads_found)
        reads.add_metric((*self._base, "missed"), stats.reads_missed)
        yield reads
        yield self._counter("aerobee_store_read_messages", "Records read from the log.", stats.messages_read)
        yield self._counter("aerobee_store_read_bytes", "Bytes of records read from the log.", stats.bytes_read)
        yield self._counter(
            "aerobee_store_bitmap_skips", "Messages skipped by their filter bitmaps.", stats.bitmap_skips
        )
        yield self._counter(
            "aerobee_store_checksum_failures", "Records whose checksum did not match.", stats.checksum_failures
        )
        yield self._counter(
            "aerobee_store_queue_units_repaired",
            "Queue units with a wrong physical offset, corrected by a reader.",
            stats.units_repaired,
        )
        yield self._counter(
            "aerobee_store_tables_changed",
            "Configuration files edited or damaged since they were saved.",
            stats.tables_changed,
        )

    def _segments(self, status: StoreStatus, stats: StoreStats) -> Pieces:
        yield self._gauge("aerobee_store_segments", "Files of the commit log.", status.segments)
        yield self._gauge(
            "aerobee_store_segments_prepared", "Files of the commit log created in advance.", status.segments_prepared
        )
        yield self._gauge("aerobee_store_mapped_files", "Files that are mapped into memory.", status.mapped_files)
        yield self._gauge("aerobee_store_mapped_bytes", "Bytes of these files.", status.mapped_bytes)
        if status.pool_buffers_free is not None:
            yield self._gauge("aerobee_store_pool_buffers_free", "Free write buffers.", status.pool_buffers_free)
        family = HistogramFamily(
            "aerobee_store_allocation_seconds", "Duration of creating a file in advance.", labels=_STORE
        )
        add_histogram(family, self._base, stats.allocation_seconds)
        yield family
        yield self._counter(
            "aerobee_store_allocation_failures",
            "Failures to create a file of the commit log in advance.",
            stats.allocation_failures,
        )

    def _damage_and_recovery(self, status: StoreStatus, stats: StoreStats) -> Pieces:
        yield self._gauge("aerobee_store_recovery_seconds", "Duration of opening the store.", stats.recovery_seconds)
        yield self._gauge("aerobee_store_damaged_ranges", "Damaged ranges of the log.", status.damaged_ranges)
        yield self._gauge(
            "aerobee_store_running_flags",
            "Restrictions of the store, as bits: 1 not readable, 2 not writeable, 4 queue error, 8 index error, "
            "16 disk full, 32 fenced.",
            status.running_flags.value,
        )

    def _retention(self, stats: StoreStats) -> Pieces:
        yield self._counter(
            "aerobee_store_segments_expired", "Files of the commit log that retention removed.", stats.segments_expired
        )
        yield self._counter(
            "aerobee_store_segments_forced",
            "Files of the commit log removed before they expired, because the disk was filling up.",
            stats.segments_forced,
        )
        yield self._counter(
            "aerobee_store_derived_files_expired",
            "Files of queues and index that retention removed.",
            stats.derived_files_expired,
        )
        yield self._counter(
            "aerobee_store_retention_failures",
            "Removals postponed to the next round.",
            stats.retention_failures,
        )
        yield self._counter(
            "aerobee_store_scrubbed_bytes", "Bytes of old segments reread to find damage.", stats.scrubbed_bytes
        )
        yield self._counter(
            "aerobee_store_scrubbed_segments", "Old segments completely reread.", stats.scrubbed_segments
        )

    def _disks(self, status: StoreStatus) -> Pieces:
        yield self._gauge("rocketmq_storage_size", "Bytes used on the disk of the store.", status.disk.used)
        yield self._gauge("aerobee_store_disk_bytes", "Size of the disk of the store.", status.disk.total)
        yield self._gauge(
            "aerobee_store_disk_full_ratio", "Share of a disk above which messages are refused.", status.disk_full_ratio
        )
        labels = (*_STORE, "path")
        total = GaugeFamily(
            "aerobee_store_log_disk_bytes", "Size of the disk of a directory of the log.", labels=labels
        )
        used = GaugeFamily(
            "aerobee_store_log_disk_used_bytes", "Used bytes of this disk, by any program.", labels=labels
        )
        for path, disk in status.log_disks.items():
            total.add_metric((*self._base, str(path)), disk.total)
            used.add_metric((*self._base, str(path)), disk.used)
        yield from (total, used)

    def _gauge(self, name: str, text: str, value: float) -> Family:
        gauge = GaugeFamily(name, text, labels=_STORE)
        gauge.add_metric(self._base, value)
        return gauge

    def _counter(self, name: str, text: str, value: float) -> Family:
        counter = CounterFamily(name, text, labels=_STORE)
        counter.add_metric(self._base, value)
        return counter


def _in_steps(items: Iterable[_T]) -> Iterator[tuple[_T, bool]]:
    """The items, which may change meanwhile; other tasks run in between."""
    for number, item in enumerate(list(items), 1):
        yield item, number % _SERIES_PER_STEP == 0


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _is_retry(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def _is_system(topic: str, group: str) -> bool:
    return is_system_topic(topic) or is_system_group(group)
