"""Publishes flights in batches, retries failed sends, and reports each receipt: {"do": "publish", "count": 3000}."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from itertools import islice
from typing import Any

from examples.flights import data
from examples.flights.publish import message
from rocketmq import ClientConfiguration, Credentials, Producer, SendReceipt

from tests.integration.sdk_python.conversation import obey, options, say

_IN_FLIGHT_MAX = 32


def main() -> None:
    producer = Producer(ClientConfiguration(options()["endpoint"], Credentials()), (data.TOPIC,))
    producer.startup()
    say("ready")

    def publish(count: int) -> dict[str, Any]:
        flights = list(islice(data.flights(), count))
        failures = 0
        left = list(range(count))
        while left:
            left = send(producer, flights, left)
            failures += len(left)
            if left:
                time.sleep(0.2)  # an application also waits while the broker is unreachable
        return {"failures": failures}

    obey({"publish": publish})
    producer.shutdown()


def send(producer: Producer, flights: list[data.Flight], numbers: list[int]) -> list[int]:
    """Send flights; returns the numbers of those that failed."""
    places = threading.Semaphore(_IN_FLIGHT_MAX)
    failed: list[int] = []

    def answered(number: int, sent: Future[SendReceipt]) -> None:
        if sent.exception() is None:
            receipt = sent.result()
            say("stored", flight=number, message_id=receipt.message_id, offset=receipt.offset)
        else:
            failed.append(number)
        places.release()

    for number in numbers:
        places.acquire()
        try:
            sent = producer.send_async(message(flights[number]))
        except Exception:  # the SDK raises nothing narrower when the broker is unreachable
            failed.append(number)
            places.release()
        else:
            sent.add_done_callback(lambda done, number=number: answered(number, done))
    for _ in range(_IN_FLIGHT_MAX):
        places.acquire()
    return failed


if __name__ == "__main__":
    main()
