"""Header blocks: HPACK by the `hpack` package, and the rules for what they may hold (RFC 9113, section 8).

Answers are written without HPACK's table and without Huffman codes: they have few headers, nearly all of them constant,
so a block is encoded once and sent many times, whatever the peer's table is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from aerobee_broker.front.frames import ErrorCode

Headers = list[tuple[bytes, bytes]]

_INDEXED: Final = bytes(range(0x80, 0xFF))
"""Fields of one byte that take name and value from a table and change nothing."""
_INTEGER_BITS_MAX: Final = 28
_CACHED_BLOCKS_MAX: Final = 64
_OVERHEAD: Final = 32  # bytes a header, by HTTP/2's rule for the size of a list
_TABLE_SIZES_MAX: Final = 8  # of one block; two are of use, and each costs as much as a field
_HARD_FACTOR: Final = 4  # a list above this many times the limit is not even read to its end
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_PSEUDO: Final = frozenset((b":method", b":scheme", b":authority", b":path"))
_BAD_IN_NAME: Final = bytes((*range(0x21), *range(0x41, 0x5B), *range(0x7F, 0x100)))
_BAD_IN_VALUE: Final = b"\0\r\n"


class HeaderBlockError(Exception):
    """A block that ends the connection: what follows it could not be decoded."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code: Final = code


class RequestHead:
    """The headers of a request, checked. Shared by requests that sent the same bytes."""

    __slots__ = ("content_length", "error", "headers", "method", "note", "path", "size")

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self.note: object = None  # what a layer above made of it, once
        self.content_length: int | None = None
        self.method = self.path = b""
        self.size = sum(len(name) + len(value) + _OVERHEAD for name, value in headers)
        self.error = self._check()  # why this is no request; "" if it is one

    def _check(self) -> str:
        pseudo: dict[bytes, bytes] = {}
        regular = False
        for name, value in self.headers:
            if name[:1] == b":":
                if regular:
                    return "a pseudo-header after other headers"
                if name not in _PSEUDO or name in pseudo:
                    return "a pseudo-header that is unknown or there twice"
                pseudo[name] = value
                continue
            regular = True
            if error := _field_error(name, value):
                return error
            if name == b"content-length":
                if not value.isdigit() or len(value) > 18:
                    return "a content-length that is not a number"
                self.content_length = int(value)
        if not pseudo.keys() >= {b":method", b":scheme", b":path"}:
            return "a pseudo-header is missing"
        self.method, self.path = pseudo[b":method"], pseudo[b":path"]
        return "" if self.path else "an empty path"


def trailers_error(headers: Headers) -> str:
    """Why these are no trailers; empty if they are."""
    for name, value in headers:
        if name[:1] == b":":
            return "a pseudo-header in the trailers"
        if error := _field_error(name, value):
            return error
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


class BlockDecoder:
    """Decodes the header blocks of one connection, in their order.

    The table and the Huffman code are the `hpack` package's. The loop over the fields is ours: the package's own writes
    to its log for each step, which costs more than all the rest of a call.
    """

    def __init__(self, header_size_max: int) -> None:
        self._size_max = header_size_max * _HARD_FACTOR
        self._table = HeaderTable()
        self._heads: dict[bytes, RequestHead] = {}

    def request(self, block: bytes) -> RequestHead:
        """The head that a block says. Raises HeaderBlockError."""
        # Every byte an index: such a block leaves the table as it is, and says the same until another block changes it.
        constant = not block.translate(None, _INDEXED)
        if constant and (known := self._heads.get(block)) is not None:
            return known
        head = RequestHead(self.headers(block))
        if constant and len(self._heads) < _CACHED_BLOCKS_MAX:
            self._heads[block] = head
        return head

    def headers(self, block: bytes) -> Headers:
        """The headers of any block. Raises HeaderBlockError."""
        if self._heads and block.translate(None, _INDEXED):
            self._heads.clear()
        try:
            return self._decoded(block)
        except (HPACKError, IndexError, ValueError) as error:
            text = "a header block that cannot be decoded"
            raise HeaderBlockError(ErrorCode.COMPRESSION_ERROR, text) from error

    def _decoded(self, block: bytes) -> Headers:
        table = self._table
        entry = table.get_by_index
        headers: Headers = []
        position, end, size = 0, len(block), 0
        table_sizes = 0
        while position < end:
            first = block[position]
            if first & 0x80:  # a field of the table
                index, position = _integer(block, position, 0x7F)
                field = entry(index)
            elif first & 0x60 == 0x20:  # a new size of the table
                table_sizes += 1
                if headers or table_sizes > _TABLE_SIZES_MAX:
                    raise ValueError("a table size behind a field, or too many of them")
                index, position = _integer(block, position, 0x1F)
                if index > HeaderTable.DEFAULT_SIZE:
                    raise ValueError("a table larger than allowed")
                table.maxsize = index
                continue
            else:  # a literal, which the table keeps or does not
                kept = first & 0x40
                index, position = _integer(block, position, 0x3F if kept else 0x0F)
                if index:
                    name = entry(index)[0]
                else:
                    name, position = _text(block, position)
                value, position = _text(block, position)
                field = (name, value)
                if kept:
                    table.add(name, value)
            size += len(field[0]) + len(field[1]) + _OVERHEAD
            if size > self._size_max:
                raise HeaderBlockError(ErrorCode.ENHANCE_YOUR_CALM, "headers far above the size that is allowed")
            headers.append(field)
        return headers


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """A number whose first bits are those of `mask`, and where it ends (RFC 7541, section 5.1)."""
    number = block[position] & mask
    position += 1
    if number == mask:
        for shift in range(0, _INTEGER_BITS_MAX, 7):
            byte = block[position]
            position += 1
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                return number, position
        raise ValueError("a number that is too large")
    return number, position


def _text(block: bytes, position: int) -> tuple[bytes, int]:
    """A string, and where it ends (section 5.2)."""
    begin = position
    size, position = _integer(block, position, 0x7F)
    end = position + size
    if end > len(block):
        raise ValueError("a string beyond the end of its block")
    text = block[position:end]
    return decode_huffman(text) if block[begin] & 0x80 else text, end


def encoded(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block that leaves the peer's table as it is: literals, and the static table's entry for a status of 200."""
    block = bytearray()
    for name, value in headers:
        if name == b":status" and value == b"200":
            block.append(0x88)
            continue
        block.append(0)  # a literal without indexing, with its name
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
