"""Families of metrics as text, in Prometheus' exposition format 0.0.4.

A broker with thousands of topics has hundreds of thousands of samples. So each becomes text at once, and no sample is
an object. A family has a maximum of samples; those beyond it are counted and left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

SAMPLES_MAX: Final = 100_000  # samples of a family: histograms of some 7,000 topics
_CHUNK_LINES: Final = 512  # pieces joined at a time
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Family:
    """One family. `left_out` counts the samples that are not shown."""

    kind = "gauge"
    suffix = ""

    __slots__ = ("_chunks", "_labels", "_left", "_lines", "left_out", "name")

    def __init__(self, name: str, documentation: str, *, labels: Sequence[str]) -> None:
        self.name = name
        self.left_out = 0
        self._labels = labels
        self._left = SAMPLES_MAX
        shown = name + self.suffix
        self._chunks: list[bytes] = []
        self._lines = [f"# HELP {shown} {documentation}\n# TYPE {shown} {self.kind}\n"]

    def add_metric(self, values: Sequence[str], value: float) -> None:
        """Add a sample. `values` are the label values, in order."""
        if self._takes(1):
            self._lines.append(f"{self.name}{self.suffix}{{{self._label_text(values)}}} {_number(value)}\n")

    def chunks(self) -> Iterator[bytes]:
        """The text, in pieces. Nothing may be added afterwards."""
        self._join()
        yield from self._chunks

    def _takes(self, count: int) -> bool:
        """Whether this many more samples are shown: a series is shown completely or not at all."""
        if self.left_out or count > self._left:
            self.left_out += count
            return False
        self._left -= count
        if len(self._lines) >= _CHUNK_LINES:
            self._join()
        return True

    def _join(self) -> None:
        self._chunks.append("".join(self._lines).encode())
        self._lines = []

    def _label_text(self, values: Sequence[str]) -> str:
        text = ",".join([f'{name}="{value}"' for name, value in zip(self._labels, values, strict=True)])
        if "\\" in text or "\n" in text or text.count('"') != 2 * len(values):
            pairs = zip(self._labels, values, strict=True)
            return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs])
        return text


Pieces = Iterator[Family | None]
"""Families made one after the other; None where other tasks may run."""


class GaugeFamily(Family):
    """Values that rise and fall."""

    __slots__ = ()


class CounterFamily(Family):
    """Values that only rise; their samples end in `_total`."""

    kind = "counter"
    suffix = "_total"
    __slots__ = ()


class HistogramFamily(Family):
    """Distributions."""

    kind = "histogram"
    __slots__ = ()

    def add_histogram(self, values: Sequence[str], bounds: Sequence[float], counts: Sequence[int], sum_: float) -> None:
        """`counts` has one more item than `bounds`, for values above the last bound; not cumulative."""
        if not self._takes(len(counts) + 2):
            return
        labels, name = self._label_text(values), self.name
        begin = f'{name}_bucket{{{labels},le="'
        lines = []
        total = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            total += count
            lines.append(f'{begin}{_number(bound)}"}} {total}.0\n')
        lines.append(f"{name}_count{{{labels}}} {total}.0\n{name}_sum{{{labels}}} {_number(sum_)}\n")
        self._lines.append("".join(lines))


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value == math.inf else repr(float(value))
