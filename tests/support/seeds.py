"""Seeds for tests with random choices, and a pytest plugin that prints the seed of a failed test.

Seeds are fixed, so `make test` tries the same cases on every machine. The long targets set AEROBEE_FRESH_SEEDS=1 and
explore: a case that fails there is added as a fixed example to the test that found it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Final

import pytest

FRESH: Final = os.environ.get("AEROBEE_FRESH_SEEDS", "0") not in ("", "0")
_FIXED: Final = 20_240_229


def seed(variable: str) -> int:
    """The seed in the environment variable; by default a new one in the long targets, and a fixed one elsewhere."""
    default = random.SystemRandom().randrange(1 << 32) if FRESH else _FIXED
    return int(os.environ.get(variable, default))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None] | pytest.TestReport:  # a generator, although the hook's type does not say so
    report: pytest.TestReport = yield  # type: ignore[misc,assignment]
    module = getattr(item, "module", None)
    seed = getattr(module, "SEED", None)
    if report.failed and module is not None and seed is not None:
        report.sections.append(("Seed", f"{module.__name__}.SEED = {seed}"))
    return report  # a wrapper must return it
