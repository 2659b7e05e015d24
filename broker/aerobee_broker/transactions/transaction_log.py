"""Reads the transaction topics at a start: undecided half messages, settled ones, and their outcomes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct, field

from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.transactions.half_messages import (
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_QUEUE_ID,
    HalfMessage,
    Outcome,
    read_op,
    transaction_key,
)
from aerobee_store import MessageStore, Record
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import TIMER_TOPIC
from aerobee_store.records.record import TransactionType

_log = logging.getLogger(__name__)

_DECIDED_AT_START: Final = 4_096  # decisions that are restored, so that they can be repeated
_READ_COUNT: Final = 32
_FINALS_MAX: Final = 64  # messages of one id that are examined to find the half message's


class Decided(NamedTuple):
    """A decision; `end` is the physical offset after its op."""

    outcome: Outcome
    queue_offset: int
    end: int


class FoundOps(Struct):
    """The content of the ops. `settled` and `doubtful` are queue offsets of half messages."""

    settled: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)  # the final message of the op may be missing
    places: list[tuple[int, int]] = field(default_factory=list)  # (offset of the half message, of its op)
    decided: dict[bytes, Decided] = field(default_factory=dict)


class TransactionLog:
    """Reads the topics from the saved offsets on. Blocking."""

    def __init__(self, store: MessageStore, offsets: OffsetTable) -> None:
        self._store = store
        self._offsets = offsets

    def read_ops(self) -> FoundOps:
        """All ops that still matter, and the latest decisions."""
        found = FoundOps()
        damage = min((damaged.start for damaged in self._store.recovery.damaged), default=None)
        matters, high = self._kept_offset(OP_TOPIC)
        low = self._store.queue_range(OP_TOPIC, TRANSACTION_QUEUE_ID)[0]
        for record in self._records(OP_TOPIC, min(matters, max(low, high - _DECIDED_AT_START)), high):
            op = read_op(record)
            if op is None:
                _log.warning("invalid op ignored queue_offset=%d: its body names no half message", record.queue_offset)
                continue
            if record.queue_offset >= matters:
                found.places.extend((offset, record.queue_offset) for offset in op.queue_offsets)
            if damage is not None and record.physical_offset >= damage and op.outcome is not Outcome.ROLLBACK:
                found.doubtful.update(op.queue_offsets)
                continue
            found.settled.update(op.queue_offsets)
            if op.outcome not in (None, Outcome.RENEWED) and op.topic and op.transaction_id:
                end = record.physical_offset + record.size
                key = transaction_key(op.topic, op.transaction_id)
                found.decided[key] = Decided(op.outcome, op.queue_offsets[0], end)
        found.settled -= found.doubtful
        return found

    def halves(self, settled: set[int]) -> Iterator[Record]:
        """The records of the half topic that are not settled."""
        position, high = self._kept_offset(HALF_TOPIC)
        while position < high:
            if position in settled:
                position += 1
                continue
            count = 1
            while count < _READ_COUNT and position + count < high and position + count not in settled:
                count += 1
            yield from self._records(HALF_TOPIC, position, position + count)
            position += count

    def has_final(self, half: HalfMessage) -> bool:
        """Whether the message was committed without an op: because of a crash in between, or because RocketMQ kept the
        op in memory.

        In one step, because it is only called while the broker opens.
        """
        finals = self._store.query(half.topic, half.transaction_id, max_count=_FINALS_MAX)
        delayed = self._store.query(TIMER_TOPIC, half.transaction_id, max_count=_FINALS_MAX)
        finals += [final for final in delayed if final.properties.get(p.REAL_TOPIC) == half.topic]
        return any(
            final.unique_key == half.transaction_id
            and (final.transaction_type is TransactionType.COMMIT or final.prepared_transaction_offset > 0)
            for final in finals
        )

    def _kept_offset(self, topic: str) -> tuple[int, int]:
        """(where to continue, end) of one of the two queues."""
        low, high = self._store.queue_range(topic, TRANSACTION_QUEUE_ID)
        kept = self._offsets.get(topic, TRANSACTION_GROUP, TRANSACTION_QUEUE_ID) or 0
        if kept > high:  # the log has lost its tail; new messages reuse these offsets
            _log.warning("transaction offset is beyond the end of its queue topic=%s offset=%d", topic, kept)
            self._offsets.commit(topic, TRANSACTION_GROUP, TRANSACTION_QUEUE_ID, low, force=True)
            kept = low
        return max(low, kept), high

    def _records(self, topic: str, position: int, end: int) -> Iterator[Record]:
        while position < end:
            result = self._store.read(topic, TRANSACTION_QUEUE_ID, position, max_count=min(end - position, 1024))
            yield from result.records
            if result.next_offset <= position:
                return
            position = result.next_offset
