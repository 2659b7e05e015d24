"""Import the broker and the SDK into one process: both contain code for the same .proto files.

`first` names the one to import first.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from pathlib import Path
from typing import Any

from tests.integration.sdk_python.conversation import options, say, told


def main() -> None:
    given = options()
    modules = ["aerobee_broker.server", "rocketmq"]
    for name in modules if given["first"] == "broker" else reversed(modules):
        importlib.import_module(name)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    serving = threading.Event()
    endpoint: list[str] = []

    def announce(listening: Any, metrics: Any) -> None:
        endpoint.append(str(listening.grpc))
        serving.set()

    def serve() -> None:
        from aerobee_broker import server
        from aerobee_broker.config import BrokerConfig

        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.run(BrokerConfig.tiny(Path(given["store"])), stop, announce))

    broker = threading.Thread(target=serve, name="broker")
    broker.start()
    try:
        if not serving.wait(30):
            raise SystemExit("the broker does not serve")
        say("ready", message=round_trip(endpoint[0]))
    finally:
        loop.call_soon_threadsafe(stop.set)
        broker.join()


def round_trip(endpoint: str) -> dict[str, Any]:
    from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

    configuration = ClientConfiguration(endpoint, Credentials())
    producer = Producer(configuration, ("home",))
    producer.startup()
    message = Message()
    message.topic, message.body, message.tag = "home", b"from next door", "t"
    producer.send(message)
    consumer = SimpleConsumer(configuration, "family", {"home": FilterExpression("t")}, await_duration=10)
    consumer.startup()
    (received,) = consumer.receive(1, 30)
    consumer.ack(received)
    consumer.shutdown()
    producer.shutdown()
    return told(received)


if __name__ == "__main__":
    main()
