"""The event loop's delay is always measured, and a warning names the code that blocked it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.counters import loop_delay
from aerobee_broker.counters.loop_delay import LoopDelay
from aerobee_broker.processors.route import RouteProcessor
from aerobee_proto import v2
from tests.support.in_process_broker import METADATA, in_process_broker


async def test_a_long_step_is_measured_and_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a step of half a second the histogram has it, and the warning names the module."""

    module = {"__name__": "aerobee_broker.processors.slow", "time": time}
    exec("def dawdle(seconds): time.sleep(seconds)", module)  # stands for a module of the broker
    monkeypatch.setattr(loop_delay, "_QUIET_SECONDS", 0.0)  # a warning may have been logged just before
    delay = LoopDelay()
    running = asyncio.create_task(delay.run())
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(60):
            while "aerobee_broker.processors.slow" not in caplog.text:  # the watching thread may be delayed, too
                before = delay.slow_steps
                await asyncio.sleep(0.01)
                module["dawdle"](0.5)  # type: ignore[operator]
                while delay.slow_steps == before:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert delay.seconds.sum >= 0.4
    assert "aerobee_broker.processors.slow" in caplog.text
    figures = r" milliseconds=(\d+) processor_milliseconds=(\d+) by=aerobee_broker.processors.slow"
    found = re.search(figures, caplog.text)
    assert found, caplog.text
    late, busy = map(int, found.groups())
    assert late >= 400
    assert busy < 300, "the step slept, and used hardly any processor time"


async def test_the_processor_time_of_a_step_is_measured() -> None:
    """Unlike the delay, the processor time does not grow while the thread sleeps."""
    delay = LoopDelay()
    running = asyncio.create_task(delay.run())
    async with asyncio.timeout(60):
        while not delay.seconds.count:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        time.sleep(0.5)  # noqa: ASYNC251  # blocks the loop on purpose
        beats = delay.seconds.count
        while delay.seconds.count == beats:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert delay.busy_seconds_max < 0.3
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
        while delay.busy_seconds_max < 0.3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_the_warning_names_the_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning names the call that blocked the loop."""

    async def dawdle(self: RouteProcessor, request: Any, client: Any) -> v2.QueryRouteResponse:
        time.sleep(0.5)  # noqa: ASYNC251  # blocks the loop on purpose
        return v2.QueryRouteResponse(status=v2.Status(code=v2.Code.OK))

    monkeypatch.setattr(RouteProcessor, "query_route", dawdle)
    monkeypatch.setattr(loop_delay, "_QUIET_SECONDS", 0.0)  # a warning may have been logged during a slow start
    with caplog.at_level(logging.WARNING):
        async with in_process_broker(tmp_path) as broker:
            async with asyncio.timeout(60):
                while "call=QueryRoute" not in caplog.text:  # the watching thread may be delayed, too
                    await broker.messaging.QueryRoute(v2.QueryRouteRequest(), metadata=METADATA, timeout=60)
                    await asyncio.sleep(0.12)
