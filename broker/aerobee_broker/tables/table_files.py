"""The three tables of the broker and their files: new items are on disk before the call is answered."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import ExecutionTimes
from aerobee_broker.errors import GroupNotFoundError, TableMissingError, TopicNotFoundError
from aerobee_broker.limits.table_space import TableSpace
from aerobee_broker.limits.wakes import Gate, Wakes
from aerobee_broker.tables.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, without_effect
from aerobee_broker.tables.consumer_groups import GroupConfig, GroupTable, is_system_group
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.data_version import NamedTable, VersionedTable
from aerobee_broker.tables.predefined_topics import predefined_topics
from aerobee_broker.tables.topics import (
    TopicConfig,
    TopicMessageType,
    TopicTable,
    check_new_topic_name,
    is_in_table,
    is_system_topic,
)
from aerobee_store.clock import Clock, every
from aerobee_store.disk.file_system import DiskFileSystem, FileSystem
from aerobee_store.stats import StoreStats
from aerobee_store.tables.json_table import JsonTable
from aerobee_store.tables.logged_table import LoggedTable

_log = logging.getLogger(__name__)

SAVE_INTERVAL_SECONDS: Final = 5.0  # RocketMQ's interval for consumerOffset.json
InDiskThread = Callable[..., Awaitable[object]]
# Calls that go on in a step after a save: each may make a topic's first queue, which takes up to a millisecond.
_CALLS_AT_ONCE: Final = 8


class SavedTable(ABC):
    """One table and its file."""

    def __init__(self, table: VersionedTable, in_disk_thread: InDiskThread) -> None:
        self._table = table
        self._in_disk_thread = in_disk_thread
        self._idle = Gate(Wakes(_CALLS_AT_ONCE))  # closed while a save runs; thousands of calls may wait for its end
        self._saved = 0
        self._refused = 0  # changes between `_saved` and this were taken back, because of `_refusal`
        self._refusal: OSError | None = None

    async def save(self) -> None:
        """Return when every change made before the call is on disk; concurrent calls share a save, and its failure.
        OSError."""
        wanted = self._table.revision
        while True:
            if self._refusal is not None and self._saved < wanted <= self._refused:
                raise OSError(*self._refusal.args)
            if not self._table.dirty or self._saved >= wanted:  # an earlier save included it
                return
            if self._idle.is_set():
                await self._save(self._write)
                return
            await self._idle.wait()

    async def _save(self, write: Callable[[], Awaitable[object]]) -> None:
        """Only while no save runs."""
        revision = self._table.revision
        self._idle.clear()
        try:
            await write()
        except OSError as error:
            if self._takes_back(revision):
                self._refused, self._refusal = revision, error
            raise
        finally:
            self._idle.set()
        self._table.mark_saved(revision)
        self._saved = revision

    def _takes_back(self, _revision: int) -> bool:
        """Undo the changes up to this one, whose save failed; returns False if they wait for another save."""
        return False

    @abstractmethod
    def _write(self) -> Awaitable[object]:
        """Write the current content."""


class SavedOffsets(SavedTable):
    """The table of offsets: every save writes the whole table."""

    def __init__(self, table: OffsetTable, file: JsonTable, in_disk_thread: InDiskThread) -> None:
        super().__init__(table, in_disk_thread)
        self._offsets = table
        self._file = file

    def _write(self) -> Awaitable[object]:
        content = self._offsets.content()
        return self._in_disk_thread(lambda: self._file.save(content()))


_ENCODED_AT_ONCE: Final = 64
"""Changed topics or groups that are encoded in a step of the event loop, which takes a millisecond. One request may
change thousands; neither the loop nor the disk thread has time for these."""


class SavedNames(SavedTable):
    """Topics or groups: a save writes only the changes."""

    def __init__(
        self, table: NamedTable[TopicConfig] | NamedTable[GroupConfig], file: LoggedTable, in_disk_thread: InDiskThread
    ) -> None:
        super().__init__(table, in_disk_thread)
        self._names = table
        self._file = file

    async def _write(self) -> None:
        is_large = self._names.unsaved_count > _ENCODED_AT_ONCE
        change, content = self._names.unsaved_change(), self._names.content()

        def encode() -> bytes:
            found = change()
            return self._file.encode(found.after, found.data_version, found.items)

        line = await asyncio.to_thread(encode) if is_large else encode()
        if self._file.fits(line):
            await self._in_disk_thread(self._file.append, line)
        else:
            await self._in_disk_thread(self._file.save, content)

    def _write_all(self) -> Awaitable[object]:
        return self._in_disk_thread(self._file.save, self._names.content())

    def _takes_back(self, revision: int) -> bool:
        self._names.take_back(revision)
        return True

    async def save_all(self, *, only_if_needed: bool = False) -> None:
        """Save every change to the file itself, which then needs no log. OSError.

        `only_if_needed`: only if a start found a log, or an append failed.
        """
        while not self._idle.is_set():
            await self._idle.wait()
        if self._file.needs_save if only_if_needed else self._file.has_changes or self._table.dirty:
            await self._save(self._write_all)


class BatchTopics:
    """Tells the store which topics take inner batches, first during recovery, before the tables are loaded.

    The store holds the lock of the directory then, so topics.json is read for this purpose. `Tables` reads it again and
    reports its errors.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        """`directory`: the store's directory."""
        self._file = LoggedTable(DiskFileSystem(), directory / "config" / "topics.json")
        self._clock = clock
        self._topics: TopicTable | None = None

    def __call__(self, stored_name: str) -> bool:
        """Until the table is attached, raises TableFormatError, UnreadableTableError and OSError."""
        if self._topics is None:
            self._topics = TopicTable.from_json(self._file.load(report=False), self._clock)
        topic = self._topics.get(stored_name)
        return topic is not None and topic.takes_batches

    def attach(self, topics: TopicTable) -> None:
        """Use the broker's own table from now on."""
        self._topics = topics


