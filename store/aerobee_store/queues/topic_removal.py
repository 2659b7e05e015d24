"""Deletes topics, many at a time, while messages continue to be stored.

1. In one step of the event loop the topics end: each queue's next offset and the end of the log are taken down, and
   from then on nothing before is served. What waits for dispatch goes on to its queue, and is not served either.
2. Once the log is durable up to there, the note of all of them is saved (`config/deletedTopics.json`), once.
3. The queues leave the table, but for those that have messages again. These keep their files, of which the part that
   is over is not served, and goes with retention or the next deletion.
4. The files are removed, and the directory that held them is synced, once.

2 and 4 run in the disk thread. A message may come for a topic at any time. Before 3 its queue is there. After that it
gets a new one, which may want the very names that are about to be removed: so whoever comes first removes the files of
the topic, the disk thread or the event loop (`QueueFiles.remove`).

A crash before the note is durable leaves the topics as they were, with whatever came later. After it, recovery skips
their old records, and removes the queues that have no other ones (`remove_interrupted`): of their files any part may be
gone. A caller that is cancelled leaves what a crash between two steps would leave, as far as it got.

--- The note ---

Which topics were deleted, and up to where in the log, is in `config/deletedTopics.json`.

Deleting a topic removes its queues; its records stay in the log until they expire. Without a note recovery would find
them, queue them again, and mix them with those of a later topic of the same name.

    {"topics": {"orders": {"physicalOffset": 81920, "queues": {"0": 117, "1": 98}}}, "crc32": 3735928559}

`crc32` is that of the topics as java_json writes them: with another offset, messages would come back or be gone.

Records of the topic before the physical offset do not count any more. A later topic of that name goes on at the queue
offsets given, for one offset must not name two messages.

A save leaves out the light queues that were deleted before the log's present beginning: they come and go by the
thousand, and the table would grow for good. No record is left then that could come back, no position of a group and no
receipt handle speaks of one, and a lite topic of that name begins at 0 again, as one that never was. It matters to
nobody but whoever has kept offsets of it outside the broker for longer than the log keeps messages. Of other topics
that is what pipelines and readers by offset do, and people delete them one by one: these entries stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from aerobee_store.disk.file_system import FileSystem, InDiskThread
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.queues.batch_consume_queue import AnyQueue
from aerobee_store.queues.multi_dispatch import is_light
from aerobee_store.queues.queue_table import QueueFiles, QueueTable
from aerobee_store.tables import java_json
from aerobee_store.tables.json_table import JsonTable

_REMOVED_AT_ONCE: Final = 32  # topics; other work of the disk thread runs in between


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """Records before `physical_offset` are gone; `next_offsets`: queue id -> where the queue had ended."""

    physical_offset: int
    next_offsets: dict[int, int]


class DeletedTopics:
    """The table. To be saved after every change, before the queues are removed."""

    def __init__(self, file_system: FileSystem, directory: Path) -> None:
        self._file_system = file_system
        self._path = directory / "config" / "deletedTopics.json"
        # The previous content lacks the last deletion: its messages would return.
        self._table = JsonTable(file_system, self._path, old_content_helps=False, checksum_inside=True)
        self._topics: dict[str, DeletedTopic] = {}

    def load(self) -> None:
        """Read the table. Raises StoreError if there is one that cannot be read."""
        content = self._table.load()
        if content is None:
            return
        try:
            if not isinstance(content, dict):
                raise ValueError("no object")
            topics = content["topics"]
            if content["crc32"] != _checksum(topics):
                raise ValueError(f"its crc32 is {content['crc32']}, that of its topics {_checksum(topics)}")
            self._topics = {
                topic: DeletedTopic(
                    int(entry["physicalOffset"]), {int(key): int(value) for key, value in entry["queues"].items()}
                )
                for topic, entry in topics.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreDirectoryError(
                f"{self._path}: not a table of deleted topics ({error!r}); restore it from a backup of the store. "
                f"{self._path.name}.bak lacks the last deletion and would restore the messages of that topic"
            ) from error

    def __len__(self) -> int:
        return len(self._topics)

    def end_of(self, topic: str) -> int:
        """The physical offset before which records of the topic do not count; 0 if it was never deleted."""
        deleted = self._topics.get(topic)
        return deleted.physical_offset if deleted is not None else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Where a queue of the topic goes on."""
        deleted = self._topics.get(topic)
        return deleted.next_offsets.get(queue_id, 0) if deleted is not None else 0

    def add(self, physical_offset: int, next_offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Note that topics are deleted; `next_offsets`: topic -> queue id -> offset. Counts at once, here."""
        for topic, offsets in next_offsets.items():
            before = self._topics.get(topic)
            known = before.next_offsets if before is not None else {}
            self._topics[topic] = DeletedTopic(physical_offset, {**known, **offsets})

    def forget(self, log_begin: int) -> None:
        """Leave out the light queues that nothing is left of in a log that begins there."""
        gone = [
            topic for topic, deleted in self._topics.items() if deleted.physical_offset <= log_begin and is_light(topic)
        ]
        for topic in gone:
            del self._topics[topic]

    def content(self) -> dict[str, DeletedTopic]:
        """What there is to save now."""
        return dict(self._topics)

    def save(self, content: Mapping[str, DeletedTopic]) -> None:
        """Make this the content, durably. Blocking; in one thread at a time. OSError."""
        self._file_system.make_directory(self._path.parent)
        topics = {
            topic: {
                "physicalOffset": deleted.physical_offset,
                "queues": {str(key): value for key, value in deleted.next_offsets.items()},
            }
            for topic, deleted in content.items()
        }
        self._table.save({"topics": topics, "crc32": _checksum(topics)})


@dataclass(frozen=True, slots=True)
class Ended:
    """Topics that have ended in the log before `physical_offset`, and what is to be noted of all topics."""

    physical_offset: int
    queues: Sequence[tuple[AnyQueue, int]]  # with the next offset of each
    note: dict[str, DeletedTopic]


class TopicRemoval:
    """The steps, one by one. Event loop only, but for `save`, `remove` and `sync`, which block."""

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
        """Step 4, but for the sync. OSError."""
        for files in going:
            files.remove()

    def sync(self, going: Sequence[QueueFiles]) -> None:
        """The end of step 4. OSError."""
        for root in dict.fromkeys(root for files in going for root in files.roots):
            if self._file_system.exists(root):
                self._file_system.sync_directory(root)

    def forget(self, going: Sequence[QueueFiles]) -> None:
        """Their files are gone: nobody has to look for them any more."""
        self._queues.removed(going)

    async def run(
        self,
        ended: Ended,
        durable: Callable[[int], Awaitable[None]],
        in_disk_thread: InDiskThread,
    ) -> None:
        """Steps 2 to 4. `durable` waits for the log. OSError, StoreError."""
        await durable(ended.physical_offset)
        # Work that the disk thread has begun or queued completes, even if its caller was cancelled.
        await asyncio.shield(asyncio.ensure_future(in_disk_thread(self.save, ended)))
        going = self.take_out(ended)
        for first in range(0, len(going), _REMOVED_AT_ONCE):
            some = going[first : first + _REMOVED_AT_ONCE]
            await asyncio.shield(asyncio.ensure_future(in_disk_thread(self.remove, some)))
            self.forget(some)
        await asyncio.shield(asyncio.ensure_future(in_disk_thread(self.sync, going)))

    def run_blocking(self, ended: Ended) -> None:
        """Steps 2 to 4, where all of the log is durable and dispatched. OSError."""
        self.save(ended)
        self._remove_now(self.take_out(ended))

    def remove_interrupted(self) -> None:
        """At a start, after recovery: remove the queues that hold nothing but what was deleted. Blocking. OSError."""
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


def _checksum(topics: object) -> int:
    return crc32(java_json.dumps(topics))
