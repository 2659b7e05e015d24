"""The small encodings inside a record: property strings, Java's string hash, hosts and server message ids.

A property string is UTF-8 text, at most 32767 bytes:

    name 0x01 value 0x02   name 0x01 value 0x02   ...

Order has no meaning. Writers close the last pair; releases 4.9 to 5.1 left it open, so readers accept both.

A host is its address (4 or 16 bytes) and its port (4 bytes, big-endian).
A server message id is the upper-case hex of a store host and of a physical offset (8 bytes): 32 or 56 characters.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from operator import mul
from typing import TYPE_CHECKING, Final

from aerobee_store.deferred import deferred
from aerobee_store.errors import InvalidMessageError
from aerobee_store.records.decimals import hexadecimal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


Host = tuple[str, int]
"""IP address as text (never a name) and port."""

# --- Property names -----------------------------------------------------------------------------------------

# Set by the sender: for search and filters.
KEYS: Final = "KEYS"  # index keys, separated by single spaces
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"  # the message id made by the client
SHARDING_KEY: Final = "__SHARDINGKEY"  # ordering key of a FIFO message
WAIT: Final = "WAIT"  # "false": do not wait for the disk

# Delay.
DELAY: Final = "DELAY"  # level 1..18
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_UNIQ_KEY: Final = "TIMER_DEL_UNIQKEY"

# The real destination of a delayed, half or retried message.
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"

# Transactions.
TRANSACTION_MESSAGE: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_TIME_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"

# Retry, dead letters, pop.
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
POP_CK: Final = "POP_CK"

# Inner batches and multi-dispatch.
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

# Added by a broker on send or forward.
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
BORN_HOST: Final = "__BORNHOST"
CRC32: Final = "__CRC32#"  # checksum of the whole record, see record.py

TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""Properties with this prefix exist only in the broker's memory and are never written."""

KEY_SEPARATOR: Final = " "
NAME_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"

PROPERTIES_SIZE_MAX: Final = 32767
"""Bytes; the length field is a signed 16-bit number."""


# --- Property strings ---------------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string of `properties`, every pair closed.

    Omits empty values, which no reader would return, properties that must not be stored (`TRANSIENT_PREFIX`), and the
    record checksum `CRC32`, which is valid for one record at one place only.

    Raises InvalidMessageError for an empty name, for a separator that would split differently (0x01 or 0x02 in a name,
    0x02 in a value), for text that UTF-8 cannot encode, and above `PROPERTIES_SIZE_MAX`. A 0x01 in a value is stored:
    readers split at the first one, and stored messages that have one must remain copyable.
    """
    # In the usual case three searches in the whole text replace several in each pair.
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    usual = text.count(PROPERTY_SEPARATOR) == count == text.count(NAME_SEPARATOR) and "\x01\x02" not in text
    usual = usual and CRC32 not in properties and TRANSIENT_PREFIX not in text and "" not in properties
    return _encode(text) if usual else _encode("".join(_checked_pairs(properties)))


def _checked_pairs(properties: Mapping[str, str]) -> list[str]:
    parts = []
    for name, value in properties.items():
        if not name:
            raise InvalidMessageError("a property has an empty name; name it or leave it out")
        if NAME_SEPARATOR in name or PROPERTY_SEPARATOR in name or PROPERTY_SEPARATOR in value:
            raise InvalidMessageError(
                f"property {name[:100]!r}: names must not contain 0x01 or 0x02, and values must not contain 0x02, "
                f"because these bytes separate properties"
            )
        if value and name != CRC32 and not name.startswith(TRANSIENT_PREFIX):
            parts.append(f"{name}\x01{value}\x02")
    return parts


def _encode(text: str) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"properties: text is not valid Unicode: {error.reason}") from None
    if len(encoded) > PROPERTIES_SIZE_MAX:
        raise InvalidMessageError(f"the properties take {len(encoded)} bytes; the limit is {PROPERTIES_SIZE_MAX}")
    return encoded


def decode_properties(encoded: bytes) -> dict[str, str]:
    """The pairs of a property string, in stored order; for a repeated name the last value.

    Never raises. Parts without 0x01, without a name or without a value are skipped, as by every RocketMQ reader.
    Invalid UTF-8 becomes U+FFFD: Java does this before it hashes a tag, and text with escaped bytes could not be sent
    in a protobuf string. The record has the original bytes.
    """
    properties = {}
    for pair in encoded.decode("utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def split_keys(keys: str) -> list[str]:
    """The index keys of a KEYS value: the non-empty parts between single spaces."""
    return [key for key in keys.split(KEY_SEPARATOR) if key]


# --- Java's string hash -------------------------------------------------------------------------------------

_MASK_64: Final = (1 << 64) - 1
_CHUNK: Final = 256
_POWERS_OF_31: Final = tuple(pow(31, _CHUNK - 1 - i, 1 << 32) for i in range(_CHUNK))
_MATRIX_MIN: Final = 8  # below, numpy's fixed cost exceeds the gain
_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_TAG_LENGTH_CACHED_MAX: Final = 128  # keeps the cache below a megabyte for any tags


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: 31-polynomial over the UTF-16 units, as a signed 32-bit number."""
    return _signed(_hash_unsigned(text))


def _hash_unsigned(text: str) -> int:
    units: Sequence[int] = (
        text.encode("ascii") if text.isascii() else memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    )
    value = 0
    for start in range(0, len(units), _CHUNK):
        chunk = units[start : start + _CHUNK]
        # Precomputed powers let sum(map(mul)) run in C, three times as fast as the textbook loop.
        value = value * pow(31, len(chunk), 1 << 32) + sum(map(mul, chunk, _POWERS_OF_31[_CHUNK - len(chunk) :]))
    return value & 0xFFFFFFFF


