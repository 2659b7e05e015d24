"""Consumes flights in several threads, and reports each delivery and each acknowledgement."""

from __future__ import annotations

import threading
import time

from examples.flights import data
from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

from tests.integration.sdk_python.conversation import obey, options, say

_THREADS = 4
_INVISIBLE_SECONDS = 4
_BATCH_COUNT = 16


def main() -> None:
    given = options()
    configuration = ClientConfiguration(given["endpoint"], Credentials())
    subscription = {data.TOPIC: FilterExpression()}
    consumer = SimpleConsumer(configuration, given["group"], subscription, await_duration=1)
    consumer.startup()
    say("ready")
    ended = threading.Event()

    def consume() -> None:
        while not ended.is_set():
            try:
                for message in consumer.receive(_BATCH_COUNT, _INVISIBLE_SECONDS):
                    body = message.body.decode()
                    say("received", message_id=message.message_id, body=body, attempt=message.delivery_attempt)
                    consumer.ack(message)
                    say("acknowledged", message_id=message.message_id)
            except Exception as error:  # the SDK raises nothing narrower when the broker is unreachable
                say("failed", error=str(error))
                time.sleep(0.1)

    threads = [threading.Thread(target=consume) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    obey({})
    ended.set()
    for thread in threads:
        thread.join()
    consumer.shutdown()


if __name__ == "__main__":
    main()
