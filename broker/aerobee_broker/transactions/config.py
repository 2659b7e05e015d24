"""How transactions are kept. Part of BrokerConfig, as the section `transactions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from aerobee_store.config import Section

UpToAYear = Annotated[float, Meta(gt=0, le=366 * 24 * 3600)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsConfig(Section):
    """Durations in seconds, unless the name says hours. RocketMQ's name of a setting stands beside it."""

    section: ClassVar[str] = "transactions"

    timeout_seconds: UpToAYear = 6.0
    """transactionTimeOut: until the producer is asked first, for messages that do not say it themselves."""
    check_interval_seconds: UpToAYear = 30.0
    """transactionCheckInterval: and then again."""
    check_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 15
    """transactionCheckMax: how often before the message is given up. What reached no producer does not count."""
    age_hours_max: UpToAYear = 72.0
    """When a message is given up although nobody could be asked; RocketMQ's age of files, fileReservedTime."""
    pending_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 50_000
    """Transactions that wait at one time, some 450 bytes of memory each; more are refused."""
