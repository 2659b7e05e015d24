"""Sizes, durations and counts as people read them, on the command line and in the console."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 queue`, `2 queues`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size_text(size: float) -> str:
    """Bytes with a unit."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span_text(milliseconds: int) -> str:
    """A duration in its two largest units."""
    seconds = max(milliseconds, 0) // 1000
    if seconds < 60:
        return f"{max(milliseconds, 0) / 1000:.3g} s"
    for unit, length, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("a minute or more has one of the units")
