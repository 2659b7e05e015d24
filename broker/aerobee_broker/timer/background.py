"""Appends that no client waits for: delayed messages that fall due.

    refused now     repeated until the store accepts them: a full disk, or a lease that is lost
    never storable  given up one by one, so that the others are stored
    appended        the caller waits for this broker's own disk, until the disk has them

Replicas are not waited for. A client that waits for an answer learns that replicas are missing and decides what to do,
but background work has nobody to tell, and must not stop until a replica returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from aerobee_store import InvalidMessageError, MessageStore, SyncTimeoutError
from aerobee_store.errors import StoreRefusalError
from aerobee_store.records.record import Message

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5


async def wait_on_own_disk(store: MessageStore, end: int, *, durable: bool | None = None) -> None:
    """Return when the log before `end` is as safe on this disk as the flush mode, or `durable`, says.

    Waits as long as the disk needs. Raises StoreFailedError, StoreClosedError.
    """
    while True:
        try:
            await store.wait_stored(end, durable=durable, replicas=False)
            return
        except SyncTimeoutError:  # the bytes are in the log: appending them again would deliver twice
            await asyncio.sleep(_RETRY_SECONDS)


class BackgroundAppends:
    """The background appends of one service. Event loop only."""

    def __init__(
        self,
        store: MessageStore,
        append: Callable[[Sequence[Message]], int],
        lost: Callable[[], None],
        *,
        durable: bool | None = None,
        closing: asyncio.Event | None = None,
    ) -> None:
        """`append` stores messages, all or none, and returns the end of the last one. `lost` is called for each message
        that can never be stored. `durable` as in `wait_on_own_disk`. `closing`: once it is set, refused messages are
        left to the next start."""
        self._store = store
        self._append = append
        self._lost = lost
        self._durable = durable
        self._closing = closing
        self._is_held = False

    async def append(self, messages: Sequence[Message]) -> bool:
        """Return True when all are stored or given up; False if they are left to the next start."""
        while True:
            try:
                end = self._append(messages)
                break
            except StoreRefusalError as error:
                if not self._is_held:
                    _log.error("delayed messages are held because the store refuses them cause=%s", error)
                    self._is_held = True
                if self._closing is not None and self._closing.is_set():
                    return False
                await asyncio.sleep(_RETRY_SECONDS)
            except InvalidMessageError as error:
                # One of them can never be stored, for example after the limit for bodies was lowered. The others can.
                if len(messages) == 1:
                    self._lost()
                    _log.error("delayed message cannot be stored topic=%s cause=%s", messages[0].topic, error)
                    return True
                for message in messages:
                    if not await self.append([message]):
                        return False
                return True
        self._is_held = False
        await wait_on_own_disk(self._store, end, durable=self._durable)
        return True
