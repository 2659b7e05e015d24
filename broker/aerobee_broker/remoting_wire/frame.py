"""Frames of RocketMQ's remoting protocol as bytes: no sockets here. Integers are big-endian and signed unless noted.

    offset  size  field
         0     4  length            bytes that follow: 4 + header_length + size of the body
         4     1  serialization     0: JSON header, 1: binary header
         5     3  header_length     unsigned
         8     -  header
         -     -  body              the rest

A JSON header is one object in UTF-8: code, language, version, opaque, flag, remark, extFields (an object of strings).
A binary header, which cannot hold codes above 32,767:

         0     2  code
         2     1  language          number in LANGUAGES
         3     2  version
         5     4  opaque
         9     4  flag
        13     4  remark_size       then the remark, UTF-8; 0: none
         -     4  ext_size          then entries: 2 key size, key, 4 value size, value; a value of size 0 is none

Input is not trusted: every length is compared with the available bytes before it is used, and frames, headers and the
number of fields are bounded. Invalid bytes raise FrameFormatError. The connection must be closed then, because the
start of the next frame is unknown.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from aerobee_broker.errors import BrokerError

FRAME_SIZE_MAX: Final = 16 << 20
"""Bytes of the longest frame, length field included, as in RocketMQ. Only a peer that says so reads longer ones."""
HEADER_SIZE_MAX: Final = 256 << 10
"""Bytes. The largest acceptable header has 32,767 bytes of properties, each escaped to six."""
EXT_FIELD_COUNT_MAX: Final = 1024
"""RocketMQ's largest header has some twenty fields."""

FLAG_RESPONSE: Final = 1
FLAG_ONE_WAY: Final = 2

