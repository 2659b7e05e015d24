"""Which SQL subscriptions a message satisfies, as a bitmap in its extended unit: a Bloom filter as RocketMQ's.

Bit n is in byte n // 8, with the value 1 << n % 8. Each subscription of the topic that the message satisfies sets its
few bits. A message that lacks one of them does not satisfy the subscription, so its record need not be read. One that
has them all may satisfy it, or others set these bits: its record decides.

The broker knows the subscriptions and evaluates them; the store calls it for each message that it appends. Messages
stored in another way (received from another broker, restored by recovery or `rebuild`) have no bitmap, and neither have
units in the additional queues of a message: any subscription may match them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from aerobee_store.records.record_batch import RecordBatch

NO_BITMAP = b""
"""Of a message that any subscription may match."""


class FilterBits(NamedTuple):
    """The bits of one subscription."""

    mask: int
    """The bits, as the number that a bitmap is in little-endian order."""
    size: int
    """Bytes of a bitmap."""
    begin: int
    """The subscription is in the bitmaps of messages from this physical offset on."""

    def may_match(self, physical_offset: int, bitmap: bytes) -> bool:
        """Whether the message at this physical offset may satisfy the subscription."""
        if physical_offset < self.begin or len(bitmap) != self.size:
            return True
        return int.from_bytes(bitmap, "little") & self.mask == self.mask


class FilterBitmaps(Protocol):
    """The SQL subscriptions of the consumers. Called from the event loop; must not block."""

    def are_computed(self, topic: str) -> bool:
        """Whether new messages of the topic get bitmaps."""

    def of_message(self, topic: str, properties: Mapping[str, str]) -> bytes:
        """The bitmap of a message that is being appended; `properties` as they will be read."""

    def of_records(self, topic: str, batch: RecordBatch) -> Sequence[bytes]:
        """The bitmap of each of these records, which are being appended."""

    def bits(self, topic: str, group: str, expression: str, condition: Any) -> FilterBits | None:
        """The bits of this subscription, which is in use now. None: every message may match. `condition`: the
        compiled expression."""
