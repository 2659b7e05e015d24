"""A receipt handle names one delivery of one message: 21 bytes as hexadecimal digits.

    offset  size  field
         0     1  version       1
         1     4  queue_id
         5     8  queue_offset
        13     8  nonce         the delivery that is in flight must have the same; random, or made from the attempt id

Group and topic are not in it: the state that it is looked up in is that of the group and topic of the request, and a
nonce of another one does not occur there. The nonce is in the delivery journal, so a handle outlives the process.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from aerobee_broker.errors import InvalidReceiptHandleError

_VERSION: Final = 1
_LAYOUT: Final = struct.Struct(">BIQQ")
assert _LAYOUT.size == 21, "the table above and the struct must agree"
_pack = _LAYOUT.pack


class ReceiptHandle(NamedTuple):
    """What a handle says; nothing in it is trusted before it was looked up."""

    queue_id: int
    queue_offset: int
    nonce: int


def encode(queue_id: int, queue_offset: int, nonce: int) -> str:
    """The handle as clients see it: 42 characters, no blanks."""
    return _pack(_VERSION, queue_id, queue_offset, nonce).hex()


def decode(handle: str) -> ReceiptHandle:
    """Read a handle. Raises InvalidReceiptHandleError for whatever `encode` has not made."""
    try:
        encoded = bytes.fromhex(handle) if len(handle) == 2 * _LAYOUT.size else b""
    except ValueError:
        encoded = b""
    if len(encoded) != _LAYOUT.size or encoded[0] != _VERSION:
        raise InvalidReceiptHandleError("the receipt handle is malformed; give back the one of the received message")
    return ReceiptHandle(*_LAYOUT.unpack(encoded)[1:])
