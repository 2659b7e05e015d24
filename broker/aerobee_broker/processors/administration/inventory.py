"""ListOperations and ListSegments: what operators changed, and what the disk holds."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.processors.administration.wire import OK, page_count, timestamp
from aerobee_broker.tables.operations import Operation, Operations
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore, Segment
from aerobee_store.clock import Clock
from aerobee_store.records.decimals import decimal

_PAGE_COUNT: Final = 100
_DAY_SECONDS: Final = 86_400.0
_GROWTH_SECONDS_MIN: Final = 60.0  # of the log, from which its growth is known
_FULL_SECONDS_MAX: Final = 100 * 365 * _DAY_SECONDS


class Inventory:
    """One method per RPC."""

    def __init__(self, *, settings: Settings, store: MessageStore, operations: Operations, clock: Clock) -> None:
        self._settings = settings
        self._store = store
        self._operations = operations
        self._clock = clock

    async def list_operations(
        self, request: admin_v1.ListOperationsRequest, _: Client
    ) -> admin_v1.ListOperationsResponse:
        before = _number(request.page_token, 1 << 62)
        wanted = request.search.casefold()
        found = [
            each
            for each in self._operations.newest_first()
            if each.number < before
            and request.account in ("", each.account)
            and (wanted in each.method.casefold() or wanted in each.request.casefold())
        ]
        count = page_count(request.page_size, default=_PAGE_COUNT)
        page = found[:count]
        return admin_v1.ListOperationsResponse(
            status=OK,
            operations=[_operation_to_wire(each) for each in page],
            next_page_token=str(page[-1].number) if len(found) > count else "",
        )

    async def list_segments(self, request: admin_v1.ListSegmentsRequest, _: Client) -> admin_v1.ListSegmentsResponse:
        segments = self._store.segments()
        begin = _number(request.page_token, 0)
        left = [number for number, segment in enumerate(segments) if segment.physical_offset >= begin]
        count = page_count(request.page_size, default=_PAGE_COUNT)
        retention_hours = self._settings.current.store.retention_hours
        response = admin_v1.ListSegmentsResponse(status=OK, retention_hours=retention_hours)
        turns = Turns()
        for number in left[:count]:
            following = segments[number + 1] if number + 1 < len(segments) else None
            response.segments.append(self._segment_to_wire(segments[number], following, retention_hours))
            await turns.next()
        if len(left) > count:
            response.next_page_token = str(segments[left[count]].physical_offset)
        self._forecast(response, segments, retention_hours)
        return response

    def _segment_to_wire(self, segment: Segment, following: Segment | None, retention_hours: float) -> admin_v1.Segment:
        wire = admin_v1.Segment(
            physical_offset=segment.physical_offset, size=segment.size, used=segment.used, path=str(segment.path)
        )
        begin = self._store.log_timestamp_at(segment.physical_offset)
        if begin is not None:
            wire.begin_timestamp.CopyFrom(timestamp(begin))
        if following is not None and following.used:
            end = self._store.log_timestamp_at(following.physical_offset)
            if end is not None:
                wire.end_timestamp.CopyFrom(timestamp(max(end, begin or 0)))
                wire.expire_timestamp.CopyFrom(timestamp(max(end, begin or 0) + round(retention_hours * 3_600_000)))
        elif begin is not None:
            wire.end_timestamp.CopyFrom(timestamp(self._clock.now_ms()))
        return wire

    def _forecast(
        self, response: admin_v1.ListSegmentsResponse, segments: list[Segment], retention_hours: float
    ) -> None:
        """How fast the log grows, and when it fills the disk."""
        status = self._store.status()
        if status.oldest_timestamp is None:
            return
        seconds = (self._clock.now_ms() - status.oldest_timestamp) / 1000
        if seconds < _GROWTH_SECONDS_MIN:
            return
        size = status.wrote - status.min_offset
        growth = size / seconds
        response.growth_bytes_per_day = growth * _DAY_SECONDS
        disks = list(status.log_disks.values()) or [status.disk]
        free = sum(max(0.0, disk.total * status.disk_full_ratio - disk.used) for disk in disks)
        # From the age of retention on, as much leaves as comes, in whole segments.
        largest = growth * retention_hours * 3600 + status.segment_size
        full_in = free / growth if growth > 0 else float("inf")
        if size + free >= largest or full_in > _FULL_SECONDS_MAX:
            return
        response.full_in.FromMilliseconds(round(full_in * 1000))


def _operation_to_wire(operation: Operation) -> admin_v1.Operation:
    wire = admin_v1.Operation(
        method=operation.method, account=operation.account, address=operation.address, request=operation.request
    )
    wire.timestamp.CopyFrom(timestamp(operation.at_ms))
    return wire


def _number(token: str, default: int) -> int:
    if not token:
        return default
    number = decimal(token)
    if number is None:
        raise InvalidRequestError(v2.Code.BAD_REQUEST, f"page_token {token[:80]!r} is invalid; start without one")
    return number
