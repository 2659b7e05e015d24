"""The console of `aerobee serve --console`: a process that is started again when it dies, and ends with the broker."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Final

from aerobee_broker.backoff import Backoff

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 1.0
"""Before a console that died is started again; twice as long each time, up to _AGAIN_SECONDS_MAX."""
_AGAIN_SECONDS_MAX: Final = 60.0
_STEADY_SECONDS: Final = 60.0
"""A console that ran so long is started again after _AGAIN_SECONDS."""
_END_SECONDS: Final = 5.0


async def keep_console(arguments: Sequence[str]) -> None:
    """Run `aerobee console` with these arguments until cancelled. The broker does not depend on it."""
    backoff = Backoff(_AGAIN_SECONDS, _AGAIN_SECONDS_MAX, steady_seconds=_STEADY_SECONDS)
    while True:
        backoff.begin()
        code = await _run(arguments)
        delay = backoff.failed()
        _log.error("the console ended code=%d; it is started again in %g s", code, delay)
        await asyncio.sleep(delay)


async def _run(arguments: Sequence[str]) -> int:
    """Its exit code. It ends when this process does, because its input ends then."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aerobee_broker", "console", "--until-input-ends"),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        return await process.wait()
    finally:
        process.stdin.close()
        if process.returncode is None:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
