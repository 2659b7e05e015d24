"""Many messages of one SendMessage as one batch: packed as records, then checked, placed and dispatched together.

One by one, a message costs some fifty microseconds here, mostly for short-lived objects. Usual messages are packed from
the columns of the request. The property string of a message with rare fields is made as for a single message. A request
that breaks a rule is not packed: processing its messages one by one finds the rule.
"""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.messages.message_mapping import (
    COMPRESSION_ZLIB,
    NORMAL,
    TRANSACTION,
    message_type,
    to_store_message,
)
from aerobee_broker.messages.validation import check_message
from aerobee_broker.processors.sending.send_columns import SendColumns
from aerobee_proto import v2
from aerobee_store.config import StoreConfig
from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import properties as p
from aerobee_store.records.compression import begins_right
from aerobee_store.records.packing import pack
from aerobee_store.records.properties import Host, encode_properties
from aerobee_store.records.record import SYS_FLAG_COMPRESSED, Message
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.records.record_columns import Booleans

_GZIP: Final = v2.Encoding.GZIP
_USUAL_SIZE_MAX: Final = 512
"""Property strings below this size cannot be too large; larger ones are checked exactly."""
_READ_PER_STEP: Final = 256  # messages read and packed in one step of the event loop
# The properties that result from a message's fields, in the order of messages/message_mapping.py.
_FORMATS: Final = tuple(f"{name}\x01%b\x02".encode() for name in (p.UNIQ_KEY, p.TAGS, p.KEYS, p.BORN_HOST))


async def packed_batch(
    columns: SendColumns,
    stored_topic: str,
    queue_id: int,
    peer: Host,
    now_ms: int,
    limits: LimitsConfig,
    store: StoreConfig,
) -> tuple[RecordBatch, list[bytes]] | None:
    """The records of normal messages, and their ids; None if a message is of another kind or breaks a rule."""
    if np.count_nonzero(columns.type == TRANSACTION):
        return None
    turns = Turns()
    if len(columns) > _READ_PER_STEP:
        await asyncio.sleep(0)  # they were read in this step
    bodies = columns.body
    message_ids = columns.message_id
    texts = _texts(columns, peer[0].encode())
    unusual = _unusual(columns, texts, store.body_size_max, limits)
    born = np.where(columns.born_ms > 0, columns.born_ms, now_ms)
    sys_flags = np.where(columns.encoding == _GZIP, SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB, 0)
    try:
        for row in unusual.nonzero()[0].tolist():
            await turns.next()
            message = columns.message(row)
            rare = _rare(message, stored_topic, queue_id, peer, now_ms, limits, store.body_size_max)
            if rare is None:
                return None
            bodies[row], texts[row] = bytes(rare.body), encode_properties(rare.properties)
            message_ids[row] = message.system_properties.message_id.encode()
            born[row], sys_flags[row] = rare.born_timestamp, rare.sys_flag
        await turns.next()
        data, sizes = pack(
            stored_topic,
            queue_id,
            bodies,
            texts,
            born,
            sys_flags,
            born_host=peer,
            store_host=store.store_host,
            property_crc=store.property_crc,
        )
    except (DecodeError, InvalidRequestError, InvalidMessageError):
        return None
    # The checksums of the bodies were computed just now.
    batch = RecordBatch.parse(data, base_physical_offset=None, placed=False, check_crc=False, sizes=sizes)
    if batch.end != len(data) or batch.first_malformed_properties() is not None:
        return None
    return batch, message_ids


def _texts(columns: SendColumns, peer_host: bytes) -> list[bytes]:
    """The property string of each message."""
    fields = (columns.message_id, columns.tag, columns.keys, columns.born_host)
    count = len(columns)
    has_tag, has_keys, has_host = (
        np.full(count, bool(field[0]))
        if all(field) or not any(field)
        else np.fromiter(map(bool, field), np.bool_, count)
        for field in fields[1:]
    )
    if np.count_nonzero(has_host):
        has_host &= np.fromiter(map(peer_host.__ne__, columns.born_host), np.bool_, count)
    kinds = has_tag + 2 * has_keys + 4 * has_host
    texts = [b""] * count
    for kind in np.unique(kinds).tolist():
        rows = (kinds == kind).nonzero()[0].tolist()
        taken = [number for number in range(len(fields)) if not number or kind >> (number - 1) & 1]
        text = b"".join(_FORMATS[number] for number in taken)
        values = zip(*(fields[number] for number in taken), strict=True)
        if len(rows) == count:
            texts = [text % each for each in values]
        else:
            found = list(values)
            for row in rows:
                texts[row] = text % found[row]
    if any(columns.user_properties):
        texts = [text + more for text, more in zip(texts, columns.user_properties, strict=True)]
    return texts


def _unusual(columns: SendColumns, texts: list[bytes], body_size_max: int, limits: LimitsConfig) -> Booleans:
    """The messages that must be checked one by one. They include every message that breaks a rule, unless its control
    characters or invalid UTF-8 are found later."""
    count = len(columns)
    body_size = np.fromiter(map(len, columns.body), np.int64, count)
    text_size = np.fromiter(map(len, texts), np.int64, count)
    unusual: Booleans = columns.unusual | (body_size == 0) | (body_size > body_size_max)
    unusual |= text_size > min(_USUAL_SIZE_MAX, limits.properties_size_max)
    for row in np.flatnonzero(columns.encoding == _GZIP).tolist():
        unusual[row] |= not begins_right(columns.body[row], SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB)
    if not all(columns.message_id):
        unusual |= ~np.fromiter(map(bool, columns.message_id), np.bool_, count)
    # Spaces: blank text, or keys of several words. Other characters, beyond ASCII, may be blank or invalid too.
    for field, forbidden in ((columns.message_id, b" "), (columns.tag, b" |"), (columns.born_host, b"")):
        joined = b"".join(field)
        if not joined.isascii() or joined != joined.translate(None, forbidden):
            unusual |= [not text.isascii() or text != text.translate(None, forbidden) for text in field]
    joined = b"".join(columns.keys)
    if not joined.isascii() or b" " in joined:
        spaces = np.fromiter((text.count(b" ") for text in columns.keys), np.int64, count)
        unusual |= (spaces != columns.key_count - 1) & (columns.key_count > 0)
        unusual |= [not text.isascii() for text in columns.keys]
    if any(columns.user_properties):
        separators = np.fromiter((text.count(b"\x01") for text in columns.user_properties), np.int64, count)
        unusual |= separators > limits.user_property_count_max
    return unusual


def _rare(
    message: v2.Message,
    stored_topic: str,
    queue_id: int,
    peer: Host,
    now_ms: int,
    limits: LimitsConfig,
    body_size_max: int,
) -> Message | None:
    """The stored form of a normal message; None for another one. InvalidRequestError if it breaks a rule."""
    if message_type(message.system_properties) != NORMAL:
        return None
    check_message(message, limits, body_size_max, now_ms)
    return to_store_message(message, stored_topic, queue_id, peer, now_ms)
