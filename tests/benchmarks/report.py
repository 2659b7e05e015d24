"""The output of a benchmark: one table per subject, as plain text that can be copied into a document."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path


def machine() -> str:
    """The machine in one line."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}, Linux {platform.release()}"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, with right-aligned numbers."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(head[i]), *(len(row[i]) for row in cells)) for i in range(len(head))]
    print(f"\n{title}")
    print("  " + "  ".join(name.ljust(width) for name, width in zip(head, widths, strict=True)))
    for row in cells:
        print(
            "  "
            + "  ".join(
                cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
                for cell, width in zip(row, widths, strict=True)
            )
        )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"


def nanoseconds(seconds: float) -> str:
    return f"{seconds * 1e9:,.0f} ns"


def rate(count: float, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def mebibytes(size: float) -> str:
    """MiB, where 1 MiB is 2^20 bytes."""
    return f"{size / (1 << 20):,.0f} MiB"
