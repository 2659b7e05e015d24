"""Versions of tables: how RocketMQ's configuration files number their states, and which changes are not on disk yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from msgspec import Struct

from aerobee_broker.limits.loop_share import in_turns
from aerobee_broker.limits.table_space import Kind, TableSpace
from aerobee_broker.tables.json_fields import INT64_MAX, JsonFields
from aerobee_store.clock import Clock
from aerobee_store.tables.java_json import Bean


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The `dataVersion` of a configuration file. `timestamp` is the time of the last change, in Unix milliseconds."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    @classmethod
    def from_json(cls, name: str, value: object) -> DataVersion:
        """Raises TableFormatError. Release 4.3 has no stateVersion; its offset files have no version at all."""
        fields = JsonFields(name, {} if value is None else value)
        return cls(
            fields.integer("counter", 0, maximum=INT64_MAX),
            fields.integer("stateVersion", 0, maximum=INT64_MAX),
            fields.integer("timestamp", 0, maximum=INT64_MAX),
        )

    def to_json(self) -> Bean:
        return Bean(counter=self.counter, stateVersion=self.state_version, timestamp=self.timestamp)

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(self.counter + 1, self.state_version, now_ms)


class Revision:
    """Counts the changes of a table in memory, so that its owner knows whether a save is due.

    The number belongs to this process; what RocketMQ sees is the DataVersion. A change between the snapshot and the end
    of its save keeps the table dirty, because `mark_saved` is given the number that the snapshot had.
    """

    __slots__ = ("_saved", "current")

    def __init__(self) -> None:
        self.current = 0
        self._saved = 0

    def advance(self) -> None:
        self.current += 1

    def mark_saved(self, revision: int) -> None:
        self._saved = max(self._saved, revision)

    @property
    def saved(self) -> int:
        """The last number that `mark_saved` was given."""
        return self._saved

    @property
    def unsaved(self) -> int:
        """The number of changes that `mark_saved` has not confirmed."""
        return self.current - self._saved

    @property
    def dirty(self) -> bool:
        return self.current != self._saved


class VersionedTable:
    """A table that is kept in one of RocketMQ's files. Changes are in memory until a snapshot of them is saved:

    revision = table.revision
    value = table.snapshot()            # event loop
    json_table.save(value)              # disk thread
    table.mark_saved(revision)          # event loop
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version = DataVersion()
        self._revision = Revision()
        self._extra: Mapping[str, object] = {}  # unknown fields of the file, written back unchanged

    @property
    def version(self) -> DataVersion:
        return self._version

    @property
    def revision(self) -> int:
        """Changes so far in this process; give `mark_saved` the one that the snapshot had."""
        return self._revision.current

    @property
    def dirty(self) -> bool:
        """Whether there are changes that `mark_saved` has not confirmed."""
        return self._revision.dirty

    def mark_saved(self, revision: int) -> None:
        self._revision.mark_saved(revision)

    def _replace(self, other: VersionedTable) -> None:
        """Take the version and the unknown fields of another table, together with its content."""
        self._version = other._version
        self._extra = other._extra
        self._revision.advance()

    def _note_version(self) -> None:
        self._version = self._version.next(self._clock.now_ms())


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    def to_json(self) -> Bean: ...


_Item = TypeVar("_Item", bound=_Named)


class TableChange(Struct, frozen=True):
    """The changes of a table since its last save, as `LoggedTable.encode` takes them."""

    after: int
    data_version: Bean
    items: Bean


