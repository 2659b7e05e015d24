"""Header blocks: HPACK with the constants of the `hpack` package, and the rules for valid headers (RFC 9113, section
8).

Answers are written without HPACK's dynamic table and without Huffman codes. They have few, mostly constant headers, so
a block is encoded once and sent many times, independent of the peer's table.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from hpack import HPACKError
from hpack.table import HeaderTable

from aerobee_broker.front import huffman
from aerobee_broker.front.frames import ErrorCode
from aerobee_store.records.decimals import decimal

_INDEXED: Final = bytes(range(0x80, 0xFF))
"""One-byte fields that take name and value from a table and do not change it."""
_INTEGER_BITS_MAX: Final = 28
_CACHED_BLOCKS_MAX: Final = 64
_OVERHEAD: Final = 32  # bytes per header, by HTTP/2's rule for the size of a header list
_TABLE_SIZES_MAX: Final = 8  # per block; more than two are never useful, and each costs as much as a field
_ENTRY_SIZE: Final = 250  # bytes of memory of an entry of the table ...
_HEAD_SIZE: Final = 2_500  # ... and of the largest remembered head
_REMEMBERED_HEAD_MAX: Final = 4 << 10  # bytes, by HTTP/2's count; larger heads are decoded again each time
_HARD_FACTOR: Final = 4  # a list beyond this multiple of the limit is not decoded to its end
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_PSEUDO: Final = frozenset((b":method", b":scheme", b":authority", b":path"))
_NEEDED: Final = frozenset((b":method", b":scheme", b":path"))
_BAD_IN_NAME: Final = bytes((*range(0x21), *range(0x41, 0x5B), *range(0x7F, 0x100)))
_BAD_IN_VALUE: Final = b"\0\r\n"


class HeaderBlockError(Exception):
    """An error that ends the connection, because later blocks can no longer be decoded."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code: Final = code


class Field:
    """One header with derived facts. Fields in the table serve many requests, so each is checked once."""

    __slots__ = ("error", "name", "note", "plain", "size", "value")

    def __init__(self, name: bytes, value: bytes) -> None:
        self.name: Final = name
        self.value: Final = value
        self.size: Final = len(name) + len(value) + _OVERHEAD
        self.error: Final = "" if name[:1] == b":" else _field_error(name, value)
        self.plain: Final = not self.error and name[:1] != b":" and name != b"content-length"
        """Whether only its size matters to HTTP/2."""
        self.note: object = None  # cached by the layer above


