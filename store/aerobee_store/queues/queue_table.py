"""The consume queues of a store, by topic and queue id: ordinary queues and those of inner batches.

All queues of a topic are of one kind. A queue is created with its first message. A topic that was deleted and created
again continues at its old offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from aerobee_store.config import StoreConfig
from aerobee_store.disk.file_system import FileSystem
from aerobee_store.errors import InvalidMessageError, LightQueuesFullError, StoreDirectoryError
from aerobee_store.queues.batch_consume_queue import AnyQueue, BatchConsumeQueue
from aerobee_store.queues.consume_queue import ChangedQueues, ConsumeQueue
from aerobee_store.queues.consume_queue_ext import ConsumeQueueExt
from aerobee_store.queues.multi_dispatch import QueueKey, is_light
from aerobee_store.records.decimals import decimal

SIMPLE_DIRECTORY: Final = "consumequeue"
BATCH_DIRECTORY: Final = "batchconsumequeue"
EXTENSION_DIRECTORY: Final = "consumequeue_ext"


class QueueFiles:
    """The files and directories of a topic's queues that are out of the table. Removed by the first thread that needs
    to."""

    def __init__(self, file_system: FileSystem, topic: str, paths: Sequence[Path], directories: Sequence[Path]) -> None:
        """`paths` in the order of removal; `directories` of queues, each within one of the topic."""
        self.topic = topic
        self.roots = list(dict.fromkeys(directory.parent.parent for directory in directories))
        """Directories to sync, so that the removal is durable."""
        self._file_system = file_system
        self._lock = threading.Lock()
        self._paths = list(reversed(paths))
        self._directories = list(directories)

    def remove(self) -> None:
        """Remove what has not been removed; on return the names are free. Blocking, any thread. OSError."""
        file_system = self._file_system
        with self._lock:
            while self._paths:
                with suppress(FileNotFoundError):  # by retention
                    file_system.unlink(self._paths[-1])
                self._paths.pop()
            for directory in self._directories:
                for each in (directory, directory.parent):
                    file_system.remove_directory(each)
                    if file_system.exists(each):  # it is not empty; otherwise its removal is synced with the root
                        file_system.sync_directory(each)
            self._directories.clear()


class EndedQueues(Protocol):
    """Knows where the queues of deleted topics ended: `topic_removal.DeletedTopics`."""

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset at which a queue of the topic continues; 0 if it never existed."""
        ...


