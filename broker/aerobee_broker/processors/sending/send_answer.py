"""The answer to SendMessage as bytes, without an object for each message."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from aerobee_broker.messages.wire_fields import varint
from aerobee_proto import v2

_STATUS: Final = v2.Status(code=v2.Code.OK, message="OK").SerializeToString()
_STATUS_FIELD: Final = b"\x0a" + varint(len(_STATUS)) + _STATUS  # of the answer, and of each entry


def send_answer(message_ids: Iterable[bytes], queue_offsets: Iterable[int]) -> bytes:
    """A SendMessageResponse with an entry for each message: its id, and its offset in its queue."""
    parts = [_STATUS_FIELD]
    for message_id, queue_offset in zip(message_ids, queue_offsets, strict=False):  # offsets may go on without end
        offset = varint(queue_offset) if queue_offset else b""  # protobuf omits zeros
        before, between, behind = _around(len(message_id), len(offset))
        parts += (before, message_id, between, message_id, behind, offset)
    return b"".join(parts)


@lru_cache(maxsize=256)
def _around(id_size: int, offset_size: int) -> tuple[bytes, bytes, bytes]:
    """The bytes before, between and after the two ids of an entry."""
    size = varint(id_size)
    behind = b"\x20" if offset_size else b""
    entry_size = len(_STATUS_FIELD) + 2 * (1 + len(size) + id_size) + len(behind) + offset_size
    return b"\x12" + varint(entry_size) + _STATUS_FIELD + b"\x12" + size, b"\x1a" + size, behind
