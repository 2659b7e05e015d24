"""Calls that walk through whole tables."""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee_broker.clients.registry import Client
from aerobee_broker.services.listings import Listings


async def test_one_listing_runs_at_a_time_also_after_one_that_was_cancelled() -> None:
    """Of both services, whose calls share an object."""
    running = most = 0

    async def listing(_request: Any, _client: Client) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.01)
        finally:
            running -= 1
        return b"done"

    listings = Listings()
    one, other = listings.in_order({"ListTopics": listing}), listings.in_order({"ListSubscription": listing})
    calls = [asyncio.ensure_future(each(None, Client(""))) for each in (*one.values(), *other.values()) * 3]
    await asyncio.sleep(0)
    calls[0].cancel()
    calls[1].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert answers.count(b"done") == 4
    assert most == 1
