"""A configuration file of named items that saves a change without writing the other items.

    topics.json          the content of the last complete save, in RocketMQ's form: json_table.py
    topics.json.log      the changes since then: change_log.py
    topics.json.log.bak  the changes between topics.json.bak and topics.json

A complete save contains the changes of the log, which is then renamed to `.log.bak`. It is done when the log is full,
when the broker stops, after a start that found a log, and after a failed append. RocketMQ does not read the log, but
finds all items after a clean stop.

If topics.json is unreadable, its `.bak` and both logs together have the same content.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aerobee_store.disk.file_system import FileSystem
from aerobee_store.stats import StoreStats
from aerobee_store.tables.change_log import ChangeLog, Changes, encode_line
from aerobee_store.tables.java_json import Bean
from aerobee_store.tables.json_table import JsonTable, UnreadableTableError

FIELDS: Final = {"topics.json": "topicConfigTable", "subscriptionGroup.json": "subscriptionGroupTable"}
"""The files that have a log, and the field with their items."""

_log = logging.getLogger(__name__)


class LoggedTable:
    """The durable content of one such file. One caller at a time, as for a JsonTable."""

    def __init__(self, files: FileSystem, path: Path, *, stats: StoreStats | None = None) -> None:
        """`path`: its name is one of FIELDS. `stats` counts damage."""
        self.path = path
        self._field = FIELDS[path.name]
        self._table = JsonTable(files, path, stats=stats)
        self._changes = ChangeLog(files, path)
        self._stats = stats
        self._is_damaged = False
        self.needs_save = False
        """Whether the next save must be complete."""

    def load(self, *, report: bool = True) -> object | None:
        """Return the content with all changes applied; None if there is none. Changes nothing on the disk.

        Like `JsonTable.load`; for a damaged log a warning is logged, and its readable changes are applied. Also raises
        UnreadableTableError if there is a log without its table.
        """
        latest = self._changes.read()  # before the table: a broker that uses the store may save it in between
        value = self._table.load(report=report)
        if value is None and latest is not None:
            path = self._changes.path
            raise UnreadableTableError(self.path, [f"{self.path.name} is missing", f"{path.name} continues it"])
        logs = [self._changes.read(previous=True) if self._table.is_from_copy else None, latest]
        problems = [problem for changes in logs if changes is not None for problem in self._apply(value, changes)]
        self.needs_save = self._table.is_from_copy or latest is not None
        self._is_damaged = latest is not None and latest.problem is not None
        if problems and report:
            _log.warning(
                "unreadable changes of a configuration file are skipped, the others applied; compare the table with a "
                "backup path=%s cause=%r",
                self._changes.path,
                "; ".join(problems),
            )
            if self._stats is not None:
                self._stats.tables_changed += 1
        return value

    def fits(self, line: bytes) -> bool:
        """Whether `append` can save this line."""
        return not self.needs_save and self._table.content_size > 0 and self._changes.fits(len(line))

    def encode(self, after: int, data_version: Bean, items: Bean) -> bytes:
        """The line of a change: the new value of each item, None for a deleted one.

        `after`: the counter of the version before the change.
        """
        return encode_line(Bean({"after": after, "dataVersion": data_version, self._field: items}))

    def append(self, line: bytes) -> None:
        """Save a change for which `fits` is true; it is durable on return. After an OSError the next save is
        complete."""
        self.needs_save = True
        self._changes.append(line, self._table.content_size)
        self.needs_save = False

    def save(self, content: Callable[[], object]) -> None:
        """Save everything: the result of `content`, which includes all changes. OSError."""
        self.needs_save = True
        self._table.save(content())
        self._changes.retire(damaged=self._is_damaged)
        self.needs_save = self._is_damaged = False

    @property
    def has_changes(self) -> bool:
        """Whether the file lacks changes that only its log has."""
        return self.needs_save or self._changes.is_open

    def _apply(self, value: object, changes: Changes) -> list[str]:
        """Apply the changes that are newer than the table; return the problems."""
        problems = [changes.problem] if changes.problem is not None else []
        if not isinstance(value, dict):
            return problems  # the reader of the table reports its format error
        for change in changes.items:
            after, counter, items = change.get("after"), _counter(change), change.get(self._field)
            if not isinstance(after, int) or not isinstance(items, dict):
                problems.append(f"a change has no valid 'after' or {self._field!r}")
                continue
            present = _counter(value)
            if counter <= present:
                continue
            if after > present and not problems:
                problems.append(f"the changes {present + 1} to {after} are missing")
            table = value.setdefault(self._field, {})
            if not isinstance(table, dict):
                return problems
            for name, item in items.items():
                if item is None:
                    table.pop(name, None)
                else:
                    table[name] = item
            value["dataVersion"] = change["dataVersion"]
        return problems


def _counter(value: dict[str, object]) -> int:
    version = value.get("dataVersion")
    counter = version.get("counter") if isinstance(version, dict) else None
    return counter if isinstance(counter, int) else 0
