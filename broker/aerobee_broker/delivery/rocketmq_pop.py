"""What POP consumers of RocketMQ 5, gRPC clients included, had in flight when Aerobee took over its store.

RocketMQ moves a group's offset past the messages of a receive at once. That they are in flight is in a *checkpoint*,
and each acknowledgement is a message as well. Both are delayed messages to `rmq_sys_REVIVE_LOG_<cluster>`, due when the
invisible time ends: until then they are in the timer's topic. RocketMQ reads the revive log, commits how far it is, and
copies messages that were not acknowledged to a retry topic of group and topic (`tables.topics.pop_retry_topics`).

A RocketMQ with `popConsumerKVServiceEnable` keeps the same in RocksDB, which Aerobee cannot read. When invisible times
end, it copies the messages to the same retry topics.

Aerobee delivers such messages again in place, at the end of the same invisible time. It reads checkpoints that RocketMQ
has written since it was here the last time, so a store may go back and forth. Bodies are JSON:

    checkpoint  tag ck    t topic, c group, q queue, so first offset, d distances of the offsets from it, n their
                          number, bm bits of those acknowledged in memory, pt pop time, it invisible time
    ack         tag ack   t, c, q, so, pt of its checkpoint, ao the offset
    acks        tag bAck  the same with aol, a list of offsets
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from aerobee_broker.delivery.state.queue_key import QueueKey
from aerobee_broker.delivery.state.subscriptions import DeliveryTables
from aerobee_store import MessageStore, Record
from aerobee_store.records.message_fields import TIMER_QUEUE_ID, TIMER_TOPIC
from aerobee_store.records.properties import REAL_TOPIC, TAGS, TIMER_OUT_MS

_log = logging.getLogger(__name__)
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
_REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_ROCKSDB: Final = "kvStore"
_READ_COUNT: Final = 512
_OFFSETS_MAX: Final = 1 << 16  # of one checkpoint; RocketMQ has at most 32


class _Checkpoint(NamedTuple):
    """What identifies a checkpoint; its acknowledgements have the same values."""

    topic: str
    group: str
    queue_id: int
    first: int
    pop_ms: int


class _Found(Struct):
    """Checkpoints and acknowledgements."""

    offsets: dict[_Checkpoint, tuple[list[int], int]] = field(
        default_factory=dict
    )  # offsets, end of the invisible time
    acknowledged: dict[_Checkpoint, set[int]] = field(default_factory=dict)


Flights = dict[QueueKey, dict[int, int]]
"""Of each queue, queue offset -> when the invisible time ends, Unix milliseconds."""


class RocketMQFlights:
    """Reads them when the broker opens, and remembers how far it has read."""

    def __init__(self, store: MessageStore, tables: DeliveryTables) -> None:
        self._store = store
        self._tables = tables

    def unfinished(self) -> Flights:
        """The messages in flight that were not acknowledged. Blocking."""
        flights: Flights = {}
        directory = self._store.config.directory / _ROCKSDB
        if self._store.file_system.exists(directory):
            _log.warning(
                "RocketMQ has kept deliveries in RocksDB, which cannot be read; messages whose invisible time had not "
                "ended when it stopped are not delivered again directory=%s",
                directory,
            )
        if not (revive_topics := self._revive_topics()):
            return flights
        offsets = self._tables.offsets
        since = offsets.get(TIMER_TOPIC, _REVIVE_GROUP, TIMER_QUEUE_ID)  # None: Aerobee has not read this store yet
        found, revived = _Found(), _Found()
        for record in self._records(TIMER_TOPIC, TIMER_QUEUE_ID, since or 0):
            if record.properties.get(REAL_TOPIC, "").startswith(REVIVE_PREFIX):
                _note(record, found)
        for topic in revive_topics:
            for queue_id in self._store.queue_ids(topic):
                begin = offsets.get(topic, _REVIVE_GROUP, queue_id) or 0
                for record in self._records(topic, queue_id, begin):
                    if since is None or TIMER_OUT_MS not in record.properties:  # otherwise read from the timer's topic
                        _note(record, found)
                if found.offsets and begin:
                    for record in self._records(topic, queue_id, 0, begin):
                        _note(record, revived)
        for checkpoint, (in_flight, until_ms) in found.offsets.items():
            if checkpoint in revived.offsets or checkpoint.topic not in self._tables.topics:
                continue
            finished = found.acknowledged.get(checkpoint, set()) | revived.acknowledged.get(checkpoint, set())
            key = QueueKey(checkpoint.group, checkpoint.topic, checkpoint.queue_id)
            for offset in in_flight:
                if offset not in finished:
                    of_queue = flights.setdefault(key, {})
                    of_queue[offset] = max(of_queue.get(offset, 0), until_ms)
        return flights

    def note_read(self) -> bool:
        """Everything until now is read, and RocketMQ need not read it either. False: there is nothing of RocketMQ.

        Save the offsets table afterwards.
        """
        if revive_topics := self._revive_topics():
            for topic, queue_id in ((TIMER_TOPIC, TIMER_QUEUE_ID), *self._queues(revive_topics)):
                end = self._store.queue_range(topic, queue_id)[1]
                self._tables.offsets.commit(topic, _REVIVE_GROUP, queue_id, end, force=True)
        return bool(revive_topics)

    def _revive_topics(self) -> list[str]:
        return [topic.name for topic in self._tables.topics if topic.name.startswith(REVIVE_PREFIX)]

    def _queues(self, topics: list[str]) -> Iterator[tuple[str, int]]:
        return ((topic, queue_id) for topic in topics for queue_id in self._store.queue_ids(topic))

    def _records(self, topic: str, queue_id: int, begin: int, end: int | None = None) -> Iterator[Record]:
        low, high = self._store.queue_range(topic, queue_id)
        position, high = max(begin, low), high if end is None else min(end, high)
        while position < high:
            result = self._store.read(topic, queue_id, position, max_count=min(_READ_COUNT, high - position))
            yield from result.records
            if result.next_offset <= position:
                return
            position = result.next_offset


def _note(record: Record, found: _Found) -> None:
    tag = record.properties.get(TAGS)
    if tag not in ("ck", "ack", "bAck"):
        return
    try:
        fields = json.loads(record.body)
        checkpoint = _Checkpoint(
            str(fields["t"]), str(fields["c"]), int(fields["q"]), int(fields["so"]), int(fields["pt"])
        )
        if tag == "ck":
            found.offsets[checkpoint] = _unacknowledged(fields), checkpoint.pop_ms + int(fields["it"])
        else:
            offsets = [fields["ao"]] if tag == "ack" else fields["aol"]
            found.acknowledged.setdefault(checkpoint, set()).update(map(int, offsets))
    except (ValueError, KeyError, TypeError) as error:
        _log.warning(
            "message of the revive log ignored topic=%s offset=%d cause=%r", record.topic, record.queue_offset, error
        )


def _unacknowledged(fields: Any) -> list[int]:
    """The offsets of a checkpoint without those acknowledged in memory. ValueError, KeyError, TypeError."""
    distances = fields.get("d") or range(int(fields["n"]))
    if len(distances) > _OFFSETS_MAX:
        raise ValueError(f"{len(distances)} offsets")
    first, bits = int(fields["so"]), int(fields.get("bm", 0))
    return [first + int(distance) for index, distance in enumerate(distances) if not bits >> index & 1]
