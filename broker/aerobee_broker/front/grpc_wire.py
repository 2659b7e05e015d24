"""The parts of gRPC above HTTP/2 (its document PROTOCOL-HTTP2): headers, timeouts, messages, statuses.

A message on a stream:

    offset  size  field
         0     1  compressed   1: by the stream's grpc-encoding; else 0
         1     4  size         bytes, big-endian
         5     -  the message
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import quote_from_bytes

from aerobee_broker.front.header_blocks import Field, RequestHead, encoded
from aerobee_broker.front.methods import CallAbortedError, Metadata, StatusCode
from aerobee_store.records.decimals import decimal

PREFIX_SIZE: Final = 5
_JOINED_SIZE: Final = 2 << 10  # bytes of a part that is joined with others
_PIECE_SIZE: Final = 64 << 10  # bytes of joined parts
_EXPANDED_PIECE_SIZE: Final = 256 << 10  # decompressed bytes, which take up to 1.6 ms
_SHORT_SIZE: Final = 4 << 10  # bytes of gzip that become at most _EXPANDED_SIZE_MIN, in a millisecond
_EXPANSION_MAX: Final = 100  # decompressed bytes for each received one, above ...
_EXPANDED_SIZE_MIN: Final = 1 << 20  # ... this many; text has 10, 4 MiB of one byte 1,000
_GZIP: Final = 16 + zlib.MAX_WBITS
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_MAX: Final = 365 * 86_400.0
_OWN_HEADERS: Final = frozenset((b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"))
_DETAILS_MAX: Final = 2000  # bytes; clients allow few headers

HEADERS: Final = encoded(
    (
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity,gzip"),
    )
)
"""The response headers before the messages of an answer."""
OK_TRAILERS: Final = encoded(((b"grpc-status", b"0"),))


_NOTHING: Final = 0  # the role of a request header for a call: ignored, ...
_VALUES_MAX: Final = 128
"""Values in a binary header. More are left together in the last one, which takes no memory for each."""
_OF_GRPC: Final = 1  # ... used by gRPC itself, or one or more pairs of metadata


def _meaning(field: Field) -> object:
    name = field.name
    if name[:1] == b":":
        return _NOTHING
    if name in _OWN_HEADERS:
        return _OF_GRPC
    key = name.decode("ascii")
    if key.endswith("-bin"):
        return [(key, _binary(part)) for part in field.value.split(b",", _VALUES_MAX)]
    return key, field.value.decode("latin-1")


class CallHead:
    """The headers of a call, shared by calls with identical header bytes."""

    __slots__ = ("encoding", "error", "metadata", "path", "plain_error", "timeout")

    def __init__(self, head: RequestHead) -> None:
        self.path = head.path.decode("latin-1")
        self.timeout: float | None = None  # seconds
        self.encoding = b"identity"
        self.plain_error = b""  # the HTTP status for requests that are not gRPC
        self.error: CallAbortedError | None = None
        content_type = b""
        metadata: list[tuple[str, str | bytes]] = []
        for field in head.fields:
            note = field.note
            if note is None:
                note = field.note = _meaning(field)
            if note.__class__ is tuple:
                metadata.append(note)
            elif note == _OF_GRPC:
                if field.name == b"grpc-timeout":
                    self.timeout = _timeout(field.value)
                elif field.name == b"grpc-encoding":
                    self.encoding = field.value
                elif field.name == b"content-type":
                    content_type = field.value
            elif note.__class__ is list:
                metadata.extend(note)
        self.metadata: Metadata = metadata
        if head.method != b"POST":
            self.plain_error = b"405"
        elif not content_type.startswith(b"application/grpc"):
            self.plain_error = b"415"
        elif self.encoding not in (b"identity", b"gzip"):
            encoding = self.encoding.decode("latin-1")
            text = f"the grpc-encoding {encoding!r} is not supported; use identity or gzip"
            self.error = CallAbortedError(StatusCode.UNIMPLEMENTED, text)


@lru_cache(maxsize=64)
def plain_error_headers(status: bytes) -> bytes:
    """The answer to a request that is not gRPC."""
    return encoded(((b":status", status), (b"content-length", b"0")))


def _timeout(value: bytes) -> float | None:
    number, unit = decimal(value[:-1]), _SECONDS.get(value[-1:])
    if unit is None or number is None or len(value) > 9:
        return None
    return min(number * unit, _TIMEOUT_MAX)


def _binary(value: bytes) -> bytes:
    try:
        return b64decode(value.strip() + b"=" * (-len(value.strip()) % 4))
    except (Base64Error, ValueError):
        return value


def metadata_headers(metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """Metadata encoded as headers."""
    headers = []
    for name, value in metadata:
        if isinstance(value, bytes) and name.endswith("-bin"):
            headers.append((name.encode(), b64encode(value).rstrip(b"=")))
        else:
            headers.append((name.encode(), value.encode("latin-1") if isinstance(value, str) else value))
    return headers


def status_headers(code: StatusCode, details: str) -> list[tuple[bytes, bytes]]:
    """The trailers with the status of a call."""
    headers = [(b"grpc-status", b"%d" % code)]
    if details:
        text = details.encode()[:_DETAILS_MAX].decode(errors="ignore").encode()
        # Only non-printable or non-ASCII characters and the percent sign are percent-encoded.
        headers.append((b"grpc-message", quote_from_bytes(text, _PLAIN).encode()))
    return headers


_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class MessageTooLargeError(CallAbortedError):
    """A message above the limit of its method; `size` is its size, or a lower bound of it."""

    def __init__(self, size: int, size_max: int) -> None:
        text = f"the request is larger than allowed ({size} vs. {size_max} bytes); send less at a time"
        super().__init__(StatusCode.RESOURCE_EXHAUSTED, text)
        self.size: Final = size


def message_prefix(size: int) -> bytes:
    """The prefix of an uncompressed message of this size."""
    return b"\0" + size.to_bytes(4, "big")


class MessageReader:
    """Extracts the messages from the bytes of one stream.

    `size` is the number of kept bytes, those of the incomplete message.
    """

    __slots__ = ("_encoding", "_missing", "_parts", "_size_max", "size")

    def __init__(self, encoding: bytes, size_max: int) -> None:
        self._encoding = encoding
        self._size_max = size_max
        self._parts: list[bytes | bytearray | memoryview] = []
        self._missing = PREFIX_SIZE  # bytes until the next step: the prefix, or prefix and message
        self.size = 0

    def feed(self, data: bytes | memoryview) -> list[bytes | GzipMessage]:
        """The messages that `data` completes; those that take long to decompress as they are. Raises CallAbortedError
        for invalid or too large messages."""
        if not self.size:
            length = len(data) - PREFIX_SIZE
            if 0 <= length <= self._size_max and data[0] == 0 and int.from_bytes(data[1:PREFIX_SIZE], "big") == length:
                return [bytes(data[PREFIX_SIZE:])]  # one uncompressed message: most unary calls
        else:
            self._keep(data)
            self.size += len(data)
            if self.size < self._missing:
                return []
            if self._missing > PREFIX_SIZE and len(self._parts[0]) >= PREFIX_SIZE and not self._parts[0][0]:
                return self._joined(data)
            data = b"".join(self._parts)
            self._parts.clear()
        return self._split(data)

    def _keep(self, data: bytes | memoryview) -> None:
        """Keep a part of a message. Small parts are joined, because each would take 50 bytes more."""
        parts = self._parts
        if len(data) >= _JOINED_SIZE:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray) and len(parts[-1]) < _PIECE_SIZE:
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def _joined(self, data: bytes | memoryview) -> list[bytes | GzipMessage]:
        """The message that `data` completes, and any further messages in it. It is copied once."""
        rest = self.size - self._missing
        parts: list[bytes | bytearray | memoryview] = [*self._parts]
        parts[0] = memoryview(self._parts[0])[PREFIX_SIZE:]
        if rest:
            parts[-1] = memoryview(parts[-1])[: len(parts[-1]) - rest]
        self._parts.clear()
        self.size = 0
        self._missing = PREFIX_SIZE
        message = b"".join(parts)
        return [message, *self._split(data[len(data) - rest :])] if rest else [message]

    def _split(self, data: bytes | memoryview) -> list[bytes | GzipMessage]:
        """The messages in `data`, which begins with a message; the rest is kept."""
        messages: list[bytes | GzipMessage] = []
        begin, size = 0, len(data)
        missing = PREFIX_SIZE
        while size - begin >= PREFIX_SIZE:
            length = int.from_bytes(data[begin + 1 : begin + PREFIX_SIZE], "big")
            if length > self._size_max:
                raise MessageTooLargeError(length, self._size_max)
            end = begin + PREFIX_SIZE + length
            if end > size:
                missing = PREFIX_SIZE + length
                break
            message = bytes(data[begin + PREFIX_SIZE : end])
            messages.append(self._compressed(data[begin], message) if data[begin] else message)
            begin = end
        self.size = size - begin
        self._missing = missing
        if self.size:
            self._parts.append(data[begin:] if begin else data)
        return messages

    def _compressed(self, flag: int, data: bytes) -> bytes | GzipMessage:
        if flag != 1 or self._encoding != b"gzip":
            raise CallAbortedError(
                StatusCode.INTERNAL, "a compressed message on a stream without grpc-encoding; set it to gzip"
            )
        message = GzipMessage(data, self._size_max)
        return b"".join(message.pieces()) if len(data) <= _SHORT_SIZE else message


class GzipMessage:
    """A message as it was received. `len` is its compressed size."""

    __slots__ = ("_data", "_message_size_max")

    def __init__(self, data: bytes, message_size_max: int) -> None:
        self._data = data
        self._message_size_max = message_size_max

    def __len__(self) -> int:
        return len(self._data)

    def pieces(self) -> Iterator[bytes]:
        """The message, in pieces that take a millisecond or two each. Raises CallAbortedError for an invalid or too
        large one."""
        size_max = min(self._message_size_max, max(_EXPANDED_SIZE_MIN, _EXPANSION_MAX * len(self._data)))
        decompressor = zlib.decompressobj(_GZIP)
        size = 0
        for begin in range(0, len(self._data), _PIECE_SIZE):
            left = self._data[begin : begin + _PIECE_SIZE]
            while left and not decompressor.eof:
                try:
                    piece = decompressor.decompress(left, _EXPANDED_PIECE_SIZE)
                except zlib.error:
                    raise CallAbortedError(StatusCode.INTERNAL, "a message that is not valid gzip") from None
                left = decompressor.unconsumed_tail
                size += len(piece)
                self._check_size(size, size_max)
                yield piece
        if not decompressor.eof:
            raise CallAbortedError(StatusCode.INTERNAL, "a compressed message that ends too early")

    def _check_size(self, size: int, size_max: int) -> None:
        if size > self._message_size_max:
            raise MessageTooLargeError(size, self._message_size_max)
        if size > size_max:
            text = f"a message that gzip made more than {_EXPANSION_MAX} times smaller; send it without gzip"
            raise CallAbortedError(StatusCode.RESOURCE_EXHAUSTED, text)
