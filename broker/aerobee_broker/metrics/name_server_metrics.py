"""The metrics of `aerobee namesrv`, and its port for them."""

from __future__ import annotations

from aerobee_broker.config import Address
from aerobee_broker.counters.families import GaugeFamily, Pieces
from aerobee_broker.errors import ListenError
from aerobee_broker.metrics.http_endpoint import HttpEndpoint
from aerobee_broker.metrics.page import Metrics
from aerobee_broker.metrics.process_metrics import LABELS, ProcessCollector
from aerobee_broker.namesrv.server import NameServerParts


class NameServerEndpoint:
    """Serves /metrics, /healthz and /readyz of a name server. Create it in the event loop's thread, with a name server
    that serves."""

    def __init__(self, address: Address, bound: Address, parts: NameServerParts) -> None:
        """`bound`: the address of the name server, which distinguishes its metrics."""
        base = ("", "namesrv", str(bound))
        metrics = Metrics(None)
        metrics.collectors += (
            _NameServerCollector(base, parts),
            ProcessCollector(base, parts.loop_delay, parts.ledger),
        )
        self._address = address
        self._endpoint = HttpEndpoint(address, metrics, self)

    def start(self) -> Address:
        """Bind and serve; returns the address with its port. Raises ListenError."""
        try:
            return self._endpoint.start()
        except OSError as error:
            raise ListenError("--metrics", self._address, error.strerror or str(error)) from None

    async def stop(self) -> None:
        await self._endpoint.stop()

    def unreadiness(self) -> str | None:
        """A name server that serves is ready."""
        return None

    def note(self) -> str:
        """It has no restrictions."""
        return ""


class _NameServerCollector:
    def __init__(self, base: tuple[str, str, str], parts: NameServerParts) -> None:
        self._base = base
        self._parts = parts

    def collect(self) -> Pieces:
        tables = self._parts.tables
        brokers = tables.brokers()
        for name, text, value in (
            ("aerobee_namesrv_brokers", "Brokers, by their names.", len(brokers)),
            ("aerobee_namesrv_addresses", "Addresses of brokers.", sum(len(each.addresses) for each in brokers)),
            ("aerobee_namesrv_topics", "Topics, those of each broker counted.", tables.all_topics_count),
            ("aerobee_namesrv_wiped", "Brokers whose write permission is taken away.", len(tables.wiped)),
            ("aerobee_namesrv_connections", "Connections of brokers and clients.", self._parts.connections()),
        ):
            gauge = GaugeFamily(name, text, labels=LABELS)
            gauge.add_metric(self._base, value)
            yield gauge
