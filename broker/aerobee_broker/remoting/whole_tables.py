"""Whole tables as the bodies of answers. They may have any size, and take longer than a step of the event loop may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aerobee_store.tables import java_json


async def written(one: asyncio.Lock, take: Callable[[], Callable[[], object]]) -> bytes:
    """The JSON of a whole table, made in another thread; with the same lock one at a time.

    `take` is called when its turn has come, and what it returns in that thread.
    """
    async with one:
        content = take()
        return await asyncio.to_thread(lambda: java_json.dumps(content(), pretty=False))
