"""The messages of a broker's queue, when its streams break, end early, or lack messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from aerobee_pipeline.errors import BrokerCallError, DataLossError
from aerobee_pipeline.offsets import Queue, Range
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.passes import Rows
from aerobee_pipeline.reading.broker_queues import BrokerQueues
from aerobee_proto import records_v1, v2
from aerobee_store import Message, RecordBatch
from aerobee_store.records import record
from tests.spark.stores import HOST

Frame = records_v1.ReadRecordsResponse
WHOLE = Range(Queue("t", "", 0), 0, 10)


class BrokenStreamError(grpc.RpcError):
    """The connection is lost."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection lost"


def frame(first: int, end: int, *, lost: int = 0) -> Frame:
    """The messages from `first` on; the last `lost` ones before `end` are missing."""
    records = b"".join(
        record.encode(
            Message("t", 0, b"body %d" % number),
            queue_offset=number,
            physical_offset=number,
            store_timestamp=1,
            store_host=HOST,
            property_crc=True,
        )
        for number in range(first, end - lost)
    )
    return Frame(records=records, start_queue_offset=first, next_queue_offset=end, lost_count=lost)


def last(code: Any, next_offset: int, *, first: int = 0, end: int = 10) -> Frame:
    """The last response of a stream."""
    status = v2.Status(code=code)
    return Frame(status=status, next_queue_offset=next_offset, min_queue_offset=first, max_queue_offset=end)


class Call:
    """A call whose responses are these; an error among them is raised."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)
        self.is_cancelled = False

    def __next__(self) -> Frame:
        item = next(self._items)
        if isinstance(item, Exception):
            raise item
        assert isinstance(item, Frame)
        return item

    def cancel(self) -> None:
        self.is_cancelled = True


def read(streams: Callable[[int], Iterable[Any]], *, fails: bool = True) -> list[int]:
    """The offsets read from a broker; `streams` gives the responses to a request that begins at an offset."""
    found = reading(lambda at: Call(streams(at)), fails=fails)
    return [int(messages.queue_offset[row]) for messages, rows in found for row in rows]


def reading(call: Callable[[int], Call], *, fails: bool = True) -> Generator[tuple[RecordBatch, Rows]]:
    """The messages read from a broker; `call` is the call of a request that begins at an offset."""

    def read_records(request: Any, metadata: Any) -> Call:
        return call(request.start_queue_offset)

    options = SourceOptions.parse({"endpoint": "h:1", "subscribe": "t"}, streaming=False)
    queues = BrokerQueues(options)
    queues._opened = SimpleNamespace(  # type: ignore[assignment]  # the calls of a broker that are used here
        records=SimpleNamespace(ReadRecords=read_records),
        metadata=tuple,
        wait=lambda: None,
        checked=lambda what, status: None,
    )
    found = queues.read(WHOLE, None, fail_on_data_loss=fails)
    assert isinstance(found, Generator)
    return found


def test_the_next_frame_is_received_while_one_is_decoded() -> None:
    """Otherwise broker and reader would wait for each other in turns; a reader that has enough ends the call."""
    asked = Event()

    def frames() -> Iterator[Frame]:
        yield frame(0, 5)
        asked.set()
        yield frame(5, 10)
        yield last(v2.Code.OK, 10)

    call = Call(frames())
    found = reading(lambda at: call)
    messages, rows = next(found)
    assert messages.queue_offset[rows].tolist() == [0, 1, 2, 3, 4]
    assert asked.wait(60)
    assert not call.is_cancelled
    found.close()
    assert call.is_cancelled


@pytest.mark.parametrize("end", [[], [BrokenStreamError()]])
def test_an_interrupted_stream_resumes_after_its_last_frame(end: list[Any]) -> None:
    """Each message is read once; a stream that never continues is an error after the last attempt."""
    assert read(lambda at: [frame(at, at + 5), *end] if at < 5 else [frame(5, 10), last(v2.Code.OK, 10)]) == [
        *range(10)
    ]
    with pytest.raises(BrokerCallError, match=r"h:1: topic 't', queue 0, offset 3: .*(lost|early); 4 attempts"):
        read(lambda at: [*([frame(0, 3)] if at == 0 else []), *end])


@pytest.mark.parametrize(
    ("responses", "message", "rest"),
    [
        ([frame(0, 10, lost=2), last(v2.Code.OK, 10)], "2 messages from 0 on cannot be read", [*range(8)]),
        (
            [frame(0, 2), frame(2, 5, lost=3), frame(5, 10), last(v2.Code.OK, 10)],
            "3 messages from 2 on cannot",
            [0, 1, *range(5, 10)],
        ),
        ([last(v2.Code.ILLEGAL_OFFSET, 4, first=4)], "message 0 is asked for, but there are 4 to 10", [*range(4, 10)]),
        ([frame(0, 6), last(v2.Code.OK, 6, end=6)], "ends at 6, but was planned to be read up to 10", [*range(6)]),
    ],
)
def test_lost_messages(responses: list[Frame], message: str, rest: list[int]) -> None:
    """They are an error that names topic, queue and offset, or are skipped."""
    streams = {0: responses, 4: [frame(4, 10), last(v2.Code.OK, 10)]}
    with pytest.raises(DataLossError, match=f"topic 't', queue 0 at h:1: .*{message}"):
        read(streams.__getitem__)
    assert read(streams.__getitem__, fails=False) == rest
