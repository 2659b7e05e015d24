"""Parses requests, with a limit for everything that a client can make large.

The parser is fast, but a request may contain millions of entries of two bytes, each of which costs later work. So each
method has a size limit (`size_max_of`) and each repeated field an entry limit (`entries_max_of`), and the fields of a
large request are counted on its bytes before any object is created.
"""

from __future__ import annotations

import re
from typing import Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.byte_budget import ByteBudget
from aerobee_broker.messages.wire_fields import BYTES, FIXED_32, FIXED_64, VARINT, read_field
from aerobee_proto import v2

SIZE_MAX_DEFAULT: Final = 1 << 20  # bytes
_BATCH_SIZE_MAX: Final = 16 << 20  # RocketMQ accepts batches of one largest message, 4 MiB; Aerobee of four
SIZES_MAX: Final = {
    "apache.rocketmq.v2.SendMessageRequest": _BATCH_SIZE_MAX,
    "apache.rocketmq.v2.AdminSendMessageRequest": 6 << 20,  # a body of 4 MiB, and its properties
    "apache.rocketmq.v2.TelemetryCommand": 6 << 20,  # a client sends back the message that it was asked to verify
    "apache.rocketmq.v2.ReceiveMessageRequest": 128 << 10,  # kept while the receive waits
    "apache.rocketmq.v2.PullMessageRequest": 128 << 10,
    "aerobee.v1.AppendRecordsRequest": _BATCH_SIZE_MAX,
}
_PROPERTIES_SIZE_MAX: Final = 1 << 20  # more than a message has besides its body
ENTRIES_MAX_DEFAULT: Final = 1024
ENTRIES_MAX: Final = {
    "apache.rocketmq.v2.Publishing.topics": 4096,
    "apache.rocketmq.v2.Subscription.subscriptions": 4096,
    "apache.rocketmq.v2.SyncLiteSubscriptionRequest.lite_topic_set": 4096,
    "aerobee.v1.QueueOffsetsRequest.TopicQueues.queue_ids": 10_000,
}
# Not counted: `check_message` checks each message of a batch anyway, and there may be many.
_CHECKED_ELSEWHERE: Final = frozenset({"apache.rocketmq.v2.Message"})
_COUNTED_FROM: Final = 1 << 20  # bytes; the parser needs at most 40 ms for less
_FIELDS_MAX: Final = 1 << 17  # of a request above that, at all depths: up to 50 ms to count
_CHECKED_FIELDS_MAX: Final = 1 << 14  # of a request that cannot be parsed, to tell why: up to 6 ms
_ODD_FIELDS: Final = 8  # as how many a field counts whose tag or size has more bytes than clients write
_DEPTH_MAX: Final = 100  # depth of nested messages, as in the parser


def size_max_of(request_type: Descriptor, body_size_max: int) -> int:
    """The size limit of a request of this type: at least the largest message, if it contains messages."""
    size_max = SIZES_MAX.get(request_type.full_name, SIZE_MAX_DEFAULT)
    return size_max if size_max <= SIZE_MAX_DEFAULT else max(size_max, body_size_max + _PROPERTIES_SIZE_MAX)


def entries_max_of(field: FieldDescriptor) -> int:
    """The entry limit of a repeated field."""
    return ENTRIES_MAX.get(field.full_name, ENTRIES_MAX_DEFAULT)


