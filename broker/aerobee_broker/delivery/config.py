"""How messages are delivered. Part of BrokerConfig, as the section `delivery`."""

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
    invisible_seconds_min: float = 1.0  # RocketMQ: 10; tests and quick jobs want less, and nothing here needs more
    invisible_seconds_max: float = 12 * 3600.0
    auto_renew_seconds_max: float = 3 * 3600.0  # how long a living push consumer may work on one message
    receive_count_max: int = 32  # messages in one answer
    receive_bytes_max: int = 4 << 20  # of their records, but for the first, which may be larger
    poll_seconds_max: float = 30.0
    poll_reserve_seconds: float = 0.2  # an answer must leave so long before the deadline of its call
    waiting_per_line_max: int = 1024  # receives of one group that wait for one topic
    waiting_max: int = 100_000  # and of all
    in_flight_per_group_max: int = 100_000
    fifo_waiting_max: int = 10_000
    """Messages of one queue that a FIFO group passes over because others of their message groups are in flight. When
    so many wait, what lies behind them waits, too, whatever its message group. About 250 bytes of memory each."""
    priority_waiting_max: int = 4_096
    """Messages of one queue of a priority topic that are compared: the highest priority among the oldest so many that
    wait for a group goes first. What lies behind them is looked at as they go out. About 250 bytes of memory each."""
    lite_subscriptions_max: int = 1200  # lite topics that one client may have subscribed
    client_gone_seconds: float = 1.0  # until what a client leaves behind is visible to others
    client_return_seconds: float = 30.0  # for the clients of a restarted broker to show up again
    snapshot_event_count: int = 50_000  # journal events between snapshots: what a start has to replay at most

    def __post_init__(self) -> None:
        if self.initial_position not in ("auto", "earliest", "latest"):
            raise ConfigError(
                f"delivery.initial_position: {self.initial_position!r} is not one of 'auto', 'earliest' and 'latest'"
            )
        if not 0 < self.invisible_seconds_min <= self.invisible_seconds_max <= _DAY_SECONDS:
            raise ConfigError(
                f"delivery.invisible_seconds_min ({self.invisible_seconds_min}) and delivery.invisible_seconds_max "
                f"({self.invisible_seconds_max}) must be in order, above 0 and at most a day"
            )
        if not 0 < self.auto_renew_seconds_max <= _DAY_SECONDS:
            raise ConfigError(
                f"delivery.auto_renew_seconds_max: {self.auto_renew_seconds_max} is not above 0 and at most a day"
            )
        if not 1 <= self.receive_count_max <= 1024:
            raise ConfigError(f"delivery.receive_count_max: {self.receive_count_max} is outside 1..1024")
        for name in ("poll_seconds_max", "poll_reserve_seconds", "client_gone_seconds", "client_return_seconds"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"delivery.{name}: {getattr(self, name)} is below 0")
        for name in (
            "receive_bytes_max",
            *("waiting_per_line_max", "waiting_max", "in_flight_per_group_max", "fifo_waiting_max"),
            *("priority_waiting_max", "lite_subscriptions_max", "snapshot_event_count"),
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"delivery.{name}: {getattr(self, name)} is less than 1")
