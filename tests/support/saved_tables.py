"""Changes of a broker's tables without a disk: what is not saved does not exist yet for those who read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from aerobee_broker.tables.consumer_groups import GroupTable
from aerobee_broker.tables.topics import TopicTable

_Table = TypeVar("_Table", TopicTable, GroupTable)


def saved(table: _Table) -> _Table:
    """The table, for one change that counts as saved at once: `saved(tables.topics).create(...)`."""
    return cast(_Table, _Saved(table))


class _Saved:
    def __init__(self, table: TopicTable | GroupTable) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            result = getattr(self._table, name)(*arguments)
            self._table.mark_saved(self._table.revision)
            return result

        return change
