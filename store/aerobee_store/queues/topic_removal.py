"""Deletes topics, many at a time, while messages continue to be stored.

1. One step of the event loop ends all the topics: it notes each queue's next offset and the end of the log. Older
   messages are no longer served. Records that wait for dispatch still enter their queues, but are not served either.
2. When the log is durable up to that point, the deletion of all topics is recorded in `config/deletedTopics.json`,
   with one save.
3. The queues leave the table, except queues that have received messages again. Those keep their files. The old part of
   the files is not served, and is removed by retention or the next deletion.
4. The files are removed, and the directory that held them is synced once.

Steps 2 and 4 run in the disk thread. A message for a deleted topic may arrive at any time. Before step 3 its queue
still exists. Afterwards it gets a new queue, which may use the same file names. Therefore the first of the two, the
disk thread or the event loop, removes the old files of the topic (`QueueFiles.remove`).

A crash before step 2 is durable leaves the topics unchanged, with all later messages. After it, recovery skips the old
records and removes the queues that have no others (`remove_interrupted`); any part of their files may be missing.
Cancelling the caller leaves the same state as a crash between two steps.

--- The table of deleted topics ---

`config/deletedTopics.json` contains the deleted topics, and the position in the log up to which each was deleted.

Deleting a topic removes its queues; its records stay in the log until they expire. Without this table, recovery would
queue them again, together with the records of a later topic of the same name.

    {"topics": {"orders": {"physicalOffset": 81920, "queues": {"0": 117, "1": 98}}}, "crc32": 3735928559}

`crc32` is the checksum of the topics as java_json writes them. A wrong offset would restore or hide messages.

Records of the topic before the physical offset are ignored. A later topic of the same name continues at the given queue
offsets, because one offset must not refer to two messages. For the same reason the table has the queues of which a copy
of another broker's log has no record, because all expired before it began.

A save omits light queues that were deleted before the present beginning of the log. They are created and deleted by the
thousand, and the table would grow without bound. No record of them is left that could return, and no group offset or
receipt handle refers to one. A lite topic of that name starts at 0 again, like a new one. This affects only readers
that keep its offsets outside the broker for longer than the log keeps messages. For other topics, pipelines and readers
by offset do so, and such topics are deleted one by one: their entries stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from msgspec import Struct

from aerobee_store.disk.file_system import FileSystem, InDiskThread
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.queues.batch_consume_queue import AnyQueue
from aerobee_store.queues.multi_dispatch import is_light
from aerobee_store.queues.queue_table import QueueFiles, QueueTable
from aerobee_store.tables import java_json
from aerobee_store.tables.json_table import JsonTable

_REMOVED_AT_ONCE: Final = 32  # topics; other work of the disk thread runs in between


class DeletedTopic(Struct, frozen=True):
    """Records before `physical_offset` are deleted; `next_offsets`: queue id -> next offset at the deletion."""

    physical_offset: int
    next_offsets: dict[int, int]


class Extent(NamedTuple):
    """How much of the table stays for ever: not light queues, whose entries go with the log."""

    topics: int
    characters: int
    """Of their names."""
    queues: int


def _extent(topics: Mapping[str, DeletedTopic]) -> Extent:
    stay = {name: each for name, each in topics.items() if not is_light(name)}
    return Extent(len(stay), sum(map(len, stay)), sum(len(each.next_offsets) for each in stay.values()))


class DeletedTopics:
    """The table of deleted topics. Save it after every change, before the queues are removed."""

    def __init__(self, file_system: FileSystem, directory: Path) -> None:
        self._file_system = file_system
        self._path = directory / "config" / "deletedTopics.json"
        # The previous content lacks the last deletion: the deleted messages would return.
        self._table = JsonTable(file_system, self._path, old_content_helps=False, checksum_inside=True)
        self._topics: dict[str, DeletedTopic] = {}
        self.listener: Callable[[Extent, int], object] | None = None
        """Is called with the extent of what stays, and 1 or -1, when so much is added or dropped."""

    def load(self) -> None:
        """Read the table, if there is one. Raises StoreError if it cannot be read."""
        content = self._table.load()
        if content is None:
            return
        try:
            if not isinstance(content, dict):
                raise ValueError("no object")
            topics = content["topics"]
            if content["crc32"] != _checksum(topics):
                raise ValueError(f"its crc32 is {content['crc32']}, that of its topics {_checksum(topics)}")
            self._topics = deletions_from_json(topics)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreDirectoryError(
                f"{self._path}: not a table of deleted topics ({error!r}); restore it from a backup of the store. "
                f"{self._path.name}.bak lacks the last deletion and would restore the messages of that topic"
            ) from error

    def __len__(self) -> int:
        return len(self._topics)

    def end_of(self, topic: str) -> int:
        """The physical offset before which records of the topic are ignored; 0 if it was never deleted."""
        deleted = self._topics.get(topic)
        return deleted.physical_offset if deleted is not None else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset at which a queue of the topic continues."""
        deleted = self._topics.get(topic)
        return deleted.next_offsets.get(queue_id, 0) if deleted is not None else 0

    def add(self, physical_offset: int, next_offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Record topics as deleted; `next_offsets`: topic -> queue id -> offset. In effect at once, in memory."""
        for topic, offsets in next_offsets.items():
            self._put(topic, physical_offset, offsets)

    def continue_at(self, log_begin: int, next_offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Let queues without a record in a log that begins at `log_begin` continue at these offsets, like those of
        deleted topics. In effect at once, in memory."""
        for topic, offsets in next_offsets.items():
            self._put(topic, max(self.end_of(topic), log_begin), offsets)

    def _put(self, topic: str, physical_offset: int, next_offsets: Mapping[int, int]) -> None:
        before = self._topics.get(topic)
        known = before.next_offsets if before is not None else {}
        entry = self._topics[topic] = DeletedTopic(physical_offset, {**known, **next_offsets})
        if self.listener is not None:
            if before is not None:
                self.listener(_extent({topic: before}), -1)
            self.listener(_extent({topic: entry}), 1)

    def forget(self, log_begin: int) -> None:
        """Drop the light queues that have no records left in a log that begins at `log_begin`."""
        gone = [
            topic for topic, deleted in self._topics.items() if deleted.physical_offset <= log_begin and is_light(topic)
        ]
        for topic in gone:
            del self._topics[topic]

    def cut(self, log_end: int) -> None:
        """Drop the deletions after the end of a log that was cut: its further records are another broker's. In effect
        at once, in memory."""
        self._topics = {name: each for name, each in self._topics.items() if each.physical_offset <= log_end}

    @property
    def extent(self) -> Extent:
        """Of the entries that stay for ever."""
        return _extent(self._topics)

    def content(self) -> dict[str, DeletedTopic]:
        """The content to save now."""
        return dict(self._topics)

    def save(self, content: Mapping[str, DeletedTopic]) -> None:
        """Save this content durably. Blocking; in one thread at a time. OSError."""
        self._file_system.make_directory(self._path.parent)
        topics = deletions_to_json(content)
        self._table.save({"topics": topics, "crc32": _checksum(topics)})


class Ended(Struct, frozen=True):
    """Topics that have ended in the log before `physical_offset`, and the content of the table to save."""

    physical_offset: int
    queues: Sequence[tuple[AnyQueue, int]]  # with the next offset of each
    note: dict[str, DeletedTopic]


class TopicRemoval:
    """The steps, one by one. Event loop only, except `save`, `remove` and `sync`, which block."""

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

    def follow(self, deletions: Mapping[str, DeletedTopic], log_begin: int, dispatched: int) -> Ended | None:
        """Step 1 for deletions of another broker, in a copy of its log; None if there is nothing to do.

        A deletion that the dispatch has not reached is left for a later call. Messages after it are kept.
        """
        new = {
            topic: entry
            for topic, entry in deletions.items()
            if max(self._deleted.end_of(topic), log_begin) < entry.physical_offset <= dispatched
        }
        if not new:
            return None
        ended: list[tuple[AnyQueue, int]] = []
        for queue in self._queues.of_topics(new):
            end = new[queue.topic].physical_offset
            if queue.next_offset == queue.max_offset and queue.ends_before(end):
                queue.end_messages()
                ended.append((queue, queue.next_offset))
            else:
                queue.correct_min_offset(end)
        for topic, entry in new.items():
            self._deleted.add(entry.physical_offset, {topic: entry.next_offsets})
        self._deleted.forget(log_begin)
        return Ended(max(entry.physical_offset for entry in new.values()), ended, self._deleted.content())

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
        """Forget these removed files: no new queue has to look for them any more."""
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
        """At startup, after recovery: remove the queues that contain only deleted messages. Blocking. OSError."""
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


def deletions_to_json(deletions: Mapping[str, DeletedTopic]) -> dict[str, object]:
    """As in the file, and in a master's answer to its replicas."""
    return {
        topic: {
            "physicalOffset": deleted.physical_offset,
            "queues": {str(key): value for key, value in deleted.next_offsets.items()},
        }
        for topic, deleted in deletions.items()
    }


def deletions_from_json(topics: Any) -> dict[str, DeletedTopic]:
    """The opposite. AttributeError, KeyError, TypeError or ValueError for anything else."""
    return {
        topic: DeletedTopic(
            int(entry["physicalOffset"]), {int(key): int(value) for key, value in entry["queues"].items()}
        )
        for topic, entry in topics.items()
    }


def _checksum(topics: object) -> int:
    return crc32(java_json.dumps(topics))
