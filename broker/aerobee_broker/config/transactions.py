"""Settings of transactions: the section `transactions` of BrokerConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from aerobee_store.config import Section

UpToAYear = Annotated[float, Meta(gt=0, le=366 * 24 * 3600)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsConfig(Section):
    """Durations in seconds, unless the name says hours. RocketMQ's name of each setting is beside it."""

    section: ClassVar[str] = "transactions"

    timeout_seconds: UpToAYear = 6.0
    """transactionTimeOut: delay of the first check, for messages that do not set it themselves."""
    check_interval_seconds: UpToAYear = 30.0
    """transactionCheckInterval: the interval of further checks."""
    check_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 15
    """transactionCheckMax: checks before the message is given up. Checks that reached no producer do not count."""
    age_hours_max: UpToAYear = 72.0
    """The age at which a message is given up even if no producer could be asked; RocketMQ's fileReservedTime."""
    pending_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 50_000
    """Undecided transactions at a time, at some 450 bytes of memory each; more are refused."""
