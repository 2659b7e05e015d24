"""The rules of SendMessage for the records of AppendRecords, beyond their layout, checked for a whole request at once.

numpy finds the first record that breaks a rule, if any; only that record is examined individually.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import BadRecordError, ClosedError, InvalidRequestError
from aerobee_broker.messages.admission import Destination
from aerobee_broker.messages.message_mapping import DELAY, FIFO, NORMAL
from aerobee_proto import v2
from aerobee_store.records import message_rules as rules
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import RESERVED_NAMES
from aerobee_store.records.message_rules import BrokenRuleError, TextRule, plain_bytes
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
# The properties that result from the fields of a message, and the record checksum.
_OF_FIELDS: Final = frozenset({*rules.OF_PROPERTY, p.CRC32})
_FORBIDDEN: Final = RESERVED_NAMES - _OF_FIELDS
_FORBIDDEN_IN_BATCHES: Final = _FORBIDDEN - {p.INNER_NUM, p.INNER_BASE}
_OF_TIMER: Final = frozenset({p.TIMER_DELIVER_MS, p.TIMER_OUT_MS, p.REAL_TOPIC, p.REAL_QUEUE_ID})
_FORBIDDEN_IN_TIMER: Final = _FORBIDDEN - _OF_TIMER
_SMALL: Final = 512
"""Properties with fewer bytes are never too many or too large: each takes at least two separators and two
characters."""
_TRANSIENT: Final = p.TRANSIENT_PREFIX.encode()

# ASCII text without these bytes is neither blank nor has a forbidden character; up to this size it is not too long.
_ODD: Final = tuple({b" ", *(each.encode() for rule in rules.OF_PROPERTY.values() for each in rule.forbidden)})
_LONG: Final = min(rule.size_max for rule in rules.OF_PROPERTY.values() if rule is not rules.MESSAGE_GROUP)


def _first_bytes(rule: TextRule) -> npt.NDArray[np.bool_]:
    """By byte: whether a text that begins with it must be checked, because it may be blank."""
    must = np.ones(256, np.bool_)
    must[list(plain_bytes(rule))] = False
    return must


_MUST_CHECK: Final = {name: _first_bytes(rule) for name, rule in rules.OF_PROPERTY.items()}


def check_records(
    batch: RecordBatch,
    destination: Destination,
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
    takes_batches = destination.config.takes_batches and not delayed
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
        raise bad_record(reserved[0], rules.reserved_name(reserved[1]))
    _check_transient(batch)
    _check_sizes(batch, limits)
    _check_texts(batch)
    _check_type(batch, destination, delayed=delayed)
    destination.check_queue(queue_id)
    _check_groups(batch, destination, queue_id)
    _check_compression(batch)


def _check_bodies(batch: RecordBatch, size_max: int) -> None:
    bad = (batch.body_size < 1) | (batch.body_size > size_max)
    if np.count_nonzero(bad):
        row = int(bad.argmax())
        try:
            rules.check_body(int(batch.body_size[row]), size_max)
        except BrokenRuleError as broken:
            raise bad_record(row, broken) from None


def _check_compression(batch: RecordBatch) -> None:
    """Inner batches are decompressed and counted later."""
    if not batch.any_has(SYS_FLAG_COMPRESSED):
        return
    alone = (batch.sys_flag & SYS_FLAG_COMPRESSED != 0) & (batch.sys_flag & SYS_FLAG_INNER_BATCH == 0)
    for row in np.flatnonzero(alone).tolist():
        try:
            rules.check_compression(batch.body(row), int(batch.sys_flag[row]))
        except BrokenRuleError as broken:
            raise bad_record(row, broken) from None


def _check_transient(batch: RecordBatch) -> None:
    """SendMessage drops these properties; here nothing can be taken out of a record."""
    names = batch.common_property_names()
    if not any(name.startswith(_TRANSIENT) for name in names) if names else not batch.properties_contain(_TRANSIENT):
        return
    text, rows, start, end, _, _ = batch.all_property_places()
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        if text[first:last].startswith(_TRANSIENT):
            raise bad_record(row, rules.reserved_name(text[first:last].decode("utf-8", "replace")))


def _check_sizes(batch: RecordBatch, limits: LimitsConfig) -> None:
    for row in np.flatnonzero(batch.properties_size > _SMALL).tolist():
        values = p.decode_properties(bytes(batch.raw_properties(row))[:-PROPERTY_CRC_SIZE])
        user = {name: value for name, value in values.items() if name not in RESERVED_NAMES}
        try:
            rules.check_properties(user, values.get(p.TAGS, ""), p.split_keys(values.get(p.KEYS, "")), limits)
        except BrokenRuleError as broken:
            raise bad_record(row, broken) from None


def _check_texts(batch: RecordBatch) -> None:
    """Ask the rules about each text that may be blank, is long, or is of a field with forbidden characters that occur
    somewhere. Control characters were found before, and `_check_groups` asks about each message group."""
    if batch.properties_lack(_ODD) and int(batch.properties_size.max()) <= _LONG:
        return
    for name, rule in rules.OF_PROPERTY.items():
        text, rows, start, end = batch.property_places(name)
        if not len(rows):
            continue
        must = _MUST_CHECK[name][np.frombuffer(text, np.uint8)[start]]
        must |= end - start > rule.size_max
        if any(batch.properties_contain(character.encode()) for character in rule.forbidden):
            must[:] = True
        for index in np.flatnonzero(must).tolist():
            try:
                rule.check(text[start[index] : end[index]].decode("utf-8", "replace"))
            except BrokenRuleError as broken:
                raise bad_record(int(rows[index]), broken) from None


def bad_record(row: int, broken: BrokenRuleError) -> BadRecordError:
    """The error that has the code of the rule which this record breaks."""
    return BadRecordError(_Code.Value(broken.code), row, broken.reason)


def _check_type(batch: RecordBatch, destination: Destination, *, delayed: bool) -> None:
    """A message with a message group is a FIFO message."""
    grouped = batch.rows_with(p.SHARDING_KEY)
    if delayed and len(grouped):
        raise BadRecordError(
            _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            int(grouped[0]),
            f"a delayed message cannot have the property {p.SHARDING_KEY}; leave it out",
        )
    kinds = [(FIFO, int(grouped[0]))] if len(grouped) else []
    if len(grouped) < len(batch):
        alone = np.isin(np.arange(len(batch)), grouped, invert=True)
        kinds.append((DELAY if delayed else NORMAL, int(alone.argmax())))
    for kind, row in kinds:
        try:
            destination.check(kind, has_batches=batch.any_has(SYS_FLAG_INNER_BATCH))
        except ClosedError:
            raise  # whatever the record is
        except InvalidRequestError as error:
            raise BadRecordError(error.code, row, str(error)) from None


def _check_groups(batch: RecordBatch, destination: Destination, queue_id: int) -> None:
    """Each message must be in the queue of its group."""
    if not len(batch.rows_with(p.SHARDING_KEY)):
        return
    known: set[str] = set()
    for row, group in enumerate(batch.property_strings(p.SHARDING_KEY)):
        if group is None or group in known:
            continue
        try:
            rules.MESSAGE_GROUP.check(group)
        except BrokenRuleError as broken:
            raise bad_record(row, broken) from None
        if (right := destination.queue_for(group)) != queue_id:
            raise BadRecordError(
                _Code.BAD_REQUEST,
                row,
                f"message group {group!r} belongs in queue {right} of {destination.queue_count}, not in {queue_id}: "
                "its messages would lose their order",
            )
        known.add(group)
