"""The name of a queue's delivery state, and its bytes in the journal. Integers are big-endian."""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

TEXT_SIZE: Final = struct.Struct(">H")
QUEUE_ID: Final = struct.Struct(">I")


class QueueKey(Struct, frozen=True):
    """The queue of a delivery: stored names of group and topic."""

    group: str
    topic: str
    queue_id: int

    def encode(self) -> bytes:
        """The first bytes of every event of this queue."""
        return text_bytes(self.group) + text_bytes(self.topic) + QUEUE_ID.pack(self.queue_id)


def bounded(text: str) -> bytes:
    """The name as bytes, at most 255 of them."""
    # A client id beyond 255 bytes is truncated: after a restart its messages become visible after 30 s, as if it were
    # gone.
    return text.encode("utf-8", "replace")[:255]


def text_bytes(text: str) -> bytes:
    """The name as bytes after their number."""
    encoded = bounded(text)
    return TEXT_SIZE.pack(len(encoded)) + encoded
