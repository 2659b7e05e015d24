"""Tasks of a worker, run as `celery -A examples.celery.billing worker`."""

from __future__ import annotations

import os

from celery import Celery

import aerobee_client.integrations.kombu  # noqa: F401  # registers the scheme aerobee://

app = Celery("billing", broker=f"aerobee://{os.environ.get('AEROBEE_ENDPOINT', '127.0.0.1:8081')}", backend="rpc://")
app.conf.task_acks_late = True  # a task of a dead worker is run again
app.conf.worker_prefetch_multiplier = 1
app.conf.worker_pool_start_method = "spawn"  # gRPC does not survive a fork


@app.task
def bill(order: str, amount: int) -> str:
    """Bill an order; amounts below one fail."""
    if amount < 1:
        raise ValueError(f"{order} has amount {amount}")
    return f"{order}: {amount} EUR"


@app.task
def bill_all(orders: list[str]) -> int:
    """Send a task for each order, from within a task."""
    for order in orders:
        bill.delay(order, 1)
    return len(orders)
