"""A store with running services on a test's disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aerobee_store import MessageStore, StoreConfig, StoreFailedError
from aerobee_store.disk.file_system import FileSystem
from aerobee_store.testing import ManualClock


@asynccontextmanager
async def serving(
    config: StoreConfig, disk: FileSystem, *, seconds: float | None = 20.0
) -> AsyncIterator[MessageStore]:
    """Open and run a store, and always close it, within this many seconds of the event loop's clock."""
    async with asyncio.timeout(seconds):
        store = MessageStore.open(config, file_system=disk, clock=ManualClock())
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        try:
            yield store
        finally:
            services.cancel()
            with suppress(asyncio.CancelledError, StoreFailedError):
                await services
            store.close()
