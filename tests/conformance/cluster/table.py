"""A pytest plugin that prints the table of the cluster protocols' checklist at the end of a run."""

from __future__ import annotations

import re

import pytest

from tests.conformance.cluster.items import COUNT, COVERED_ELSEWHERE, LEFT_OUT, OPEN, SECTIONS, TITLES

_NUMBER = re.compile(r"::test_c(\d{3})_")


def item_number(nodeid: str) -> int | None:
    """The number of a test's item."""
    match = _NUMBER.search(nodeid)
    return int(match[1]) if match else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each item's state, if the whole checklist was run."""
    outcomes: dict[int, set[str]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            number = item_number(report.nodeid)
            if number is not None:
                outcomes.setdefault(number, set()).add("failed" if outcome == "error" else outcome)
    if len(outcomes) < (COUNT - len(OPEN) - len(LEFT_OUT) - len(COVERED_ELSEWHERE)) // 2:
        return
    states = {number: _state(number, outcomes.get(number, set())) for number in TITLES}
    columns = ("passed", "failed", "elsewhere", "left out", "open", "not run")
    write = terminalreporter.write_line
    terminalreporter.section("conformance: cluster protocols")
    write(f"{'items':>9}  {'about':<36}" + "".join(f"{name:>12}" for name in columns))
    for first, last, about in (*SECTIONS, (1, COUNT, "all")):
        counts = [sum(states[number] == name for number in range(first, last + 1)) for name in columns]
        write(f"{f'{first}-{last}':>9}  {about:<36}" + "".join(f"{count or '.':>12}" for count in counts))
    for number, state in states.items():
        where = LEFT_OUT.get(number) or ", ".join(COVERED_ELSEWHERE.get(number, ()))
        write(f"{number:>9}  {state:<10} {TITLES[number]}" + (f": {where}" if where else ""))
    for name in ("failed", "not run", "open"):
        found = [f"{number} {TITLES[number]}" for number, state in states.items() if state == name]
        if found:
            write(f"{name}: {'; '.join(found)}")


def _state(number: int, outcomes: set[str]) -> str:
    if "failed" in outcomes:
        return "failed"
    if "passed" in outcomes:
        return "passed"
    if number in COVERED_ELSEWHERE:
        return "elsewhere"
    if number in LEFT_OUT:
        return "left out"
    return "open" if number in OPEN else "not run"
