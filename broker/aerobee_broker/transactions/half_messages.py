"""The records of transactional messages in RocketMQ's form; each function builds one of them.

    topic                        what
    RMQ_SYS_TRANS_HALF_TOPIC     half messages: real topic and queue in REAL_TOPIC and REAL_QID, invisible to consumers
    RMQ_SYS_TRANS_OP_HALF_TOPIC  ops: tag `d`, the body names the queue offset of a half message that is settled
    TRANS_CHECK_MAX_TIME_TOPIC   half messages that were given up without a decision
    the real one                 committed messages: commit bits in sys_flag, the physical offset of the half message

The first three have queue 0 only. A half message waits if it is in the first topic and no op names it, from the offsets
of the group CID_RMQ_SYS_TRANS on. Some properties are additions of Aerobee, which RocketMQ keeps:

    __AEROBEE_SENDER   in a half message: the client id of its producer, which is asked first
    __AEROBEE_SINCE    in a renewed half message: when the first one was stored, Unix ms
    __AEROBEE_OUTCOME  in an op: how the transaction was settled, see Outcome. RocketMQ's ops lack this
    REAL_TOPIC, __transactionId__ in an op (RocketMQ's names): identify the transaction
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from aerobee_store import Record
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.delay_levels import DelayLevels
from aerobee_store.records.record import SYS_FLAG_TRANSACTION, Message, TransactionType

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
TRANSACTION_QUEUE_ID: Final = 0

SENDER: Final = "__AEROBEE_SENDER"
SINCE: Final = "__AEROBEE_SINCE"
OUTCOME: Final = "__AEROBEE_OUTCOME"
_OP_TAG: Final = "d"
_SENDER_SIZE_MAX: Final = 255  # a longer client id is not stored: any producer of the topic can answer
_OP_OFFSETS_MAX: Final = 4 << 20  # size limit of one op; RocketMQ's have 4 KiB
_DELAY_MS_MAX: Final = 40 * 86_400_000
_QUEUE_ID_MAX: Final = (1 << 31) - 1
# Properties that are removed from the message for consumers.
_OF_HALF_ONLY: Final = (
    p.REAL_TOPIC,
    p.REAL_QUEUE_ID,
    p.TRANSACTION_PREPARED_QUEUE_OFFSET,
    p.CRC32,
    SENDER,
    SINCE,
)


class Outcome(enum.StrEnum):
    """The outcome of a half message."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    GIVEN_UP = "given-up"
    RENEWED = "renewed"  # superseded by a renewed copy


_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}


class HalfMessage(Struct, frozen=True):
    """The transaction data of a half message. Times in Unix ms."""

    topic: str
    queue_id: int
    transaction_id: str
    sender: str | None
    since_ms: int
    checks: int
    immunity_seconds: int | None
    prepared_queue_offset: int | None  # in RocketMQ's renewed ones: that of the earlier one


class Op(Struct, frozen=True):
    """Settled half messages, by queue offset; the other fields are None in RocketMQ's ops."""

    queue_offsets: tuple[int, ...]
    outcome: Outcome | None
    topic: str | None
    transaction_id: str | None


def transaction_key(topic: str, transaction_id: str) -> bytes:
    """16 bytes for (stored topic, transaction id), because ids may be kilobytes long."""
    return blake2b(f"{topic}\0{transaction_id}".encode(), digest_size=16).digest()


def half_message(message: Message, client_id: str) -> Message:
    """The half message of a message with a unique key, which is its transaction id."""
    properties = {
        **message.properties,
        p.REAL_TOPIC: message.topic,
        p.REAL_QUEUE_ID: str(message.queue_id),
        p.TRANSACTION_ID: message.properties[p.UNIQ_KEY],
    }
    if len(client_id) <= _SENDER_SIZE_MAX:
        properties[SENDER] = client_id
    return dataclasses.replace(
        message,
        topic=HALF_TOPIC,
        queue_id=TRANSACTION_QUEUE_ID,
        properties=properties,
        sys_flag=message.sys_flag & ~SYS_FLAG_TRANSACTION,
    )


