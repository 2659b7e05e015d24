"""SendMessage with messages that have the layouts of earlier ones, as those of SDKs do: stored without being parsed.

The messages of one producer mostly differ only in the body, the id, keys, message group, values of user properties,
trace context, and born timestamp. A *layout* consists of all other bytes before the body. These include every tag and
size on the wire, so in a message with the same layout the fields have the same positions and sizes. The first message
of a layout is parsed and checked; of the following ones only the fields that differ are read and checked, and stored
with the template of the first one's record. If a message is unusual, protobuf reads the whole request: for another
type than NORMAL or FIFO, for example, or other text than printable ASCII. Many messages of one layout and size are
copied together (send_alike.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from msgspec import Struct

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.message_mapping import FIFO, NORMAL, message_type, to_store_message
from aerobee_broker.messages.validation import check_message
from aerobee_broker.messages.wire_fields import Span, read_field, read_varint, varint
from aerobee_broker.processors.sending.message_layout import Fields, fields_of
from aerobee_broker.recent import Recent
from aerobee_proto import v2
from aerobee_store.config import StoreConfig
from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import message_rules as rules
from aerobee_store.records.compression import begins_right
from aerobee_store.records.decimals import INT32_MAX
from aerobee_store.records.message_rules import plain_bytes
from aerobee_store.records.properties import Host, encode_properties
from aerobee_store.records.record import Message
from aerobee_store.records.record_template import RecordTemplate, TemplateMessage

Parse = Callable[[bytes], v2.SendMessageRequest]
"""Reads a request with protobuf. InvalidRequestError, MemoryError."""

MESSAGES: Final = 0x0A  # the field's tag
_BODY: Final = 0x22
_SIZE_MIN: Final = 8  # bytes of a message; no smaller one has all fields that a layout needs
# Text that need not be checked: of ids, keys and message groups, and of the other properties.
_WORDS: Final = re.compile(b"[%b]+" % re.escape(plain_bytes(rules.MESSAGE_ID, rules.KEY, rules.MESSAGE_GROUP)))
_TEXTS: Final = re.compile(b"[%b]*" % re.escape(plain_bytes(rules.USER_PROPERTY, rules.TRACE_CONTEXT)))

_HEAD_SIZE_MAX: Final = 1024  # bytes before the body
_FIELDS_MAX: Final = 16  # that differ, besides body and time
_TEMPLATES_MAX: Final = 8  # of one layout
_GEOMETRIES_MAX: Final = 8
_LAYOUTS_MAX: Final = 64  # of one geometry
_LAYOUTS_IN_ALL: Final = 512  # 11 MB at most, with eight templates each
# A request earns 1, and to learn a layout costs as much as a few requests: messages that all differ cost little more.
_LEARNING_COST: Final = 8
_CREDIT_MAX: Final = 256


_Gap = tuple[Span, Span]
"""The position of a value in the property string, and in the message."""


class _Template(NamedTuple):
    record: RecordTemplate
    gaps: list[_Gap]
    """Of the values that differ."""
    tag_gap: _Gap | None
    """Of the tag, which differs only among messages that are copied together."""
    limits: LimitsConfig
    """The limits that the first message was checked against."""
    sys_flag: int


class Layout:
    """The positions of the fields that differ in messages of one layout."""

    __slots__ = (
        *("_born_host", "_templates", "fields", "index_key_count", "kind", "name", "namespace", "numbers", "texts"),
        *("topic", "unusable", "words"),
    )

    def __init__(self, fields: Fields, texts: Sequence[Span], topic: v2.Resource, born_host: bytes) -> None:
        """`texts`: those that may differ."""
        self.fields = fields
        self.words = tuple(fields.words())
        self.texts = tuple(texts)
        self.numbers = fields.numbers()
        self._born_host = born_host.decode()
        self.index_key_count = 1 + len(fields.keys)
        self.kind = NORMAL if fields.message_group is None else FIFO
        self.topic = topic
        self.namespace, self.name = topic.resource_namespace, topic.name
        self._templates: Recent[tuple[str, bool, bool], _Template] = Recent(_TEMPLATES_MAX)
        self.unusable = False
        """Whether messages of this layout cannot be stored by a template."""

    def has_topic_of(self, other: Layout) -> bool:
        return other is self or (other.name == self.name and other.namespace == self.namespace)

    def read(self, data: bytes, place: Span, head: bytes, body_begin: int) -> KnownMessage | None:
        """The message at this place of a request. None if text in it must be checked closely."""
        words = [head[begin:end] for begin, end in self.words]
        if _WORDS.fullmatch(b"".join(words)) is None:
            return None
        if self.texts and _TEXTS.fullmatch(b"".join([head[begin:end] for begin, end in self.texts])) is None:
            return None
        fields = self.fields
        seconds = 0 if fields.seconds is None else read_varint(head, fields.seconds[0])[0]
        nanos = 0 if fields.nanos is None else read_varint(head, fields.nanos[0])[0]
        if nanos > INT32_MAX:
            return None
        return KnownMessage(self, data, place, head, body_begin, words, seconds * 1000 + nanos // 1_000_000)

    def template(
        self, known: KnownMessage, stored_topic: str, peer: Host, now_ms: int, limits: LimitsConfig, store: StoreConfig
    ) -> _Template | None:
        """The template for messages of a client at this address. None if there is none, or if it would be made now and
        the message breaks a rule."""
        # Of the address, the template has the IP version, and whether the client names another host.
        key = stored_topic, ":" in peer[0], self._born_host == peer[0]
        found = self._templates.get(key)
        if found is not None and found.limits is limits:
            return found
        try:
            message = v2.Message.FromString(known.data[slice(*known.place)])
            if message_type(message.system_properties) != self.kind:
                self.unusable = True
                return None
            check_message(message, limits, store.body_size_max, now_ms)
            stored = to_store_message(message, stored_topic, 0, peer, now_ms)
            found_gaps = self._gaps(stored, known.head)
            if found_gaps is None:
                self.unusable = True
                return None
            gaps, tag_gap = found_gaps
            record = RecordTemplate(
                stored, [gap for gap, _ in gaps], store_host=store.store_host, property_crc=store.property_crc
            )
        except (DecodeError, InvalidRequestError, InvalidMessageError):
            return None
        found = self._templates[key] = _Template(record, gaps, tag_gap, limits, stored.sys_flag)
        return found

    def _gaps(self, stored: Message, head: bytes) -> tuple[list[_Gap], _Gap | None] | None:
        """The values that differ, and the tag. None if a property does not consist of fields."""
        varying = {*self.words, *self.texts}
        sources = self.fields.property_sources(head)
        raw = encode_properties(stored.properties)
        gaps: list[_Gap] = []
        tag_gap: _Gap | None = None
        position = 0
        for name, text in stored.properties.items():
            position += len(name.encode()) + 1
            at = position
            if name not in sources:
                return None
            for value in sources[name]:
                gap = at, at + value[1] - value[0]
                if value in varying:
                    gaps.append((gap, value))
                elif value == self.fields.tag:
                    tag_gap = gap, value
                at = gap[1] + 1  # a space between keys
            position += len(text.encode()) + 1
        if position != len(raw) or any(raw[slice(*gap)] != head[slice(*value)] for gap, value in gaps):
            return None
        return gaps, tag_gap


class KnownMessage(Struct, eq=False):
    """A message of a known layout. What differs from the first one is checked, but for the size of the body."""

    layout: Layout
    data: bytes
    """The request."""
    place: Span
    """The begin and end of the message in it."""
    head: bytes
    """The bytes of the message before the body, with the body's tag but without its size."""
    body_begin: int
    words: list[bytes]
    """The id, the keys, and the message group of a FIFO message."""
    born_ms: int
    """Unix milliseconds; 0 or less for a missing one."""

    @property
    def message_group(self) -> str:
        return self.words[-1].decode() if self.layout.kind == FIFO else ""

    def templated(
        self, stored_topic: str, queue_id: int, peer: Host, now_ms: int, limits: LimitsConfig, store: StoreConfig
    ) -> TemplateMessage | None:
        """The message to store. None if it must be stored in another way, or breaks a rule."""
        template = self.layout.template(self, stored_topic, peer, now_ms, limits, store)
        body = self.data[self.body_begin : self.place[1]]
        if template is None or len(body) > store.body_size_max:
            return None
        if template.sys_flag and not begins_right(body, template.sys_flag):
            return None
        head = self.head
        return TemplateMessage(
            template.record,
            body,
            queue_id,
            self.born_ms if self.born_ms > 0 else now_ms,  # five bytes of seconds end long before `LAST_MS`
            peer,
            [head[begin:end] for _, (begin, end) in template.gaps],
            tuple([word.decode() for word in self.words[: self.layout.index_key_count]]),
        )