class QueueTable:
    """All queues of a store. Single-threaded, as the queues."""

    def __init__(
        self,
        file_system: FileSystem,
        config: StoreConfig,
        deleted: EndedQueues,
        is_batch_topic: Callable[[str], bool],
    ) -> None:
        self._file_system = file_system
        self._config = config
        self._deleted = deleted
        self._is_batch_topic = is_batch_topic
        self._batch_topics: set[str] = set()  # batch topics found in the store; the caller may know more
        self.light_count = 0  # number of ordinary queues whose names begin with %LMQ%
        self.require_light_space: Callable[[int, int], object] | None = None
        """Called with the number of light queues and how many more are wanted: LightQueuesFullError if too many."""
        self.simple: dict[tuple[str, int], ConsumeQueue] = {}
        self.batch: dict[tuple[str, int], BatchConsumeQueue] = {}
        self.changed = ChangedQueues()
        """For the flush, which empties it."""
        self._going: dict[str, QueueFiles] = {}  # topic -> files of its former queues that may still exist

    def __len__(self) -> int:
        return len(self.simple) + len(self.batch)

    def load(self, *, after_crash: bool) -> None:
        """Find the queues in the directory. StoreDirectoryError: an entry is no queue, or a topic has both kinds."""
        for topic, queue_id in self._names(BATCH_DIRECTORY):
            self._batch_topics.add(topic)
            self._batch_queue(topic, queue_id).load(after_crash=after_crash)
        for topic, queue_id in self._names(SIMPLE_DIRECTORY):
            if self._is_batch(topic):
                raise StoreDirectoryError(
                    f"{self._config.directory / SIMPLE_DIRECTORY / topic}: topic {topic!r} is a batch topic "
                    f"but also has these queues; run `aerobee store rebuild`"
                )
            self._new_queue(topic, queue_id).load(after_crash=after_crash)

    def all(self) -> list[AnyQueue]:
        """Every queue, of both kinds."""
        return [*self.simple.values(), *self.batch.values()]

    def find(self, topic: str, queue_id: int) -> AnyQueue | None:
        """The queue, of whichever kind, or None."""
        key = topic, queue_id
        return self.simple.get(key) or self.batch.get(key)

    def of_topics(self, topics: Collection[str]) -> list[AnyQueue]:
        """The queues of these topics."""
        wanted = frozenset(topics)
        return [queue for queue in self.all() if queue.topic in wanted]

    def ids(self) -> dict[str, list[int]]:
        """Topic -> queue ids, of every queue that has ever had a message."""
        found: dict[str, list[int]] = {}
        for table in (self.simple, self.batch):
            for (topic, queue_id), queue in table.items():
                if queue.has_files:
                    found.setdefault(topic, []).append(queue_id)
        for queue_ids in found.values():
            queue_ids.sort()
        return found

    def ids_of(self, topic: str) -> list[int]:
        """The queue ids of one topic, in order. Fast even with thousands of light queues in the table."""
        tables = (self.simple, self.batch)
        return sorted(key[1] for table in tables for key, queue in table.items() if key[0] == topic and queue.has_files)

    def simple_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created if it does not exist. InvalidMessageError for a batch topic."""
        queue = self.simple.get((topic, queue_id))
        if queue is None:
            if self._is_batch(topic):
                raise InvalidMessageError(
                    f"topic {topic!r} is a batch topic (queue.type=BatchCQ) and takes inner batches only"
                )
            queue = self._new_queue(topic, queue_id)
            if queue.extension is not None:
                queue.load(after_crash=False)  # after a crash, extension files may exist for a queue that does not
        return queue

    def make_room(self, keys: Iterable[QueueKey]) -> None:
        """Raise LightQueuesFullError if these would be too many light queues."""
        new = sum(is_light(key[0]) and key not in self.simple for key in keys)
        limit = self._config.light_queue_count_max
        if new and self.light_count + new > limit:
            raise LightQueuesFullError(
                f"{self.light_count} light queues exist and {new} more were requested; the limit is {limit} "
                f"(store.light_queue_count_max); delete unused ones or raise the limit"
            )
        if self.require_light_space is not None:
            self.require_light_space(self.light_count, new)

    def simple_queue_unless_batch(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The same, but None for a batch topic."""
        return None if self._is_batch(topic) else self.simple_queue(topic, queue_id)

    def batch_queue_unless_simple(self, topic: str, queue_id: int) -> BatchConsumeQueue | None:
        """The queue of inner batches, created if it does not exist; None for a topic with queues of the other kind."""
        if not self._is_batch(topic) and any(name == topic and queue.files for (name, _), queue in self.simple.items()):
            return None
        return self._batch_queue(topic, queue_id)

    def take_out(self, queues: Iterable[AnyQueue]) -> list[QueueFiles]:
        """Remove queues from the table, and return their files by topic. Their ends are recorded already."""
        topics: dict[str, list[AnyQueue]] = {}
        for queue in queues:
            topics.setdefault(queue.topic, []).append(queue)
        found = []
        for topic, members in topics.items():
            self._finish_removal(topic)
            paths: list[Path] = []
            directories: list[Path] = []
            for queue in members:
                directories.append(queue.directory)
                if isinstance(queue, ConsumeQueue):
                    if queue.extension is not None:
                        directories.append(queue.extension.directory)
                    del self.simple[topic, queue.queue_id]
                    self.light_count -= is_light(topic)
                else:
                    del self.batch[topic, queue.queue_id]
                paths += queue.give_up_files()
            if topic in self._batch_topics and not any(name == topic for name, _ in self.batch):
                self._batch_topics.remove(topic)  # a new topic of that name may be of the other kind
            self._going[topic] = QueueFiles(self._file_system, topic, paths, directories)
            found.append(self._going[topic])
        return found

    def removed(self, going: Iterable[QueueFiles]) -> None:
        """Note that the files of these queues are gone."""
        for files in going:
            if self._going.get(files.topic) is files:
                del self._going[files.topic]

    def _finish_removal(self, topic: str) -> None:
        """A new queue of the topic may need the names of files that are being removed."""
        files = self._going.pop(topic, None)
        if files is not None:
            with suppress(OSError):  # the disk thread gets the error as well, and the store fails
                files.remove()

    def close(self) -> None:
        """Close every queue."""
        for queue in self.all():
            queue.close()

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        self._finish_removal(topic)
        directory = self._config.directory / SIMPLE_DIRECTORY / topic / str(queue_id)
        queue = ConsumeQueue(
            self._file_system,
            directory,
            topic,
            queue_id,
            self._config.queue_file_size,
            changed=self.changed,
            extension=self._extension(topic, queue_id),
        )
        self.simple[topic, queue_id] = queue
        self.light_count += is_light(topic)
        queue.begin_at(self._deleted.next_offset(topic, queue_id))
        return queue

    def _extension(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """The extension of a queue that needs one, or has one already."""
        directory = self._config.directory / EXTENSION_DIRECTORY / topic / str(queue_id)
        config = self._config
        if not (config.queue_extensions or self._file_system.exists(directory)):
            return None
        size = config.queue_extension_file_size
        return ConsumeQueueExt(self._file_system, directory, size, is_fed=config.queue_extensions)

    def _is_batch(self, topic: str) -> bool:
        return topic in self._batch_topics or self._is_batch_topic(topic)

    def _batch_queue(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        queue = self.batch.get((topic, queue_id))
        if queue is None:
            self._finish_removal(topic)
            directory = self._config.directory / BATCH_DIRECTORY / topic / str(queue_id)
            size = self._config.batch_queue_file_size
            queue = BatchConsumeQueue(self._file_system, directory, topic, queue_id, size, changed=self.changed)
            self.batch[topic, queue_id] = queue
            self._batch_topics.add(topic)
            queue.begin_at(self._deleted.next_offset(topic, queue_id))
        return queue

    def _names(self, name: str) -> list[tuple[str, int]]:
        root = self._config.directory / name
        found = []
        for topic in self._file_system.list(root):
            for queue_id in self._file_system.list(root / topic):
                number = decimal(queue_id)
                if number is None:
                    raise StoreDirectoryError(f"{root / topic / queue_id}: not a queue of this store; move it away")
                found.append((topic, number))
        return found
