"""The settings of the section `limits`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aerobee_store.config import Positive, Seconds, Section
from aerobee_store.records import message_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig(Section):
    """Limits of requests and clients. The defaults are RocketMQ's."""

    section: ClassVar[str] = "limits"

    user_property_count_max: Positive = message_rules.USER_PROPERTY_COUNT_MAX
    # bytes: user properties, tag and keys of one message
    properties_size_max: Positive = message_rules.PROPERTIES_SIZE_MAX
    delay_seconds_max: Seconds = 40 * 86_400.0  # timerMaxDelaySec, there 3 days
    client_expiry_seconds: Seconds = 120.0  # a client that is silent for longer is removed
    # of all requests in progress; reading continues when some have been answered
    request_bytes_max: Positive = 64 << 20
    request_bytes_per_client_max: Positive = 32 << 20  # the same, per connection and per account
    answer_bytes_max: Positive = 64 << 20  # of messages read for receives and pulls but not yet sent
    answer_bytes_per_client_max: Positive = 32 << 20  # the same, per connection and per account
    # of all that waits on behalf of peers: requests and answers, and what has no bound of its own besides
    waiting_bytes_max: Positive = 128 << 20
    table_bytes_max: Positive = 64 << 20  # of topics, groups, their queues and positions: what clients create
