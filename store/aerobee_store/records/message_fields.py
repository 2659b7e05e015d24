"""The fields of a stored message, separated into system fields and user properties.

System fields are properties with RocketMQ's names. Two kinds of data do not fit into those. They are in properties of
Aerobee, which are written only when needed and hidden from users:

    __AEROBEE_KEYS   the exact list of keys, when joining them with spaces (KEYS, for RocketMQ's index) loses it
    __AEROBEE_EMPTY  the names of user properties with an empty value, which a property string cannot hold

Both are lists joined by line feeds: control characters are refused in keys and names, so none is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aerobee_store.records import properties as p
from aerobee_store.records.record import Record

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Holds delayed messages in queue 0 until they are due; `REAL_TOPIC` and `REAL_QID` are their destination."""
TIMER_QUEUE_ID: Final = 0

TRACE_CONTEXT: Final = "TRACE_CONTEXT"
LITE_TOPIC: Final = "__LITE_TOPIC"
PRIORITY_PROPERTY: Final = "_SYS_MSG_PRIORITY_"
EXACT_KEYS: Final = "__AEROBEE_KEYS"
EMPTY_PROPERTIES: Final = "__AEROBEE_EMPTY"
ONLY_GROUP: Final = "__AEROBEE_ONLY_GROUP"
"""On a resent dead letter: the stored name of the only group that receives it."""
LIST_SEPARATOR: Final = "\n"
LAST_MS: Final = 253_402_300_799_999
"""Unix milliseconds: the end of the year 9999, the limit of a protobuf Timestamp."""

_ONLY_GROUP_BYTES: Final = ONLY_GROUP.encode()

# Names that RocketMQ refuses as user properties and hides from consumers, followed by names that it does not hide.
RESERVED_NAMES: Final = frozenset(
    """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES
    CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO
    INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#

    TRACE_CONTEXT __SHARDINGKEY CHECK_IMMUNITY_TIME_IN_SECONDS __transactionId__ TRANSACTION_CHECK_TIMES
    INNER_NUM INNER_BASE INNER_MULTI_DISPATCH __LITE_TOPIC _SYS_MSG_PRIORITY_ __AEROBEE_KEYS __AEROBEE_EMPTY
    __AEROBEE_TIMER __AEROBEE_SENDER __AEROBEE_SINCE __AEROBEE_OUTCOME __AEROBEE_RESENT __AEROBEE_ONLY_GROUP
    """.split()  # noqa: SIM905 - sixty names read better as words than as a column of literals
)


def is_for(record: Record, group: str) -> bool:
    """False for a message that was resent to another group only. `group`: its stored name."""
    return _ONLY_GROUP_BYTES not in record.raw_properties or record.properties.get(ONLY_GROUP, group) == group


def keys_of(properties: Mapping[str, str]) -> list[str]:
    """The keys, as the sender gave them."""
    keys = properties.get(p.KEYS)
    if not keys:
        return []
    exact = properties.get(EXACT_KEYS)
    return exact.split(LIST_SEPARATOR) if exact else p.split_keys(keys)


def user_properties_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The user properties of the message, including empty ones."""
    found = {name: value for name, value in properties.items() if name not in RESERVED_NAMES}
    if empty := properties.get(EMPTY_PROPERTIES):
        found.update(dict.fromkeys(empty.split(LIST_SEPARATOR), ""))
    return found


def delivery_ms_of(properties: Mapping[str, str]) -> int | None:
    """When a delayed message was due, in Unix milliseconds; None for any other."""
    return _integer(properties.get(p.TIMER_DELIVER_MS) or properties.get(p.TIMER_OUT_MS))


def priority_of(properties: Mapping[str, str]) -> int | None:
    """The priority; None for a message that has none."""
    priority = _integer(properties.get(PRIORITY_PROPERTY))
    return priority if priority is not None and priority < 1 << 31 else None


def _integer(text: str | None) -> int | None:
    """A number that another program may have written: 0..`LAST_MS`, or None."""
    if text and text.isascii() and text.isdigit() and len(text) <= 15:
        return min(int(text), LAST_MS)
    return None
