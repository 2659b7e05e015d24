"""Dead letters that operators have deleted: their offsets, by group, in `config/aerobeeDeletedDeadLetters.json`.

Nothing can be taken out of the middle of a queue, so a deleted dead letter stays in it until its segment expires, and
this table hides it from operators. A consumer of the topic of dead letters still gets it.

    {"groups": {"billing": [[0, 17], [20, 21]]}}        from the first offset of a pair to before the second

If the table is lost, the dead letters are seen again, so a damaged one stops the start. Offsets are never used twice,
also when all are removed. Replicas copy the table of their master.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from aerobee_broker.errors import TooManyRequestsError
from aerobee_store import MessageStore
from aerobee_store.tables import java_json
from aerobee_store.tables.json_table import JsonTable

FILE_NAME: Final = "aerobeeDeletedDeadLetters.json"
RANGES_MAX: Final = 10_000  # of one group
ALL_RANGES_MAX: Final = 50_000  # of all: 120 bytes of memory each, and a step of the event loop takes all of them
Range = tuple[int, int]


class DeletedLetters:
    """The table of one store. Event loop only, except its save."""

    def __init__(self, store: MessageStore) -> None:
        """Read the table. UnreadableTableError, OSError."""
        path: Path = store.config.directory / "config" / FILE_NAME
        self._store = store
        # The previous content lacks the last deletion.
        self._file = JsonTable(store.file_system, path, old_content_helps=False, may_be_edited=False, stats=store.stats)
        self._saving = asyncio.Lock()
        self._ranges: dict[str, list[Range]] = {}
        content = self._file.load()
        groups = content.get("groups") if isinstance(content, dict) else None
        if isinstance(groups, dict):
            self._ranges = _from_json(groups)

    def has(self, group: str, offset: int) -> bool:
        """Whether this dead letter is deleted."""
        ranges = self._ranges.get(group, ())
        place = bisect_right(ranges, (offset, 1 << 63)) - 1
        return place >= 0 and offset < ranges[place][1]

    def count(self, group: str, low: int, high: int) -> int:
        """How many of the dead letters from `low` to before `high` are deleted."""
        return sum(max(0, min(end, high) - max(first, low)) for first, end in self._ranges.get(group, ()) if end > low)

    async def add(self, group: str, offsets: Iterable[Range], low: int) -> None:
        """Delete these; durable on return. `low`: the first offset that is kept, before which entries are forgotten.

        Nothing is changed if the save fails (OSError). TooManyRequestsError if the table would grow too long.
        """
        async with self._saving:
            ranges = _merged((max(first, low), end) for first, end in (*self._ranges.get(group, ()), *offsets))
            if len(ranges) > RANGES_MAX:
                raise TooManyRequestsError(
                    f"group {group!r} would have {len(ranges)} gaps between deleted dead letters, the limit is "
                    f"{RANGES_MAX}; delete all before a time instead",
                )
            changed = {**self._ranges, group: ranges}
            count = sum(map(len, changed.values()))
            if count > ALL_RANGES_MAX and len(ranges) > len(self._ranges.get(group, ())):
                raise TooManyRequestsError(
                    f"all groups would have {count} gaps between deleted dead letters, the limit is {ALL_RANGES_MAX}; "
                    f"delete all before a time instead",
                )
            await self._save(changed)

    def to_json(self) -> dict[str, object]:
        """The groups with their offsets, for replicas."""
        return _to_json(self._ranges)

    async def replace(self, groups: Mapping[str, Iterable[Sequence[int]]]) -> bool:
        """Have the table of a master, as its `to_json`; durable on return. Returns whether it differed.

        TypeError and ValueError for one that cannot be read, OSError.
        """
        ranges = _from_json(groups)
        async with self._saving:
            if ranges == self._ranges:
                return False
            await self._save(ranges)
            return True

    async def forget(self, is_group: Callable[[str], bool]) -> None:
        """Drop the groups that are gone."""
        async with self._saving:
            kept = {group: ranges for group, ranges in self._ranges.items() if ranges and is_group(group)}
            if kept != self._ranges:
                await self._save(kept)

    async def _save(self, ranges: dict[str, list[Range]]) -> None:
        await self._store.in_disk_thread(self._file.save, java_json.Bean(groups=_to_json(ranges)))
        self._ranges = ranges


def _to_json(ranges: Mapping[str, list[Range]]) -> dict[str, object]:
    return {group: [list(each) for each in ranges[group]] for group in sorted(ranges) if ranges[group]}


def _from_json(groups: Mapping[str, Iterable[Sequence[int]]]) -> dict[str, list[Range]]:
    return {group: _merged((int(first), int(end)) for first, end in ranges) for group, ranges in groups.items()}


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in order, in as few ranges as possible."""
    merged: list[Range] = []
    for first, end in sorted(each for each in ranges if each[0] < each[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((first, end))
    return merged
