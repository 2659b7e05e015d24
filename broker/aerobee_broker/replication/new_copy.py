"""The new copy of the master's log that a replica makes when it cannot continue its own: see
`aerobee_store.durability.reseed` for its files.

It is begun where the master's log begins, continued after a restart, and complete when it has all that the master's log
had when the replica connected. Until then it counts for nothing: its reports are those of a learner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aerobee_broker.errors import BrokerError
from aerobee_broker.tables.table_files import BatchTopics
from aerobee_store import MessageStore, StoreError
from aerobee_store.clock import Clock
from aerobee_store.durability import reseed

_LOOK_SECONDS = 0.05


@asynccontextmanager
async def opened(store: MessageStore, clock: Clock, batch_topics: BatchTopics) -> AsyncIterator[MessageStore]:
    """The new copy beside `store`, with its services. Closed in order on exit.

    Raises BrokerError in place of its StoreError: the store itself is not affected.
    """
    config = reseed.config_of(store.config)
    try:
        opening = asyncio.create_task(
            asyncio.to_thread(
                MessageStore.open, config, file_system=store.file_system, clock=clock, is_batch_topic=batch_topics
            )
        )
        try:
            copy = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.to_thread((await opening).close)
            raise
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(copy.run(), name="new-copy")
                await asyncio.sleep(0)  # its services are up before the first append
                yield copy
                running.cancel()
        finally:
            await asyncio.to_thread(copy.close)
    except StoreError as error:
        raise _failed(error) from error
    except BaseExceptionGroup as group:
        cause = group.exceptions[0]
        raise (_failed(cause) if isinstance(cause, StoreError) else cause) from None


def _failed(error: StoreError) -> BrokerError:
    return BrokerError(f"the new copy of the log: {error}")


async def reached(store: MessageStore, end: int) -> None:
    """Return once the log has everything before this physical offset on disk, and all of that is dispatched."""
    while not store.positions[0] or min(store.positions[2:]) < end:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(_LOOK_SECONDS)
