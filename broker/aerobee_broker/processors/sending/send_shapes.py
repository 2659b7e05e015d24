"""SendMessage with many messages of few shapes: packed into records by copying columns of bytes.

The messages in one request of a producer mostly differ only in their bodies, ids, keys and born timestamps. Messages of
equal size have one *shape* if all bytes outside of such fields are equal. These bytes include every tag and every size
on the wire, so the fields of these messages have the same positions, and all other fields have the same content. The
first message of a shape is parsed, checked and encoded like a single message; its record is the template for all. Each
field is then copied from its position in the messages to its position in the records, with one copy for all messages.

Copied fields are checked too: printable ASCII, and no separators within ids, tags and keys. A request with other
shapes, or with an invalid field, is not packed here; its messages are then read one by one (send_known.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.message_mapping import NORMAL, message_type, to_store_message
from aerobee_broker.messages.validation import check_message
from aerobee_broker.messages.varints import read_varint
from aerobee_broker.processors.sending.message_layout import VARINT_SIZE_MAX, Fields, Span, fields_of
from aerobee_broker.processors.sending.send_known import MESSAGES, Parse, SendKnown, SendReader
from aerobee_proto import v2
from aerobee_store.config import StoreConfig
from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import message_rules as rules
from aerobee_store.records.compression import begins_right
from aerobee_store.records.message_rules import plain_bytes
from aerobee_store.records.properties import Host
from aerobee_store.records.record import (
    BODY_CRC_POSITION,
    BORN_TIMESTAMP_POSITION,
    PROPERTY_CRC_SIZE,
    Draft,
    Message,
    ScanStop,
    peek,
)
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.records.record_columns import I64, Bytes, Integers, all_true, are_alike, crcs_of, put_items, windows

_SIZE_MAX: Final = 1 << 20  # bytes of a request that are copied in one step of the event loop
_SHAPES_MAX: Final = 16
_MESSAGES_MIN: Final = 32  # per shape: a shape costs as much as reading so many messages one by one
_WEIGHTS: Final = 128.0 ** np.arange(VARINT_SIZE_MAX)  # as floats: exact, and numpy multiplies them faster
_INT32_MAX: Final = (1 << 31) - 1
_PLAIN: Final = plain_bytes(rules.USER_PROPERTY, rules.TRACE_CONTEXT)
_FIRST_PLAIN, _LAST_PLAIN = _PLAIN[0], _PLAIN[-1]
assert bytes(range(_FIRST_PLAIN, _LAST_PLAIN + 1)) == _PLAIN, "one comparison finds all other characters"
_ODD_IN_WORDS: Final = bytes(set(_PLAIN) - set(plain_bytes(rules.MESSAGE_ID, rules.KEY)))
_ODD_IN_TAGS: Final = bytes(set(_PLAIN) - set(plain_bytes(rules.TAG)))
_U32: Final = np.dtype(">u4")


COUNT_MIN: Final = 8
"""The minimum number of messages: fewer are as fast by protobuf."""
COUNT_MAX: Final = 1024
"""Entry limit of one request, as of every repeated field."""
_HEAD_SIZE: Final = 3  # tag and size of a message of up to 16 KiB; of a smaller one also its first byte
_RUN_MIN: Final = 4  # messages of one size that are found by one comparison


@dataclass(slots=True, eq=False)
class Shape:
    """The messages of one shape in a request."""

    rows: Integers
    """The numbers of these messages in the request."""
    data: Bytes
    """The bytes of these messages, one message per row."""
    fields: Fields


@dataclass(slots=True, eq=False)
class SendShapes:
    """A request whose messages have few shapes."""

    topic: v2.Resource
    shapes: list[Shape]
    otherwise: Callable[[], SendKnown | v2.SendMessageRequest]
    """Reads the request without use of the shapes. InvalidRequestError, MemoryError."""


AnySendRequest = SendShapes | SendKnown | v2.SendMessageRequest


def read_many(data: bytes, reader: SendReader, parse: Parse) -> AnySendRequest:
    """A request that does not consist of one message. Raises like `parse`."""
    places = _places(data)
    if places is None:
        return parse(data)

    def one_by_one() -> SendKnown | v2.SendMessageRequest:
        return reader.read(data, zip(*(each.tolist() for each in places), strict=True), parse)

    shapes = shapes_of(data, *places)
    return one_by_one() if shapes is None else SendShapes(*shapes, one_by_one)


def _places(data: bytes) -> tuple[Integers, Integers] | None:
    """The begin and end of the messages of a request; None if there are too few or too many, or it has other
    content."""
    size = len(data)
    runs: list[tuple[int, int, int, int]] = []  # place, count, the sizes of a head and a message
    count = position = 0
    known: dict[bytes, tuple[int, int]] = {}  # messages have few sizes, so there are few heads
    try:
        while position < size and count < COUNT_MAX:
            head = data[position : position + _HEAD_SIZE]
            found = known.get(head)
            if found is None:
                if head[0] != MESSAGES:
                    return None
                length, begin = read_varint(data, position + 1)
                found = begin - position, length
                if found[0] <= _HEAD_SIZE:
                    known[head] = found
            run = _run(data, position, *found, COUNT_MAX - count)
            runs.append((position, run, *found))
            position += run * sum(found)
            count += run
    except IndexError:
        return None
    if position != size or count < COUNT_MIN:
        return None
    first, counts, heads, lengths = (np.array(column, np.int64) for column in zip(*runs, strict=True))
    if len(runs) == 1:
        begins = first + heads + (heads + lengths) * np.arange(count)
        return begins, begins + lengths
    of_run = np.repeat(np.arange(len(runs)), counts)
    number = np.arange(count) - (np.cumsum(counts) - counts)[of_run]  # within its run
    begins = (first + heads)[of_run] + (heads + lengths)[of_run] * number
    return begins, begins + lengths[of_run]


def _run(data: bytes, position: int, head_size: int, length: int, count_max: int) -> int:
    """How many messages of this size follow one another from `position` on: 1 unless there are a few."""
    step = head_size + length
    head = data[position : position + head_size]
    probe = position + _RUN_MIN * step
    if data[probe : probe + head_size] != head:
        return 1
    count = min((len(data) - position) // step, count_max)
    heads = np.ndarray((count, head_size), np.uint8, data, position, (step, 1))
    alike = (heads == np.frombuffer(head, np.uint8)).all(axis=1)
    return count if all_true(alike) else int(alike.argmin())


def shapes_of(data: bytes, begin: Integers, end: Integers) -> tuple[v2.Resource, list[Shape]] | None:
    """The topic and the shapes of the messages at these positions of a request. None if they have too many shapes,
    unusual fields, or several topics."""
    if len(data) > _SIZE_MAX:
        return None
    size_of = end - begin
    sizes = np.unique(size_of) if np.count_nonzero(size_of != size_of[0]) else size_of[:1]
    if len(sizes) > _SHAPES_MAX or len(sizes) * _MESSAGES_MIN > len(begin) or not sizes[0]:
        return None
    shapes: list[Shape] = []
    topics: set[bytes] = set()
    for size in sizes.tolist():
        rows = (size_of == size).nonzero()[0]
        first = int(begin[rows[0]])
        message = data[first : first + size]
        fields = fields_of(message)
        if fields is None or fields.message_group is not None:
            return None
        messages = windows(data, size)[begin[rows]].view(np.uint8).reshape(-1, size)
        if not _are_constant(messages, fields.varying()):
            return None
        topics.add(message[slice(*fields.topic)])
        shapes.append(Shape(rows, messages, fields))
    try:
        return (v2.Resource.FromString(topics.pop()), shapes) if len(topics) == 1 else None
    except DecodeError:
        return None


def pack_shapes(
    shapes: list[Shape],
    stored_topic: str,
    queue_id: int,
    peer: Host,
    now_ms: int,
    limits: LimitsConfig,
    store: StoreConfig,
) -> tuple[RecordBatch, list[bytes]] | None:
    """The records of normal messages, and their ids; None if a message is of another kind or breaks a rule."""
    count = sum(len(shape.rows) for shape in shapes)
    message_ids = [b""] * count
    size_of = np.zeros(count, np.int64)
    packed: list[Bytes] = []
    for shape in shapes:
        try:
            first = v2.Message.FromString(shape.data[0].tobytes())
            if message_type(first.system_properties) != NORMAL:
                return None
            check_message(first, limits, store.body_size_max, now_ms)
            stored = to_store_message(first, stored_topic, queue_id, peer, now_ms)
            draft = Draft(stored, store_host=store.store_host, property_crc=store.property_crc)
        except (DecodeError, InvalidRequestError, InvalidMessageError):
            return None
        records = _records(shape, stored, draft.encode_unplaced(), now_ms, property_crc=store.property_crc)
        if records is None:
            return None
        packed.append(records)
        size_of[shape.rows] = records.shape[1]
        ids = _column(shape.data, shape.fields.message_id)
        if len(shapes) == 1:
            message_ids = ids
        else:
            for row, message_id in zip(shape.rows.tolist(), ids, strict=True):
                message_ids[row] = message_id
    if len(shapes) == 1:
        data = packed[0].reshape(-1)
    else:
        start = np.cumsum(size_of) - size_of
        data = np.empty(int(size_of.sum()), np.uint8)
        for shape, records in zip(shapes, packed, strict=True):
            size = records.shape[1]
            windows(data, size)[start[shape.rows]] = records.view(f"V{size}")[:, 0]
    # The checksums of the bodies were computed just now.
    batch = RecordBatch.parse(data.data, base_physical_offset=None, placed=False, check_crc=False, sizes=size_of)
    return (batch, message_ids) if batch.end == len(data) else None


# --- A shape ------------------------------------------------------------------------------------------------


def _are_constant(messages: Bytes, varying: list[Span]) -> bool:
    """Whether all bytes outside of the varying fields are the same in all rows."""
    messages = np.ascontiguousarray(messages)
    count, size = messages.shape
    edges = [0, *(edge for span in varying for edge in span), size]
    return all(
        are_alike(messages.data.cast("B"), begin, end - begin, size, count)
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
        if end > begin
    )


# --- The records of a shape ---------------------------------------------------------------------------------


def _records(shape: Shape, stored: Message, template: bytes, now_ms: int, *, property_crc: bool) -> Bytes | None:
    """The records of the messages, one per row. `stored`, `template`: the first message and its record. None if a field
    has content that must be checked one by one."""
    messages, fields = shape.data, shape.fields
    if not _are_plain(messages, fields):
        return None
    if stored.sys_flag and not all(begins_right(body, stored.sys_flag) for body in _column(messages, fields.body)):
        return None
    count, size = len(messages), len(template)
    text_end = size - (PROPERTY_CRC_SIZE if property_crc else 0)
    header = peek(template, 0, size, check_crc=False, placed=False)
    if isinstance(header, ScanStop):
        return None
    copies = _copies(shape, stored, header.properties_start, text_end)
    born = _born(messages, fields, now_ms)
    if copies is None or born is None:
        return None
    records = np.empty((count, size), np.uint8)
    records[:] = np.frombuffer(template, np.uint8)
    for (begin, end), position in (*copies, (fields.body, header.body_start)):
        records[:, position : position + end - begin] = messages[:, begin:end]
    # The varying fields of the template are printable ASCII. A record with the same number of other bytes therefore has
    # only printable ASCII in its varying fields too.
    odd = records[:, header.properties_start : text_end] - np.uint8(_FIRST_PLAIN) > _LAST_PLAIN - _FIRST_PLAIN  # wraps
    if np.count_nonzero(odd) != count * np.count_nonzero(odd[0]):
        return None
    view = records.data.cast("B")
    start = np.arange(0, count * size, size, dtype=np.int64)
    body_start = start + header.body_start
    crcs = crcs_of(view, body_start, body_start + header.body_size, None, size)
    put_items(view, _U32, start, BODY_CRC_POSITION, size, crcs)
    put_items(view, I64, start, BORN_TIMESTAMP_POSITION, size, born)
    return records


def _are_plain(messages: Bytes, fields: Fields) -> bool:
    """Whether ids, keys, and a tag that differs from the first one need not be checked, if they are printable ASCII.
    Keys then need no additional property either."""
    if any(_has_any(messages[:, slice(*span)], _ODD_IN_WORDS) for span in (fields.message_id, *fields.keys)):
        return False
    if fields.tag is None:
        return True
    tags = messages[:, slice(*fields.tag)]
    return not np.count_nonzero(tags != tags[0]) or not _has_any(tags, _ODD_IN_TAGS)


def _has_any(columns: Bytes, characters: bytes) -> bool:
    return any(np.count_nonzero(columns == character) for character in characters)


def _copies(shape: Shape, stored: Message, start: int, end: int) -> list[tuple[Span, int]] | None:
    """The source and target position of each property. `start`, `end`: the position of the property string in the
    record. None if a property does not come from a field, or varies and has other characters than printable ASCII.
    """
    fields = shape.fields
    first = shape.data[0].tobytes()
    sources = fields.property_sources(first)
    copies: list[tuple[Span, int]] = []
    position = start
    for name, text in stored.properties.items():
        if name not in sources:
            return None
        position += len(name.encode()) + 1
        at = position
        for span in sources[name]:
            odd = not (first[slice(*span)].isascii() and text.isprintable())
            if odd and not _are_constant(shape.data[:, slice(*span)], []):
                return None
            copies.append((span, at))
            at += span[1] - span[0] + 1  # a space between keys
        position += len(text.encode()) + 1
    return copies if position == end else None


def _born(messages: Bytes, fields: Fields, now_ms: int) -> Integers | None:
    """The born timestamps in Unix milliseconds, as computed by `to_store_message`. None if a number has another size
    than that of the first message, or is too large."""
    parts: list[Integers] = []
    for span in (fields.seconds, fields.nanos):
        if span is None:
            parts.append(np.zeros(len(messages), np.int64))
            continue
        digits = np.ascontiguousarray(messages[:, slice(*span)].T)  # numpy is slow with many short rows
        if np.count_nonzero((digits ^ digits[:, :1]) & 0x80):
            return None
        values = _WEIGHTS[: len(digits)] @ (digits & 0x7F)
        parts.append(values.astype(np.int64))
    seconds, nanos = parts
    if np.count_nonzero(nanos > _INT32_MAX):
        return None
    born = seconds * 1000 + nanos // 1_000_000
    return np.where(born > 0, born, now_ms)  # numbers of five bytes end long before `LAST_MS`


def _column(data: Bytes, span: Span) -> list[bytes]:
    """The bytes at this position of each row."""
    begin, end = span
    found: list[bytes] = np.ascontiguousarray(data[:, begin:end]).view(f"V{end - begin}")[:, 0].tolist()
    return found