class RequestHead:
    """The checked headers of a request, shared by requests with identical bytes."""

    __slots__ = ("content_length", "error", "fields", "method", "note", "path", "size")

    def __init__(self, fields: list[Field], size: int) -> None:
        """`size` is the total size of all fields."""
        self.fields = fields
        self.note: object = None  # cached by the layer above
        self.content_length: int | None = None
        self.method = self.path = b""
        self.size = size
        self.error = self._check()  # the reason why these are not valid request headers; empty if they are

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All names and values."""
        return [(field.name, field.value) for field in self.fields]

    def _check(self) -> str:
        pseudo: dict[bytes, bytes] = {}
        regular = False
        for field in self.fields:
            if field.plain:
                regular = True
                continue
            name = field.name
            if name[:1] == b":":
                if regular:
                    return "a pseudo-header after other headers"
                if name not in _PSEUDO or name in pseudo:
                    return "an unknown or repeated pseudo-header"
                pseudo[name] = field.value
                continue
            regular = True
            if field.error:
                return field.error
            self.content_length = decimal(field.value)
            if self.content_length is None:
                return "a content-length that is not a number"
        if not pseudo.keys() >= _NEEDED:
            return "a pseudo-header is missing"
        self.method, self.path = pseudo[b":method"], pseudo[b":path"]
        return "" if self.path else "an empty path"


def trailers_error(fields: list[Field]) -> str:
    """The reason why these are not valid trailers; empty if they are."""
    for field in fields:
        if field.name[:1] == b":":
            return "a pseudo-header in the trailers"
        if field.error:
            return field.error
    return ""


@lru_cache(maxsize=1024)
def _name_error(name: bytes) -> str:
    if not name or len(name.translate(None, _BAD_IN_NAME)) != len(name):
        return "a header name with an upper-case letter or an invalid character"
    if name in _CONNECTION_SPECIFIC:
        return "a header of HTTP/1 connections"
    return ""


def _field_error(name: bytes, value: bytes) -> str:
    if error := _name_error(name):
        return error
    if len(value.translate(None, _BAD_IN_VALUE)) != len(value):
        return "a header value with an invalid character"
    if name == b"te" and value != b"trailers":
        return "a TE header with another value than trailers"
    return ""


_STATIC: Final = tuple(Field(name, value) for name, value in HeaderTable.STATIC_TABLE)
_STATIC_COUNT: Final = len(_STATIC)


class BlockDecoder:
    """Decodes the header blocks of one connection, in order (RFC 7541).

    The constants come from the `hpack` package, table and loop do not. The table keeps fields in checked form, so a
    request that repeats most of its headers costs one look-up for each.
    """

    def __init__(self, header_size_max: int) -> None:
        self._size_max = header_size_max * _HARD_FACTOR
        # The dynamic table, newest entry last. No Recent: HPACK limits its bytes, and indexes count from the newest.
        self._entries: list[Field] = []
        self._entries_size = 0
        self._entries_size_max: int = HeaderTable.DEFAULT_SIZE
        self._heads: dict[bytes, RequestHead] = {}

    def request(self, block: bytes) -> RequestHead:
        """The request head in a block. Raises HeaderBlockError."""
        # A block that consists only of indexes does not change the table, and means the same until another block
        # changes it.
        constant = not block.translate(None, _INDEXED)
        if constant and (known := self._heads.get(block)) is not None:
            return known
        head = RequestHead(*self._decode(block, constant))
        if constant and head.size <= _REMEMBERED_HEAD_MAX and len(self._heads) < _CACHED_BLOCKS_MAX:
            self._heads[block] = head
        return head

    @property
    def kept_size(self) -> int:
        """About how many bytes of memory the table and the remembered heads take."""
        return len(self._entries) * _ENTRY_SIZE + len(self._heads) * _HEAD_SIZE

    def fields(self, block: bytes) -> list[Field]:
        """The headers of any block. Raises HeaderBlockError."""
        return self._decode(block, not block.translate(None, _INDEXED))[0]

    def _decode(self, block: bytes, constant: bool) -> tuple[list[Field], int]:
        if not constant and self._heads:
            self._heads.clear()
        try:
            return self._decoded(block)
        except (HPACKError, IndexError, ValueError) as error:
            text = "a header block that cannot be decoded"
            raise HeaderBlockError(ErrorCode.COMPRESSION_ERROR, text) from error

    def _decoded(self, block: bytes) -> tuple[list[Field], int]:
        entries = self._entries
        fields: list[Field] = []
        position, end, size = 0, len(block), 0
        size_max = self._size_max
        table_sizes = 0
        while position < end:
            first = block[position]
            if first & 0x80:  # a field from a table
                if first < 0xFF:
                    index = first & 0x7F
                    position += 1
                else:
                    index, position = _integer(block, position, 0x7F)
                if index > _STATIC_COUNT:
                    # Indexes outside the table raise IndexError: [-0] below the first entry, and positions beyond the
                    # end.
                    field = entries[_STATIC_COUNT - index]
                elif index:
                    field = _STATIC[index - 1]
                else:
                    raise ValueError("an indexed field with index 0")
            elif first & 0x60 == 0x20:  # a table size update
                table_sizes += 1
                if fields or table_sizes > _TABLE_SIZES_MAX:
                    raise ValueError("a table size update after a field, or too many updates")
                index, position = _integer(block, position, 0x1F)
                if index > HeaderTable.DEFAULT_SIZE:
                    raise ValueError("a table size above the limit")
                self._entries_size_max = index
                self._evict()
                continue
            else:  # a literal, stored in the table or not
                kept = first & 0x40
                index, position = _integer(block, position, 0x3F if kept else 0x0F)
                if index > _STATIC_COUNT:
                    name = entries[_STATIC_COUNT - index].name
                elif index:
                    name = _STATIC[index - 1].name
                else:
                    name, position = _text(block, position)
                value, position = _text(block, position)
                field = Field(name, value)
                if kept:
                    entries.append(field)
                    self._entries_size += field.size
                    if self._entries_size > self._entries_size_max:
                        self._evict()
            size += field.size
            if size > size_max:
                raise HeaderBlockError(ErrorCode.ENHANCE_YOUR_CALM, "headers far above the size limit")
            fields.append(field)
        return fields, size

    def _evict(self) -> None:
        """Evict the oldest entries until the others fit. An entry larger than the table empties it."""
        count = 0
        while self._entries_size > self._entries_size_max:
            self._entries_size -= self._entries[count].size
            count += 1
        del self._entries[:count]


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """An integer with a prefix of the bits in `mask`, and the offset after it (RFC 7541, section 5.1)."""
    number = block[position] & mask
    position += 1
    if number == mask:
        for shift in range(0, _INTEGER_BITS_MAX, 7):
            byte = block[position]
            position += 1
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                return number, position
        raise ValueError("an integer that is too large")
    return number, position


def _text(block: bytes, position: int) -> tuple[bytes, int]:
    """A string, and the offset after it (section 5.2)."""
    first = block[position]
    size, position = _integer(block, position, 0x7F)
    end = position + size
    if end > len(block):
        raise ValueError("a string that extends beyond its block")
    text = block[position:end]
    return huffman.decoded(text) if first & 0x80 else text, end


def encoded(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block that does not change the peer's table: literals, and the static table's entry for a status of 200."""
    block = bytearray()
    for name, value in headers:
        if name == b":status" and value == b"200":
            block.append(0x88)
            continue
        block.append(0)  # a literal without indexing, with a literal name
        block += _string(name)
        block += _string(value)
    return bytes(block)


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    prefix = bytearray((127,))
    size -= 127
    while size >= 128:
        prefix.append(size & 127 | 128)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + text
