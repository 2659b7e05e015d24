"""Which topics were deleted, and up to where in the log: what `config/deletedTopics.json` remembers.

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

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from aerobee_store.disk.file_system import FileSystem
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.queues.multi_dispatch import is_light
from aerobee_store.tables import java_json
from aerobee_store.tables.json_table import JsonTable


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """Records before `physical_offset` are gone; `next_offsets`: queue id -> the offset where the queue ended."""

    physical_offset: int
    next_offsets: dict[int, int]


class DeletedTopics:
    """The table. To be saved after every change, before the queues are removed."""

    def __init__(self, file_system: FileSystem, directory: Path) -> None:
        self._file_system = file_system
        self._path = directory / "config" / "deletedTopics.json"
        # The previous content lacks a deletion and would restore its messages.
        self._table = JsonTable(file_system, self._path, old_content_helps=False, checksum_inside=True)
        self._topics: dict[str, DeletedTopic] = {}

    def load(self) -> None:
        """Read the table. Raises StoreError if it exists but cannot be read."""
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
        """The physical offset before which records of the topic are ignored; 0 if it was never deleted."""
        deleted = self._topics.get(topic)
        return deleted.physical_offset if deleted is not None else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset at which a queue of the topic continues."""
        deleted = self._topics.get(topic)
        return deleted.next_offsets.get(queue_id, 0) if deleted is not None else 0

    def add(self, physical_offset: int, next_offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Record that topics are deleted; `next_offsets`: topic -> queue id -> offset. In effect at once, in memory."""
        for topic, offsets in next_offsets.items():
            before = self._topics.get(topic)
            known = before.next_offsets if before is not None else {}
            self._topics[topic] = DeletedTopic(physical_offset, {**known, **offsets})

    def forget(self, log_begin: int) -> None:
        """Drop the light queues of which a log that begins at this offset has no messages."""
        gone = [
            topic for topic, deleted in self._topics.items() if deleted.physical_offset <= log_begin and is_light(topic)
        ]
        for topic in gone:
            del self._topics[topic]

    def content(self) -> dict[str, DeletedTopic]:
        """The content to save now."""
        return dict(self._topics)

    def save(self, content: Mapping[str, DeletedTopic]) -> None:
        """Save this content durably. Blocking; in one thread at a time. OSError."""
        self._file_system.make_directory(self._path.parent)
        topics = {
            topic: {
                "physicalOffset": deleted.physical_offset,
                "queues": {str(key): value for key, value in deleted.next_offsets.items()},
            }
            for topic, deleted in content.items()
        }
        self._table.save({"topics": topics, "crc32": _checksum(topics)})


def _checksum(topics: object) -> int:
    return crc32(java_json.dumps(topics))
