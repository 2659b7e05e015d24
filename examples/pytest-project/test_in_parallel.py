"""Tests that share one broker: each has a namespace of its own, so all of them may use the same names."""

from __future__ import annotations

import pytest

from aerobee_client import Message, blocking
from aerobee_client.testing import Namespace


@pytest.mark.parametrize("number", range(5))
async def test_topics_are_ones_own(aerobee: Namespace, number: int) -> None:
    """What the other tests sent to "orders" is not there."""
    aerobee.create_topic("orders", "fifo", queue_count=1)
    aerobee.create_group("billing", fifo=True)
    async with aerobee.connect() as client:
        await client.producer().send(Message(topic="orders", body=b"%d" % number, message_group="g"))
        (message,) = await client.simple_consumer("billing", "orders").receive()
        assert message.body == b"%d" % number


def test_without_an_event_loop(aerobee: Namespace) -> None:
    """The blocking face of the client, for programs that know nothing of asyncio."""
    with blocking.connect(aerobee.endpoint, namespace=aerobee.name) as client:
        client.producer().send(Message(topic="orders", body=b"hello"))
        with client.simple_consumer("billing", "orders") as consumer:
            (message,) = consumer.receive()
            consumer.ack(message)
        assert message.body == b"hello"
