"""Sends while /metrics is scraped repeatedly, with the series of thousands of topics."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from aerobee_client import Message, connect
from tests.benchmarks import loop
from tests.benchmarks.processes import Server, broker
from tests.benchmarks.report import milliseconds, percentile, table

_PAUSE_SECONDS = 0.002  # between two sends
# Runs in a separate process, and prints the bytes and seconds of each scrape.
_SCRAPER = """
import sys, time, urllib.request
while True:
    started = time.perf_counter()
    size = len(urllib.request.urlopen(sys.argv[1], timeout=60).read())
    print(size, time.perf_counter() - started, flush=True)
    time.sleep(1)
"""


def run(directory: Path, topics: int = 5000, seconds: float = 10.0) -> None:
    """Print the time of a send without and with scrapes, and the time of a scrape. Scrapes are one second apart."""
    with broker(directory, "async") as running:
        loop.run(_run(running, topics, seconds))


def _scraper(metrics: str) -> subprocess.Popen[str]:
    # Not by uvloop: it forks, and gRPC's threads may crash a forked child before it becomes another program.
    command = [sys.executable, "-c", _SCRAPER, f"http://{metrics}/metrics"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def _run(running: Server, topics: int, seconds: float) -> None:
    async with connect(running.endpoint, request_timeout_seconds=60) as client:
        producer = client.producer()
        messages = [Message(topic=f"topic-{number}", body=b"x" * 256) for number in range(topics)]
        for first in range(0, topics, 500):
            await producer.send_many(messages[first : first + 500])

        async def sends() -> list[float]:
            taken = []
            end = time.perf_counter() + seconds
            while (started := time.perf_counter()) < end:
                await producer.send(messages[0])
                taken.append(time.perf_counter() - started)
                await asyncio.sleep(_PAUSE_SECONDS)
            return taken

        await sends()
        usual = await sends()
        before = running.cpu_seconds()
        scraper = _scraper(running.metrics)
        try:
            beside = await sends()
            cpu = running.cpu_seconds() - before
        finally:
            scraper.kill()
            text, _ = scraper.communicate()
    scrapes = [line.split() for line in text.splitlines()]
    rows = [
        (name, milliseconds(percentile(taken, 0.5)), milliseconds(percentile(taken, 0.99)), milliseconds(max(taken)))
        for name, taken in (("without scrapes", usual), ("beside scrapes", beside))
    ]
    table(f"a send while /metrics shows {topics} topics, async flush", ("", "p50", "p99", "longest"), rows)
    if scrapes:
        size = int(scrapes[-1][0]) / (1 << 20)
        longest = max(float(each[1]) for each in scrapes)
        print(
            f"  {len(scrapes)} scrapes of {size:.1f} MiB, the longest took {longest:.2f} s; "
            f"processor time of the broker meanwhile {cpu:.1f} s"
        )
