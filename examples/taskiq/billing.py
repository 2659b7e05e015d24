"""Tasks of a worker, run as `taskiq worker examples.taskiq.billing:broker`."""

from __future__ import annotations

import os

from aerobee_client.integrations.taskiq import AerobeeBroker, AerobeeResultBackend

ENDPOINT = os.environ.get("AEROBEE_ENDPOINT", "127.0.0.1:8081")

broker = AerobeeBroker(ENDPOINT, topic="billing", group="billing-workers").with_result_backend(
    AerobeeResultBackend(ENDPOINT, topic="billing-results")
)


@broker.task
async def bill(order: str, amount: int) -> str:
    """Bill an order; amounts below one fail."""
    if amount < 1:
        raise ValueError(f"{order} has amount {amount}")
    return f"{order}: {amount} EUR"
