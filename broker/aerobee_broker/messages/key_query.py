"""Finds messages by key or id, in steps of the event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import LoopShare, Steps
from aerobee_proto import v2
from aerobee_store import MessageStore
from aerobee_store.errors import CorruptRecordError, InvalidMessageError, RecordNotFoundError
from aerobee_store.records.properties import parse_offset_message_id
from aerobee_store.records.record import Record

COUNT_MAX: Final = 64  # as many as RocketMQ's index returns
ANSWER_SIZE_MAX: Final = 4 << 20  # bytes of records: the default limit of clients
_TIME_MAX: Final = (1 << 63) - 1


async def find_by_key(
    store: MessageStore,
    loop_share: LoopShare,
    topic: str,
    key: str,
    *,
    count_max: int,
    size_max: int,
    begin: int = 0,
    end: int = _TIME_MAX,
) -> list[Record]:
    """Like `MessageStore.query`: the newest messages with the key, oldest first."""
    found: list[Record] = []
    size = 0
    async with aclosing(newest_with_key(store, loop_share, topic, key, begin=begin, end=end)) as records:
        async for record in records:
            size += record.size
            if found and size > size_max:
                break
            found.append(record)
            if len(found) >= count_max:
                break
    return sorted(found, key=lambda record: record.physical_offset)


async def newest_with_key(
    store: MessageStore, loop_share: LoopShare, topic: str, key: str, *, begin: int = 0, end: int = _TIME_MAX
) -> AsyncGenerator[Record, None]:
    """The messages with the key, newest first, in steps of the event loop.

    Many entries may share the key's slot of the index, and some messages may have megabytes, so other tasks run in
    between.
    """
    steps = Steps(loop_share)
    for physical_offset in store.places_of_key(topic, key, begin=begin, end=end):
        if physical_offset is None:
            await steps.pause()
            continue
        record = store.record_with_key(topic, key, physical_offset, begin=begin, end=end)
        if record is not None:
            yield record
        await steps.did(0 if record is None else record.size)


async def find_by_message_id(store: MessageStore, loop_share: LoopShare, topic: str, message_id: str) -> list[Record]:
    """The messages of the topic with this id, the producer's or the server's. Raises InvalidRequestError if it is
    blank."""
    if not message_id.strip():
        raise InvalidRequestError(v2.Code.ILLEGAL_MESSAGE_ID, "the message id is blank; give the id of a message")
    found = await find_by_key(store, loop_share, topic, message_id, count_max=COUNT_MAX, size_max=ANSWER_SIZE_MAX)
    records = [record for record in found if record.unique_key == message_id]
    if not records:
        try:  # RocketMQ's consoles show the server's id, which contains the record's position
            _, physical_offset = parse_offset_message_id(message_id)
            record = store.record_at(physical_offset)
        except (InvalidMessageError, RecordNotFoundError, CorruptRecordError):
            return []
        records = [record] if record.topic == topic else []
    return records
