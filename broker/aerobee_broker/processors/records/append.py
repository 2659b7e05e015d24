"""AppendRecords: checks all records of a request, appends them together, and answers when they are as safe as
required."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from aerobee_broker.clients.naming import topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.errors import BadRecordError, InvalidRequestError
from aerobee_broker.messages.admission import Admission
from aerobee_broker.messages.wire_fields import read_varint, spans
from aerobee_broker.processors.records.read import SIZE_DTYPE
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_proto import records_v1, v2
from aerobee_store import AppendedBatch, InvalidRecordError, MessageStore
from aerobee_store.clock import Clock
from aerobee_store.deferred import deferred
from aerobee_store.records.decimals import INT32_MAX
from aerobee_store.records.message_fields import TIMER_QUEUE_ID, TIMER_TOPIC

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aerobee_broker.processors.records import checks, delayed
    from aerobee_store.records import record_batch
    from aerobee_store.records.record_batch import RecordBatch
else:
    np = deferred("numpy")
    checks = deferred("aerobee_broker.processors.records.checks")
    delayed = deferred("aerobee_broker.processors.records.delayed")
    record_batch = deferred("aerobee_store.records.record_batch")


_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
REQUEST_SIZE_MAX: Final = 8 << 20
"""Bytes of records in one request, unless a single record may be larger."""
# Tags on the wire (field number and type) of AppendRecordsRequest in records.proto.
_TOPIC: Final = 0x0A
_QUEUE_ID: Final = 0x10
_RECORDS: Final = 0x1A
_SIZES: Final = 0x22
_FIELDS: Final = (_TOPIC, _QUEUE_ID, _RECORDS, _SIZES)
RECORD_COUNT_MAX: Final = 32_768
"""The maximum number of records in one request."""
_RECORD_OVERHEAD: Final = 1 << 16  # the maximum size of a record without its body


class AppendRequest(NamedTuple):
    """An AppendRecordsRequest whose records are a view of the received bytes; protobuf would copy them twice."""

    topic: v2.Resource
    queue_id: int
    records: memoryview
    record_sizes: memoryview


AnyAppendRequest = AppendRequest | records_v1.AppendRecordsRequest


def read_append_request(data: bytes, read: Callable[[bytes], records_v1.AppendRecordsRequest]) -> AnyAppendRequest:
    """Parse the request. `read` parses it with protobuf, if it is not simply its four fields, each at most once."""
    return _read_in_place(data) or read(data)


def _read_in_place(data: bytes) -> AppendRequest | None:
    found = spans(data, (0, len(data)), _FIELDS)
    if found is None or _RECORDS not in found:
        return None

    def of(tag: int) -> memoryview:
        return memoryview(data)[slice(*found[tag][0])] if tag in found else memoryview(b"")

    queue_id = read_varint(data, found[_QUEUE_ID][0][0])[0] if _QUEUE_ID in found else 0
    if queue_id > INT32_MAX:
        return None  # too large; a negative one is longer
    try:
        topic = v2.Resource.FromString(bytes(of(_TOPIC)))
    except DecodeError:
        return None
    return AppendRequest(topic, queue_id, of(_RECORDS), of(_SIZES))


class AppendProcessor:
    """Answers AppendRecords. Raises errors that `processors.statuses` maps to status codes."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        admission: Admission,
        counters: BrokerCounters,
        clock: Clock,
        timer: Timer,
    ) -> None:
        config = settings.current
        self._settings = settings
        self._store = store
        self._admission = admission
        self._counters = counters
        self._clock = clock
        self._timer = timer
        self._body_size_max = config.store.body_size_max
        self._size_max = max(REQUEST_SIZE_MAX, config.store.body_size_max + _RECORD_OVERHEAD)
        self._require_checksum = config.store.property_crc

    async def process(self, request: AnyAppendRequest, client: Client) -> records_v1.AppendRecordsResponse:
        """Append the records, and wait until they are safe."""
        started = perf_counter()
        appended = await self.append(request, client)
        return await self.finish(appended, started)

    async def append(self, request: AnyAppendRequest, client: Client) -> AppendedBatch:
        """Append all records of the request or none, in one step of the event loop unless the topic must be created."""
        stored_name = topic_name(request.topic, client)
        batch = self._parsed(request)
        destination = await self._admission.destination(stored_name)
        for_timer = TIMER_TOPIC in batch.topics
        limits = self._settings.current.limits
        checks.check_records(batch, destination, request.queue_id, limits, self._body_size_max, delayed=for_timer)
        place = stored_name, request.queue_id
        if for_timer:
            batch = delayed.timer_records(batch, *place, self._timer, limits, self._clock.now_ms())
            place = TIMER_TOPIC, TIMER_QUEUE_ID
        try:
            appended = self._store.append_records(*place, batch, born_host=client.peer)
        except InvalidRecordError as error:
            raise BadRecordError(v2.Code.BAD_REQUEST, error.index, error.reason) from error
        kind = "delay" if for_timer else "normal"
        self._counters.stored_records(stored_name, kind, request.queue_id, batch.size, appended.count)
        return appended

    async def finish(self, appended: AppendedBatch, started: float) -> records_v1.AppendRecordsResponse:
        """Wait until the appended records are safe. `started`: when the request arrived, by `perf_counter`."""
        await self._store.wait_stored(appended.end)
        return records_v1.AppendRecordsResponse(
            status=_OK,
            first_queue_offset=appended.first_queue_offset,
            message_count=appended.count,
            store_timestamp_ms=appended.store_timestamp,
            end_physical_offset=appended.end,
        )

    def _parsed(self, request: AnyAppendRequest) -> RecordBatch:
        records = request.records
        if not records:
            raise InvalidRequestError(v2.Code.MESSAGE_CORRUPTED, "the request has no records")
        if len(records) > self._size_max:
            raise InvalidRequestError(
                v2.Code.MESSAGE_BODY_TOO_LARGE,
                f"the records of the request take {len(records)} bytes; the limit is {self._size_max}; send fewer",
            )
        batch = record_batch.RecordBatch.parse(
            records,
            base_physical_offset=None,
            placed=False,
            require_property_crc=self._require_checksum,
            count_max=RECORD_COUNT_MAX + 1,
            sizes=_sizes(request.record_sizes),
        )
        if len(batch) > RECORD_COUNT_MAX:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, f"the request has more than {RECORD_COUNT_MAX} records, the limit; send fewer"
            )
        if batch.end != len(records):
            raise BadRecordError(v2.Code.MESSAGE_CORRUPTED, len(batch), batch.stop.detail or batch.stop.reason.value)
        return batch


def _sizes(record_sizes: bytes | memoryview) -> npt.NDArray[np.int64] | None:
    """The sizes declared by the client; None without a declaration. Raises InvalidRequestError."""
    if not record_sizes:
        return None
    if len(record_sizes) % np.dtype(SIZE_DTYPE).itemsize:
        raise InvalidRequestError(
            v2.Code.BAD_REQUEST, f"record_sizes has {len(record_sizes)} bytes, which is not a multiple of 4"
        )
    return np.frombuffer(record_sizes, SIZE_DTYPE).astype(np.int64)
