"""The single event loop of the loads: gRPC's thread has problems with a second one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

_T = TypeVar("_T")
_runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run(load: Coroutine[Any, Any, _T]) -> _T:
    """Run a load to its end."""
    return _runner.run(load)
