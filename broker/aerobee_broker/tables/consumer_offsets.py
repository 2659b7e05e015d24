"""How far every group has consumed every queue, kept in RocketMQ's consumerOffset.json.

The offset is that of the next message to consume: all before it are finished. The file has a table
`topic@group` -> queue id -> offset, and from group to the topics in it, `groupTopicMap`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from aerobee_broker.errors import TableFormatError
from aerobee_broker.limits.table_space import TableSpace, offset_size, offsets_size
from aerobee_broker.tables.data_version import DataVersion, VersionedTable
from aerobee_broker.tables.json_fields import INT32_MAX, INT64_MAX, JsonFields, checked_integer
from aerobee_store.clock import Clock
from aerobee_store.records.decimals import decimal
from aerobee_store.tables.java_json import Bean, IntegerMap

_CHANGES_PER_VERSION: Final = 500  # RocketMQ makes a new data version for every 500th commit
_SEPARATOR: Final = "@"  # neither a topic nor a group may have it


class OffsetTable(VersionedTable):
    """Consumer offsets, by stored names of topic and group. Changes are in memory until a snapshot of them is saved.

    A lost save costs redeliveries and no messages, so it is enough to save every few seconds while `dirty`.
    """

    def __init__(self, clock: Clock, space: TableSpace | None = None) -> None:
        """`space`: the memory that the offsets take; None without a limit."""
        super().__init__(clock)
        self.space = space or TableSpace()
        self._offsets: dict[str, dict[int, int]] = {}  # "topic@group" -> queue id -> offset
        self._topics_of_group: dict[str, dict[str, None]] = {}  # the inner dict is an ordered set
        self._changes_since_version = 0

    @classmethod
    def from_json(cls, value: object | None, clock: Clock, space: TableSpace | None = None) -> OffsetTable:
        """The table that a consumerOffset.json holds; empty for None. Raises TableFormatError."""
        table = cls(clock, space)
        if value is None:
            return table
        fields = JsonFields("consumerOffset.json", value)
        table._version = DataVersion.from_json(fields.full_name("dataVersion"), fields.mapping("dataVersion"))
        _take_group_topic_map(fields, table._topics_of_group)
        offsets = fields.mapping("offsetTable")
        for key, queues in offsets.items():
            table._offsets[key] = _queues_from_json(f"consumerOffset.json.offsetTable.{key}", queues)
            topic, _, group = key.rpartition(_SEPARATOR)
            if topic and group:
                table._remember(topic, group)
        table.space.add("offsets", table._size())
        table._extra = fields.rest()
        return table

    def content(self) -> Callable[[], Bean]:
        """A function that returns the current content of consumerOffset.json; it may be called in another thread, as it
        takes longer than a step of the event loop may."""
        extra, version = self._extra, self._version.to_json()
        topics_of_group = [(group, tuple(topics)) for group, topics in self._topics_of_group.items()]
        offsets = [(key, queues.copy()) for key, queues in self._offsets.items()]

        def content() -> Bean:
            return Bean(
                extra,
                dataVersion=version,
                groupTopicMap={group: list[object](topics) for group, topics in topics_of_group},
                offsetTable={key: IntegerMap.of(queues) for key, queues in offsets},
            )

        return content

    def snapshot(self) -> Bean:
        """The content of consumerOffset.json as it is now, independent of later changes."""
        return self.content()()

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset of the next message to consume; None if nothing was ever committed."""
        queues = self._offsets.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def queues(self, topic: str, group: str) -> dict[int, int]:
        """Queue id -> offset, of all queues with an offset."""
        return dict(self._offsets.get(f"{topic}@{group}", ()))

    def topics_of(self, group: str) -> tuple[str, ...]:
        """The topics in which the group has an offset."""
        return tuple(self._topics_of_group.get(group, ()))

    def groups(self) -> tuple[str, ...]:
        """The groups that have an offset in any topic."""
        return tuple(self._topics_of_group)

    def groups_of(self, topic: str) -> tuple[str, ...]:
        """The groups that have an offset in the topic."""
        return tuple(group for group, topics in self._topics_of_group.items() if topic in topics)

    def commit(self, topic: str, group: str, queue_id: int, offset: int, *, force: bool = False) -> bool:
        """Record that everything before `offset` is finished; True if that changed something.

        A lower offset than the present one is ignored (a late or repeated commit), unless `force` makes it a reset.
        """
        assert 0 <= queue_id <= INT32_MAX, "requests are checked before they come here"
        assert 0 <= offset <= INT64_MAX, "requests are checked before they come here"
        key = f"{topic}@{group}"
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
            self._remember(topic, group)
            self.space.add("offsets", offsets_size(topic, group))
        present = queues.get(queue_id)
        if present is not None and (offset == present or (offset < present and not force)):
            return False
        queues[queue_id] = offset
        if present is None:
            self.space.add("offsets", offset_size())
        self._changed(1)
        return True

    def require_space(self, topic: str, group: str, queue_ids: Collection[int]) -> None:
        """Raise TableSpaceError unless there is space for offsets in these queues: before a client's `commit`."""
        queues = self._offsets.get(f"{topic}@{group}")
        size = offset_size(sum(1 for queue_id in queue_ids if queues is None or queue_id not in queues))
        if size:
            size += offsets_size(topic, group) if queues is None else 0
            self.space.require(size, f"a position of group {group!r} in topic {topic!r}")

    def put_back(self, topic: str, group: str, queue_id: int, offset: int | None) -> None:
        """Undo a commit that could not be saved: the offset before it, None if there was none."""
        if offset is not None:
            self.commit(topic, group, queue_id, offset, force=True)
            return
        queues = self._offsets.get(f"{topic}@{group}", {})
        if queues.pop(queue_id, None) is not None:
            self.space.add("offsets", -offset_size())
        if not queues:
            self.remove(topic, group)
        else:
            self._changed(1)

    def remove_topic(self, topic: str) -> None:
        """Remove all offsets in a deleted topic."""
        for group in self.groups_of(topic):
            self.remove(topic, group)

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a deleted group."""
        for topic in self.topics_of(group):
            self.remove(topic, group)

    def remove(self, topic: str, group: str) -> None:
        """Remove the offsets of a group in a topic, if there are any."""
        topics = self._topics_of_group.get(group, {})
        if topic not in topics:
            return
        del topics[topic]
        if not topics:
            del self._topics_of_group[group]
        # The topic may occur only in groupTopicMap.
        if (queues := self._offsets.pop(f"{topic}@{group}", None)) is not None:
            self.space.add("offsets", -offsets_size(topic, group) - offset_size(len(queues)))
        self._changed(_CHANGES_PER_VERSION)

    def replace(self, other: OffsetTable) -> None:
        """Become another table, which nobody changes any more, and which counts its memory for itself."""
        assert other.space is not self.space, "it would be counted twice"
        self._offsets, self._topics_of_group = other._offsets, other._topics_of_group
        self.space.add("offsets", other.space.sizes["offsets"] - self.space.sizes["offsets"])
        self._replace(other)

    def _size(self) -> int:
        """The memory of all offsets."""
        return sum(
            offsets_size(*key.rpartition(_SEPARATOR)[::2]) + offset_size(len(queues))
            for key, queues in self._offsets.items()
        )

    def _remember(self, topic: str, group: str) -> None:
        self._topics_of_group.setdefault(group, {})[topic] = None

    def _changed(self, count: int) -> None:
        self._revision.advance()
        self._changes_since_version += count
        if self._changes_since_version >= _CHANGES_PER_VERSION:
            self._changes_since_version = 0
            self._note_version()


def _take_group_topic_map(fields: JsonFields, topics_of_group: dict[str, dict[str, None]]) -> None:
    """The map follows from the offsets; it is read only to preserve its order."""
    for group, topics in fields.mapping("groupTopicMap").items():
        name = f"{fields.full_name('groupTopicMap')}.{group}"
        if not isinstance(topics, list):
            raise TableFormatError(name, f"expected an array, found {topics!r:.60}")
        for topic in topics:
            if not isinstance(topic, str):
                raise TableFormatError(name, f"expected names of topics, found {topic!r:.60}")
            topics_of_group.setdefault(group, {})[topic] = None


def _queues_from_json(name: str, value: object) -> dict[int, int]:
    if not isinstance(value, dict):
        raise TableFormatError(name, f"expected an object, found {value!r:.60}")
    queues: dict[int, int] = {}
    for key, offset in value.items():
        queue_id = decimal(key, INT32_MAX)
        if queue_id is None:
            raise TableFormatError(name, f"expected queue ids, found {key!r:.60}")
        checked = checked_integer(f"{name}.{key}", offset, -1, INT64_MAX)
        if checked >= 0:  # -1 is RocketMQ's value for "none"
            queues[queue_id] = checked
    return queues
