"""A shop's broker and a visitor of its console, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aerobee_client import connect
from tests.console.scenario import make_shop
from tests.console.support import World, visiting
from tests.support.in_process_broker import in_process_broker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A broker without accounts, for all tests of this module: what one changes, no other looks at."""
    async with in_process_broker(tmp_path_factory.mktemp("shop")) as broker, connect(broker.endpoint) as client:
        shop = await make_shop(client)
        async with visiting(broker.endpoint) as visitor:
            yield World(client, visitor, shop)
