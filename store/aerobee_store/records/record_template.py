"""Records of messages that differ only in body, born time and host, queue, and some values of properties.

The messages of one producer mostly do. All else is checked and encoded once, with one of them. A record made from this
template has the same bytes as the record that `Draft` makes from the whole message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from aerobee_store.records import properties
from aerobee_store.records.properties import Host, encode_host
from aerobee_store.records.record import (
    BODY_CRC_MASK,
    FIXED_STRUCTS,
    MAGIC_V1,
    NO_HOST,
    SYS_FLAG_PREPARED,
    Draft,
    Message,
    joined,
)

_MAGIC, _BORN_HOST = 1, 9  # places among the fields before the body


class TemplateMessage(NamedTuple):
    """A message as its template and what is its own."""

    template: RecordTemplate
    body: bytes
    queue_id: int
    born_timestamp: int
    """Unix milliseconds."""
    born_host: Host = NO_HOST
    """Of the IP version of the template's."""
    values: Sequence[bytes] = ()
    """What fills the gaps, in their order. Each must have the size of its gap, and no byte that separates
    properties."""
    index_keys: tuple[str, ...] = ()
    """Its unique key and keys."""

    @property
    def size(self) -> int:
        """The bytes of its record."""
        return self.template.bodiless_size + len(self.body)

    def encode(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
        """The record at its place."""
        return self.template.encode(self, queue_offset, physical_offset, store_timestamp)


class RecordTemplate:
    """The parts that records of one topic share."""

    __slots__ = ("_fixed", "_numbers", "_parts", "_property_crc", "_topic_end", "bodiless_size", "tags_code", "topic")

    def __init__(
        self, message: Message, gaps: Sequence[tuple[int, int]], *, store_host: Host, property_crc: bool
    ) -> None:
        """Encode and check `message`, which must be for a queue. InvalidMessageError.

        `gaps`: begin and end, in the property string, of the values that differ; ascending. These are not the tag.
        """
        assert not message.sys_flag & SYS_FLAG_PREPARED, "a prepared message is in no queue"
        assert message.raw_properties is None, "the properties are given one by one"
        draft = Draft(message, store_host=store_host, property_crc=property_crc)
        self._fixed = FIXED_STRUCTS[draft.sys_flag >> 4 & 3]
        self._numbers = self._fixed.unpack(draft.start)
        self._property_crc = property_crc
        tail = draft.tail
        version = 1 if self._numbers[_MAGIC] == MAGIC_V1 else 2
        self._topic_end = version + int.from_bytes(tail[:version], "big") + 2
        edges = [0, *(self._topic_end + edge for gap in gaps for edge in gap), len(tail)]
        self._parts = [tail[begin:edge] for begin, edge in pairwise(edges)]  # constant parts and gaps in turn
        self.topic = message.topic
        self.tags_code = properties.tags_code(message.properties.get(properties.TAGS))
        self.bodiless_size = draft.size - len(message.body)

    def encode(self, message: TemplateMessage, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
        """The record of a message at its place."""
        _, magic, _, _, flag, _, _, sys_flag, _, _, _, store_host, reconsume_times, prepared_offset, _ = self._numbers
        body, born_host = message.body, encode_host(message.born_host)
        assert len(born_host) == len(self._numbers[_BORN_HOST]), "the IP version must be the template's"
        start = self._fixed.pack(
            self.bodiless_size + len(body),
            magic,
            crc32(body) & BODY_CRC_MASK,
            message.queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            message.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_offset,
            len(body),
        )
        return joined(start, body, self._tail(message), property_crc=self._property_crc)

    def properties(self, message: TemplateMessage) -> dict[str, str]:
        """The properties of a message, as a reader of its record gets them."""
        return properties.decode_properties(self._tail(message)[self._topic_end :])

    def _tail(self, message: TemplateMessage) -> bytes:
        """Topic and properties."""
        parts = self._parts.copy()
        parts[1::2] = message.values
        return b"".join(parts)
