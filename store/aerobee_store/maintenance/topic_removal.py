"""Deleting topics, many at a time, while messages go on being stored.

1. In one step of the event loop the topics end: each queue's next offset and the end of the log are taken down, and
   from then on nothing before is served. What waits for dispatch goes on to its queue, and is not served either.
2. Once the log is durable up to there, the note of all of them is saved (deleted_topics.py), once.
3. The queues leave the table, but for those that have messages again. These keep their files, of which the part that
   is over is not served, and goes with retention or the next deletion.
4. The files are removed, and the directory that held them is synced, once.

2 and 4 run in the disk thread. A message may come for a topic at any time. Before 3 its queue is there. After that it
gets a new one, which may want the very names that are about to be removed: so whoever comes first removes the files of
the topic, the disk thread or the event loop (`QueueFiles.remove`).

A crash before the note is durable leaves the topics as they were, with whatever came later. After it, recovery skips
their old records, and removes the queues that have no other ones (`remove_interrupted`): of their files any part may be
gone. A caller that is cancelled leaves what a crash between two steps would leave, as far as it got.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from aerobee_store.disk.file_system import FileSystem
from aerobee_store.maintenance.deleted_topics import DeletedTopic, DeletedTopics
from aerobee_store.maintenance.retention import InDiskThread
from aerobee_store.queues.batch_consume_queue import AnyQueue
from aerobee_store.queues.queue_table import QueueFiles, QueueTable

_REMOVED_AT_ONCE: Final = 32  # topics; other work of the disk thread runs in between


@dataclass(frozen=True, slots=True)
class Ended:
    """Topics that end in the log before `physical_offset`, and what is recorded of all topics."""

    physical_offset: int
    queues: Sequence[tuple[AnyQueue, int]]  # with the next offset of each
    note: dict[str, DeletedTopic]


class TopicRemoval:
    """The steps, one by one. Event loop only, except for `save`, `remove` and `sync`, which block."""

    def __init__(self, file_system: FileSystem, queues: QueueTable, deleted: DeletedTopics) -> None:
        self._file_system = file_system
        self._queues = queues
        self._deleted = deleted

    def end(self, topics: Collection[str], log_begin: int, log_end: int) -> Ended | None:
        """Step 1; None if none of the topics has ever had a message."""
        queues = [(queue, queue.next_offset) for queue in self._queues.of_topics(topics)]
        if not queues:
            return None
        next_offsets: dict[str, dict[int, int]] = {}
        for queue, next_offset in queues:
            queue.end_messages()
            next_offsets.setdefault(queue.topic, {})[queue.queue_id] = next_offset
        self._deleted.add(log_end, next_offsets)
        self._deleted.forget(log_begin)
        return Ended(log_end, queues, self._deleted.content())

    def save(self, ended: Ended) -> None:
        """Step 2. OSError."""
        self._deleted.save(ended.note)

    def take_out(self, ended: Ended) -> list[QueueFiles]:
        """Step 3."""
        return self._queues.take_out(
            [
                queue
                for queue, next_offset in ended.queues
                if queue.next_offset == queue.max_offset == next_offset
                and self._queues.find(queue.topic, queue.queue_id) is queue  # not deleted twice at a time
            ]
        )

    def remove(self, going: Sequence[QueueFiles]) -> None:
        """Step 4 without the sync. OSError."""
        for files in going:
            files.remove()

    def sync(self, going: Sequence[QueueFiles]) -> None:
        """The end of step 4. OSError."""
        for root in dict.fromkeys(root for files in going for root in files.roots):
            if self._file_system.exists(root):
                self._file_system.sync_directory(root)

    def forget(self, going: Sequence[QueueFiles]) -> None:
        """Note that their files are gone and need not be looked for."""
        self._queues.removed(going)

    async def run(
        self,
        ended: Ended,
        durable: Callable[[int], Awaitable[None]],
        in_disk_thread: InDiskThread,
    ) -> None:
        """Steps 2 to 4. `durable` waits for the log. OSError, StoreError."""
        await durable(ended.physical_offset)
        # Work that the disk thread has begun is finished, and work that waits for it runs, even if the caller is
        # cancelled.
        await asyncio.shield(asyncio.ensure_future(in_disk_thread(self.save, ended)))
        going = self.take_out(ended)
        for first in range(0, len(going), _REMOVED_AT_ONCE):
            some = going[first : first + _REMOVED_AT_ONCE]
            await asyncio.shield(asyncio.ensure_future(in_disk_thread(self.remove, some)))
            self.forget(some)
        await asyncio.shield(asyncio.ensure_future(in_disk_thread(self.sync, going)))

    def run_blocking(self, ended: Ended) -> None:
        """Steps 2 to 4, when all of the log is durable and dispatched. OSError."""
        self.save(ended)
        self._remove_now(self.take_out(ended))

    def remove_interrupted(self) -> None:
        """At a start, after recovery: remove the queues that contain only deleted messages. Blocking. OSError."""
        going = [
            queue
            for queue in self._queues.all()
            if queue.has_files and (end := self._deleted.end_of(queue.topic)) and queue.ends_before(end)
        ]
        if going:
            self._remove_now(self._queues.take_out(going))

    def _remove_now(self, going: Sequence[QueueFiles]) -> None:
        self.remove(going)
        self.forget(going)
        self.sync(going)