class SendKnown(Struct, eq=False):
    """A request whose messages have known layouts and one topic."""

    messages: list[KnownMessage]
    data: bytes
    parse: Parse

    @property
    def topic(self) -> v2.Resource:
        return self.messages[0].layout.topic

    def otherwise(self) -> v2.SendMessageRequest:
        """Read the request with protobuf. InvalidRequestError, MemoryError."""
        return self.parse(self.data)


# --- Known layouts ------------------------------------------------------------------------------------------


class _Geometry(NamedTuple):
    """The positions of constant bits, and the layouts that have these positions, by their constants."""

    head_size: int
    mask: int
    layouts: Recent[int, Layout]


class SendReader:
    """Reads requests, and learns the layouts of their messages."""

    def __init__(self) -> None:
        # No Recent: the limit is that of all layouts together.
        self._known: dict[bytes, list[_Geometry]] = {}  # no Recent: the limit is that of all layouts together
        """By topic, and tag and size of the field after it."""
        self._layout_count = 0
        self._credit = _CREDIT_MAX

    def read(self, data: bytes, places: Iterable[Span], parse: Parse) -> SendKnown | v2.SendMessageRequest:
        """The request with the messages at these places. Raises like `parse`."""
        messages: list[KnownMessage] = []
        request: v2.SendMessageRequest | None = None
        for begin, end in places:
            if self._credit < _CREDIT_MAX:
                self._credit += 1
            known_by = self._known_by(data, begin, end)
            found = self._find(known_by, data, begin, end)
            if isinstance(found, KnownMessage) and (not messages or messages[0].layout.has_topic_of(found.layout)):
                messages.append(found)
                continue
            if request is None:
                request = parse(data)
            if found is None and self._credit >= _LEARNING_COST:
                self._credit -= _LEARNING_COST
                self._learn(known_by, data[begin:end])
        return SendKnown(messages, data, parse) if request is None else request

    def first_of(self, data: bytes, place: Span) -> KnownMessage | None:
        """The message at this place, the first of many of its size, so that its layout is worth learning. None if it
        must be read otherwise."""
        begin, end = place
        known_by = self._known_by(data, begin, end)
        found = self._find(known_by, data, begin, end)
        if found is None:
            self._learn(known_by, data[begin:end])
            found = self._find(known_by, data, begin, end)
        return found if isinstance(found, KnownMessage) else None

    @staticmethod
    def _known_by(data: bytes, begin: int, end: int) -> bytes:
        return data[begin : begin + data[begin + 1] + 5] if end - begin >= _SIZE_MIN else b""

    def _find(self, known_by: bytes, data: bytes, begin: int, end: int) -> KnownMessage | Layout | None:
        """The message at this place; its layout alone, if protobuf must read it; None for an unknown one."""
        for head_size, mask, layouts in self._known.get(known_by, ()):
            head = data[begin : begin + head_size]
            layout = layouts.get(int.from_bytes(head, "big") & mask)
            if layout is not None and (body_begin := _body_begin(data, begin + head_size, end)):
                return layout if layout.unusable else layout.read(data, (begin, end), head, body_begin) or layout
        return None

    def _learn(self, known_by: bytes, message: bytes) -> None:
        found = _layout_of(message)
        if found is None:
            return
        head_size, mask, constants, layout = found
        if self._layout_count >= _LAYOUTS_IN_ALL:
            self._layout_count -= sum(len(each.layouts) for each in self._known.pop(next(iter(self._known))))
        geometries = self._known.setdefault(known_by, [])
        geometry = next((each for each in geometries if each.mask == mask), None)
        if geometry is None:
            if len(geometries) >= _GEOMETRIES_MAX:
                self._layout_count -= len(geometries.pop(0).layouts)
            geometry = _Geometry(head_size, mask, Recent(_LAYOUTS_MAX))
            geometries.append(geometry)
        layouts = geometry.layouts
        self._layout_count -= len(layouts)
        layouts[constants] = layout
        self._layout_count += len(layouts)