class NamedTable(VersionedTable, ABC, Generic[_Item]):
    """Topics or groups, by stored name. Every change is a new version, which must be saved before the change is
    answered.

    What is not saved does not exist yet: reading gives the items as they are on disk. Otherwise a request that comes
    during a save would be answered for a topic that a crash takes back, with its messages. Changes are made to the
    latest items, saved or not.
    """

    _FILE_NAME: ClassVar[str]
    _ITEMS_FIELD: ClassVar[str]  # of the file
    _OTHER_FIELDS: ClassVar[Mapping[str, object]] = {}  # that a new file has
    _KIND: ClassVar[Kind]  # of memory

    def __init__(self, clock: Clock, space: TableSpace | None = None) -> None:
        """`space`: the memory that the items take; None without a limit."""
        super().__init__(clock)
        self.space = space or TableSpace()
        self._items: dict[str, _Item] = {}
        self._latest: dict[str, _Item] = {}
        self._sizes: dict[str, int] = {}  # of memory, of the latest items
        self._saved_version = self._version
        self._unsaved: dict[str, int] = {}  # the names of changed items, with the revision of their last change

    @staticmethod
    @abstractmethod
    def _item_from_json(name: str, value: object) -> _Item:
        """One entry of the items field."""

    @abstractmethod
    def _size_of(self, item: _Item) -> int:
        """The memory that the item takes."""

    @classmethod
    def from_json(cls, value: object | None, clock: Clock, space: TableSpace | None = None) -> Self:
        """The table that the content of its file describes; empty for None. Raises TableFormatError."""
        table = cls(clock, space)
        if value is None:
            return table
        fields = JsonFields(cls._FILE_NAME, value)
        table._version = DataVersion.from_json(fields.full_name("dataVersion"), fields.mapping("dataVersion"))
        table._saved_version = table._version
        for name, item in fields.mapping(cls._ITEMS_FIELD).items():
            table._items[name] = found = cls._item_from_json(name, item)
            table._set_latest(name, found)
        table._extra = fields.rest()
        return table

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[_Item]:
        return iter(tuple(self._items.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._items

    @property
    def version(self) -> DataVersion:
        """The version of the saved items."""
        return self._saved_version

    @property
    def saved_revision(self) -> int:
        """Changes whenever the items that are read do, so that others know whether what they keep of them is valid."""
        return self._revision.saved

    def get(self, name: str) -> _Item | None:
        return self._items.get(name)

    def latest_names(self) -> list[str]:
        """The names of all items, with the changes that are not saved yet."""
        return list(self._latest)

    def latest(self, name: str) -> _Item | None:
        """The item with the changes that are not saved yet: for a change of it, never for an answer."""
        return self._latest.get(name)

    def mark_saved(self, revision: int) -> None:
        super().mark_saved(revision)
        for name in [name for name, changed in self._unsaved.items() if changed <= revision]:
            del self._unsaved[name]
            if name in self._latest:
                self._items[name] = self._latest[name]
            else:
                self._items.pop(name, None)
        counter = self._version.counter - self._revision.unsaved
        self._saved_version = DataVersion(counter, self._version.state_version, self._version.timestamp)

    def take_back(self, revision: int) -> None:
        """Undo the changes up to this one, because their save failed: their callers were told so.

        This counts as another change, as the disk may have either state. The next save must be a complete one.
        """
        for name in [name for name, changed in self._unsaved.items() if changed <= revision]:
            del self._unsaved[name]
            self._set_latest(name, self._items.get(name))
        self._note_version()
        self._revision.advance()
        if not self._unsaved:
            self.mark_saved(self._revision.current)

    @property
    def unsaved_count(self) -> int:
        """Items with changes that `mark_saved` has not confirmed."""
        return len(self._unsaved)

    def unsaved_change(self) -> Callable[[], TableChange]:
        """A function that returns the changes so far that `mark_saved` has not confirmed; it may be called in another
        thread."""
        items = [(name, self._latest.get(name)) for name in self._unsaved]
        after, version = self._version.counter - self._revision.unsaved, self._version.to_json()

        def change() -> TableChange:
            return TableChange(
                after, version, Bean((name, None if item is None else item.to_json()) for name, item in items)
            )

        return change

    def content(self) -> Callable[[], Bean]:
        """A function that returns the current content of the file; it may be called in another thread."""
        version, extra, items = self._version, self._extra, tuple(self._latest.values())

        def content() -> Bean:
            table = {item.name: item.to_json() for item in items}
            return Bean({**self._OTHER_FIELDS, **extra, "dataVersion": version.to_json(), self._ITEMS_FIELD: table})

        return content

    def snapshot(self) -> Bean:
        """The content of the file as it is now, independent of later changes."""
        return self.content()()

    async def replace(self, other: NamedTable[_Item]) -> None:
        """Become equal to another table, in turns. Requires a complete save, because its version is unrelated to the
        previous one. If it is cancelled, the items until then are changed."""
        names = self._items.keys() | self._latest.keys() | other._latest.keys()
        async for name in in_turns(names):
            if (item := other._latest.get(name)) != self._latest.get(name):
                self._set_latest(name, item)
                self._changed(name)
        self._latest = dict(other._latest)  # in its order
        self._replace(other)
        self._unsaved = dict.fromkeys(names, self._revision.current)

    def _put(self, item: _Item) -> None:
        self._set_latest(item.name, item)
        self._changed(item.name)

    def _remove(self, name: str) -> None:
        self._set_latest(name, None)
        self._changed(name)

    def _require_space(self, item: _Item) -> None:
        """Raise TableSpaceError unless there is space for a new item, or for the growth of one."""
        growth = self._size_of(item) - self._sizes.get(item.name, 0)
        self.space.require(growth, f"{self._KIND[:-1]} {item.name!r}")

    def _set_latest(self, name: str, item: _Item | None) -> None:
        size = 0 if item is None else self._size_of(item)
        self.space.add(self._KIND, size - self._sizes.get(name, 0))
        if item is None:
            self._latest.pop(name, None)
            self._sizes.pop(name, None)
        else:
            self._latest[name] = item
            self._sizes[name] = size

    def _changed(self, name: str) -> None:
        self._note_version()
        self._revision.advance()
        self._unsaved[name] = self._revision.current