class RequestReader:
    """Reads the requests of one method. A front checks `size_max` before it reads the bytes, then calls `read`."""

    __slots__ = ("_checks", "_method", "_parse", "_shape", "_type", "size_max")

    def __init__(self, method: str, request_type: type[Message], *, body_size_max: int = 4 << 20) -> None:
        self._method = method
        self._type = cast(Descriptor, request_type.DESCRIPTOR)  # typed as one of two implementations
        self._parse = request_type.FromString
        self._checks = _checks_of(self._type)
        self._shape = _shape_of(self._type)
        self.size_max = size_max_of(self._type, body_size_max)

    def read(self, data: bytes) -> Message:
        """Parse the request. InvalidRequestError if it is invalid or too large, MemoryError."""
        size = len(data)
        if size > self.size_max:
            raise self.too_large(size)
        if size >= _COUNTED_FROM:
            try:
                _Count(_FIELDS_MAX).fields(data, 0, size, self._shape, 0)
            except _TooManyFieldsError:
                raise InvalidRequestError(
                    v2.Code.PAYLOAD_TOO_LARGE,
                    f"the {self._method} request has more than {_FIELDS_MAX} fields, the limit; send several requests",
                ) from None
            except (_MalformedError, IndexError):
                raise self._unreadable() from None
        try:
            request = self._parse(data)
        except DecodeError:
            if is_well_formed(data, self._type):  # the parser reports lack of memory like this, too
                raise MemoryError(self._method) from None
            raise self._unreadable() from None
        if size > ENTRIES_MAX_DEFAULT:  # an entry has at least a byte
            _check_entries(request, self._checks, self._method)
        return request

    def too_large(self, size: int) -> InvalidRequestError:
        """The error for a request of this many bytes."""
        return InvalidRequestError(
            v2.Code.PAYLOAD_TOO_LARGE,
            f"the {self._method} request has {size} bytes, the limit is {self.size_max}; send several requests",
        )

    def _unreadable(self) -> InvalidRequestError:
        # Our own text, because the parser's contains the name of a class.
        package = self._type.full_name.rpartition(".")[0]
        return InvalidRequestError(
            v2.Code.BAD_REQUEST,
            f"the {self._method} request cannot be parsed; send a message of {package} as its .proto file defines it",
        )


class RequestLimits:
    """Limits that all methods share: the bytes of requests in progress and of answers, and the largest body."""

    def __init__(self, in_progress: ByteBudget, answers: ByteBudget, *, body_size_max: int) -> None:
        self.in_progress = in_progress
        self.answers = answers
        self._body_size_max = body_size_max
        self.request_size_max = max(SIZES_MAX.values()) + body_size_max
        """The largest size of all methods: what a front may read before it knows the method."""

    def reader(self, method: str, request_type: type[Message]) -> RequestReader:
        return RequestReader(method, request_type, body_size_max=self._body_size_max)


# --- Entries of repeated fields -----------------------------------------------------------------------------

_Check = tuple[str, bool, int, "list[_Check]"]  # name, whether it is repeated, its entry limit, and nested fields


def _checks_of(message: Descriptor, outer: tuple[str, ...] = ()) -> list[_Check]:
    """The fields that are repeated or contain repeated fields."""
    checks: list[_Check] = []
    for field in message.fields:
        kind = field.message_type
        within: list[_Check] = []
        if kind is not None and not kind.GetOptions().map_entry and kind.full_name not in (*outer, *_CHECKED_ELSEWHERE):
            within = _checks_of(kind, (*outer, message.full_name))
        if field.is_repeated or within:
            checks.append((field.name, field.is_repeated, entries_max_of(field), within))
    return checks


def _check_entries(message: Message, checks: list[_Check], method: str) -> None:
    for name, is_repeated, count_max, within in checks:
        if is_repeated:
            entries = getattr(message, name)
            if len(entries) > count_max:
                raise InvalidRequestError(
                    v2.Code.PAYLOAD_TOO_LARGE,
                    f"{name} of the {method} request has {len(entries)} entries, the limit is {count_max}; "
                    "send several requests",
                )
            if within:
                for entry in entries:
                    _check_entries(entry, within, method)
        elif message.HasField(name):
            _check_entries(getattr(message, name), within, method)


# --- The wire format ----------------------------------------------------------------------------------------


class _MalformedError(Exception):
    """The bytes are not a message."""


class _TooManyFieldsError(Exception):
    """The message has more fields than the limit."""