VERSION: Final = 479
"""The version that the broker reports: RocketMQ 5.3.3. Clients use SQL filters only if the answer to a heartbeat has
4.1.0 or later."""
LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER"),
    *("HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
_JSON: Final = 0
_BINARY: Final = 1
_INT32: Final = 1 << 31

_START: Final = struct.Struct(">iI")  # the second: serialization in the first byte, header length in the others
_BINARY_START: Final = struct.Struct(">hBhiii")
_I32: Final = struct.Struct(">i")
_U16: Final = struct.Struct(">H")
# Made once: json.loads and json.dumps do more for each header than to parse and to write it.
_to_json: Final = msgspec.json.Encoder().encode
_of_json: Final = json.JSONDecoder().decode
assert (_START.size, _BINARY_START.size) == (8, 17), "the tables above and the structs must agree"


class FrameFormatError(BrokerError):
    """The bytes are not a frame of the protocol; the connection must be closed."""


def is_frame(first_bytes: bytes) -> bool:
    """Whether a connection that begins with these bytes (at least one) speaks this protocol. A frame is shorter than 16
    MiB, so its length begins with a zero byte, unlike all other protocols that share the port."""
    return first_bytes[0] == 0


class Command(Struct):
    """One request or response."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = VERSION
    language: str = "JAVA"
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """extFields. Never None: "no fields" and "no object of fields" are equal here."""
    body: bytes = b""
    access_key: str = ""
    """Of the account that signed a request, once that is verified; empty without accounts. Not on the wire."""
    if_lost: Callable[[], None] | None = None
    """Called if the peer certainly does not receive this answer. Not on the wire."""
    frame_size_max: int = FRAME_SIZE_MAX
    """Bytes of the longest frame that the peer reads. Not on the wire."""

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """A request that must not be answered."""
        return bool(self.flag & FLAG_ONE_WAY)


def encode(command: Command) -> bytes:
    """The frame of a command with a JSON header, which every client reads, even those that send binary ones.

    Raises FrameFormatError above the command's `frame_size_max`.
    """
    return encode_head(command) + command.body


def encode_head(command: Command) -> bytes:
    """The bytes of the same frame before the body. Raises FrameFormatError as `encode`."""
    header: dict[str, object] = {"code": command.code}
    if command.fields:
        header["extFields"] = command.fields
    header["flag"] = command.flag
    header["language"] = command.language
    header["opaque"] = command.opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    try:
        text = _to_json(header)
    except UnicodeEncodeError:
        return encode_head(_without_surrogates(command))
    return _head(_JSON, text, command)


def _without_surrogates(command: Command) -> Command:
    """The command with a question mark for each lone surrogate, which JSON can carry and UTF-8 cannot."""
    return replace(
        command,
        language=_utf8(command.language).decode(),
        remark=None if command.remark is None else _utf8(command.remark).decode(),
        fields={_utf8(key).decode(): _utf8(value).decode() for key, value in command.fields.items()},
    )


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def encode_binary(command: Command) -> bytes:
    """The same with a binary header. Raises FrameFormatError for values that such a header cannot hold."""
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGES.index("OTHER")
    remark = _utf8(command.remark or "")
    entries = b"".join(
        _U16.pack(len(key)) + key + _I32.pack(len(value)) + value
        for key, value in ((key.encode(), value.encode()) for key, value in command.fields.items())
    )
    try:
        start = _BINARY_START.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    except struct.error:
        raise FrameFormatError(
            f"code {command.code} or version {command.version} does not fit into the 16 bits of a binary header"
        ) from None
    return _head(_BINARY, b"".join((start, remark, _I32.pack(len(entries)), entries)), command) + command.body


def _head(serialization: int, header: bytes, command: Command) -> bytes:
    length = 4 + len(header) + len(command.body)
    if length + 4 > command.frame_size_max:
        raise FrameFormatError(f"a frame of {length + 4} bytes exceeds the limit of {command.frame_size_max}")
    return _START.pack(length, serialization << 24 | len(header)) + header


class FrameReader:
    """Splits the bytes of one connection into frames.

    Keeps at most one incomplete frame.
    """

    def __init__(self, *, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.frame_size_max: Final = frame_size_max
        self._buffer = bytearray()
        self._broken = False

    @property
    def waiting_size(self) -> int:
        """Bytes of memory of what was kept: frames that were not taken, and an incomplete one."""
        return self._buffer.__alloc__() if self._buffer else 0

    def keep(self, data: bytes) -> None:
        """Keep bytes for the next `feed`."""
        if not self._broken:
            self._buffer += data

    def feed(self, data: bytes, *, count_max: int | None = None) -> list[Command]:
        """The commands that are complete with these bytes, at most so many; with `b""`, the next ones.

        Raises FrameFormatError; the frames before the broken one are lost with it, as is the connection.
        """
        if self._broken:
            raise FrameFormatError("the connection sent an invalid frame; it is closed")
        buffer = self._buffer
        buffer += data
        commands: list[Command] = []
        at = 0
        try:
            while len(buffer) - at >= _START.size and (count_max is None or len(commands) < count_max):
                length, second = _START.unpack_from(buffer, at)
                header_size = second & 0xFFFFFF
                if not 4 <= length <= self.frame_size_max - 4:
                    raise FrameFormatError(f"frame length {length} is outside 4..{self.frame_size_max - 4}")
                if header_size > min(length - 4, HEADER_SIZE_MAX):
                    raise FrameFormatError(
                        f"a header of {header_size} bytes in a frame of {length}; a header may have at most "
                        f"{HEADER_SIZE_MAX} bytes and must end within its frame"
                    )
                if len(buffer) - at < 4 + length:
                    break
                with memoryview(buffer) as view:  # a slice of the buffer itself would be copied twice
                    header = bytes(view[at + 8 : at + 8 + header_size])
                    body = bytes(view[at + 8 + header_size : at + 4 + length])
                commands.append(_decode(second >> 24, header, body))
                at += 4 + length
        except FrameFormatError:
            self._broken = True
            buffer.clear()
            raise
        del buffer[:at]
        return commands


def _decode(serialization: int, header: bytes, body: bytes) -> Command:
    if serialization == _JSON:
        return _decode_json(header, body)
    if serialization == _BINARY:
        return _decode_binary(header, body)
    raise FrameFormatError(f"serialization {serialization}; only 0 (JSON) and 1 (binary) are known")


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        value = _of_json(header.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise FrameFormatError(f"a header that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FrameFormatError("a header that is not a JSON object")
    language, remark, fields = value.get("language"), value.get("remark"), value.get("extFields")
    if fields is not None and not isinstance(fields, dict):
        raise FrameFormatError("extFields of a header is not a JSON object")
    if fields and len(fields) > EXT_FIELD_COUNT_MAX:
        raise FrameFormatError(f"a header of {len(fields)} extFields; the limit is {EXT_FIELD_COUNT_MAX}")
    return Command(
        code=_integer(value, "code"),
        opaque=_integer(value, "opaque"),
        flag=_integer(value, "flag"),
        version=_integer(value, "version"),
        language=language if isinstance(language, str) else "JAVA",
        remark=remark if isinstance(remark, str) else None,
        fields={
            key: item if isinstance(item, str) else _text(item)
            for key, item in (fields or {}).items()
            if item is not None
        },
        body=body,
    )


def _integer(header: dict[str, object], name: str) -> int:
    value = header.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not -_INT32 <= value < _INT32:
        raise FrameFormatError(f"{name} of a header is not a 32-bit integer")
    return value


def _text(value: object) -> str:
    """Java's reader turns numbers and booleans into text where a string is expected."""
    return json.dumps(value)


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_START.unpack_from(header)
        remark, at = _take(header, _BINARY_START.size, remark_size)
        (ext_size,) = _I32.unpack_from(header, at)
        entries, end = _take(header, at + 4, ext_size)
        if end != len(header):
            raise FrameFormatError(f"a binary header of {len(header)} bytes whose fields end at byte {end}")
        return Command(
            code=code,
            opaque=opaque,
            flag=flag,
            version=version,
            language=LANGUAGES[language] if language < len(LANGUAGES) else "OTHER",
            remark=remark.decode() or None,
            fields=_entries(entries),
            body=body,
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameFormatError(f"a binary header that ends too early, or is not UTF-8: {error}") from None


def _entries(entries: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    at = 0
    for count in itertools.count(1):
        if at == len(entries):
            break
        if count > EXT_FIELD_COUNT_MAX:
            raise FrameFormatError(f"a header of more than {EXT_FIELD_COUNT_MAX} extFields, the limit")
        (key_size,) = _U16.unpack_from(entries, at)
        key, at = _take(entries, at + 2, key_size)
        (value_size,) = _I32.unpack_from(entries, at)
        value, at = _take(entries, at + 4, value_size)
        if value:
            fields[key.decode()] = value.decode()
    return fields


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    """The `size` bytes at `at`, and the position after them."""
    if size < 0 or size > len(data) - at:
        raise FrameFormatError(f"a binary header claims {size} bytes; {len(data) - at} are left")
    return data[at : at + size], at + size
