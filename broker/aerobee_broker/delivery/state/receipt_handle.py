"""A receipt handle names one delivery of one message to one group: 29 bytes, or more, as hexadecimal digits.

    offset  size  field
         0     1  version       2
         1     4  queue_id
         5     8  queue_offset
        13     8  nonce         identifies the delivery in flight; random, or derived from the attempt id
        21     4  run           random number of the broker's run: tells whether this process issued the handle
        25     4  owner         BLAKE2b of group and topic: detects a handle used for another group or topic
        29     -  part          UTF-8, at most 64 bytes; the lite topic of a message of one, or `%1` or `%2` for one of
                                a retry topic of RocketMQ's POP consumers, by its naming version

The handle contains no secret. The nonce is in the delivery journal, so a handle stays valid after a restart.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final, NamedTuple

from aerobee_broker.errors import InvalidReceiptHandleError
from aerobee_store.records.decimals import hexadecimal

_VERSION: Final = 2
_LAYOUT: Final = struct.Struct(">BIQQI4s")
assert _LAYOUT.size == 29, "the table above and the struct must agree"
_PART_SIZE_MAX: Final = 64
_pack = _LAYOUT.pack


class ReceiptHandle(NamedTuple):
    """The content of a handle; untrusted until it is looked up."""

    queue_id: int
    queue_offset: int
    nonce: int
    run: int
    owner: bytes
    part: str


def owner_of(group: str, topic: str) -> bytes:
    """The hash of a group and a topic (stored names) in a handle."""
    return blake2b(f"{group}\0{topic}".encode(), digest_size=4).digest()


def encode(queue_id: int, queue_offset: int, nonce: int, run: int, owner: bytes, part: str = "") -> str:
    """The handle as clients see it: 58 characters, up to 186 with a part, without spaces."""
    return (_pack(_VERSION, queue_id, queue_offset, nonce, run, owner) + part.encode()).hex()


def decode(handle: str) -> ReceiptHandle:
    """Parse a handle. Raises InvalidReceiptHandleError for any text that `encode` does not produce."""
    size, odd = divmod(len(handle), 2)
    may_be = not odd and _LAYOUT.size <= size <= _LAYOUT.size + _PART_SIZE_MAX
    encoded = hexadecimal(handle) if may_be else None
    try:
        part = encoded[_LAYOUT.size :].decode() if encoded is not None and encoded[0] == _VERSION else None
    except ValueError:
        part = None
    if encoded is None or part is None:
        raise InvalidReceiptHandleError("the receipt handle is malformed; use the handle of the received message")
    _, queue_id, queue_offset, nonce, run, owner = _LAYOUT.unpack_from(encoded)
    return ReceiptHandle(queue_id, queue_offset, nonce, run, owner, part)
