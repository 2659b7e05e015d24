"""The rules of SendMessage for the records of AppendRecords, beyond their layout, checked for a whole request at once.

numpy finds the first record that breaks a rule, if any; only that record is examined individually.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import BadRecordError
from aerobee_broker.messages.validation import FREE_TEXT_SIZE_MAX, MESSAGE_GROUP_SIZE_MAX
from aerobee_broker.processors.route import ACCEPTED_TYPES
from aerobee_broker.tables.topics import TopicConfig
from aerobee_proto import v2
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import RESERVED_NAMES, TRACE_CONTEXT
from aerobee_store.records.record import (
    PROPERTY_CRC_SIZE,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_TYPE,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_STORE_HOST_V6,
    SYS_FLAG_UNWRAP,
)
from aerobee_store.records.record_batch import RecordBatch

_Code = v2.Code
_SYS_FLAGS: Final = SYS_FLAG_COMPRESSED | SYS_FLAG_COMPRESSION_TYPE | SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
_BATCH_FLAGS: Final = SYS_FLAG_INNER_BATCH | SYS_FLAG_UNWRAP
# The properties that result from the fields of a message (messages/message_mapping.py), and the record checksum.
_OF_FIELDS: Final = frozenset({p.UNIQ_KEY, p.TAGS, p.KEYS, p.SHARDING_KEY, TRACE_CONTEXT, p.BORN_HOST, p.CRC32})
_FORBIDDEN: Final = RESERVED_NAMES - _OF_FIELDS
_FORBIDDEN_IN_BATCHES: Final = _FORBIDDEN - {p.INNER_NUM, p.INNER_BASE}
_OF_TIMER: Final = frozenset({p.TIMER_DELIVER_MS, p.TIMER_OUT_MS, p.REAL_TOPIC, p.REAL_QUEUE_ID})
_FORBIDDEN_IN_TIMER: Final = _FORBIDDEN - _OF_TIMER
_SMALL: Final = 512
"""Properties with fewer bytes are never too many or too large: each takes at least two separators and two
characters."""


def check_records(
    batch: RecordBatch,
    topic: TopicConfig,
    queue_id: int,
    limits: LimitsConfig,
    body_size_max: int,
    *,
    delayed: bool = False,
) -> None:
    """Raise BadRecordError for the first record that SendMessage would not have stored in this form.

    `delayed`: the records are for the timer; delayed.py checks their timer properties.
    """
    _check_bodies(batch, body_size_max)
    takes_batches = topic.takes_batches and not delayed
    other = batch.sys_flag & ~(_SYS_FLAGS | (_BATCH_FLAGS if takes_batches else 0))
    if np.count_nonzero(other):
        row = int((other != 0).argmax())
        flags = int(batch.sys_flag[row])
        what = "an inner batch, and the topic takes single messages" if flags & SYS_FLAG_INNER_BATCH else "not possible"
        raise BadRecordError(_Code.BAD_REQUEST, row, f"its system flags {flags:#x} are {what}; use SendMessage")
    row_of_text = batch.first_malformed_properties()
    if row_of_text is not None:
        raise BadRecordError(
            _Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
            row_of_text,
            "its properties have a control character, an empty name or value, or are not UTF-8; each must be "
            "name, 0x01, value, 0x02",
        )
    forbidden = _FORBIDDEN_IN_BATCHES if takes_batches else _FORBIDDEN_IN_TIMER if delayed else _FORBIDDEN
    reserved = batch.first_with_any(forbidden)
    if reserved is not None:
        raise BadRecordError(
            _Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
            reserved[0],
            f"the property name {reserved[1]!r} is reserved; choose another, or use SendMessage",
        )
    _check_sizes(batch, limits)
    _check_tags(batch)
    if delayed:
        _check_delay_type(batch, topic)
    else:
        _check_type(batch, topic, queue_id)


def _check_bodies(batch: RecordBatch, size_max: int) -> None:
    bad = (batch.body_size < 1) | (batch.body_size > size_max)
    if not np.count_nonzero(bad):
        return
    row = int(bad.argmax())
    size = int(batch.body_size[row])
    if not size:
        raise BadRecordError(_Code.MESSAGE_BODY_EMPTY, row, "its body is empty; send at least one byte")
    raise BadRecordError(
        _Code.MESSAGE_BODY_TOO_LARGE, row, f"its body has {size} bytes, the limit is {size_max}; split or compress it"
    )


def _check_sizes(batch: RecordBatch, limits: LimitsConfig) -> None:
    for row in np.flatnonzero(batch.properties_size > _SMALL).tolist():
        values = p.decode_properties(bytes(batch.raw_properties(row))[:-PROPERTY_CRC_SIZE])
        for name in (p.CRC32, *_OF_TIMER):
            values.pop(name, None)
        free = {name: values.pop(name, "") for name in (p.UNIQ_KEY, TRACE_CONTEXT, p.BORN_HOST, p.SHARDING_KEY)}
        for name, value in free.items():
            if len(value.encode()) > FREE_TEXT_SIZE_MAX:
                raise BadRecordError(
                    _Code.MESSAGE_PROPERTIES_TOO_LARGE, row, f"{name} has more than {FREE_TEXT_SIZE_MAX} bytes"
                )
        own = sum(len(values.get(name, "").encode()) for name in (p.TAGS, p.KEYS))
        user = {name: value for name, value in values.items() if name not in (p.TAGS, p.KEYS)}
        if len(user) > limits.user_property_count_max:
            raise BadRecordError(
                _Code.MESSAGE_PROPERTIES_TOO_LARGE,
                row,
                f"it has {len(user)} user properties, the limit is {limits.user_property_count_max}",
            )
        size = own + sum(len(name.encode()) + len(value.encode()) for name, value in user.items())
        if size > limits.properties_size_max:
            raise BadRecordError(
                _Code.MESSAGE_PROPERTIES_TOO_LARGE,
                row,
                f"names and values of its user properties, tag and keys take {size} bytes, the limit is "
                f"{limits.properties_size_max}; move data into the body",
            )


def _check_tags(batch: RecordBatch) -> None:
    common = batch.common_value(p.TAGS)
    if common is not None and b"|" not in common and not common.startswith(b" ") and common.isascii():
        return
    if not batch.properties_contain(b"|") and not batch.properties_contain(b"TAGS\x01 "):
        return
    for row, tag in enumerate(batch.property_strings(p.TAGS)):
        if tag is not None and (not tag.strip() or "|" in tag):
            raise BadRecordError(
                _Code.ILLEGAL_MESSAGE_TAG, row, f"tag {tag[:80]!r} is blank or contains '|'; choose another"
            )


def _check_delay_type(batch: RecordBatch, topic: TopicConfig) -> None:
    if v2.MessageType.DELAY not in ACCEPTED_TYPES[topic.message_type]:
        raise BadRecordError(
            _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            0,
            f"topic {topic.name!r} does not take delayed messages; send it to a topic of its type",
        )
    grouped = batch.rows_with(p.SHARDING_KEY)
    if len(grouped):
        raise BadRecordError(
            _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            int(grouped[0]),
            f"a delayed message cannot have the property {p.SHARDING_KEY}; leave it out",
        )


def _check_type(batch: RecordBatch, topic: TopicConfig, queue_id: int) -> None:
    """A message with a message group is a FIFO message, and must be in the queue of its group."""
    accepted = ACCEPTED_TYPES[topic.message_type]
    grouped = batch.rows_with(p.SHARDING_KEY)
    if len(grouped) < len(batch) and v2.MessageType.NORMAL not in accepted:
        row = int(np.isin(np.arange(len(batch)), grouped, invert=True).argmax())
        raise BadRecordError(
            _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            row,
            f"topic {topic.name!r} does not take normal messages, and the record has no {p.SHARDING_KEY}; "
            "send it to a topic of its type, or with SendMessage",
        )
    if not len(grouped):
        return
    if v2.MessageType.FIFO not in accepted:
        raise BadRecordError(
            _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            int(grouped[0]),
            f"topic {topic.name!r} does not take FIFO messages, and the record has the property {p.SHARDING_KEY}; "
            "send it to a topic of its type",
        )
    known: set[str] = set()
    for row, group in enumerate(batch.property_strings(p.SHARDING_KEY)):
        if group is None or group in known:
            continue
        if not group.strip() or len(group.encode()) > MESSAGE_GROUP_SIZE_MAX:
            raise BadRecordError(
                _Code.ILLEGAL_MESSAGE_GROUP,
                row,
                f"message group {group[:80]!r} is blank, or has more than {MESSAGE_GROUP_SIZE_MAX} bytes",
            )
        if (right := p.jump_hash(group, topic.write_queue_count)) != queue_id:
            raise BadRecordError(
                _Code.BAD_REQUEST,
                row,
                f"message group {group!r} belongs in queue {right} of {topic.write_queue_count}, not in {queue_id}: "
                "its messages would lose their order",
            )
        known.add(group)
