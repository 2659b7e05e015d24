"""A pytest plugin for `make test-sdks`: at the end, one line for each SDK that says what was run, or why it was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

_outcomes: dict[str, Counter[str]] = {}
_reasons: dict[str, set[str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None] | pytest.TestReport:  # a generator, which the hook's type does not say
    report: pytest.TestReport = yield  # type: ignore[misc,assignment]
    marker = item.get_closest_marker("sdk")
    if marker is not None and (report.when == "call" or not report.passed):
        name = str(marker.args[0])
        _outcomes.setdefault(name, Counter())[report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            _reasons.setdefault(name, set()).add(report.longrepr[2].removeprefix("Skipped: "))
    return report  # how a wrapper hands it on


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("official SDKs")
    for name, outcomes in sorted(_outcomes.items()):
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        why = f": {'; '.join(sorted(_reasons[name]))}" if name in _reasons else ""
        left_out = "left out, " if set(outcomes) == {"skipped"} else ""
        terminalreporter.write_line(f"{name:<20} {left_out}{counts}{why}")
