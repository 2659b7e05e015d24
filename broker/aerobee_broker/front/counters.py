"""What the front end counts: plain numbers, made visible by the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class FrontCounters:
    """Of all connections since the start."""

    connections: int = 0  # open now
    accepted: int = 0
    calls: int = 0  # open now
    request_size: int = 0  # bytes of requests that are incomplete or were not read, now
    refused: Counter[str] = field(default_factory=Counter)
    """Calls and connections that a bound has ended, by its name."""
