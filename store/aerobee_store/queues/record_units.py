"""Which units the records of a batch must have in their queues. Pure functions.

Recovery, verification and the rebuild compare the queues with this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from aerobee_store.config import DELAY_LEVELS_SECONDS
from aerobee_store.queues.batch_consume_queue import BATCH_UNIT_DTYPE, NOT_COMPACTED, BatchUnits
from aerobee_store.queues.consume_queue import UNIT_DTYPE, Units
from aerobee_store.queues.multi_dispatch import MultiDispatch, QueueKey
from aerobee_store.records import properties
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC, DelayLevels
from aerobee_store.records.inner_batch import place_of
from aerobee_store.records.record import SYS_FLAG_INNER_BATCH, SYS_FLAG_PREPARED
from aerobee_store.records.record_batch import RecordBatch

ROCKETMQ_LEVELS: Final = DelayLevels(DELAY_LEVELS_SECONDS)
"""The delay levels of a store with unknown settings: RocketMQ's defaults."""


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """The units that records of one queue must have, in the order of the log."""

    topic: str
    queue_id: int
    rows: npt.NDArray[np.intp]
    """Numbers of the records in their batch."""
    queue_offsets: npt.NDArray[np.int64]
    units: Units


def queue_units(batch: RecordBatch, rule: MultiDispatch, levels: DelayLevels = ROCKETMQ_LEVELS) -> Iterator[QueueUnits]:
    """The units of a batch, queue by queue. Prepared, rolled-back and inner-batch records are in no consume queue.

    `rule` selects the additional queues of records. `levels`: the delays of records in SCHEDULE_TOPIC_XXXX.
    """
    units = np.zeros(len(batch), UNIT_DTYPE)
    units["physical_offset"] = batch.physical_offset
    units["size"] = batch.size
    units["tags_code"] = batch.tags_codes()
    others: dict[QueueKey, list[tuple[int, int]]] = {}
    if not rule.is_off:
        for row, key, queue_offset in rule.batch_places(batch):
            others.setdefault(key, []).append((row, queue_offset))
    rows = np.flatnonzero((batch.sys_flag & (SYS_FLAG_PREPARED | SYS_FLAG_INNER_BATCH)) == 0)
    for topic, queue_id, of_queue in rows_by_queue(batch, rows):
        if topic == SCHEDULE_TOPIC:
            for row in of_queue.tolist():
                delay = batch.record(row).properties.get(properties.DELAY)
                stored, code = int(batch.store_timestamp[row]), int(units["tags_code"][row])
                units["tags_code"][row] = levels.unit_code(SCHEDULE_TOPIC, delay, stored, code)
        offsets = batch.queue_offset[of_queue]
        if (topic, queue_id) in others:
            of_queue, offsets = _merged(of_queue, offsets, others.pop((topic, queue_id)))
        yield QueueUnits(topic, queue_id, of_queue, offsets, units[of_queue])
    for (topic, queue_id), places in others.items():
        named = np.array(places, np.int64)
        yield QueueUnits(topic, queue_id, named[:, 0], named[:, 1], units[named[:, 0]])


def _merged(
    rows: npt.NDArray[np.intp], offsets: npt.NDArray[np.int64], others: list[tuple[int, int]]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """The records of a queue, and other records that name it, in the order of the log."""
    named = np.array(others, np.int64)
    all_rows = np.concatenate((rows, named[:, 0]))
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], np.concatenate((offsets, named[:, 1]))[order]


def batch_queue_units(batch: RecordBatch) -> Iterator[tuple[str, int, BatchUnits]]:
    """Topic, queue id and the units that its inner batches must have, in the order of the log.

    Batches without INNER_NUM or INNER_BASE have none.
    """
    inner = np.flatnonzero((batch.sys_flag & SYS_FLAG_INNER_BATCH) != 0)
    if not len(inner):
        return
    tags = batch.tags_codes()
    for topic, queue_id, rows in rows_by_queue(batch, inner):
        units = []
        for row in rows.tolist():
            place = place_of(batch.record(row).properties)
            if place is not None:
                record_place = int(batch.physical_offset[row]), int(batch.size[row]), int(tags[row])
                units.append((*record_place, int(batch.store_timestamp[row]), *place, NOT_COMPACTED, 0))
        if units:
            yield topic, queue_id, np.array(units, BATCH_UNIT_DTYPE)


def rows_by_queue(batch: RecordBatch, rows: npt.NDArray[np.intp]) -> Iterator[tuple[str, int, npt.NDArray[np.intp]]]:
    """The given records of a batch by topic and queue id, each group in the order of the log."""
    if not len(rows):
        return
    # Topics are numbered and queue ids have 31 bits, so both fit into one number to sort by.
    keys = batch.topic_index[rows] << 32 | batch.queue_id[rows]
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    bounds = [0, *(np.flatnonzero(np.diff(sorted_keys)) + 1).tolist(), len(rows)]
    for first, last in pairwise(bounds):
        key = int(sorted_keys[first])
        yield batch.topics[key >> 32], key & 0xFFFFFFFF, rows[order[first:last]]
