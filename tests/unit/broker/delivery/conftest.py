"""Deliveries on a real store, without gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_store.testing import ManualClock
from tests.support.delivery_harness import Harness, Start


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts harnesses with one clock, and stops them at the end, in whatever run they are then."""
    clock = ManualClock()
    harnesses: list[Harness] = []

    async def start_harness(**settings: Any) -> Harness:
        harnesses.append(await Harness.start(tmp_path / f"store{len(harnesses)}", clock, **settings))
        return harnesses[-1]

    yield start_harness
    for harness in harnesses:
        await harness.stop()


@pytest.fixture
async def harness(start: Start) -> Harness:
    return await start()
