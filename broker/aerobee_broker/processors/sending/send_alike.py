"""SendMessage with many messages that are alike: of one size and layout, and copied into records column by column.

The messages in one request of a producer mostly differ only in their bodies, ids, keys, tags, values and times. If they
have the same size, the fields of one layout (send_known.py) are at the same positions in all of them. The first one is
stored by the template of its layout; its record is the template for all. Each field is then copied from its position in
the messages to its position in the records, with one copy for all messages.

Copied fields are checked too: printable ASCII, and no separators within ids, keys and tags. A request with too many
sizes, or with a field that must be checked closely, is not packed here; its messages are then read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from aerobee_broker.config import LimitsConfig
from aerobee_broker.messages.message_mapping import NORMAL
from aerobee_broker.messages.wire_fields import VARINT_SIZE_MAX, Span, read_field
from aerobee_broker.processors.sending.send_known import (
    MESSAGES,
    KnownMessage,
    Layout,
    Parse,
    SendKnown,
    SendReader,
)
from aerobee_proto import v2
from aerobee_store.config import StoreConfig
from aerobee_store.records import message_rules as rules
from aerobee_store.records.compression import begins_right
from aerobee_store.records.decimals import INT32_MAX
from aerobee_store.records.message_rules import plain_bytes
from aerobee_store.records.properties import Host
from aerobee_store.records.record import BODY_CRC_POSITION, BORN_TIMESTAMP_POSITION, ScanStop, peek
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.records.record_columns import I64, Bytes, Integers, all_true, are_alike, crcs_of, put_items, windows

_SIZE_MAX: Final = 1 << 20  # bytes of a request that are copied in one step of the event loop
_SIZES_MAX: Final = 16  # of messages
_MESSAGES_MIN: Final = 32  # of one size: columns cost as much as reading so many messages one by one
_WEIGHTS: Final = 128.0 ** np.arange(VARINT_SIZE_MAX)  # as floats: exact, and numpy multiplies them faster
_U32: Final = np.dtype(">u4")


def _must_check(*of: rules.TextRule) -> Bytes:
    """By byte: whether a text with it must be checked closely."""
    must = np.ones(256, np.bool_)
    must[list(plain_bytes(*of))] = False
    return must.view(np.uint8)


_IN_WORDS: Final = _must_check(rules.MESSAGE_ID, rules.KEY)
_IN_TEXTS: Final = _must_check(rules.USER_PROPERTY, rules.TRACE_CONTEXT)
_IN_TAGS: Final = _must_check(rules.TAG)


COUNT_MIN: Final = 8
"""The minimum number of messages: fewer are as fast by protobuf."""
COUNT_MAX: Final = 1024
"""Entry limit of one request, as of every repeated field."""
_HEAD_SIZE: Final = 3  # tag and size of a message of up to 16 KiB; of a smaller one also its first byte
_RUN_MIN: Final = 4  # messages of one size that are found by one comparison


@dataclass(slots=True, eq=False)
class Alike:
    """The messages of one size and layout in a request."""

    first: KnownMessage
    rows: Integers
    """The numbers of these messages in the request."""
    data: Bytes
    """The bytes of these messages, one message per row."""


@dataclass(slots=True, eq=False)
class SendAlike:
    """A request whose normal messages of one size are alike."""

    parts: list[Alike]
    otherwise: Callable[[], SendKnown | v2.SendMessageRequest]
    """Reads the messages one by one. InvalidRequestError, MemoryError."""

    @property
    def topic(self) -> v2.Resource:
        return self.parts[0].first.layout.topic


AnySendRequest = SendAlike | SendKnown | v2.SendMessageRequest


def read_many(data: bytes, reader: SendReader, parse: Parse) -> AnySendRequest:
    """A request that does not consist of one message. Raises like `parse`."""
    places = _places(data)
    if places is None:
        return parse(data)

    def one_by_one() -> SendKnown | v2.SendMessageRequest:
        return reader.read(data, zip(*(each.tolist() for each in places), strict=True), parse)

    parts = _parts(data, *places, reader)
    return one_by_one() if parts is None else SendAlike(parts, one_by_one)


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
                tag, begin, end = read_field(data, position, size)
                if tag != MESSAGES:
                    return None
                found = begin - position, end - begin
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


def _parts(data: bytes, begin: Integers, end: Integers, reader: SendReader) -> list[Alike] | None:
    """The messages at these positions of a request, by size. None if they have too many sizes, unusual fields, message
    groups, or several topics."""
    if len(data) > _SIZE_MAX:
        return None
    size_of = end - begin
    sizes = np.unique(size_of) if np.count_nonzero(size_of != size_of[0]) else size_of[:1]
    if len(sizes) > _SIZES_MAX or len(sizes) * _MESSAGES_MIN > len(begin) or not sizes[0]:
        return None
    parts: list[Alike] = []
    for size in sizes.tolist():
        rows = (size_of == size).nonzero()[0]
        at = int(begin[rows[0]])
        first = reader.first_of(data, (at, at + size))
        if first is None or first.layout.kind != NORMAL:
            return None
        if parts and not parts[0].first.layout.has_topic_of(first.layout):
            return None
        messages = np.ascontiguousarray(windows(data, size)[begin[rows]]).view(np.uint8).reshape(-1, size)
        if not _are_alike(messages, first):
            return None
        parts.append(Alike(first, rows, messages))
    return parts


def pack(
    parts: list[Alike],
    stored_topic: str,
    queue_id: int,
    peer: Host,
    now_ms: int,
    limits: LimitsConfig,
    store: StoreConfig,
) -> tuple[RecordBatch, list[bytes]] | None:
    """The records of the messages, and their ids; None if a message breaks a rule or must be checked closely."""
    count = sum(len(part.rows) for part in parts)
    message_ids = [b""] * count
    size_of = np.zeros(count, np.int64)
    packed: list[Bytes] = []
    for part in parts:
        stored = part.first.templated(stored_topic, queue_id, peer, now_ms, limits, store)
        if stored is None:
            return None
        template = part.first.layout.template(part.first, stored_topic, peer, now_ms, limits, store)
        assert template is not None, "the message was just stored by it"
        gaps = template.gaps if template.tag_gap is None else [*template.gaps, template.tag_gap]
        records = _records(part, stored.encode(0, 0, 0), gaps, now_ms, template.sys_flag)
        if records is None:
            return None
        packed.append(records)
        size_of[part.rows] = records.shape[1]
        ids = _column(part.data, part.first.layout.fields.message_id)
        if len(parts) == 1:
            message_ids = ids
        else:
            for row, message_id in zip(part.rows.tolist(), ids, strict=True):
                message_ids[row] = message_id
    if len(parts) == 1:
        data = packed[0].reshape(-1)
    else:
        start = np.cumsum(size_of) - size_of
        data = np.empty(int(size_of.sum()), np.uint8)
        for part, records in zip(parts, packed, strict=True):
            size = records.shape[1]
            windows(data, size)[start[part.rows]] = records.view(f"V{size}")[:, 0]
    # The checksums of the bodies were computed just now.
    batch = RecordBatch.parse(data.data, base_physical_offset=None, placed=False, check_crc=False, sizes=size_of)
    return (batch, message_ids) if batch.end == len(data) else None


def _are_alike(messages: Bytes, first: KnownMessage) -> bool:
    """Whether all messages have the layout of the first one; tags may differ."""
    count, size = messages.shape
    layout = first.layout
    body = first.body_begin - first.place[0], size
    tag = layout.fields.tag
    spans = [*layout.words, *layout.texts, *layout.numbers, body, *([] if tag is None else [tag])]
    edges = [0, *(edge for span in sorted(spans) for edge in span), size]
    view = messages.data.cast("B")
    return all(
        are_alike(view, begin, end - begin, size, count)
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
        if end > begin
    ) and all(_have_one_size(messages[:, slice(*span)]) for span in layout.numbers)


def _have_one_size(numbers: Bytes) -> bool:
    """Whether the bytes of these varints have their ends at the same place."""
    return not np.count_nonzero((numbers ^ numbers[:1]) & 0x80)


# --- The records of one layout ------------------------------------------------------------------------------


def _records(part: Alike, template: bytes, gaps: list[tuple[Span, Span]], now_ms: int, sys_flag: int) -> Bytes | None:
    """The records of the messages, one per row. `template`: the record of the first one. None if a field has content
    that must be checked closely."""
    messages, layout = part.data, part.first.layout
    body = part.first.body_begin - part.first.place[0], messages.shape[1]
    if not _are_plain(messages, layout):
        return None
    if sys_flag and not all(begins_right(body, sys_flag) for body in _column(messages, body)):
        return None
    count, size = len(messages), len(template)
    header = peek(template, 0, size, check_crc=False, placed=False)
    born = _born(messages, layout, now_ms)
    if isinstance(header, ScanStop) or born is None:
        return None
    records = np.empty((count, size), np.uint8)
    records[:] = np.frombuffer(template, np.uint8)
    start = header.properties_start
    for (begin, end), position in (*((value, start + gap[0]) for gap, value in gaps), (body, header.body_start)):
        records[:, position : position + end - begin] = messages[:, begin:end]
    view = records.data.cast("B")
    starts = np.arange(0, count * size, size, dtype=np.int64)
    body_start = starts + header.body_start
    crcs = crcs_of(view, body_start, body_start + header.body_size, None, size)
    put_items(view, _U32, starts, BODY_CRC_POSITION, size, crcs)
    put_items(view, I64, starts, BORN_TIMESTAMP_POSITION, size, born)
    return records


def _are_plain(messages: Bytes, layout: Layout) -> bool:
    """Whether no text that differs must be checked closely."""
    tag = layout.fields.tag
    checks = [*((span, _IN_WORDS) for span in layout.words), *((span, _IN_TEXTS) for span in layout.texts)]
    if tag is not None and np.count_nonzero(messages[:, slice(*tag)] != messages[0, slice(*tag)]):
        checks.append((tag, _IN_TAGS))
    return not any(must[messages[:, slice(*span)]].any() for span, must in checks)


def _born(messages: Bytes, layout: Layout, now_ms: int) -> Integers | None:
    """The born timestamps in Unix milliseconds, as computed by `to_store_message`. None if one is too large."""
    parts: list[Integers] = []
    for span in (layout.fields.seconds, layout.fields.nanos):
        if span is None:
            parts.append(np.zeros(len(messages), np.int64))
            continue
        digits = np.ascontiguousarray(messages[:, slice(*span)].T)  # numpy is slow with many short rows
        values = _WEIGHTS[: len(digits)] @ (digits & 0x7F)
        parts.append(values.astype(np.int64))
    seconds, nanos = parts
    if np.count_nonzero(nanos > INT32_MAX):
        return None
    born = seconds * 1000 + nanos // 1_000_000
    return np.where(born > 0, born, now_ms)  # numbers of five bytes end long before `LAST_MS`


def _column(data: Bytes, span: Span) -> list[bytes]:
    """The bytes at this position of each row."""
    begin, end = span
    found: list[bytes] = np.ascontiguousarray(data[:, begin:end]).view(f"V{end - begin}")[:, 0].tolist()
    return found
