"""The end of a run of the tests says what was not run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support import not_run


def test_one_line_has_the_reasons_and_the_most_frequent_first() -> None:
    """A run of all tests prints nothing."""
    lines: list[str] = []
    reasons = ["run by `make test-spark`", "runs with\n  `make test-sdks`", "runs with `make test-sdks`"]
    skipped = [SimpleNamespace(longrepr=("test_a.py", 1, f"Skipped: {reason}")) for reason in reasons]
    reporter: Any = SimpleNamespace(stats={"skipped": skipped}, write_line=lines.append)
    not_run.pytest_terminal_summary(reporter)
    assert lines == ["3 tests were not run: 2 runs with `make test-sdks`; 1 run by `make test-spark`"]
    reporter.stats = {}
    not_run.pytest_terminal_summary(reporter)
    assert len(lines) == 1
