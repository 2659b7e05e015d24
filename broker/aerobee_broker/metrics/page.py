"""The text of /metrics, and the parts of the broker that it reads.

`exposition.py` makes the text and is imported by the first scrape: a broker without scrapes does not load the
Prometheus client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aerobee_broker.config import BrokerConfig
from aerobee_broker.parts import BrokerParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aerobee_broker.metrics.exposition import Collector, Exposition


class Metrics:
    """The text of /metrics. Before `attach` only of the process, because the store may still be recovering."""

    def __init__(self, config: BrokerConfig | None) -> None:
        """`config`: of a broker, which `attach` shows."""
        self._config = config
        self._parts: BrokerParts | None = None
        self.collectors: list[Collector] = []
        """Optional parts of a broker; shown after the process, while they exist."""
        self._attached: BrokerParts | None = None
        self._exposition: Exposition | None = None
        self._loading = asyncio.Lock()

    def attach(self, parts: BrokerParts) -> None:
        """Also show the broker from now on."""
        self._parts = parts

    def detach(self) -> None:
        """Stop showing the broker, which has ended; the process may continue as a replica."""
        self._parts = None

    async def render(self) -> list[bytes]:
        """The text, made in steps between which other tasks run; see `Exposition.render`."""
        async with self._loading:
            exposition = self._exposition
            if exposition is None:
                exposition = self._exposition = await asyncio.to_thread(_new_exposition, self._config, self.collectors)
            if self._parts is not self._attached:
                self._attached = self._parts
                exposition.attach(self._parts)
        return await exposition.render()


def _new_exposition(config: BrokerConfig | None, collectors: Sequence[Collector]) -> Exposition:
    """Takes a while the first time."""
    from aerobee_broker.metrics.exposition import Exposition

    return Exposition(config, collectors)
