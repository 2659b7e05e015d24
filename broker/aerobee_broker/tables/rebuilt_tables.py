"""Builds lost tables again: topics from the queues of a store, groups from the offsets and retry topics.

What only the tables knew is lost: permissions, attributes, and which topics and groups keep an order. A rebuilt topic
takes every type of message that can be combined, with as many queues as there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_broker.errors import IllegalGroupError, IllegalTopicError
from aerobee_broker.tables.consumer_groups import GroupConfig, GroupTable, check_group_name
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.data_version import NamedTable
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType, TopicTable, is_in_table
from aerobee_store.clock import SystemClock
from aerobee_store.disk.file_system import DiskFileSystem, FileSystem
from aerobee_store.records.topic_names import RETRY_PREFIX
from aerobee_store.tables.json_table import JsonTable, UnreadableTableError
from aerobee_store.tables.logged_table import LoggedTable
from aerobee_store.tools.actions import Action, locked
from aerobee_store.tools.findings import Finding
from aerobee_store.tools.store_files import StoreFiles

_QUEUE_TYPE_OF_BATCHES = {"queue.type": "BatchCQ"}


@dataclass(frozen=True, slots=True)
class TablesReport:
    """The result, or the plan."""

    applied: bool
    actions: list[Action] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {"applied": self.applied, "actions": [action.to_json() for action in self.actions], "left": []}


def rebuild_tables(directory: Path, *, apply: bool = False) -> TablesReport:
    """Add topics and groups of a stopped store that the tables lack; without `apply` only tell them.

    Readable tables keep what they have. Raises StoreLockedError for a store in use, StoreDirectoryError for an invalid
    store, OSError of the disk.
    """
    files = StoreFiles.find(directory)
    try:
        with locked(directory, create=apply):
            return _rebuild(files, DiskFileSystem() if apply else files.disk, apply=apply)
    finally:
        files.close()


def _rebuild(files: StoreFiles, disk: FileSystem, *, apply: bool) -> TablesReport:
    clock, config = SystemClock(), files.directory / "config"
    report = TablesReport(apply)
    topics_file = LoggedTable(disk, config / "topics.json")
    topics = TopicTable.from_json(_readable(topics_file), clock)
    for topic in _topics_of(files):
        if topic.name in topics:
            continue
        try:
            topics.create_internal(topic)
        except IllegalTopicError:
            continue  # a directory that no broker made
        detail = f"{topic.read_queue_count} queues, for messages of any type that can be combined"
        report.actions.append(Action(kind="add-topic", path="config/topics.json", topic=topic.name, detail=detail))
    groups_file = LoggedTable(disk, config / "subscriptionGroup.json")
    groups = GroupTable.from_json(_readable(groups_file), clock)
    for name in _groups_of(config, disk, topics):
        if name in groups:
            continue
        groups.create(GroupConfig(name=name))
        detail = f"group {name}, without order, with the default retries"
        report.actions.append(Action(kind="add-group", path="config/subscriptionGroup.json", detail=detail))
    if apply:
        disk.make_directory(config)
        tables: list[tuple[LoggedTable, NamedTable[TopicConfig] | NamedTable[GroupConfig]]]
        tables = [(topics_file, topics), (groups_file, groups)]
        for file, table in tables:
            if table.dirty:
                file.save(table.content())
    return report


def _readable(table: LoggedTable | JsonTable) -> object | None:
    try:
        return table.load(report=False)
    except UnreadableTableError:
        return None


def _topics_of(files: StoreFiles) -> Iterator[TopicConfig]:
    """The topics of users that have queues."""
    counts: dict[str, int] = {}
    for name, queue_id in [*files.queues, *files.batch_queues]:
        counts[name] = max(counts.get(name, 0), queue_id + 1)
    batches = {name for name, _ in files.batch_queues}
    for name, count in sorted(counts.items()):
        if not is_in_table(name):
            continue
        topic = TopicConfig.of_type(name, TopicMessageType.MIXED, queue_count=count)
        if name in batches:
            topic = TopicConfig(
                name=name, read_queue_count=count, write_queue_count=count, attributes=_QUEUE_TYPE_OF_BATCHES
            )
        yield topic


def _groups_of(config: Path, disk: FileSystem, topics: TopicTable) -> list[str]:
    """The groups with an offset or a retry topic."""
    offsets = OffsetTable.from_json(_readable(JsonTable(disk, config / "consumerOffset.json")), SystemClock())
    retried = (name.removeprefix(RETRY_PREFIX) for name in topics.latest_names() if name.startswith(RETRY_PREFIX))
    return sorted(name for name in {*offsets.groups(), *retried} if _is_of_users(name))


def _is_of_users(name: str) -> bool:
    try:
        check_group_name(name)
    except IllegalGroupError:
        return False
    return True
