"""Consume the flights as one of a group, through the official Python SDK: python -m examples.flights.consume"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, SimpleConsumer
from tqdm import tqdm

from examples.flights import data

_BATCH_COUNT_MAX = 32  # messages that one receive may bring
_INVISIBLE_SECONDS = 30  # what is not acknowledged until then is delivered again
_THREADS = 8


class Consumption:
    """What the threads of this program have consumed together."""

    def __init__(self, consumer: SimpleConsumer, idle_seconds: float) -> None:
        self._consumer = consumer
        self._idle_seconds = idle_seconds
        self._lock = Lock()
        self._last = time.monotonic()
        self.progress = tqdm(unit=" flights", unit_scale=True)
        self.count = 0
        self.again = 0
        self.late: Counter[str] = Counter()  # minutes a carrier
        self.by_carrier: Counter[str] = Counter()

    def run(self) -> None:
        """Receive, count and acknowledge until nothing has come for the idle time."""
        while time.monotonic() - self._last < self._idle_seconds:
            for message in self._consumer.receive(_BATCH_COUNT_MAX, _INVISIBLE_SECONDS):
                self._count(message)
                self._consumer.ack(message)  # only now: if this program dies before, the message comes again

    def _count(self, message: Message) -> None:
        flight = json.loads(message.body)
        with self._lock:
            self._last = time.monotonic()
            self.count += 1
            self.again += message.delivery_attempt > 1
            self.by_carrier[flight["carrier"]] += 1
            self.late[flight["carrier"]] += flight["arr_delay"] or 0
            self.progress.update()


def main() -> int:
    arguments = _arguments()
    data.require_broker(arguments.endpoint)
    subscription = {data.TOPIC: FilterExpression(arguments.carrier)}
    configuration = ClientConfiguration(arguments.endpoint, Credentials())
    consumer = SimpleConsumer(configuration, arguments.group, subscription, await_duration=1)
    consumer.startup()
    consumption = Consumption(consumer, arguments.idle)
    started = time.perf_counter()
    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            for thread in [threads.submit(consumption.run) for _ in range(_THREADS)]:
                thread.result()
    finally:
        consumption.progress.close()
        consumer.shutdown()
    seconds = max(time.perf_counter() - started - arguments.idle, 0.001)
    print(f"{consumption.count:,} flights in {seconds:.1f} s: {consumption.count / seconds:,.0f} a second")
    print(f"{consumption.again:,} of them had been delivered before")
    for carrier, count in consumption.by_carrier.most_common(5):
        print(f"  {carrier}  {count:6,} flights, {consumption.late[carrier] / count:5.1f} minutes late on average")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Consume the topic `flights` until nothing more comes.")
    parser.add_argument("--endpoint", default="127.0.0.1:8081", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--group", default="delays", help="consumers of one group share the flights (%(default)s)")
    parser.add_argument("--carrier", default="*", help="only these, such as 'UA || AA' (default: all)")
    parser.add_argument("--idle", type=float, default=5, metavar="SECONDS", help="stop when nothing came (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
