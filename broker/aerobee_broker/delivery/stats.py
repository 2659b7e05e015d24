"""What deliveries count, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class DeliveryStats:
    """Since the start."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    expired: int = 0
    expired_of: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of the expired ones those since the start, by topic and group (stored names; of a lite topic its parent)."""
    dead_letters: int = 0
    lost: int = 0  # skipped, for the log does not have them any more
    snapshots: int = 0
