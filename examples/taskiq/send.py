"""Sends three tasks and waits for their results: now, after two seconds, and one that fails."""

from __future__ import annotations

import asyncio
import time

from examples.taskiq.billing import bill, broker


async def main() -> None:
    """Send and print."""
    await broker.startup()
    began = time.monotonic()
    now = await bill.kiq("order-7", 10)
    later = await bill.kicker().with_labels(delay=2).kiq("order-8", 20)
    wrong = await bill.kiq("order-9", 0)
    print((await now.wait_result(timeout=60)).return_value)
    print((await wrong.wait_result(timeout=60)).error)
    print((await later.wait_result(timeout=60)).return_value, f"after {time.monotonic() - began:.0f} s")
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
