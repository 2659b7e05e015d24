"""Receives, acknowledges and extends messages on command; identifies messages by their bodies."""

from __future__ import annotations

import time
from typing import Any

from rocketmq import SimpleConsumer

from tests.integration.sdk_python.conversation import configuration, obey, options, say, subscription, told


def main() -> None:
    given = options()
    consumer = SimpleConsumer(
        configuration(given),
        given["group"],
        subscription(given),
        await_duration=given.get("await", 2),
        tls_enable=given.get("tls", False),
    )
    consumer.startup()
    say("ready")
    held: dict[str, Any] = {}

    def receive(count: int, invisible: int) -> dict[str, Any]:
        messages = consumer.receive(count, invisible)
        held.update({message.body.decode(): message for message in messages})
        return {"time": time.time(), "messages": [told(message) for message in messages]}

    def receive_later(count: int, invisible: int) -> dict[str, Any]:
        consumer.receive_async(count, invisible)
        return {}

    def acknowledge(bodies: list[str]) -> dict[str, Any]:
        for body in bodies:
            consumer.ack(held[body])
        return {}

    def change(body: str, invisible: int) -> dict[str, Any]:
        consumer.change_invisible_duration(held[body], invisible)
        return {"time": time.time()}

    def shutdown() -> dict[str, Any]:
        started = time.monotonic()
        consumer.shutdown()
        return {"seconds": time.monotonic() - started}

    obey(
        {
            "receive": receive,
            "receive_later": receive_later,
            "acknowledge": acknowledge,
            "change": change,
            "shutdown": shutdown,
        }
    )
    consumer.shutdown()


if __name__ == "__main__":
    main()
