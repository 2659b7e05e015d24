"""The damaged ranges of a log, and the queues whose messages were there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.log.log_scan import SEGMENT_MISSING
from aerobee_store.tools.findings import Finding
from aerobee_store.tools.store_files import QueueKey, StoreFiles

_NAMES_MAX: Final = 10


class Damage:
    """Damaged ranges in log order."""

    def __init__(self) -> None:
        self.ranges: list[DamagedRange] = []
        self._lost: dict[int, list[tuple[QueueKey, int]]] = {}
        self._lost_count: dict[int, int] = {}

    def within(self, begin: int, end: int) -> bool:
        """Whether any byte of [begin, end) is damaged."""
        number = self._number(end - 1)
        return number >= 0 and self.ranges[number].end > begin

    def note_lost(self, physical_offset: int, key: QueueKey, queue_offset: int) -> None:
        """Note that a message of this queue began here, within a damaged range, according to its unit."""
        number = self._number(physical_offset)
        self._lost_count[number] = self._lost_count.get(number, 0) + 1
        if len(lost := self._lost.setdefault(number, [])) < _NAMES_MAX:
            lost.append((key, queue_offset))

    def findings(self, files: StoreFiles) -> Iterator[Finding]:
        for number, damage in enumerate(self.ranges):
            yield finding_of(damage, files, self._lost.get(number, []), self._lost_count.get(number, 0))

    def _number(self, physical_offset: int) -> int:
        return bisect_right(self.ranges, physical_offset, key=lambda damage: damage.start) - 1


def finding_of(damage: DamagedRange, files: StoreFiles, lost: list[tuple[QueueKey, int]], lost_count: int) -> Finding:
    """A damaged range as a finding. `lost`: the affected queue offsets according to units."""
    missing = damage.reason == SEGMENT_MISSING
    detail = damage.reason
    if lost:
        names = ", ".join(f"{topic}/{queue_id} offset {offset}" for (topic, queue_id), offset in lost)
        more = f" and {lost_count - len(lost)} more" if lost_count > len(lost) else ""
        detail += f"; lost: {names}{more}"
    (topic, queue_id), queue_offset = lost[0] if lost_count == 1 else ((None, None), None)
    return Finding(
        kind="segment-missing" if missing else "log-damaged",
        detail=detail,
        path=None if missing else files.segment_path(damage.start),
        physical_offset=damage.start,
        size=damage.end - damage.start,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        count=max(lost_count, 1),
    )
