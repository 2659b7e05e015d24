"""What a client does again and again: steps at intervals, and pauses after failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from aerobee_client.errors import ClientError

_log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
"""After a receive or a read that failed."""


async def every(
    seconds: float, step: Callable[[], Awaitable[None]], failed: str = "", level: int = logging.WARNING
) -> NoReturn:
    """Pause, and then call `step`, until cancelled. A ClientError of it is logged after the text `failed`."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await step()
        except ClientError as error:
            _log.log(level, "%s error=%s", failed, error)
