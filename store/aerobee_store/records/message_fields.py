"""The fields of a message and the properties that hold them in a record: the only mapping, in both directions.

`properties_of` makes the properties of a message that a client sends; the functions below it read fields from the
properties of a record. What maps a protocol to fields uses these: SendMessage and every delivery
(`aerobee_broker.messages.message_mapping`), the records that the client packs and reads, and the positions of fields on
the wire. Remoting clients send properties themselves.

System fields are properties with RocketMQ's names. Two kinds of data do not fit into those. They are in properties of
Aerobee, which are written only when needed and hidden from users:

    __AEROBEE_KEYS   the exact list of keys, when joining them with spaces (KEYS, for RocketMQ's index) loses it
    __AEROBEE_EMPTY  the names of user properties with an empty value, which a property string cannot hold

Both are lists joined by line feeds: control characters are refused in keys and names, so none is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from aerobee_store.records import properties as p
from aerobee_store.records.decimals import INT32_MAX, decimal
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
    __AEROBEE_TIMER __AEROBEE_LEVEL __AEROBEE_SENDER __AEROBEE_SINCE __AEROBEE_OUTCOME __AEROBEE_RESENT
    __AEROBEE_ONLY_GROUP
    """.split()  # noqa: SIM905 - sixty names read better as words than as a column of literals
)


TEXT_FIELDS: Final[Mapping[str, str]] = {
    "message_id": p.UNIQ_KEY,
    "tag": p.TAGS,
    "message_group": p.SHARDING_KEY,
    "trace_context": TRACE_CONTEXT,
    "lite_topic": LITE_TOPIC,
    "born_host": p.BORN_HOST,
}
"""The property of each field that is one text, by the field's name in `apache.rocketmq.v2.SystemProperties`."""
DELAY_NAMES: Final = (p.DELAY, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS)
"""Properties that make a message a delayed one; the first one counts."""

Kind = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY"]
"""A name of `apache.rocketmq.v2.MessageType`."""


def kind_of(
    *, is_transactional: bool, is_delayed: bool, has_group: bool, has_lite_topic: bool, has_priority: bool
) -> Kind:
    """The type of a message with these fields, whatever type its sender declared."""
    if is_transactional:
        return "TRANSACTION"
    if is_delayed:
        return "DELAY"
    if has_group:
        return "FIFO"
    if has_lite_topic:
        return "LITE"
    return "PRIORITY" if has_priority else "NORMAL"


def properties_of(
    *,
    message_id: str,
    tag: str | None = None,
    keys: Iterable[str] = (),
    message_group: str | None = None,
    trace_context: str | None = None,
    lite_topic: str | None = None,
    priority: int | None = None,
    deliver_ms: int | None = None,
    producer_group: str = "",
    recovery_seconds: int = 0,
    born_host: str = "",
    user_properties: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The properties of a message with these fields, in the order in which all entrances store them.

    Empty text and None: the message does not have the field. `producer_group` makes it a half message; 0
    `recovery_seconds` means none, because no producer wants to be asked at once. User properties are sorted by name:
    the order on the wire differs between processes.
    """
    properties = {p.UNIQ_KEY: message_id}
    if tag:
        properties[p.TAGS] = tag
    if given := [key for key in keys if key]:
        properties[p.KEYS] = joined = p.KEY_SEPARATOR.join(given)
        if joined.count(p.KEY_SEPARATOR) != len(given) - 1:
            properties[EXACT_KEYS] = LIST_SEPARATOR.join(given)
    if message_group:
        properties[p.SHARDING_KEY] = message_group
    if trace_context:
        properties[TRACE_CONTEXT] = trace_context
    if lite_topic:
        properties[LITE_TOPIC] = lite_topic
    if priority is not None:
        properties[PRIORITY_PROPERTY] = str(priority)
    if deliver_ms is not None:
        properties[p.TIMER_DELIVER_MS] = str(deliver_ms)
    if producer_group:
        properties[p.TRANSACTION_MESSAGE] = "true"
        properties[p.PRODUCER_GROUP] = producer_group
        if recovery_seconds:
            properties[p.CHECK_IMMUNITY_TIME_SECONDS] = str(recovery_seconds)
    if born_host:
        properties[p.BORN_HOST] = born_host
    if user_properties:
        by_name = sorted(user_properties.items())
        empty = [name for name, value in by_name if not value]
        if empty:
            properties[EMPTY_PROPERTIES] = LIST_SEPARATOR.join(empty)
        properties.update(by_name)
    return properties


class Fields(NamedTuple):
    """The fields of a stored message that come from its properties. None: it does not have the field."""

    message_id: str | None
    tag: str | None
    keys: list[str]
    message_group: str | None
    trace_context: str | None
    lite_topic: str | None
    priority: int | None
    deliver_ms: int | None
    born_host: str | None
    user_properties: dict[str, str]


def fields_of(properties: Mapping[str, str]) -> Fields:
    """The inverse of `properties_of`, but for half messages. Other programs may have written the properties."""
    texts = {field: properties.get(name) for field, name in TEXT_FIELDS.items()}
    return Fields(
        keys=keys_of(properties),
        priority=priority_of(properties),
        deliver_ms=delivery_ms_of(properties),
        user_properties=user_properties_of(properties),
        **texts,
    )


def stored_kind(properties: Mapping[str, str]) -> Kind:
    """The type of a message with these properties."""
    return kind_of(
        is_transactional=properties.get(p.TRANSACTION_MESSAGE) == "true",
        is_delayed=not properties.keys().isdisjoint(DELAY_NAMES),
        has_group=p.SHARDING_KEY in properties,
        has_lite_topic=LITE_TOPIC in properties,
        has_priority=properties.get(PRIORITY_PROPERTY, "0") != "0",
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
    due_ms = decimal(properties.get(p.TIMER_DELIVER_MS) or properties.get(p.TIMER_OUT_MS))
    return None if due_ms is None else min(due_ms, LAST_MS)


def priority_of(properties: Mapping[str, str]) -> int | None:
    """The priority; None for a message that has none."""
    return decimal(properties.get(PRIORITY_PROPERTY), INT32_MAX)
