"""Header blocks: HPACK by the `hpack` package, and the rules for what they may hold (RFC 9113, section 8).

Answers are written without HPACK's table and without Huffman codes: they have few headers, nearly all of them constant,
so a block is encoded once and sent many times, whatever the peer's table is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from aerobee_broker.front.frames import ErrorCode

Headers = list[tuple[bytes, bytes]]

_INDEXED: Final = bytes(range(0x80, 0xFF))
"""Fields of one byte that take name and value from a table and change nothing."""
_CACHED_BLOCKS_MAX: Final = 64
_OVERHEAD: Final = 32  # bytes a header, by HTTP/2's rule for the size of a list
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
                    return "a content-length that is no number"
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
    """Decodes the header blocks of one connection, in their order."""

    def __init__(self, header_size_max: int) -> None:
        self._decoder = Decoder(max_header_list_size=header_size_max * _HARD_FACTOR)
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
            return self._decoder.decode(block, raw=True)  # type: ignore[return-value]  # pairs of bytes when raw
        except OversizedHeaderListError:
            raise HeaderBlockError(ErrorCode.ENHANCE_YOUR_CALM, "headers far above the size that is allowed") from None
        except (HPACKError, IndexError, ValueError) as error:
            text = "a header block that cannot be decoded"
            raise HeaderBlockError(ErrorCode.COMPRESSION_ERROR, text) from error


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
