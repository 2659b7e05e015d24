"""`python -m tests.benchmarks.sdk_load ENDPOINT send|receive TOPIC GROUP COUNT`: a load from the official Python SDK.

Prints the seconds it took, without the client's start.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

BODY_SIZE = 256
BATCH = 16
THREADS = 16


def main() -> None:
    endpoint, phase, topic, group, count = sys.argv[1:]
    # Imported here: the SDK registers its own protocol code, which must not happen in the process that imports THREADS.
    from rocketmq import ClientConfiguration, Credentials

    configuration = ClientConfiguration(endpoint, Credentials())
    seconds = (_send if phase == "send" else _receive)(configuration, topic, group, int(count))
    print(f"{seconds:.6f}", flush=True)


def _send(configuration: Any, topic: str, _: str, count: int) -> float:
    from rocketmq import Message, Producer

    producer = Producer(configuration, (topic,))
    producer.startup()
    left = iter(range(count))
    body = bytes(BODY_SIZE)

    def work() -> None:
        while next(left, None) is not None:
            message = Message()
            message.topic, message.body = topic, body
            producer.send(message)

    seconds = _in_threads(work)
    producer.shutdown()
    return seconds


def _receive(configuration: Any, topic: str, group: str, count: int) -> float:
    from rocketmq import FilterExpression, SimpleConsumer

    consumer = SimpleConsumer(configuration, group, {topic: FilterExpression()}, await_duration=1)
    consumer.startup()
    taken, ended = 0, 0.0
    lock = threading.Lock()

    def work() -> None:
        nonlocal taken, ended
        while taken < count:
            received = consumer.receive(BATCH, 60)
            with lock:
                taken += len(received)
            for message in received:
                consumer.ack(message)
                ended = time.perf_counter()  # at the end, other threads may wait without getting a message

    started = time.perf_counter()
    _in_threads(work)
    consumer.shutdown()
    if taken < count:
        raise SystemExit(f"only {taken} of {count} messages were received")
    return ended - started


def _in_threads(work: Callable[[], None]) -> float:
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
