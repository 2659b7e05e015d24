"""How long a push consumer keeps messages while it lives, and after it has gone."""

from __future__ import annotations

from tests.support.delivery_harness import Start


async def test_a_push_consumer_keeps_messages_as_long_as_the_settings_say(start: Start) -> None:
    """`auto_renew_seconds_max` while it lives, `client_gone_seconds` once it is gone."""
    harness = await start(auto_renew_seconds_max=100.0, client_gone_seconds=7.0)

    async def taken_by(client_id: str) -> list[int]:
        return [message.attempt for message in await harness.receive(seconds=None, client_id=client_id)]

    await harness.send("one")
    assert await taken_by("living") == [1]
    await harness.advance(99)
    assert await taken_by("other") == []
    await harness.advance(2)
    assert await taken_by("other") == [2]
    harness.deliveries.client_gone("other")
    await harness.advance(6)
    assert await taken_by("living") == []
    await harness.advance(2)
    assert await taken_by("living") == [3]
