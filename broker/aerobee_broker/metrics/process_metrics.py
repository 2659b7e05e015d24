"""The metrics of the event loop and of the ledger, which brokers and name servers have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aerobee_broker.counters.families import CounterFamily, GaugeFamily, HistogramFamily, Pieces
from aerobee_broker.counters.loop_delay import LoopDelay
from aerobee_broker.limits.ledger import Ledger
from aerobee_store.stats import Histogram

LABELS: Final = ("cluster", "node_type", "node_id")


class ProcessCollector:
    """Shows how long steps of the loop are, and what waits in memory on behalf of clients."""

    def __init__(self, base: Sequence[str], loop_delay: LoopDelay, ledger: Ledger) -> None:
        """`base`: the values of LABELS."""
        self._base = tuple(base)
        self._loop_delay = loop_delay
        self._ledger = ledger

    def collect(self) -> Pieces:
        yield from self._event_loop()
        yield from self._waiting()

    def _event_loop(self) -> Pieces:
        delay = HistogramFamily(
            "aerobee_event_loop_delay_seconds", "How late a timer of the event loop fires.", labels=LABELS
        )
        add_histogram(delay, self._base, self._loop_delay.seconds)
        yield delay
        slow = CounterFamily(
            "aerobee_event_loop_slow_steps", "Steps of the event loop longer than 0.1 s.", labels=LABELS
        )
        slow.add_metric(self._base, self._loop_delay.slow_steps)
        yield slow
        busy = GaugeFamily(
            "aerobee_event_loop_busy_seconds_max",
            "Most processor time that the event loop used between two firings of its timer, which are 0.05 s apart.",
            labels=LABELS,
        )
        busy.add_metric(self._base, self._loop_delay.busy_seconds_max)
        yield busy

    def _waiting(self) -> Pieces:
        ledger = self._ledger
        waiting = GaugeFamily(
            "aerobee_waiting_bytes", "Memory that waits on behalf of clients, by kind.", labels=(*LABELS, "of")
        )
        for kind, size in ledger.sizes().items():
            waiting.add_metric((*self._base, kind), size)
        yield waiting
        dropped = CounterFamily(
            "aerobee_peers_dropped", "Connections that were closed because clients held too much.", labels=LABELS
        )
        dropped.add_metric(self._base, ledger.dropped)
        yield dropped
        refused = CounterFamily(
            "aerobee_byte_refusals", "Calls refused after waiting for memory.", labels=(*LABELS, "of")
        )
        refused.add_metric((*self._base, "requests"), ledger.requests.refused)
        refused.add_metric((*self._base, "answers"), ledger.answers.refused)
        yield refused


def add_histogram(family: HistogramFamily, labels: Sequence[str], histogram: Histogram, *, divisor: int = 1) -> None:
    """`divisor`: the number of histogram units per unit of the family."""
    bounds = histogram.bounds if divisor == 1 else [bound / divisor for bound in histogram.bounds]
    family.add_histogram(labels, bounds, histogram.counts, histogram.sum / divisor)