def _body_begin(data: bytes, position: int, end: int) -> int:
    """The position of the body whose size is at `position`; 0 if it is empty, or does not end at `end`."""
    try:
        size, begin = read_varint(data, position)
    except IndexError:
        return 0
    return begin if size and begin + size == end else 0


def place_of_one(data: bytes) -> Span | None:
    """The begin and end of the message of a request; None if it does not consist of one message."""
    try:
        tag, begin, end = read_field(data, 0, len(data))
    except IndexError:
        return None
    return (begin, end) if tag == MESSAGES and end == len(data) else None


def _layout_of(message: bytes) -> tuple[int, int, int, Layout] | None:
    """The size of what is before the body's size, the bits of it that are constant, what these are, and the layout.
    None for a message with other fields, or another order of them."""
    fields = fields_of(message)
    if fields is None or fields.body[1] != len(message):
        return None
    head_size = fields.body[0] - len(varint(fields.body[1] - fields.body[0]))
    if head_size > _HEAD_SIZE_MAX or message[head_size - 1] != _BODY:
        return None
    texts = [span for span in fields.texts() if _TEXTS.fullmatch(message[slice(*span)]) is not None]
    if len(fields.words()) + len(texts) > _FIELDS_MAX:
        return None
    mask = bytearray(b"\xff" * head_size)
    for begin, end in (*fields.words(), *texts):
        mask[begin:end] = bytes(end - begin)
    for begin, end in fields.numbers():  # varints: the same number of bytes
        mask[begin:end] = b"\x80" * (end - begin)
    try:
        topic = v2.Message.FromString(message).topic  # which also checks the text of all fields
    except DecodeError:
        return None
    constant = int.from_bytes(mask, "big")
    born_host = b"" if fields.born_host is None else message[slice(*fields.born_host)]
    layout = Layout(fields, texts, topic, born_host)
    return head_size, constant, int.from_bytes(message[:head_size], "big") & constant, layout
