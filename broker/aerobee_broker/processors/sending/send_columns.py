"""SendMessage with many messages: the request as columns instead of messages, and the answer without objects.

The request is read from its bytes on the wire. Messages of few shapes are packed from them (send_shapes.py). The
fields of others are read as columns (wire_columns.py). Protobuf reads single messages that are not usual, and the
whole request if it is not a list of messages of one topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from aerobee_broker.messages.varints import read_varint, varint
from aerobee_broker.processors.sending.send_one import SendOne
from aerobee_broker.processors.sending.send_shapes import Shape, shapes_of
from aerobee_broker.processors.sending.wire_columns import FieldColumn, Wire, varints_of_run
from aerobee_proto import v2
from aerobee_store.records.message_fields import LAST_MS, RESERVED_NAMES
from aerobee_store.records.properties import TRANSIENT_PREFIX
from aerobee_store.records.record_columns import Booleans, Integers, all_true

COUNT_MIN: Final = 8
"""The minimum number of messages: fewer are as fast one by one."""
COUNT_MAX: Final = 1024
"""Entry limit of one request, as of every repeated field."""
_COUNTED_FROM: Final = 1 << 20  # bytes; protobuf reads a larger request with unusual messages, and limits its fields
_STEPS_MAX: Final = 64  # each reads a field of all messages, or of some if their fields differ
# Fields on the wire: number times 8, plus 2 for bytes or 0 for a varint.
_MESSAGES: Final = 0x0A
_TOPIC, _USER_PROPERTIES, _SYSTEM, _BODY = 0x0A, 0x12, 0x1A, 0x22
_TAG, _KEYS, _ID, _ENCODING, _TYPE, _BORN_TIMESTAMP, _BORN_HOST = 0x0A, 0x12, 0x1A, 0x28, 0x30, 0x3A, 0x42
_SECONDS, _NANOS = 0x08, 0x10
_HEAD_SIZE: Final = 3  # tag and size of a message of up to 16 KiB; of a smaller one also its first byte
_NAME, _VALUE = 0x0A, 0x12
_OF_MESSAGE: Final = frozenset({_TOPIC, _USER_PROPERTIES, _SYSTEM, _BODY})
_OF_SYSTEM: Final = frozenset({_TAG, _KEYS, _ID, _ENCODING, _TYPE, _BORN_TIMESTAMP, _BORN_HOST})
_OF_TIMESTAMP: Final = frozenset({_SECONDS, _NANOS})
_OF_PROPERTY: Final = frozenset({_NAME, _VALUE})
_RUN_MIN: Final = 4  # messages of one size that are found by one comparison
_ALIKE_SIZE_MAX: Final = 64  # bytes of strings compared to find out whether all are equal
_INT32_MAX: Final = (1 << 31) - 1
_RESERVED: Final = frozenset(name.encode() for name in RESERVED_NAMES)
_TRANSIENT: Final = TRANSIENT_PREFIX.encode()

_STATUS: Final = v2.Status(code=v2.Code.OK, message="OK").SerializeToString()
_STATUS_FIELD: Final = b"\x0a" + varint(len(_STATUS)) + _STATUS  # of the answer, and of each entry
_PARTS: Final = 6  # of an entry: see `_around`


@dataclass(slots=True, eq=False)
class SendColumns:
    """A SendMessage request as columns: an item for each message. All messages have one topic.

    For an unusual message only `message` is valid. Strings are not checked yet.
    """

    topic: v2.Resource
    whole: Callable[[], v2.SendMessageRequest]
    """Reads the request with protobuf. InvalidRequestError, MemoryError."""
    message: Callable[[int], v2.Message]
    """Reads one message with protobuf. DecodeError."""
    unusual: Booleans
    body: list[bytes]
    message_id: list[bytes]
    tag: list[bytes]
    keys: list[bytes]
    """The keys of each message, joined by single spaces."""
    key_count: Integers
    user_properties: list[bytes]
    """The user properties of each message in stored form, sorted by name."""
    encoding: Integers
    type: Integers
    born_ms: Integers
    """Unix milliseconds; 0 for a missing one, or one after the year 9999."""
    born_host: list[bytes]

    def __len__(self) -> int:
        return len(self.unusual)


@dataclass(slots=True, eq=False)
class SendShapes:
    """A SendMessage request whose messages have few shapes."""

    topic: v2.Resource
    shapes: list[Shape]
    otherwise: Callable[[], SendColumns | v2.SendMessageRequest]
    """Reads the request without use of the shapes. InvalidRequestError, MemoryError."""


AnySendRequest = SendOne | SendShapes | SendColumns | v2.SendMessageRequest


def read_send_request(data: bytes, read: Callable[[bytes], v2.SendMessageRequest]) -> AnySendRequest:
    """Parse a request, as columns of bytes or of fields if it has many usual messages. `read`: parses with protobuf."""
    places = _places(data)
    if places is None:
        return read(data)
    shapes = shapes_of(data, *places)
    if shapes is not None:
        return SendShapes(*shapes, otherwise=lambda: _read_columns(data, *places, read) or read(data))
    return _read_columns(data, *places, read) or read(data)


def _read_columns(
    data: bytes, begin: Integers, end: Integers, read: Callable[[bytes], v2.SendMessageRequest]
) -> SendColumns | None:
    wire = Wire(data)
    found, unusual = wire.fields(begin, end, _OF_MESSAGE, steps_max=_STEPS_MAX)
    if unusual[0] or (np.count_nonzero(unusual) and len(data) >= _COUNTED_FROM):
        return None
    rows = _Rows(wire, unusual)
    topic_begin, topic_end = rows.one(found, _TOPIC)
    topic = data[topic_begin[0] : topic_end[0]]
    if rows.strings(topic_begin, topic_end).count(topic) < len(begin):
        return None
    try:
        resource = v2.Resource.FromString(topic)
    except DecodeError:
        return None
    body = rows.strings(*rows.one(found, _BODY))
    system, system_unusual = wire.fields(*rows.one(found, _SYSTEM), _OF_SYSTEM, steps_max=_STEPS_MAX)
    unusual |= system_unusual
    user_properties = rows.properties(found.get(_USER_PROPERTIES))
    keys, key_count = rows.joined(system.get(_KEYS))
    columns = SendColumns(
        topic=resource,
        whole=lambda: read(data),
        message=lambda row: v2.Message.FromString(data[begin[row] : end[row]]),
        unusual=unusual,
        body=body,
        message_id=rows.strings(*rows.one(system, _ID)),
        tag=rows.strings(*rows.one(system, _TAG)),
        keys=keys,
        key_count=key_count,
        user_properties=user_properties,
        encoding=rows.numbers(system, _ENCODING),
        type=rows.numbers(system, _TYPE),
        born_ms=rows.milliseconds(system),
        born_host=rows.strings(*rows.one(system, _BORN_HOST)),
    )
    if np.count_nonzero(unusual) and len(data) >= _COUNTED_FROM:
        return None
    return columns


def _places(data: bytes) -> tuple[Integers, Integers] | None:
    """The begin and end of the messages of a request; None if there are too few or too many, or it has other
    content."""
    size = len(data)
    try:
        length, begin = read_varint(data, 1)
    except IndexError:
        return None
    if begin + length >= size:
        return None  # one message, as the SDKs send
    runs: list[tuple[int, int, int, int]] = []  # place, count, the sizes of a head and a message
    count = position = 0
    known: dict[bytes, tuple[int, int]] = {}  # messages have few sizes, so there are few heads
    try:
        while position < size and count < COUNT_MAX:
            head = data[position : position + _HEAD_SIZE]
            found = known.get(head)
            if found is None:
                if head[0] != _MESSAGES:
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


class _Rows:
    """Makes columns of fields. A message that has a field twice is unusual: protobuf merges them."""

    __slots__ = ("_count", "_unusual", "_wire")

    def __init__(self, wire: Wire, unusual: Booleans) -> None:
        self._wire = wire
        self._unusual = unusual
        self._count = len(unusual)

    def one(self, found: dict[int, FieldColumn], tag: int) -> tuple[Integers, Integers]:
        """The position of a field that each message has once; zeros for a message without it. For a varint, the
        value."""
        field = found.get(tag)
        if field is None:
            return np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
        rows, first, last = field
        if len(rows) == self._count and all_true(rows[1:] > rows[:-1]):
            return first, last
        if np.count_nonzero(again := np.bincount(rows, minlength=self._count) > 1):
            self._unusual |= again
        begin, end = np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
        begin[rows], end[rows] = first, last
        return begin, end

    def strings(self, begin: Integers, end: Integers) -> list[bytes]:
        data = self._wire.data
        size = end - begin
        if len(size) and size[0] <= _ALIKE_SIZE_MAX and all_true(size == size[0]):  # as topics and tags often are
            first, last = data[begin[0] : end[0]], data[begin[-1] : end[-1]]
            if first == last and self._wire.joined(begin, len(first)) == first * len(size):
                return [first] * len(size)
        return [data[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]

    def numbers(self, found: dict[int, FieldColumn], tag: int) -> Integers:
        """The values of a 32-bit field. Like protobuf, truncates larger values."""
        values = self.one(found, tag)[0]
        self._unusual |= values > _INT32_MAX
        return values

    def joined(self, field: FieldColumn | None) -> tuple[list[bytes], Integers]:
        """The strings of each message, joined by spaces, and how many there are. An empty one is unusual."""
        keys = [b""] * self._count
        if field is None:
            return keys, np.zeros(self._count, np.int64)
        self._unusual[field.rows[field.begin == field.end]] = True
        for row, key in zip(field.rows.tolist(), self.strings(field.begin, field.end), strict=True):
            keys[row] = b"%b %b" % (keys[row], key) if keys[row] else key
        return keys, np.bincount(field.rows, minlength=self._count)

    def properties(self, field: FieldColumn | None) -> list[bytes]:
        """The user properties of each message, encoded. Reserved or repeated names and empty values are unusual."""
        texts = [b""] * self._count
        if field is None:
            return texts
        unusual = self._unusual
        pairs = _Rows(self._wire, np.zeros(len(field.rows), np.bool_))
        parts, unusual_pairs = self._wire.fields(field.begin, field.end, _OF_PROPERTY, steps_max=_STEPS_MAX)
        names, values = (pairs.strings(*pairs.one(parts, tag)) for tag in (_NAME, _VALUE))
        unusual[field.rows[unusual_pairs | pairs._unusual]] = True
        of_message: dict[int, dict[bytes, bytes]] = {}
        for row, name, value in zip(field.rows.tolist(), names, values, strict=True):
            known = of_message.setdefault(row, {})
            if not value or not name or name in known or name in _RESERVED or name.startswith(_TRANSIENT):
                unusual[row] = True
            known[name] = value
        for row, known in of_message.items():
            texts[row] = b"".join([b"%b\x01%b\x02" % pair for pair in sorted(known.items())])
        return texts

    def milliseconds(self, system: dict[int, FieldColumn]) -> Integers:
        """The values of the field `born_timestamp`."""
        begin, end = self.one(system, _BORN_TIMESTAMP)
        parts, unusual = self._wire.fields(begin, end, _OF_TIMESTAMP, steps_max=_STEPS_MAX)
        self._unusual |= unusual
        found = self.one(parts, _SECONDS)[0] * 1000 + self.numbers(parts, _NANOS) // 1_000_000
        return np.where((found > 0) & (found <= LAST_MS), found, 0)


# --- The answer ---------------------------------------------------------------------------------------------


def send_answer(message_ids: Sequence[bytes], first_queue_offset: int) -> bytes:
    """A SendMessageResponse with an entry for each message: its id, and its offset in the queue, ascending."""
    offsets = varints_of_run(first_queue_offset, len(message_ids))
    if not first_queue_offset:
        offsets[0] = b""  # protobuf omits zeros
    before, between, behind = zip(*map(_around, map(len, message_ids), map(len, offsets)), strict=True)
    parts = [b""] * (_PARTS * len(message_ids))
    for number, column in enumerate((before, message_ids, between, message_ids, behind, offsets)):
        parts[number::_PARTS] = column
    return b"".join((_STATUS_FIELD, *parts))


def send_answer_of_one(message_id: bytes, queue_offset: int) -> bytes:
    """The same for one message."""
    offset = varint(queue_offset) if queue_offset else b""
    before, between, behind = _around(len(message_id), len(offset))
    return b"".join((_STATUS_FIELD, before, message_id, between, message_id, behind, offset))


@lru_cache(maxsize=256)
def _around(id_size: int, offset_size: int) -> tuple[bytes, bytes, bytes]:
    """The bytes before, between and after the two ids of an entry."""
    size = varint(id_size)
    behind = b"\x20" if offset_size else b""
    entry_size = len(_STATUS_FIELD) + 2 * (1 + len(size) + id_size) + len(behind) + offset_size
    return b"\x12" + varint(entry_size) + _STATUS_FIELD + b"\x12" + size, b"\x1a" + size, behind
