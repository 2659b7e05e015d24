"""A pytest plugin: after a run, one line for each reason why tests were not run, with how to run them."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the reasons, the most frequent first."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if not reasons:
        return
    terminalreporter.section("not run")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:>5}  {' '.join(reason.split())}")
