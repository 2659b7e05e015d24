"""Figures over time as charts, for the pages that have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal

from markupsafe import Markup

from aerobee_broker.console.drawing.charts import Line, chart, sparkline
from aerobee_broker.console.forms import Fields
from aerobee_proto import admin_v1

SPANS: Final = (("10m", "10 minutes"), ("24h", "24 hours"))
"""What `span` in an address may be."""


def step_of(query: Fields) -> Literal["second", "minute"]:
    """The step of the history that an address asks for."""
    return "minute" if query.text("span") == "24h" else "second"


class Figures:
    """The history of the broker, a topic or a group."""

    def __init__(self, history: admin_v1.GetHistoryResponse) -> None:
        self.times = list(history.times)
        self._series = {series.name: list(series.values) for series in history.series}

    def values(self, name: str) -> list[float]:
        """One figure over time, oldest first; NaN where nothing is known. Empty for a figure that is not recorded."""
        return self._series.get(name, [])

    def now(self, name: str) -> float | None:
        """The newest value that is known."""
        return next((value for value in reversed(self.values(name)) if not math.isnan(value)), None)

    def small(self, name: str, label: str, kind: str = "plain") -> Markup:
        """A line without axes."""
        return sparkline(self.values(name), label, kind)

    def chart(self, title: str, text: Callable[[float], str], *lines: tuple[str, str, str]) -> Markup:
        """A chart of figures: the name, label and kind of each. `text` writes a value."""
        drawn = [Line(label, self.values(name), kind) for name, label, kind in lines]
        return chart(title, self.times, drawn, text, of_bytes="bytes" in lines[0][0])
