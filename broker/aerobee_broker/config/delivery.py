"""Settings of delivery: the section `delivery` of BrokerConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from aerobee_store.config import Hours, Positive, SecondsOrZero, Section
from aerobee_store.errors import ConfigError

InitialPosition = Literal["auto", "earliest", "latest"]
UpToADay = Annotated[float, Meta(gt=0, le=86_400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig(Section):
    """Durations in seconds."""

    section: ClassVar[str] = "delivery"

    initial_position: InitialPosition = "auto"
    """The start of a new group: auto is the beginning of a queue that still has its first message, otherwise the end
    (as RocketMQ's consumers expect); earliest and latest as named."""
    invisible_seconds_min: UpToADay = 1.0  # RocketMQ: 10; tests and short jobs need less, and nothing here needs more
    invisible_seconds_max: UpToADay = 12 * 3600.0
    auto_renew_seconds_max: UpToADay = 3 * 3600.0  # how long a living push consumer may process one message
    receive_count_max: Annotated[int, Meta(ge=1, le=1024)] = 32  # messages in one answer
    receive_bytes_max: Positive = 4 << 20  # bytes of their records, except the first, which may be larger
    long_polling: bool = True  # longPollingEnable: receives and pulls wait; false: for a second at most
    poll_seconds_max: SecondsOrZero = 30.0
    poll_reserve_seconds: SecondsOrZero = 0.2  # an answer must be sent this long before the deadline of its call
    waiting_per_group_max: Positive = 1024  # receives of one group that wait for one topic
    waiting_max: Positive = 100_000  # of all groups
    in_flight_per_group_max: Positive = 100_000
    fifo_waiting_max: Positive = 10_000
    """Messages of one queue that a FIFO group keeps in memory while others of their message groups are in flight, at
    about 250 bytes each. Further ones take 8 bytes each."""
    priority_waiting_max: Positive = 4_096
    """Messages of one queue of a priority topic that are compared: the highest priority among this many of the
    oldest waiting messages is delivered first. Later messages are read as these are delivered. About 250 bytes of
    memory each."""
    lite_subscriptions_max: Positive = 1200  # lite topics that one client may subscribe to
    client_gone_seconds: SecondsOrZero = 1.0  # delay before messages of a terminated client become visible
    client_return_seconds: SecondsOrZero = 30.0  # time for clients to reconnect after a restart of the broker
    # enableCalcFilterBitMap: mark in new queue units which SQL subscriptions match; needs store.queue_extensions
    filter_bitmaps: bool = False
    # expectConsumerNumUseFilter: groups with an SQL subscription to one topic; further ones get no marks
    filter_bitmap_groups: Annotated[int, Meta(ge=1, le=1024)] = 32
    # maxErrorRateOfBloomFilter: percent of the messages without a match that are read nevertheless
    filter_bitmap_error_percent: Annotated[int, Meta(ge=1, le=99)] = 20
    filter_keep_hours: Hours = 24.0  # filterDataCleanTimeSpan: an unused subscription is then forgotten
    snapshot_event_count: Positive = 50_000  # journal events between snapshots: the limit of a replay at start

    def receive_count(self, asked: int) -> int:
        """How many messages a receive or a pull that asks for so many gets at most."""
        return max(1, min(asked, self.receive_count_max))

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.invisible_seconds_min > self.invisible_seconds_max:
            raise ConfigError(
                f"delivery.invisible_seconds_min: {self.invisible_seconds_min} is above "
                f"delivery.invisible_seconds_max, {self.invisible_seconds_max}"
            )
