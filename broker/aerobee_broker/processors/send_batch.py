"""Many messages of one SendMessage as one batch: packed as records, then checked, placed and dispatched together.

One by one a message costs some twenty microseconds here, most of it in objects that live for a moment. What is usual is
packed straight from the request; a message with user properties or other rare fields takes the way of a single one up
to its property string. A request that breaks a rule is not packed: the way of single messages says which rule it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.message_mapping import LAST_MS, NORMAL, TRANSACTION, message_type, to_store_message
from aerobee_broker.validation import check_message
from aerobee_proto import v2
from aerobee_store.config import StoreConfig
from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import properties as p
from aerobee_store.records.packing import Row, pack
from aerobee_store.records.properties import Host, encode_properties
from aerobee_store.records.record_batch import RecordBatch

_IDENTITY: Final = v2.Encoding.IDENTITY
COUNT_MIN: Final = 8
"""Fewer messages are as fast one by one."""
_USUAL_SIZE_MAX: Final = 512
"""Bytes of a property string that cannot be too large; a larger one is looked at closely."""


def packed_batch(
    messages: Sequence[v2.Message],
    stored_topic: str,
    queue_id: int,
    peer: Host,
    now_ms: int,
    limits: LimitsConfig,
    store: StoreConfig,
) -> RecordBatch | None:
    """The records of normal messages of one topic; None if one is of another kind, or breaks a rule."""
    first_topic = messages[0].topic
    body_size_max = store.body_size_max
    peer_host = peer[0]
    rows: list[Row | tuple[bytes, bytes, int, int]] = []
    for message in messages:
        body = message.body
        system = message.system_properties
        message_id = system.message_id
        if message.topic != first_topic:
            return None
        if (
            message.user_properties
            or system.trace_context
            or system.lite_topic
            or system.message_group
            or system.body_encoding > _IDENTITY
            or system.message_type == TRANSACTION
            or system.HasField("body_digest")
            or system.HasField("delivery_timestamp")
            or system.HasField("priority")
            or not body
            or len(body) > body_size_max
            or not message_id.strip()
        ):
            rare = _rare(message, stored_topic, queue_id, peer, now_ms, limits, body_size_max)
            if rare is None:
                return None
            rows.append(rare)
            continue
        tag, keys, born_host = system.tag, system.keys, system.born_host
        text = f"{p.UNIQ_KEY}\x01{message_id}\x02"
        if tag:
            if "|" in tag or tag.isspace():
                return None
            text = f"{text}{p.TAGS}\x01{tag}\x02"
        if keys:
            joined = p.KEY_SEPARATOR.join(keys)
            if joined.count(p.KEY_SEPARATOR) != len(keys) - 1 or "" in keys:
                return None
            text = f"{text}{p.KEYS}\x01{joined}\x02"
        if born_host and born_host != peer_host:
            text = f"{text}{p.BORN_HOST}\x01{born_host}\x02"
        raw = text.encode()
        if len(raw) > _USUAL_SIZE_MAX:
            return None
        born = system.born_timestamp
        born_ms = born.seconds * 1000 + born.nanos // 1_000_000
        rows.append((body, raw, born_ms if 0 < born_ms <= LAST_MS else now_ms, 0))
    try:
        data, sizes = pack(
            stored_topic,
            queue_id,
            rows,
            born_host=peer,
            store_host=store.store_host,
            property_crc=store.property_crc,
        )
    except InvalidMessageError:
        return None
    # The checksums of the bodies were computed just now.
    batch = RecordBatch.parse(data, base_physical_offset=None, placed=False, check_crc=False, sizes=sizes)
    if batch.end != len(data) or batch.first_malformed_properties() is not None:
        return None
    return batch


def _rare(
    message: v2.Message,
    stored_topic: str,
    queue_id: int,
    peer: Host,
    now_ms: int,
    limits: LimitsConfig,
    body_size_max: int,
) -> Row | None:
    if message_type(message.system_properties) != NORMAL:
        return None
    try:
        check_message(message, limits, body_size_max, now_ms)
        stored = to_store_message(message, stored_topic, queue_id, peer, now_ms)
        raw = encode_properties(stored.properties)
    except (InvalidRequestError, InvalidMessageError):
        return None
    return Row(message.body, raw, stored.born_timestamp, stored.sys_flag)