class Tables:
    """Topics, groups and committed offsets of one store directory."""

    name: Final = "tables"

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        topics: LoggedTable,
        groups: LoggedTable,
        offsets: JsonTable,
        in_disk_thread: InDiskThread,
    ) -> None:
        self._settings = settings
        self.space = TableSpace(settings)
        found = topics.load()
        self.topics = TopicTable.from_json(found, clock, self.space)
        self._has_no_topics_file = found is None
        self.groups = GroupTable.from_json(groups.load(), clock, self.space)
        self.offsets = OffsetTable.from_json(offsets.load(), clock, self.space)
        self.topic_creations = ExecutionTimes()
        self.group_creations = ExecutionTimes()
        self._saved_topics = SavedNames(self.topics, topics, in_disk_thread)
        self._saved_groups = SavedNames(self.groups, groups, in_disk_thread)
        self._saved_offsets = SavedOffsets(self.offsets, offsets, in_disk_thread)

    @classmethod
    def load(
        cls,
        settings: Settings,
        clock: Clock,
        file_system: FileSystem,
        in_disk_thread: InDiskThread,
        stats: StoreStats | None = None,
    ) -> Self:
        """Read the three files; a missing one is an empty table. TableFormatError, UnreadableTableError, OSError."""
        directory: Path = settings.current.store.directory / "config"
        file_system.make_directory(directory)
        return cls(
            settings,
            clock,
            topics=LoggedTable(file_system, directory / "topics.json", stats=stats),
            groups=LoggedTable(file_system, directory / "subscriptionGroup.json", stats=stats),
            offsets=JsonTable(file_system, directory / "consumerOffset.json", stats=stats),
            in_disk_thread=in_disk_thread,
        )

    def check_queues(self, queues: Iterable[str]) -> None:
        """Raise TableMissingError if there is no table of topics, although these topics (stored names) have queues; log
        those that the table lacks."""
        orphans = sorted(name for name in queues if is_in_table(name))
        directory = self._settings.current.store.directory
        if self._has_no_topics_file and orphans:
            raise TableMissingError(directory, orphans)
        if orphans := [name for name in orphans if name not in self.topics]:
            _log.warning(
                "%d topics have messages and are not in %s, such as %s; if they were not deleted, add them with "
                "`aerobee store rebuild %s --tables`, otherwise delete them once more",
                *(len(orphans), directory / "config" / "topics.json", ", ".join(orphans[:5]), directory),
            )

    def count_memory(
        self, queues: Mapping[str, Collection[int]], queue_ids_of: Callable[[str], Collection[int]]
    ) -> None:
        """Count the memory of topics by the queues that the store has: `queues`, and later `queue_ids_of` a topic."""
        self.topics.count_memory(queues, queue_ids_of, self.groups.counted_queues)
        self.groups.size_listener = self.topics.recount_of_group

    def warn_of_attributes(self) -> None:
        """Log the attributes that have no effect here: a store of RocketMQ may have such."""
        found = [(f"topic {item.name}", without_effect(TOPIC_ATTRIBUTES, item.attributes)) for item in self.topics]
        found += [(f"group {item.name}", without_effect(GROUP_ATTRIBUTES, item.attributes)) for item in self.groups]
        for name, reasons in found:
            for reason in reasons:
                _log.warning("%s has an attribute without effect: %s", name, reason)

    def topic_or_expected(self, stored_name: str) -> TopicConfig:
        """The topic, also one that clients expect and that does not exist yet. Raises TopicNotFoundError."""
        expected = predefined_topics(self._settings.current)
        return self.topics.get(stored_name) or expected.get(stored_name) or self.topics.require(stored_name)

    async def topic_in_use(self, stored_name: str, *, queue_count: int | None = None) -> TopicConfig:
        """The topic; one that clients expect, and with auto-creation any missing one, is created.

        Raises TopicNotFoundError and IllegalTopicError.

        `queue_count`: the maximum number of queues of a created topic.
        """
        topic = self.topics.get(stored_name)
        if topic is not None:
            return topic
        expected = predefined_topics(self._settings.current).get(stored_name)
        if expected is not None:
            topic = self.topics.create_internal(expected)
            await self.save_topics()
            return topic
        if not self._settings.current.auto_create_topics:
            raise TopicNotFoundError(stored_name)
        with self.topic_creations.measure(is_system=is_system_topic(stored_name)):
            check_new_topic_name(stored_name)
            # The topic's purpose is unknown, and the first request is a route query, which does not tell it: accept
            # every type that can be combined.
            count = min(
                self._settings.current.topics.queue_count, queue_count or self._settings.current.topics.queue_count
            )
            topic = self.topics.latest(stored_name)  # another request may be saving it right now
            if topic is None:
                topic = TopicConfig.of_type(stored_name, TopicMessageType.MIXED, queue_count=count)
                self.topics.create(topic)
            await self.save_topics()
        return topic

    async def internal_topic(self, stored_name: str, *, queue_count: int = 1) -> TopicConfig:
        """A topic that the broker needs (retry, dead letters, events), created if it is missing; durable on return."""
        topic = self.topics.get(stored_name)
        if topic is None:
            topic = self.topics.create_internal(TopicConfig.of_type(stored_name, queue_count=queue_count))
            await self.save_topics()
        return topic

    def group_or_first_use(self, stored_name: str, topics: Iterable[str]) -> GroupConfig:
        """The group, or the group that its first use would create, because clients want to know its settings before
        that.

        With auto-creation, a new group is orderly if a topic that it consumes is a FIFO topic. The creator of that
        topic expects order, and the group's setting for it is easily forgotten.
        """
        group = self.groups.get(stored_name)
        if group is not None or not self._settings.current.auto_create_groups:
            return group or GroupConfig(name=stored_name)
        found = [self.topics.get(name) for name in topics]
        orderly = any(topic is not None and topic.message_type is TopicMessageType.FIFO for topic in found)
        return GroupConfig(name=stored_name, consume_orderly=orderly)

    def check_usable(self, stored_name: str) -> None:
        """GroupNotFoundError for a group that does not exist and would not be created by its first use."""
        if stored_name not in self.groups and not self._settings.current.auto_create_groups:
            raise GroupNotFoundError(stored_name)

    async def group_in_use(self, stored_name: str, topics: Iterable[str]) -> GroupConfig:
        """The group; with auto-creation a missing one is created, to consume `topics` (stored names).

        Raises GroupNotFoundError and IllegalGroupError.
        """
        group = self.groups.get(stored_name)
        if group is not None:
            return group
        self.check_usable(stored_name)
        with self.group_creations.measure(is_system=is_system_group(stored_name)):
            group = self.groups.latest(stored_name)
            if group is None:
                group = self.group_or_first_use(stored_name, topics)
                self.groups.create(group)
            await self.save_groups()
        return group

    async def save_topics(self) -> None:
        await self._saved_topics.save()

    async def save_groups(self) -> None:
        await self._saved_groups.save()

    async def save_offsets(self) -> None:
        await self._saved_offsets.save()

    async def save(self) -> None:
        """Return when every change is on disk."""
        await self._saved_topics.save()
        await self._saved_groups.save()
        await self._saved_offsets.save()

    async def save_all(self) -> None:
        """Save everything to RocketMQ's files themselves, for an orderly stop. OSError."""
        await self._saved_topics.save_all()
        await self._saved_groups.save_all()
        await self._saved_offsets.save()

    async def run(self) -> None:
        """Save offsets from time to time, until cancelled; the delivery journal has them too."""
        await every(SAVE_INTERVAL_SECONDS, self._save_what_changed)

    async def _save_what_changed(self) -> None:
        await self._saved_topics.save_all(only_if_needed=True)
        await self._saved_groups.save_all(only_if_needed=True)
        await self.save()
