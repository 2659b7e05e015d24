"""A note for the next page of the same browser, such as "Topic orders was created".

It travels in a cookie, signed, so that no other site can put words into the console's mouth.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["done", "failed"]
_TEXT_MAX: Final = 1000  # a cookie has 4 KiB
SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Note:
    """Text, and whether it is good news."""

    text: str
    kind: Kind = "done"

    def sealed(self, key: bytes) -> str:
        """For the cookie."""
        content = base64.urlsafe_b64encode(json.dumps([self.kind, self.text[:_TEXT_MAX]]).encode()).decode()
        return f"{content}.{_signature(key, content)}"


def opened(key: bytes, sealed: str) -> Note | None:
    """The note of a cookie; None if it is not ours."""
    content, _, signature = sealed.partition(".")
    if not hmac.compare_digest(_signature(key, content).encode(), signature.encode()):
        return None
    kind, text = json.loads(base64.urlsafe_b64decode(content))
    return Note(text, kind)


def _signature(key: bytes, content: str) -> str:
    return hmac.new(key, f"note {content}".encode(), hashlib.sha256).hexdigest()
