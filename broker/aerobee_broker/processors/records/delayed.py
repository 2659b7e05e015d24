"""Delayed messages of AppendRecords: records that the client has laid out for the timer.

The client writes the whole record: the timer's topic and, after the message's own properties, the timer's properties
for the time and the queue. The broker checks them as columns, and fills in the only number that a client cannot know:
TIMER_OUT_MS, the beginning of the slot of that time.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import BadRecordError
from aerobee_broker.processors.records.checks import bad_record
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_proto import v2
from aerobee_store.records import message_rules as rules
from aerobee_store.records import properties as p
from aerobee_store.records.message_rules import BrokenRuleError
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.records.record_columns import Integers, put_items

_Code = v2.Code
_DIGITS: Final = 13
"""Digits of a time in Unix milliseconds, until the year 2286."""
_POWERS: Final = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)
_DIGITS_DTYPE: Final = np.dtype(f"V{_DIGITS}")


def timer_records(
    batch: RecordBatch, topic: str, queue_id: int, timer: Timer, limits: LimitsConfig, now_ms: int
) -> RecordBatch:
    """The records with their TIMER_OUT_MS, in a new buffer. BadRecordError for a record that does not follow
    records.proto."""
    _check_value(batch, p.REAL_TOPIC, topic)
    _check_value(batch, p.REAL_QUEUE_ID, str(queue_id))
    deliver_ms = _times(batch, p.TIMER_DELIVER_MS, 1)
    late = deliver_ms > now_ms + limits.delay_seconds_max * 1000
    if np.count_nonzero(late):
        row = int(late.argmax())
        try:
            rules.check_delivery_time(int(deliver_ms[row]), now_ms, limits.delay_seconds_max)
        except BrokenRuleError as broken:
            raise bad_record(row, broken) from None
    _times(batch, p.TIMER_OUT_MS, _DIGITS)
    _, start, _ = batch.property_positions(p.TIMER_OUT_MS)
    out_ms = timer.delayed_many(topic, deliver_ms)
    buffer = memoryview(bytearray(batch.buffer))
    digits = (out_ms[:, np.newaxis] // _POWERS % 10 + ord("0")).astype(np.uint8)
    put_items(buffer, _DIGITS_DTYPE, start, 0, 0, digits.view(_DIGITS_DTYPE)[:, 0])
    return dataclasses.replace(batch, buffer=buffer)


def _check_value(batch: RecordBatch, name: str, expected: str) -> None:
    """Check that all records have this property, with this value."""
    text, start, end = _places(batch, name)
    value = expected.encode()
    wrong = end - start != len(value)
    if not np.count_nonzero(wrong):
        found = np.frombuffer(text, np.uint8)[start[:, np.newaxis] + np.arange(len(value))]
        wrong = (found != np.frombuffer(value, np.uint8)).any(axis=1)
    if np.count_nonzero(wrong):
        row = int(wrong.argmax())
        found_text = _shown(text, start[row], end[row])
        raise BadRecordError(
            _Code.BAD_REQUEST, row, f"{name} is {found_text}, but the request is for {expected!r}; send it with its own"
        )


def _times(batch: RecordBatch, name: str, digits_min: int) -> Integers:
    """The values of a property that all records must have: decimal numbers."""
    text, start, end = _places(batch, name)
    size = end - start
    # Right-aligned; there is other text before the first value.
    digits = np.frombuffer(text, np.uint8)[end[:, np.newaxis] + np.arange(-_DIGITS, 0)].astype(np.int64) - ord("0")
    digits[np.arange(_DIGITS) < (_DIGITS - size)[:, np.newaxis]] = 0
    wrong = (size < digits_min) | (size > _DIGITS) | ((digits < 0) | (digits > 9)).any(axis=1)
    if np.count_nonzero(wrong):
        row = int(wrong.argmax())
        raise BadRecordError(
            _Code.ILLEGAL_DELIVERY_TIME,
            row,
            f"{name} is {_shown(text, start[row], end[row])}, expected {digits_min} to {_DIGITS} decimal digits",
        )
    return np.asarray(digits @ _POWERS, np.int64)


def _shown(text: bytes, start: np.int64, end: np.int64) -> str:
    return repr(text[start:end][:80].decode("utf-8", "replace"))


def _places(batch: RecordBatch, name: str) -> tuple[bytes, Integers, Integers]:
    """The positions of the values. BadRecordError for the first record without the property."""
    text, rows, start, end = batch.property_places(name)
    if len(rows) < len(batch):
        missing = int(np.isin(np.arange(len(batch)), rows, invert=True).argmax())
        raise BadRecordError(
            _Code.BAD_REQUEST, missing, f"it is for the timer and has no property {name}; records.proto has the layout"
        )
    return text, start, end
