"""How messages are delivered: what is not a limit of the protocol (LimitsConfig has those)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from aerobee_store.errors import ConfigError

_DAY_SECONDS: Final = 86_400.0

InitialPosition = Literal["auto", "earliest", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    """Durations in seconds."""

    initial_position: InitialPosition = "auto"
    """Where a new group begins: auto is at the beginning of a queue that still has its first message, else behind the
    last one (as RocketMQ's consumers expect); earliest and latest are what they say."""
    auto_renew_seconds_max: float = 3 * 3600.0  # how long a living push consumer may work on one message
    poll_reserve_seconds: float = 0.2  # an answer must leave so long before the deadline of its call
    in_flight_per_group_max: int = 100_000
    client_gone_seconds: float = 1.0  # until what a client leaves behind is visible to others
    client_return_seconds: float = 30.0  # for the clients of a restarted broker to show up again
    snapshot_event_count: int = 50_000  # journal events between snapshots: what a start has to replay at most

    def __post_init__(self) -> None:
        if self.initial_position not in ("auto", "earliest", "latest"):
            raise ConfigError(
                f"delivery.initial_position: {self.initial_position!r} is none of 'auto', 'earliest' and 'latest'"
            )
        if not 0 < self.auto_renew_seconds_max <= _DAY_SECONDS:
            raise ConfigError(
                f"delivery.auto_renew_seconds_max: {self.auto_renew_seconds_max} is not above 0 and at most a day"
            )
        for name in ("poll_reserve_seconds", "client_gone_seconds", "client_return_seconds"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"delivery.{name}: {getattr(self, name)} is below 0")
        for name in ("in_flight_per_group_max", "snapshot_event_count"):
            if getattr(self, name) < 1:
                raise ConfigError(f"delivery.{name}: {getattr(self, name)} is not at least 1")
