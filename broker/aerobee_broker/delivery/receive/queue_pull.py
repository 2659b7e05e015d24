"""One pull of one queue: looks for messages that pass a filter, and waits for others at the end of the queue."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from aerobee_broker.delivery.receive.long_polling import QueueWait
from aerobee_broker.filters.message_filter import MessageFilter
from aerobee_broker.limits.byte_budget import Share
from aerobee_broker.limits.loop_share import LoopShare, step_started
from aerobee_broker.tables.topics import TopicTable
from aerobee_store import MessageStore, ReadResult

MEMORY_WAIT_SECONDS = 2.0
"""How long a pull that does not wait for messages waits for the memory of their bytes."""


class QueuePull(Struct):
    """What a pull wants, and how far it has looked."""

    wanted: MessageFilter
    group: str
    held: QueueWait
    """For messages that do not exist yet."""
    offset: int
    """Where to look next: after the examined messages."""
    count_max: int
    bytes_max: int
    look_until: float | None
    """Until when to look among existing messages for one that passes, in loop time; after a wait, until the waits are
    over. None: answer as soon as none of the first ones passes, because the client asks again."""
    follows_moves: bool
    """Whether to go on where the queue begins or ends now, if it has the offset no more."""
    moved_from: int | None = None
    """The offset that the queue does not have, if that ended the read: its nearest one is `offset`."""

    async def read(
        self, store: MessageStore, topics: TopicTable, loop_share: LoopShare, memory: Share | None = None
    ) -> ReadResult:
        """The look that found messages; the last one when the time is over, or after a move that it does not follow.

        `memory` must have free bytes before each look. Raises TopicNotFoundError, TooManyRequestsError.
        """
        held, loop = self.held, asyncio.get_running_loop()
        until = self.look_until
        while True:
            if memory is not None and not memory.has_free():
                await memory.wait_free(held.seconds_left + MEMORY_WAIT_SECONDS)
            topics.require(held.topic)  # it may have been deleted in the meantime
            step, offset = step_started(), self.offset
            place = held.topic, held.queue_id, offset
            result = self.wanted.look(store, *place, self.count_max, self.group, max_bytes=self.bytes_max)
            self.offset = result.next_offset
            if result.records:
                return result
            if not self.follows_moves and _has_not(result, offset):
                self.moved_from = offset
                return result
            if self.offset == offset:  # there is nothing more
                if not await held.wait():
                    return result
                until = held.until if until is None else max(until, held.until)
            else:
                await loop_share.pause(step, until=until)
                if until is None or loop.time() >= until:
                    return result


def _has_not(result: ReadResult, offset: int) -> bool:
    """Whether the queue does not have the offset that was read."""
    return result.status in ("offset-too-small", "offset-too-large") or (result.status == "empty" and offset != 0)
