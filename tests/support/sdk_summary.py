"""A pytest plugin for `make test-sdks`: a final line per SDK with what was run, or why it was not."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Record the SDK in the test's reports, which may come from another process."""
    marker = item.get_closest_marker("sdk")
    if marker is not None:
        item.user_properties.append(("sdk", str(marker.args[0])))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    outcomes: dict[str, Counter[str]] = {}
    reasons: dict[str, set[str]] = {}
    for category in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(category, []):
            for name in (str(value) for key, value in report.user_properties if key == "sdk"):
                outcomes.setdefault(name, Counter())[report.outcome] += 1
                if report.skipped and isinstance(report.longrepr, tuple):
                    reasons.setdefault(name, set()).add(report.longrepr[2].removeprefix("Skipped: "))
    terminalreporter.section("official SDKs")
    for name, counted in sorted(outcomes.items()):
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counted.items()))
        why = f": {'; '.join(sorted(reasons[name]))}" if name in reasons else ""
        left_out = "left out, " if set(counted) == {"skipped"} else ""
        terminalreporter.write_line(f"{name:<20} {left_out}{counts}{why}")
