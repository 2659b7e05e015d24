"""The program of this project against a real broker, with Aerobee's client."""

from __future__ import annotations

import asyncio

from orders import DAY_SECONDS, invoicing, pay, place_order

from aerobee_client.testing import BrokerProcess


async def test_a_reminder_comes_after_a_day(aerobee_broker: BrokerProcess) -> None:
    """A day passes in a moment; the customer who paid is left in peace."""
    async with aerobee_broker.connect() as client:
        await place_order(client, "4711", now_ms=aerobee_broker.now_ms())
        await pay(client, await place_order(client, "4712", now_ms=aerobee_broker.now_ms()))
        reminders = client.simple_consumer("mail", "reminders")
        aerobee_broker.advance(DAY_SECONDS - 60)
        assert await reminders.receive(wait_seconds=0) == []
        aerobee_broker.advance(120)
        (reminder,) = await reminders.receive()
        assert reminder.body == b"4711"


async def test_a_handler_that_fails_gets_the_order_again(aerobee_broker: BrokerProcess) -> None:
    """After the group's back-off, of which nobody has to wait for a second."""
    sent: list[str] = []
    async with aerobee_broker.connect() as client, invoicing(client, sent):
        await place_order(client, "unknown")
        async with asyncio.timeout(30):
            while not sent:
                await asyncio.sleep(0.05)
                aerobee_broker.advance(10)
    assert sent == ["unknown"]


async def test_no_order_is_lost_when_the_broker_crashes(aerobee_broker: BrokerProcess) -> None:
    """What was answered is there after `kill -9`; the program does not notice the restart."""
    async with aerobee_broker.connect() as client:
        await place_order(client, "4711")
        await asyncio.to_thread(aerobee_broker.kill)
        await asyncio.to_thread(aerobee_broker.start)
        await place_order(client, "4712")
        consumer = client.simple_consumer("stock", "orders")
        received: set[bytes] = set()
        async with asyncio.timeout(30):
            while len(received) < 2:
                received |= {message.body for message in await consumer.receive()}
        assert received == {b"4711", b"4712"}
