"""The flights of one aircraft, or one flight, found by their key: python -m examples.flights.lookup N14228"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from aerobee_client import ClientError, StoredMessage, connect
from examples.flights import data

_COLUMNS = ("departed", "flight", "from", "to", "minutes late", "queue", "offset")
_PAGE_COUNT = 64  # a query by key brings the newest 64 at most


async def find(endpoint: str, key: str) -> list[StoredMessage]:
    """All messages with this key. A page at a time: each one ends at the time at which the one before began."""
    found: dict[tuple[int, int], StoredMessage] = {}
    end: int | None = None
    async with connect(endpoint) as client:
        while True:
            page = [m async for m in client.admin.query(data.TOPIC, key=key, end=end, max_count=_PAGE_COUNT)]
            known = len(found)
            found.update({(message.queue_id, message.queue_offset): message for message in page})
            if len(page) < _PAGE_COUNT or len(found) == known:
                return list(found.values())
            end = min(message.store_timestamp for message in page)


def departure(flight: dict[str, Any]) -> str:
    """Date and scheduled time in New York."""
    hour, minute = divmod(flight["sched_dep_time"], 100)
    return f"{flight['year']}-{flight['month']:02}-{flight['day']:02} {hour:02}:{minute:02}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Find flights by tail number, or by number and date.")
    parser.add_argument("key", help="such as N14228, or UA1545-2013-01-01")
    parser.add_argument("--endpoint", default="127.0.0.1:8081", metavar="HOST:PORT", help="default: %(default)s")
    arguments = parser.parse_args()
    started = time.perf_counter()
    try:
        messages = asyncio.run(find(arguments.endpoint, arguments.key))
    except ClientError as error:
        parser.exit(1, f"{error}\n")
    milliseconds = (time.perf_counter() - started) * 1000
    table = Table(*_COLUMNS)
    flights = [(json.loads(message.body), message) for message in messages]
    for flight, message in sorted(flights, key=lambda pair: departure(pair[0])):
        late = "" if flight["arr_delay"] is None else str(flight["arr_delay"])
        number = f"{flight['carrier']}{flight['flight']}"
        place = (str(message.queue_id), str(message.queue_offset))
        table.add_row(departure(flight), number, flight["origin"], flight["dest"], late, *place)
    console = Console()
    console.print(table)
    console.print(f"{len(messages)} flights found in {milliseconds:.0f} ms", highlight=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
