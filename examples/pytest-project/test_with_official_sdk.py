"""The official Python SDK on the same broker: nothing of it knows that this is a test."""

from __future__ import annotations

import pytest

from aerobee_client.testing import BrokerProcess

rocketmq = pytest.importorskip("rocketmq", reason="pip install rocketmq-python-client")


def test_send_and_receive(aerobee_session_broker: BrokerProcess) -> None:
    """An unmodified producer and consumer."""
    config = rocketmq.ClientConfiguration(aerobee_session_broker.endpoint, rocketmq.Credentials())
    producer = rocketmq.Producer(config, ("official",))
    producer.startup()
    consumer = rocketmq.SimpleConsumer(config, "billing", {"official": rocketmq.FilterExpression()}, 5)
    try:
        message = rocketmq.Message()
        message.topic, message.body = "official", b"hello"
        sent = producer.send(message)
        consumer.startup()
        received = consumer.receive(16, 30)
        assert [each.message_id for each in received] == [sent.message_id]
        for each in received:
            consumer.ack(each)
    finally:
        consumer.shutdown()
        producer.shutdown()
