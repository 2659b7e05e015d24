"""The recall handle, with which a producer recalls a delayed message, in RocketMQ's form.

base64url, padded, of the text `v1 <topic> <broker> <delivery time in Unix ms> <message id>`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from msgspec import Struct

from aerobee_broker.errors import BrokerError
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import LAST_MS

_VERSION: Final = "v1"
_HANDLE_SIZE_MAX: Final = 16_384  # characters: an id has at most 8 KiB


class InvalidRecallHandleError(BrokerError):
    """The text is not a recall handle."""


class RecallHandle(Struct, frozen=True):
    """`topic` is the stored name. The message id comes last, because it may contain blanks."""

    topic: str
    broker: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        text = f"{_VERSION} {self.topic} {self.broker} {self.deliver_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Raises InvalidRecallHandleError."""
        if len(text) > _HANDLE_SIZE_MAX:
            raise InvalidRecallHandleError("the recall handle is too long; use the one from the answer to the send")
        try:
            decoded = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode()
        except (UnicodeError, binascii.Error):
            decoded = ""
        version, *fields = decoded.split(" ", 4)
        if version == _VERSION and len(fields) == 4:
            topic, broker, time, message_id = fields
            if (deliver_ms := decimal(time, LAST_MS)) is not None and message_id:
                return cls(topic, broker, deliver_ms, message_id)
        raise InvalidRecallHandleError(f"{text[:80]!r} is not a recall handle; use the one from the answer to the send")
