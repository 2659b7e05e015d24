"""Where the log is known to begin, and which units the files of each queue are known to have, so that a start notices
files that are gone.

    queueBounds.json    logBegin, logEnd     the log when it was saved, physical offsets; -1: it had no segment
                        queues, batchQueues  topic -> queue id -> [first unit of its first file, unit after its last]

Saved after every start, every minute, and at the close. A queue only grows, retention removes its first files after
the log has none of their records, and a deletion of its topic is recorded before. So a queue that begins later or ends
earlier than this file says has lost files, unless the log has lost its end as well. Where the log begins is saved
before retention removes segments, so a log that begins later has lost them otherwise. RocketMQ does not know the file;
after it has used the store, which its checkpoint shows, the file is not consulted.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from aerobee_store.clock import every
from aerobee_store.disk.file_system import NO_ROOM, FileSystem, InDiskThread, replace_file
from aerobee_store.durability.log_flush import Durability
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.batch_consume_queue import AnyQueue
from aerobee_store.queues.consume_queue import ConsumeQueue
from aerobee_store.queues.dispatch import Dispatch
from aerobee_store.queues.queue_table import QueueTable

_log = logging.getLogger(__name__)

FILE_NAME: Final = "queueBounds.json"
NEW_FILE_NAME: Final = "queueBounds.json.tmp"
_INTERVAL_SECONDS: Final = 60.0
# Queues read between two iterations of the event loop: about a millisecond.
_QUEUES_PER_TURN: Final = 512

UnitBounds = dict[str, dict[int, tuple[int, int]]]
"""Topic -> queue id -> the number of the first unit in its files, and the one after the last."""


class KnownBounds(Struct, rename="camel", frozen=True):
    """The content of the file."""

    log_end: int
    queues: UnitBounds
    batch_queues: UnitBounds
    log_begin: int = -1


def load(file_system: FileSystem, directory: Path) -> KnownBounds | None:
    """The last saved bounds; None without a readable file. Blocking. OSError."""
    path = directory / FILE_NAME
    if not file_system.exists(path):
        return None
    try:
        return msgspec.json.decode(file_system.read_bytes(path), type=KnownBounds)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("bounds of the queues are unreadable, missing files are not noticed path=%s cause=%s", path, error)
        return None


class QueueBounds:
    """The service that saves the bounds of a store's queues."""

    name: Final = "queue-bounds"

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        log: CommitLog,
        queues: QueueTable,
        dispatch: Dispatch,
        durability: Durability,
        in_disk_thread: InDiskThread,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._durability = durability
        self._in_disk_thread = in_disk_thread
        self._saved = b""
        self._known = KnownBounds(0, {}, {})  # as last written
        self._removed_to = 0  # segments before may have been removed
        self.error: OSError | None = None
        """The error of a save whose caller may have been cancelled."""

    async def run(self) -> None:
        """Save every minute what has changed. Ends only when cancelled or failed."""
        await every(_INTERVAL_SECONDS, self._save_in_turns)

    async def _save_in_turns(self) -> None:
        known = KnownBounds(0, {}, {})
        for number, queue in enumerate(self._queues.all(), 1):
            _add(known, queue)
            if number % _QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        try:
            await self._in_disk_thread(self._write_noting_error, self._ended(known))
        except OSError as error:
            raise self._durability.fail(error) from error

    def save(self) -> None:
        """Save now, blocking, for opening and closing. OSError."""
        known = KnownBounds(0, {}, {})
        for queue in self._queues.all():
            _add(known, queue)
        self._write(self._ended(known))

    async def segments_are_removed(self, begin: int) -> None:
        """Save that the log will begin there, before retention removes what is before. OSError."""
        self._removed_to = max(self._removed_to, begin)
        await self._in_disk_thread(self._write_begin, begin)

    def _write_begin(self, begin: int) -> None:
        self._write(msgspec.structs.replace(self._known, log_begin=begin))

    def _write_noting_error(self, known: KnownBounds) -> None:
        try:
            self._write(known)
        except OSError as error:
            self.error = error
            raise

    def _ended(self, known: KnownBounds) -> KnownBounds:
        # The end is read last: a log that reaches it has the record of every unit counted before.
        begin = max(self._log.min_offset, self._removed_to) if self._log.files.files else -1
        return msgspec.structs.replace(known, log_begin=begin, log_end=self._dispatch.dispatched)

    def _write(self, known: KnownBounds) -> None:
        """Replace the file; on a full disk, keep it. OSError."""
        tables = {"queues": _sorted(known.queues), "batch_queues": _sorted(known.batch_queues)}
        content = msgspec.json.encode(msgspec.structs.replace(known, **tables))
        if content == self._saved:
            return
        path = self._directory / FILE_NAME
        try:
            replace_file(self._file_system, path, content)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _log.warning("bounds of the queues not saved, the older ones count path=%s cause=%s", path, error)
            return
        self._saved, self._known = content, known


def _add(known: KnownBounds, queue: AnyQueue) -> None:
    if queue.has_files:
        table = known.queues if isinstance(queue, ConsumeQueue) else known.batch_queues
        table.setdefault(queue.topic, {})[queue.queue_id] = queue.files[0], queue.unit_numbers[1]


def _sorted(bounds: UnitBounds) -> UnitBounds:
    return {topic: dict(sorted(bounds[topic].items())) for topic in sorted(bounds)}
