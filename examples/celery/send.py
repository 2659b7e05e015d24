"""Sends tasks and waits for their results: now, after two seconds, one that fails, and one that sends others."""

from __future__ import annotations

import time

from examples.celery.billing import app, bill, bill_all


def main() -> None:
    """Send and print."""
    began = time.monotonic()
    now = bill.delay("order-7", 10)
    later = bill.apply_async(("order-8", 20), countdown=2)
    wrong = bill.delay("order-9", 0)
    print(now.get(timeout=60))
    print(repr(wrong.get(timeout=60, propagate=False)))
    print(later.get(timeout=60), f"after {time.monotonic() - began:.0f} s")
    print(bill_all.delay(["order-10", "order-11"]).get(timeout=60), "sent by a task")
    print("workers that answer:", len(app.control.ping(timeout=5)))


if __name__ == "__main__":
    main()
