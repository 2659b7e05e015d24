"""The positions of the fields in a message on the wire, for messages that are stored without being parsed."""

from __future__ import annotations

from typing import Final, NamedTuple

from aerobee_broker.messages.wire_fields import Span, spans
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import TEXT_FIELDS

# The tags of fields.
_TOPIC, _USER_PROPERTY, _SYSTEM, _BODY = 0x0A, 0x12, 0x1A, 0x22
_TAG, _KEY, _ID, _ENCODING, _TYPE = 0x0A, 0x12, 0x1A, 0x28, 0x30
_BORN_TIMESTAMP, _BORN_HOST, _QUEUE_ID, _GROUP, _TRACE_CONTEXT = 0x3A, 0x42, 0x68, 0x8A, 0x92
_SECONDS, _NANOS = 0x08, 0x10
_NAME, _VALUE = 0x0A, 0x12
_OF_MESSAGE: Final = frozenset({_TOPIC, _USER_PROPERTY, _SYSTEM, _BODY})
_OF_SYSTEM: Final = frozenset(
    {_TAG, _KEY, _ID, _ENCODING, _TYPE, _BORN_TIMESTAMP, _BORN_HOST, _QUEUE_ID, _GROUP, _TRACE_CONTEXT}
)
_OF_TIMESTAMP: Final = frozenset({_SECONDS, _NANOS})
_OF_PROPERTY: Final = frozenset({_NAME, _VALUE})
_REPEATED: Final = frozenset({_USER_PROPERTY, _KEY})  # the tags of other repeated fields do not occur


class Fields(NamedTuple):
    """The positions in a message of the fields that may differ between messages of its layout, and of others."""

    topic: Span
    body: Span
    message_id: Span
    tag: Span | None
    keys: tuple[Span, ...]
    message_group: Span | None
    trace_context: Span | None
    user_properties: tuple[tuple[Span, Span], ...]
    """The name and value of each user property."""
    seconds: Span | None
    nanos: Span | None
    born_host: Span | None
    queue_id: Span | None

    def words(self) -> list[Span]:
        """The id, the keys, and the message group if there is one: text without spaces."""
        return [self.message_id, *self.keys, *_present(self.message_group)]

    def texts(self) -> list[Span]:
        """The other texts that are properties, but for the tag."""
        return [*(value for _, value in self.user_properties), *_present(self.trace_context)]

    def numbers(self) -> list[Span]:
        """The varints that may differ, but for their size. The queue is not the client's choice."""
        return _present(self.seconds, self.nanos, self.queue_id)

    def property_sources(self, message: bytes) -> dict[str, tuple[Span, ...]]:
        """The fields that each stored property comes from; () for a property that does not vary."""
        sources: dict[str, tuple[Span, ...]] = {p.KEYS: self.keys, p.BORN_HOST: ()}
        for name, field in (
            ("message_id", self.message_id),
            ("tag", self.tag),
            ("message_group", self.message_group),
            ("trace_context", self.trace_context),
        ):
            if field is not None:
                sources[TEXT_FIELDS[name]] = (field,)
        for own_name, value in self.user_properties:
            sources[message[slice(*own_name)].decode()] = (value,)
        return sources


def _present(*spans: Span | None) -> list[Span]:
    return [span for span in spans if span is not None]


def fields_of(message: bytes) -> Fields | None:
    """None for a message that has other fields, one of its fields twice, or an empty field."""
    outer = spans(message, (0, len(message)), _OF_MESSAGE, _REPEATED)
    if outer is None or not {_TOPIC, _SYSTEM, _BODY} <= outer.keys():
        return None
    system = spans(message, outer[_SYSTEM][0], _OF_SYSTEM, _REPEATED)
    if system is None or _ID not in system:
        return None
    properties: list[tuple[Span, Span]] = []
    for pair in outer.get(_USER_PROPERTY, ()):
        parts = spans(message, pair, _OF_PROPERTY)
        if parts is None or len(parts) != len(_OF_PROPERTY):
            return None
        properties.append((parts[_NAME][0], parts[_VALUE][0]))
    if len({message[slice(*name)] for name, _ in properties}) < len(properties):
        return None
    time = spans(message, system[_BORN_TIMESTAMP][0], _OF_TIMESTAMP) if _BORN_TIMESTAMP in system else {}
    if time is None:
        return None
    return Fields(
        topic=outer[_TOPIC][0],
        body=outer[_BODY][0],
        message_id=system[_ID][0],
        tag=system[_TAG][0] if _TAG in system else None,
        keys=tuple(system.get(_KEY, ())),
        message_group=system[_GROUP][0] if _GROUP in system else None,
        trace_context=system[_TRACE_CONTEXT][0] if _TRACE_CONTEXT in system else None,
        user_properties=tuple(properties),
        seconds=time[_SECONDS][0] if _SECONDS in time else None,
        nanos=time[_NANOS][0] if _NANOS in time else None,
        born_host=system[_BORN_HOST][0] if _BORN_HOST in system else None,
        queue_id=system[_QUEUE_ID][0] if _QUEUE_ID in system else None,
    )
