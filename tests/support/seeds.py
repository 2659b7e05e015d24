"""A pytest plugin: the failure of a test with random choices says which seed repeats them, wherever the test ran."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None] | pytest.TestReport:  # a generator, which the hook's type does not say
    report: pytest.TestReport = yield  # type: ignore[misc,assignment]
    module = getattr(item, "module", None)
    seed = getattr(module, "SEED", None)
    if report.failed and module is not None and seed is not None:
        report.sections.append(("Seed", f"{module.__name__}.SEED = {seed}"))
    return report  # how a wrapper hands it on
