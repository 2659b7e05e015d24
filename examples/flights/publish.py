"""Publish real flights through the official Python SDK: python -m examples.flights.publish --count 5000"""

from __future__ import annotations

import argparse
import threading
import time
from concurrent.futures import Future
from itertools import islice

from rocketmq import ClientConfiguration, Credentials, Message, Producer, SendReceipt
from tqdm import tqdm

from examples.flights import data

_IN_FLIGHT_MAX = 64  # sends that wait for their answer at one time


def main() -> int:
    arguments = _arguments()
    data.require_broker(arguments.endpoint)
    count = data.FLIGHT_COUNT if arguments.all else min(arguments.count, data.FLIGHT_COUNT)
    producer = Producer(ClientConfiguration(arguments.endpoint, Credentials()), (data.TOPIC,))
    producer.startup()
    try:
        return publish(producer, count)
    finally:
        producer.shutdown()


def publish(producer: Producer, count: int) -> int:
    """Send the first `count` flights and wait for all answers; 0 if every flight is stored, 1 if not."""
    places = threading.Semaphore(_IN_FLIGHT_MAX)
    failures: list[BaseException] = []
    progress = tqdm(total=count, unit=" flights", unit_scale=True)

    def answered(sent: Future[SendReceipt]) -> None:
        if error := sent.exception():
            failures.append(error)
        else:
            progress.update()
        places.release()

    started = time.perf_counter()
    for flight in islice(data.flights(), count):
        places.acquire()
        producer.send_async(message(flight)).add_done_callback(answered)
    for _ in range(_IN_FLIGHT_MAX):
        places.acquire()  # the last answers
    seconds = time.perf_counter() - started
    progress.close()
    stored = count - len(failures)
    print(f"{stored:,} flights stored in {seconds:.1f} s: {stored / seconds:,.0f} a second")
    if failures:
        print(f"{len(failures):,} flights failed, the first with: {failures[0]}; publish them again")
    return 1 if failures else 0


def message(flight: data.Flight) -> Message:
    """A flight as the SDK sends it."""
    message = Message()
    message.topic = data.TOPIC
    message.body = data.body(flight)
    message.tag = data.tag(flight)
    for key in data.keys(flight):
        message.keys = key  # the SDK's setter adds one
    return message


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Publish flights of 2013 to the topic `flights`.")
    parser.add_argument("--endpoint", default="127.0.0.1:8081", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--count", type=int, default=5000, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help=f"all {data.FLIGHT_COUNT:,}")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
