"""Calls that walk through whole tables: what one of them collects is in memory once, however many are made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from aerobee_broker.clients.registry import Client
from aerobee_broker.services.rpc import UnaryCall


class Listings:
    """One after the other, in order. Their steps then delay other calls by one of them, and not by as many as there
    are calls."""

    def __init__(self) -> None:
        self._running: Final = asyncio.Lock()

    def in_order(self, calls: Mapping[str, UnaryCall]) -> dict[str, UnaryCall]:
        """The same calls, each of which waits until earlier ones of this object have ended."""
        return {method: self._in_order(call) for method, call in calls.items()}

    def _in_order(self, call: UnaryCall) -> UnaryCall:
        async def handle(request: Any, client: Client) -> Message | bytes:
            async with self._running:
                return await call(request, client)

        return handle
