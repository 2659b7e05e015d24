"""A pytest plugin that prints the table of the checklist at the end of a run.

It is not in this folder's conftest.py: with several workers, as in `make test`, only the workers read that file, while
the controlling process prints the table.
"""

from __future__ import annotations

import re

import pytest

from tests.conformance.items import COUNT, COVERED_ELSEWHERE, SECTIONS, TITLES

_NUMBER = re.compile(r"::test_(\d{3})_")


def item_number(nodeid: str) -> int | None:
    """The number of a test's item."""
    match = _NUMBER.search(nodeid)
    return int(match[1]) if match else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each item's state, if the whole checklist was run."""
    outcomes: dict[int, set[str]] = {}
    elsewhere: dict[str, set[str]] = {}
    reasons: dict[int, str] = {}
    skipped: dict[str, str] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            number = item_number(report.nodeid) if report.nodeid.startswith("tests/conformance/") else None
            if number is not None:
                outcomes.setdefault(number, set()).add("failed" if outcome == "error" else outcome)
                if outcome == "skipped" and isinstance(report.longrepr, tuple):
                    reasons[number] = report.longrepr[2].removeprefix("Skipped: ")
            else:
                nodeid = report.nodeid.partition("[")[0]
                elsewhere.setdefault(nodeid, set()).add("failed" if outcome == "error" else outcome)
                if outcome == "skipped" and isinstance(report.longrepr, tuple):
                    skipped[nodeid] = report.longrepr[2].removeprefix("Skipped: ")
    if len(outcomes) < COUNT // 2:
        return
    states: dict[int, str] = {}
    for number in range(1, COUNT + 1):
        found = outcomes.get(number, set())
        for nodeid in COVERED_ELSEWHERE.get(number, ()):
            found |= elsewhere.get(nodeid, set())
            if nodeid in skipped:
                reasons.setdefault(number, skipped[nodeid])
        if "failed" in found:
            states[number] = "failed"
        elif "passed" in found:
            states[number] = "passed"
        elif number in reasons:
            states[number] = "not applicable"
        else:
            states[number] = "not run"
    columns = ["passed", "failed", "not applicable"]
    if "not run" in states.values():
        columns.append("not run")
    write = terminalreporter.write_line
    terminalreporter.section("conformance")
    write(f"{'items':>9}  {'about':<36}" + "".join(f"{name:>16}" for name in columns))
    for first, last, about, _ in (*SECTIONS, (1, COUNT, "all", "")):
        counts = [sum(states[number] == name for number in range(first, last + 1)) for name in columns]
        write(f"{f'{first}-{last}':>9}  {about:<36}" + "".join(f"{count or '.':>16}" for count in counts))
    for name in ("failed", "not run"):
        for number in (number for number, state in states.items() if state == name):
            write(f"{name}: {number} {TITLES[number]}")
    by_reason: dict[str, list[int]] = {}
    for number, state in states.items():
        if state == "not applicable":
            by_reason.setdefault(reasons[number], []).append(number)
    for reason, numbers in by_reason.items():
        write(f"not applicable: {_ranges(numbers)}: {reason}")


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 5 as `1-3, 5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
