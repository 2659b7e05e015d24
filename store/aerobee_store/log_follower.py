"""Appends the bytes of another broker's log to this one: the store of a replica.

The bytes come in pieces that need not end with a record. A piece is checked as a whole before any of it is appended:

    offset      it begins where the earlier bytes end
    chain       records are consecutive; a blank reaches exactly to the end of its segment; both brokers have segments
                of the same size
    checksum    each record's checksum is correct, and its physical offset is its place in the log

An incomplete record at the end waits in memory for the rest. So the log always ends with a whole record, or within the
zeros of a blank, and its durable end can be reported to the other broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from aerobee_store.config import StoreConfig
from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import NO_ROOM
from aerobee_store.durability.log_flush import Durability
from aerobee_store.errors import LogMismatchError, StoreFullError
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.dispatch import Dispatch, ReceivedRecords, ReceivedUnits
from aerobee_store.queues.multi_dispatch import MultiDispatch
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.records import record
from aerobee_store.records.delay_levels import DelayLevels
from aerobee_store.records.record import StopReason
from aerobee_store.stats import StoreStats

if TYPE_CHECKING:
    import numpy as np

    from aerobee_store.queues import record_units
    from aerobee_store.records import record_batch
    from aerobee_store.records.record_batch import RecordBatch
else:
    np = deferred("numpy")
    record_batch = deferred("aerobee_store.records.record_batch")
    record_units = deferred("aerobee_store.queues.record_units")


ROLE_FILE_NAME: Final = "replicationRole"
"""A file in the store: the role in which it was used last. A copy of the store has no role yet."""
MEMBER_FILE_NAME: Final = "replicationMember"
"""A file in stores whose broker was a member of a group with a lease. A store without it may lack messages that the
group has confirmed; so does a copy, which must not have it."""
_BATCH_RECORDS: Final = 4096


class LogFollower:
    """The writing half of a store that follows another one. Event loop only; nothing else may append."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        dispatch: Dispatch,
        durability: Durability,
        stats: StoreStats,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._durability = durability
        self._stats = stats
        self._multi_dispatch = MultiDispatch(config.light_queues, config.multi_dispatch)
        self._levels = DelayLevels(config.delay_levels_seconds)
        self._rest = b""  # the beginning of an incomplete record
        self._in_blank = False  # the log ends within a blank whose remaining bytes are still to come

    def forget_rest(self) -> None:
        """Drop the incomplete record: the connection that would bring the rest has ended."""
        self._rest = b""

    @property
    def next_offset(self) -> int:
        """The offset at which the next piece must begin."""
        return self._log.wrote + len(self._rest)

    def begin_at(self, physical_offset: int) -> None:
        """Start an empty log at this offset. LogMismatchError if the log is not empty, or no segment begins there."""
        if self._log.files.files or self._log.wrote:
            there = f"{self._log.min_offset}..{self._log.wrote}"
            raise LogMismatchError(f"the log has {there}; only an empty log can begin at a new offset")
        if physical_offset % self._log.segment_size:
            raise LogMismatchError(
                f"physical offset {physical_offset} begins no segment of {self._log.segment_size} bytes; "
                f"set store.segment_size to the other broker's mappedFileSizeCommitLog"
            )
        self._log.begin_at(physical_offset)
        self._dispatch.dispatched = physical_offset

    def receive(self, physical_offset: int, data: bytes) -> int:
        """Append a piece of the other log. Return the offset after the last whole record.

        Raises LogMismatchError, StoreBusyError, StoreFullError or StoreFailedError; nothing of the piece is appended
        then.
        """
        if physical_offset != self.next_offset:
            raise LogMismatchError(
                f"received bytes for physical offset {physical_offset}, but the log ends at {self.next_offset}"
            )
        buffer = memoryview(self._rest + data if self._rest else data)
        parts = list(self._parts(buffer))  # the whole piece is checked before anything is appended
        self._rest = b""
        position = 0
        for end, batch in parts:
            self._append(buffer[position:end], batch)
            self._in_blank = batch is None and self._log.wrote % self._log.segment_size != 0
            position = end
        self._rest = bytes(buffer[position:])
        return self._log.wrote

    def _parts(self, buffer: memoryview) -> Iterator[tuple[int, RecordBatch | None]]:
        """The whole records and blanks in the buffer: the end of each part, and its records (None: a blank)."""
        base = self._log.wrote
        segment_size = self._log.segment_size
        position = 0
        if self._in_blank:
            position = min(segment_size - base % segment_size, len(buffer))
            yield position, None
        while position < len(buffer):
            limit = min(len(buffer), position + segment_size - (base + position) % segment_size)
            batch = record_batch.RecordBatch.parse(
                buffer,
                base_physical_offset=base,
                start=position,
                end=limit,
                record_size_max=self._config.record_size_max,
                count_max=_BATCH_RECORDS,
            )
            if len(batch):
                position = batch.end
                yield position, batch
            stop = batch.stop
            if position == limit or stop.reason is StopReason.LIMIT:
                continue
            left_in_segment = segment_size - (base + position) % segment_size
            if stop.reason is StopReason.BLANK:
                if stop.size != left_in_segment:
                    raise _mismatch(base + position, f"{stop.detail}, {left_in_segment} are left in the segment")
                position = limit
                yield position, None
                continue
            is_short = limit - position < record.BLANK_SIZE_MIN or stop.reason is StopReason.TRUNCATED
            if is_short and limit - position < left_in_segment:
                return  # the rest is still to come
            raise _mismatch(base + position, stop.detail)

    def _append(self, data: memoryview, batch: RecordBatch | None) -> None:
        try:
            self._log.append_copied(bytes(data))
        except OSError as error:
            if error.errno in NO_ROOM:
                raise StoreFullError(
                    f"no space left on the disk of {self._config.directory}; free some space, then the replica "
                    f"continues"
                ) from error
            raise self._durability.fail(error) from error
        if batch is None:
            self._dispatch.add(self._log.wrote, [])
            self._durability.appended(self._dispatch.last_timestamp)
            return
        self._dispatch.add_batch(self._log.wrote, self._derived(batch))
        self._stats.messages_appended += len(batch)
        self._stats.bytes_appended += len(data)
        self._stats.count_sizes(batch.size)
        self._durability.appended(int(batch.store_timestamp[-1]))

    def _derived(self, batch: RecordBatch) -> ReceivedRecords:
        units: list[ReceivedUnits] = []
        for found in record_units.queue_units(batch, self._multi_dispatch, self._levels):
            queue = self._queues.simple_queue_unless_batch(found.topic, found.queue_id)
            if queue is None:
                continue
            stored = batch.store_timestamp[found.rows] if queue.extends else None
            breaks = np.flatnonzero(np.diff(found.queue_offsets) != 1) + 1
            for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(found.units)], strict=True):
                times = [] if stored is None else stored[first:last].tolist()
                offset = int(found.queue_offsets[first])
                queue.next_offset = max(queue.next_offset, offset + last - first)  # as with appends: units are waiting
                units.append(ReceivedUnits(queue, offset, found.units[first:last].tobytes(), times))
        batch_units = []
        for topic, queue_id, of_queue in record_units.batch_queue_units(batch):
            batch_queue = self._queues.batch_queue_unless_simple(topic, queue_id)
            if batch_queue is not None:
                batch_units.append((batch_queue, of_queue))
                batch_end = int(of_queue["base_offset"][-1] + of_queue["count"][-1])
                batch_queue.next_offset = max(batch_queue.next_offset, batch_end)
        rows, hashes = batch.index_hashes()
        return ReceivedRecords(
            units,
            batch_units,
            hashes,
            batch.physical_offset[rows],
            batch.store_timestamp[rows],
            len(batch),
            int(batch.store_timestamp[-1]),
        )


def _mismatch(physical_offset: int, detail: str) -> LogMismatchError:
    return LogMismatchError(f"received no valid record for physical offset {physical_offset}: {detail}")
