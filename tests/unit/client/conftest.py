"""A server with scripted answers, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aerobee_client import Client, connect
from tests.support.scripted_broker import ScriptedBroker, scripted_broker


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """A server with scripted answers."""
    async with scripted_broker() as running:
        yield running


@pytest.fixture
async def client(broker: ScriptedBroker) -> AsyncIterator[Client]:
    """A client connected to that server."""
    async with connect(broker.endpoint) as connected:
        yield connected
