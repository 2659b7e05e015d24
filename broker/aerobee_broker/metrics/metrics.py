"""What /metrics shows: which parts of the broker it reads, and the text.

The text is made by `exposition.py`, which is imported with the first scrape: a broker that nobody watches does not pay
for the Prometheus client.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerobee_broker.byte_budget import ByteBudget
from aerobee_broker.clients.clients import ClientRegistry
from aerobee_broker.config import BrokerConfig
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.metrics.counters import BrokerCounters
from aerobee_broker.metrics.loop_delay import LoopDelay
from aerobee_broker.tables.tables import Tables
from aerobee_broker.timer.timer import Timer
from aerobee_broker.transactions.transactions import Transactions
from aerobee_store import MessageStore
from aerobee_store.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aerobee_broker.metrics.exposition import Collector, Exposition


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """The parts of a broker that has recovered."""

    store: MessageStore
    tables: Tables
    clients: ClientRegistry
    deliveries: Deliveries
    transactions: Transactions
    timer: Timer
    counters: BrokerCounters
    loop_delay: LoopDelay
    requests: ByteBudget
    answers: ByteBudget
    clock: Clock


class Metrics:
    """The text of /metrics. Before `attach` it is of the process alone: the store may still recover."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._sources: MetricSources | None = None
        self.collectors: list[Collector] = []
        """Of parts that only some brokers have; shown after the process, while they are here."""
        self._attached = False
        self._exposition: Exposition | None = None
        self._loading = asyncio.Lock()

    def attach(self, sources: MetricSources) -> None:
        """Show the broker from now on."""
        self._sources = sources

    async def render(self) -> list[bytes]:
        """The text, made in steps between which other tasks run; see `Exposition.render`."""
        async with self._loading:
            exposition = self._exposition
            if exposition is None:
                exposition = self._exposition = await asyncio.to_thread(_new_exposition, self._config, self.collectors)
            if self._sources is not None and not self._attached:
                self._attached = True
                exposition.attach(self._sources)
        return await exposition.render()


def _new_exposition(config: BrokerConfig, collectors: Sequence[Collector]) -> Exposition:
    """Takes a while the first time."""
    from aerobee_broker.metrics.exposition import Exposition

    return Exposition(config, collectors)