def _signed(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


_cached_hash = lru_cache(maxsize=4096)(java_hash)


@lru_cache(maxsize=16384)
def jump_hash(message_group: str, queue_count: int) -> int:
    """The queue of a message group, as chosen by RocketMQ: jump consistent hashing (Lamping and Veach)."""
    state = java_hash(message_group) & _MASK_64
    bucket, candidate = -1, 0
    while candidate < queue_count:
        bucket = candidate
        state = (state * 2862933555777941757 + 1) & _MASK_64
        candidate = int((bucket + 1) / (((state >> 33) + 1) / (1 << 31)))
    return bucket


def tags_code(tags: str | None) -> int:
    """The hash of a TAGS value in consume-queue units; 0 without tags."""
    if not tags:
        return 0
    return _cached_hash(tags) if len(tags) <= _TAG_LENGTH_CACHED_MAX else java_hash(tags)


@lru_cache(maxsize=1 << 15)  # thousands of topics in turn would defeat a smaller cache
def topic_prefix_hash(topic: str) -> int:
    """Unsigned hash of `topic#`, the prefix of every index key of the topic."""
    return _hash_unsigned(topic + "#")


def index_hash(topic: str, key: str) -> int:
    """The key hash of an index entry, 0..2**31-1: the absolute value of the hash of `topic#key`; -2**31 gives 0."""
    length = len(key) if key.isascii() else len(key.encode(_UTF_16, "surrogatepass")) // 2
    value = _signed((topic_prefix_hash(topic) * pow(31, length, 1 << 32) + _hash_unsigned(key)) & 0xFFFFFFFF)
    return 0 if value == -(1 << 31) else abs(value)


@cache
def _powers_of_31() -> npt.NDArray[np.uint32]:
    return np.array(_POWERS_OF_31, np.uint32)


def index_hashes(keys: Sequence[tuple[str, str]]) -> list[int]:
    """`index_hash` of many (topic, key) pairs. Keys of equal length, such as message ids, are hashed as a matrix."""
    if len(keys) < _MATRIX_MIN:
        return [index_hash(topic, key) for topic, key in keys]
    hashes = [0] * len(keys)
    rows_by_length: dict[int, list[int]] = {}
    for row, (topic, key) in enumerate(keys):
        if key.isascii() and 0 < len(key) <= _CHUNK:
            rows_by_length.setdefault(len(key), []).append(row)
        else:
            hashes[row] = index_hash(topic, key)
    for length, rows in rows_by_length.items():
        if len(rows) < _MATRIX_MIN:
            for row in rows:
                hashes[row] = index_hash(*keys[row])
            continue
        text = "".join([keys[row][1] for row in rows]).encode("ascii")
        units = np.frombuffer(text, np.uint8).reshape(len(rows), length)
        values = np.einsum("ij,j->i", units, _powers_of_31()[_CHUNK - length :], dtype=np.uint32, casting="unsafe")
        values += np.array([topic_prefix_hash(keys[row][0]) for row in rows], np.uint32) * np.uint32(
            pow(31, length, 1 << 32)
        )
        signed = np.abs(values.view(np.int32).astype(np.int64))
        signed[signed == 1 << 31] = 0
        for row, value in zip(rows, signed.tolist(), strict=True):
            hashes[row] = value
    return hashes


# --- Hosts and server message ids ---------------------------------------------------------------------------

_PORT: Final = struct.Struct(">i")
_PHYSICAL_OFFSET: Final = struct.Struct(">q")


@lru_cache(maxsize=1024)
def encode_host(host: Host) -> bytes:
    """8 bytes for an IPv4 host, 20 for IPv6. Raises InvalidMessageError for names and for ports outside 0..65535."""
    address, port = host
    if not 0 <= port <= 65535:
        raise InvalidMessageError(f"host {address!r}: port {port} is outside 0..65535")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_pton(family, address) + _PORT.pack(port)
    except (OSError, ValueError):
        raise InvalidMessageError(f"host {address!r} is not an IP address: resolve names before storing") from None


@lru_cache(maxsize=1024)
def decode_host(encoded: bytes) -> Host:
    """The host in 8 or 20 bytes. The port is returned as stored, whatever its value."""
    family = socket.AF_INET if len(encoded) == 8 else socket.AF_INET6
    return socket.inet_ntop(family, encoded[:-4]), _PORT.unpack(encoded[-4:])[0]


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    """The server's id of the record at `physical_offset`: 32 characters, 56 for an IPv6 host."""
    return (encode_host(store_host) + _PHYSICAL_OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[Host, int]:
    """Store host and physical offset of a server message id. Raises InvalidMessageError if it is invalid."""
    encoded = hexadecimal(message_id) if len(message_id) in (32, 56) else None
    if encoded is None:
        raise InvalidMessageError(
            f"{message_id[:80]!r} is not a server message id: 32 or 56 hexadecimal digits expected"
        )
    (physical_offset,) = _PHYSICAL_OFFSET.unpack(encoded[-8:])
    host = decode_host(encoded[:-8])
    if physical_offset < 0 or not 0 <= host[1] <= 65535:
        raise InvalidMessageError(f"message id {message_id!r} holds port {host[1]} and offset {physical_offset}")
    return host, physical_offset
