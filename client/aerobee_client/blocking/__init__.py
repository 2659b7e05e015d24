"""The client for programs without an event loop: the same calls, which return when they are done.

    from aerobee_client import Message, blocking

    with blocking.connect("127.0.0.1:8081") as client:
        client.producer().send(Message(topic="orders", body=b"hello"))
        with client.simple_consumer("billing", "orders") as consumer:
            for message in consumer:
                print(message.body)

One thread runs an event loop for a client. All objects may be used by several threads at once. The attribute
`asynchronous` of each is the object behind it. What has no method here is available as a coroutine:
`client.run(client.asynchronous.records.append("orders", 0, records))`.
"""

from aerobee_client.blocking.client import BlockingClient, connect
from aerobee_client.blocking.faces import (
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingSimpleConsumer,
)
from aerobee_client.blocking.wrappers import BlockingAdmin

__all__ = [
    "BlockingAdmin",
    "BlockingClient",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingPushConsumer",
    "BlockingSimpleConsumer",
    "connect",
]
