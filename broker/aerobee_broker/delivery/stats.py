"""What deliveries count, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DeliveryStats:
    """Since the start."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    expired: int = 0
    dead_letters: int = 0
    lost: int = 0  # skipped, for the log does not have them any more
    snapshots: int = 0
