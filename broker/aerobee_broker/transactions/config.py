"""How transactions are kept. Part of BrokerConfig, as the section `transactions`."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_store.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsConfig:
    """Durations in seconds, unless the name says hours. RocketMQ's name of a setting stands beside it."""

    timeout_seconds: float = 6.0
    """transactionTimeOut: until the producer is asked first, for messages that do not say it themselves."""
    check_interval_seconds: float = 30.0
    """transactionCheckInterval: and then again."""
    check_max: int = 15
    """transactionCheckMax: how often before the message is given up. What reached no producer does not count."""
    age_hours_max: float = 72.0
    """When a message is given up although nobody could be asked; RocketMQ's age of files, fileReservedTime."""
    pending_max: int = 50_000
    """Transactions that wait at one time, some 450 bytes of memory each; more are refused."""

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "check_interval_seconds", "age_hours_max"):
            if not 0 < getattr(self, name) <= 366 * 24 * 3600:
                raise ConfigError(f"transactions.{name}: {getattr(self, name)} is not above 0, or longer than a year")
        if not 1 <= self.check_max <= 1_000_000:
            raise ConfigError(f"transactions.check_max: {self.check_max} is outside 1..1000000")
        if not 1 <= self.pending_max <= 10_000_000:
            raise ConfigError(f"transactions.pending_max: {self.pending_max} is outside 1..10000000")