_Shape = dict[int, "_Shape | None"]
"""What a message has inside, by tag: None for a string, the shape of a nested message."""


_SHAPES: Final[dict[str, _Shape]] = {}
"""By name, as far as they were asked for. Messages may contain themselves."""


def _shape_of(message: Descriptor) -> _Shape:
    if (shape := _SHAPES.get(message.full_name)) is None:
        shape = _SHAPES[message.full_name] = {}
        for field in message.fields:
            if field.message_type is not None:
                shape[field.number << 3 | BYTES] = _shape_of(field.message_type)
            elif field.type == FieldDescriptor.TYPE_STRING:
                shape[field.number << 3 | BYTES] = None
    return shape


def _tags(wire_type: int) -> bytes:
    """A pattern of the tags of fields of this type that have no more bytes than they need."""
    short, long = (re.escape(bytes(range(first + wire_type, first + 128, 8))) for first in (0, 128))
    short = short.removeprefix(re.escape(bytes([wire_type])))  # the field 0
    return b"(?:[%b]|[%b](?:[\x80-\xff]{0,2}[\x01-\x7f]|[\x80-\xff]{3}[\x01-\x0f]))" % (short, long)


_NUMBER: Final = re.compile(
    b"%b[\x80-\xff]{0,9}[\x00-\x7f]|%b.{8}|%b.{4}" % (_tags(VARINT), _tags(FIXED_64), _tags(FIXED_32)), re.DOTALL
)
"""A whole field with a number, as clients write it."""


class _Count:
    """Counts fields at all depths of known messages, with the parser's checks."""

    __slots__ = ("_left",)

    def __init__(self, count_max: int) -> None:
        self._left = count_max

    def fields(self, data: bytes, start: int, end: int, shape: _Shape, depth: int) -> None:
        """Raise _MalformedError, IndexError or _TooManyFieldsError if these bytes are invalid or exceed the limit."""
        if depth > _DEPTH_MAX:
            raise _MalformedError
        place = start
        while place < end:
            self._left -= 1
            if self._left < 0:
                raise _TooManyFieldsError
            tag = data[place]
            if tag & 7 == BYTES:
                # As `read_field`, in a third of the time: up to three bytes of a tag, and two of a size.
                begin = place + 1
                if tag > 127:
                    byte = data[begin]
                    tag += (byte - 1) << 7
                    begin += 1
                    if byte > 127:
                        tag += (data[begin] - 1) << 14
                        begin += 1
                if (size := data[begin]) > 127:
                    begin += 1
                    size += (data[begin] - 1) << 7
                begin += 1
                if tag < 1 << 21 and size < 1 << 14:
                    place = begin + size
                    if place > end:
                        raise IndexError
                else:
                    tag, begin, place = self._odd(data, place, end)
            elif (number := _NUMBER.match(data, place, end)) is not None:
                place = number.end()
                continue
            else:
                tag, begin, place = self._odd(data, place, end)
            if not 0 < tag >> 3 < 1 << 29:
                raise _MalformedError
            if tag not in shape:
                continue
            if (within := shape[tag]) is not None:
                if begin < place:
                    self.fields(data, begin, place, within, depth + 1)
            else:
                try:
                    data[begin:place].decode()
                except UnicodeDecodeError:
                    raise _MalformedError from None

    def _odd(self, data: bytes, place: int, end: int) -> tuple[int, int, int]:
        """A field that takes longer to read. It counts several times, unless it is so large that there are few."""
        tag, begin, behind = read_field(data, place, end)
        if behind - begin < 1 << 14:
            self._left -= _ODD_FIELDS - 1
        return tag, begin, behind


def is_well_formed(data: bytes, message: Descriptor) -> bool:
    """Whether the bytes are a message of this type. Also False if checking would take too long."""
    try:
        _Count(_CHECKED_FIELDS_MAX).fields(data, 0, len(data), _shape_of(message), 0)
    except (_MalformedError, _TooManyFieldsError, IndexError):
        return False
    return True
