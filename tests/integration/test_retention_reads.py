"""Old segments are deleted while a queue is read in bulk: what the reader does not get is reported as lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.receive.long_polling import LongPolling
from aerobee_broker.processors.records.offsets import OffsetsProcessor
from aerobee_broker.processors.records.read import ReadProcessor
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig
from aerobee_proto import records_v1, v2
from aerobee_store import Message, MessageStore
from aerobee_store.records import inner_batch, properties
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.saved_tables import saved

_PLAIN: Final = TopicConfig.of_type("plain", queue_count=1)
_BATCHES: Final = replace(_PLAIN, name="batches", attributes={"queue.type": "BatchCQ"})
_MESSAGE_COUNT: Final = 90  # fifteen to a segment, six segments
_BATCH_SIZE: Final = 3  # messages
_FRAME_SIZE: Final = 5 << 10  # four messages: frames and segments end at different places
_CLIENT: Final = Client("reader")


class _Scene:
    """A store with old messages of one topic, its processors, and a clock at the hour of deletion."""

    def __init__(self, topic: TopicConfig) -> None:
        self.topic = topic
        self.clock = ManualClock()
        tiny = BrokerConfig.tiny(Path("/store"))
        config = replace(tiny, store=replace(tiny.store, retention_batch_max=1))
        disk, settings = MemoryFileSystem(), Settings(config)
        self.store = MessageStore.open(
            config.store, file_system=disk, clock=self.clock, is_batch_topic=lambda name: name == _BATCHES.name
        )
        tables = Tables.load(settings, self.clock, disk, self.store.in_disk_thread)
        saved(tables.topics).create(topic)
        self.offsets = OffsetsProcessor(settings, self.store, tables)
        self.reading = ReadProcessor(settings, self.store, tables, LongPolling(), BrokerCounters())
        self.store.append([Message("other", 0, b"first of the log")])
        for message in self._messages():
            self.store.append([message])
        self.store.flush()
        now = datetime.fromtimestamp(self.clock.now_ms() / 1000)
        then = (now + timedelta(hours=80)).replace(hour=config.store.delete_when_hours[0], minute=30)
        self.clock.advance(then.timestamp() - now.timestamp())

    def _messages(self) -> Iterable[Message]:
        if self.topic is _PLAIN:
            for number in range(_MESSAGE_COUNT):
                yield Message(self.topic.name, 0, bytes(1000), {properties.TAGS: f"t{number % 2}"})
        else:
            for _ in range(0, _MESSAGE_COUNT, _BATCH_SIZE):
                body = inner_batch.body_of([(bytes(1000), b"")] * _BATCH_SIZE)
                named = {properties.INNER_NUM: str(_BATCH_SIZE)}
                yield Message(self.topic.name, 0, body, named, sys_flag=inner_batch.SYS_FLAGS)

    async def bounds(self) -> tuple[int, int]:
        """The range of the queue, as QueueOffsets gives it."""
        wanted = records_v1.QueueOffsetsRequest.TopicQueues(topic=v2.Resource(name=self.topic.name))
        answer = await self.offsets.process(records_v1.QueueOffsetsRequest(topics=[wanted]), _CLIENT)
        [queue] = answer.topics[0].queues
        return queue.min_queue_offset, queue.max_queue_offset

    async def frames(
        self, start: int, end: int | None, tags: Iterable[str]
    ) -> AsyncIterator[records_v1.ReadRecordsResponse]:
        request = records_v1.ReadRecordsRequest(
            topic=v2.Resource(name=self.topic.name),
            start_queue_offset=start,
            end_queue_offset=end,
            frame_bytes_max=_FRAME_SIZE,
            tags=tags,
        )
        async for frame in self.reading.read(request, _CLIENT, None):
            yield records_v1.ReadRecordsResponse.FromString(frame) if isinstance(frame, bytes) else frame


@asynccontextmanager
async def _scene(topic: TopicConfig) -> AsyncIterator[_Scene]:
    scene = _Scene(topic)
    try:
        yield scene
    finally:
        scene.store.close()


def _offsets(frame: records_v1.ReadRecordsResponse, messages_per_record: int) -> set[int]:
    """The queue offsets of the messages in a frame."""
    batch = RecordBatch.parse(frame.records, base_physical_offset=None)
    assert batch.end == len(frame.records)
    return {first + number for first in batch.queue_offset.tolist() for number in range(messages_per_record)}


@pytest.mark.parametrize("end", [None, 40], ids=["to the end", "of a part"])
@pytest.mark.parametrize(
    ("topic", "tags"), [(_PLAIN, ()), (_PLAIN, ("t1",)), (_BATCHES, ())], ids=["plain", "tags", "batches"]
)
async def test_a_reader_learns_of_every_message_that_retention_took(
    topic: TopicConfig, tags: tuple[str, ...], end: int | None
) -> None:
    """Segments are deleted after QueueOffsets, or after any frame: offsets read and offsets lost are all there were."""
    position, is_over = 0, False
    taken_midway = 0
    while not is_over:
        async with _scene(topic) as scene:
            low, high = await scene.bounds()
            assert (low, high) == (0, _MESSAGE_COUNT)
            stop = high if end is None else end
            got: set[int] = set()
            lost, at, number = 0, low, 0

            async def take(scene: _Scene = scene) -> None:
                for _ in range(3):
                    await scene.store.retention.clean()

            if position == 0:
                await take()
            while at < stop:
                begun = at
                async for frame in scene.frames(at, end, tags):
                    if frame.HasField("status"):
                        if frame.status.code == v2.Code.ILLEGAL_OFFSET:
                            lost += min(frame.next_queue_offset, stop) - at
                        at = frame.next_queue_offset
                        break
                    assert frame.start_queue_offset == at or tags
                    got |= _offsets(frame, 1 if topic is _PLAIN else _BATCH_SIZE)
                    lost += frame.lost_count
                    at = frame.next_queue_offset
                    number += 1
                    if number == position:
                        await take()
                assert at > begun, "the reader does not get on"
            wanted = {offset for offset in range(low, stop) if not tags or offset % 2}
            missing = wanted - got
            assert bool(missing) == bool(lost), f"position {position}: {len(missing)} missing, {lost} reported"
            if not tags:
                assert len(missing) == lost
            taken_midway += bool(missing) and position > 0
            is_over, position = number < position, position + 1
    assert taken_midway > 1, "no deletion overtook the reader"
