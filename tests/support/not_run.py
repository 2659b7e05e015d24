"""A pytest plugin: the end of a run says in one line what was not run, and how to run it."""

from __future__ import annotations

from collections import Counter

import pytest


@pytest.hookimpl(trylast=True)  # after the tables of the conformance list
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the reasons, the most frequent first."""
    reasons = Counter(
        " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        each = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"{reasons.total()} tests were not run: {each}")
