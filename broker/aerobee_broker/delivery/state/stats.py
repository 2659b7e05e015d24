"""Counters of deliveries, as plain numbers."""

from __future__ import annotations

from msgspec import Struct, field


class DeliveryStats(Struct):
    """Counters since the start."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    expired: int = 0
    expired_of: dict[tuple[str, str], int] = field(default_factory=dict)
    """Expirations since the start, by topic and group (stored names; for a lite topic, its parent)."""
    dead_letters: int = 0
    lost: int = 0  # skipped because the log no longer has them
    snapshots: int = 0
