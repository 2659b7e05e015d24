"""FastAPI: one client for the life of the application. `uvicorn examples.web.fastapi_orders:app`"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from aerobee_client import Message, ReceivedMessage, connect

billed: list[str] = []


async def bill(message: ReceivedMessage) -> None:
    """Handle one message; an exception delivers it again later."""
    billed.append(message.body.decode())


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect before the first request; after the last one let handlers finish."""
    async with connect(os.environ.get("AEROBEE_ENDPOINT", "127.0.0.1:8081")) as client:
        app.state.producer = client.producer()
        async with client.push_consumer("billing", "orders", bill):
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}")
async def order(number: str, request: Request) -> dict[str, str]:
    """Store an order; answered once the broker has it."""
    result = await request.app.state.producer.send(Message(topic="orders", body=number.encode(), keys=(number,)))
    return {"message_id": result.message_id}