def renewed_half(half: Record, checks: int, since_ms: int) -> Message:
    """A copy of the half message for the end of the log."""
    properties = {**half.properties, p.TRANSACTION_CHECK_TIMES: str(checks), SINCE: str(since_ms)}
    # RocketMQ would apply an op of the earlier one to this one.
    properties.pop(p.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
    return half.to_new_message(HALF_TOPIC, TRANSACTION_QUEUE_ID, properties)


def given_up_half(half: Record) -> Message:
    """The stored copy of an abandoned half message."""
    return half.to_new_message(GIVEN_UP_TOPIC, TRANSACTION_QUEUE_ID, dict(half.properties))


def committed_message(half: Record, topic: str, queue_id: int) -> Message:
    """The message for consumers."""
    properties = {name: value for name, value in half.properties.items() if name not in _OF_HALF_ONLY}
    message = half.to_new_message(topic, queue_id, properties)
    message.sys_flag |= TransactionType.COMMIT
    message.prepared_transaction_offset = half.physical_offset
    return message


def due_ms(properties: Mapping[str, str], now_ms: int, levels: DelayLevels) -> int | None:
    """The delivery time of a message that is committed now; None: at once.

    Clients of this broker send no such transactions, but a RocketMQ store may have their half messages, and delays them
    from the commit on: at most 40 days.
    """
    for name, begin, factor in (
        (p.TIMER_DELAY_SEC, now_ms, 1000),
        (p.TIMER_DELAY_MS, now_ms, 1),
        (p.TIMER_DELIVER_MS, 0, 1),
    ):
        if (number := _number(properties.get(name))) is not None:
            due = begin + number * factor
            break
    else:
        level = _number(properties.get(p.DELAY))
        due = levels.delivery_time(level, now_ms) if level else now_ms
    return min(due, now_ms + _DELAY_MS_MAX) if due > now_ms else None


def op_message(queue_offset: int, outcome: Outcome, topic: str, transaction_id: str, now_ms: int) -> Message:
    """The op that settles the half message at `queue_offset`."""
    return Message(
        topic=OP_TOPIC,
        queue_id=TRANSACTION_QUEUE_ID,
        body=str(queue_offset).encode(),  # no comma at the end, which RocketMQ 4 could not read
        properties={
            p.TAGS: _OP_TAG,
            OUTCOME: outcome.value,
            p.REAL_TOPIC: topic,
            p.TRANSACTION_ID: transaction_id,
        },
        born_timestamp=now_ms,
    )


def read_half(record: Record) -> HalfMessage | None:
    """The half message in a record of the half topic; None if it could never be committed."""
    properties = record.properties
    topic = properties.get(p.REAL_TOPIC)
    queue_id = _number(properties.get(p.REAL_QUEUE_ID))
    # RocketMQ uses the unique key, whatever other ids exist.
    transaction_id = properties.get(p.UNIQ_KEY) or properties.get(p.TRANSACTION_ID)
    if not topic or queue_id is None or queue_id > _QUEUE_ID_MAX or not transaction_id:
        return None
    return HalfMessage(
        topic=topic,
        queue_id=queue_id,
        transaction_id=transaction_id,
        sender=properties.get(SENDER),
        since_ms=_number(properties.get(SINCE)) or record.store_timestamp,
        checks=_number(properties.get(p.TRANSACTION_CHECK_TIMES)) or 0,
        immunity_seconds=_number(properties.get(p.CHECK_IMMUNITY_TIME_SECONDS)) or None,
        prepared_queue_offset=_number(properties.get(p.TRANSACTION_PREPARED_QUEUE_OFFSET)),
    )


def read_op(record: Record) -> Op | None:
    """The op in a record of the op topic; None if it settles nothing."""
    if record.tag != _OP_TAG or len(record.body) > _OP_OFFSETS_MAX:
        return None
    numbers = (_number(part) for part in record.body.decode("ascii", "replace").split(","))
    offsets = tuple(number for number in numbers if number is not None)
    if not offsets:
        return None
    properties = record.properties
    outcome = _OUTCOMES.get(properties.get(OUTCOME, ""))
    return Op(offsets, outcome, properties.get(p.REAL_TOPIC), properties.get(p.TRANSACTION_ID))


def _number(text: str | None) -> int | None:
    """A number of 0 or more that another program wrote, or None."""
    return None if text is None else decimal(text.strip())
