"""Counters of the front end, as plain numbers for the metrics."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field


class FrontCounters(Struct):
    """Totals of all connections since the start."""

    connections: int = 0  # open at present
    accepted: int = 0
    calls: int = 0  # open at present
    open_calls: int = 0  # of which the client waits for the answer, begun or not
    refused: Counter[str] = field(default_factory=Counter)
    """Calls and connections ended by a bound, by the bound's name."""
