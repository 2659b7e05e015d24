"""Queries of remoting clients: by key, or by position."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from aerobee_broker.limits.loop_share import LoopShare, Steps
from aerobee_broker.messages.key_query import COUNT_MAX, find_by_key
from aerobee_broker.remoting.shown_records import AS_STORED, shown_bytes
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, integer, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_store import CorruptRecordError, MessageStore, RecordNotFoundError

_ANSWER_SIZE_MAX: Final = 12 << 20  # bytes of records: less than a frame
_MEMORY_SIZE: Final = 2 * _ANSWER_SIZE_MAX  # bytes of memory that an answer takes while it is made


class QueryRequests:
    """Answers QUERY_MESSAGE and VIEW_MESSAGE_BY_ID."""

    def __init__(self, store: MessageStore, loop_share: LoopShare) -> None:
        self._store = store
        self._loop_share = loop_share

    async def by_key(self, request: Command, connection: Connection) -> Command:
        """The newest messages with a key, or with a client's message id; clients compare the key again."""
        share = await connection.room_for_answer(_MEMORY_SIZE)
        try:
            return await self._by_key(request)
        finally:
            share.close()

    async def _by_key(self, request: Command) -> Command:
        topic, key = text(request, "topic"), text(request, "key")
        count = min(max(integer(request, "maxNum", bits=32), 1), COUNT_MAX)
        begin, end = max(integer(request, "beginTimestamp"), 0), integer(request, "endTimestamp")
        records = await find_by_key(
            self._store,
            self._loop_share,
            topic,
            key,
            count_max=count,
            size_max=_ANSWER_SIZE_MAX,
            begin=begin,
            end=end,
        )
        steps = Steps(self._loop_share)
        parts: list[bytes] = []
        size = 0
        for record in reversed(records):
            size += record.size
            if parts and size > _ANSWER_SIZE_MAX:
                break
            with suppress(RecordNotFoundError):  # removed by retention
                parts.append(shown_bytes(self._store, record))
            await steps.did(record.size)
        if not parts:
            raise RemotingError(Answer.QUERY_NOT_FOUND, f"topic {topic!r} has no message with key {key[:80]!r}")
        fields = {
            "indexLastUpdateTimestamp": records[-1].store_timestamp,
            "indexLastUpdatePhyoffset": records[-1].physical_offset,
        }
        return answer(fields, body=b"".join(reversed(parts)))

    async def by_place(self, request: Command, _: Connection) -> Command:
        """The message at a physical offset, which is the second half of the server's message id."""
        try:
            record = self._store.record_at(integer(request, "offset"))
            if request.fields.get(AS_STORED) == "true":
                return answer(body=self._store.record_bytes(record))
            return answer(body=shown_bytes(self._store, record))
        except (RecordNotFoundError, CorruptRecordError) as error:
            raise RemotingError(Answer.SYSTEM_ERROR, str(error)) from None
