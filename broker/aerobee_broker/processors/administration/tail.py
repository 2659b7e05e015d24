"""TailMessages: messages of one topic as they are stored, for people who watch.

Nothing is recorded and no group takes part. The time and memory of a tail are bounded: it looks at the newest messages
that came since its last look, sends as many as its rate allows, and counts the others as dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Final

from msgspec import Struct

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.clients.permissions import check_again
from aerobee_broker.clients.registry import Client
from aerobee_broker.delivery.receive.long_polling import LongPolling
from aerobee_broker.errors import InvalidRequestError, TooManyRequestsError
from aerobee_broker.filters.message_filter import MessageFilter
from aerobee_broker.front.methods import Context
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.limits.wakes import Gate
from aerobee_broker.processors.administration.browse import (
    MessageText,
    Search,
    browsed_message,
    wanted_messages,
)
from aerobee_broker.processors.administration.wire import OK, may_read_bodies
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore, Record

TAILS_MAX: Final = 64
RATE_MAX: Final = 1000  # messages a second
_RATE: Final = 50
_LAST_MAX: Final = 100
_BODY_SIZE_MAX: Final = 64 << 10
_ANSWER_SIZE_MAX: Final = 1 << 20  # bytes of the messages of one response, beyond one message
_SILENCE_SECONDS: Final = 15.0  # between two responses, so that both sides notice a dead connection
_INTERVAL_SECONDS: Final = 0.1  # between two looks
_LOOK_SECONDS: Final = 0.25  # of one look; what it has not reached by then is dropped
_NUMBERS: Final = itertools.count()


class _Wanted(Struct, frozen=True):
    """What one call asks for."""

    request: admin_v1.TailMessagesRequest
    topic: str
    queue_ids: frozenset[int]  # empty: all
    selection: MessageFilter
    text: MessageText | None
    body_size_max: int
    rate: int


class _Look(Struct, frozen=True):
    """What a look has found: messages in order of storing, and how many it left out."""

    records: list[Record]
    dropped: int


class MessageTail:
    """One method for the RPC."""

    def __init__(
        self,
        *,
        store: MessageStore,
        tables: Tables,
        long_polling: LongPolling,
        loop_share: LoopShare,
        accounts: Accounts | None,
        draining: Gate,
    ) -> None:
        self._store = store
        self._tables = tables
        self._long_polling = long_polling
        self._loop_share = loop_share
        self._accounts = accounts
        self._draining = draining
        self._count = 0

    async def tail(
        self, request: admin_v1.TailMessagesRequest, client: Client, _context: Context
    ) -> AsyncGenerator[admin_v1.TailMessagesResponse, None]:
        """The stream of responses. Raises TopicNotFoundError, also when the topic is deleted meanwhile."""
        wanted = await self._wanted(request, client)
        if self._count >= TAILS_MAX:
            raise TooManyRequestsError(f"{TAILS_MAX} tails run already; end one of them, or try again later")
        self._count += 1
        try:
            async for response in self._responses(wanted, request.last_count, client):
                yield response
        finally:
            self._count -= 1

    async def _wanted(self, request: admin_v1.TailMessagesRequest, client: Client) -> _Wanted:
        topic = self._tables.topics.require(request.topic).name
        for name, value, maximum in (
            ("rate_max", request.rate_max, RATE_MAX),
            ("last_count", request.last_count, _LAST_MAX),
            ("body_size_max", request.body_size_max, 1 << 30),
        ):
            if not 0 <= value <= maximum:
                raise InvalidRequestError(v2.Code.BAD_REQUEST, f"{name} is {value}; give 0 to {maximum}")
        selection, text = await wanted_messages(client, topic, request.filter, request.text, self._loop_share)
        return _Wanted(
            request=request,
            topic=topic,
            queue_ids=frozenset(request.queue_ids),
            selection=selection,
            text=text,
            body_size_max=request.body_size_max or _BODY_SIZE_MAX,
            rate=request.rate_max or _RATE,
        )

    async def _responses(
        self, wanted: _Wanted, last_count: int, client: Client
    ) -> AsyncGenerator[admin_v1.TailMessagesResponse, None]:
        loop = asyncio.get_running_loop()
        line = f" tail {next(_NUMBERS)}"  # no group has a space in its name
        ends = self._ends(wanted)
        if last_count:
            begins = {queue_id: self._store.queue_range(wanted.topic, queue_id)[0] for queue_id in ends}
            first = await self._look(wanted, begins, ends, last_count)
            yield self._response(wanted, client, first.records, 0)
        else:
            yield self._response(wanted, client, [], 0)
        allowed, allowed_at = float(wanted.rate), loop.time()
        said_at = loop.time()
        while not self._draining.is_set():
            begins = ends
            ends = self._ends(wanted)
            if begins == ends:
                left = said_at + _SILENCE_SECONDS - loop.time()
                if left > 0 and await self._long_polling.wait(wanted.topic, line, "", left):
                    self._check(wanted, client)  # it may have been woken because the topic is gone
                    await asyncio.sleep(_INTERVAL_SECONDS)  # gathers what comes now
                elif not self._draining.is_set() and loop.time() >= said_at + _SILENCE_SECONDS:
                    self._check(wanted, client)
                    yield self._response(wanted, client, [], 0)
                    said_at = loop.time()
                continue
            self._check(wanted, client)
            now = loop.time()
            allowed = min(wanted.rate, allowed + (now - allowed_at) * wanted.rate)
            allowed_at = now
            if allowed < 1:
                ends = begins
                await asyncio.sleep(_INTERVAL_SECONDS)
                continue
            look = await self._look(wanted, begins, ends, int(allowed))
            allowed -= len(look.records)
            if look.records or look.dropped:
                yield self._response(wanted, client, look.records, look.dropped)
                said_at = loop.time()
            await asyncio.sleep(_INTERVAL_SECONDS)

    def _ends(self, wanted: _Wanted) -> dict[int, int]:
        return {
            queue_id: self._store.queue_range(wanted.topic, queue_id)[1]
            for queue_id in self._store.queue_ids(wanted.topic)
            if not wanted.queue_ids or queue_id in wanted.queue_ids
        }

    def _check(self, wanted: _Wanted, client: Client) -> None:
        self._tables.topics.require(wanted.topic)
        check_again(self._accounts, "aerobee.v1.AdminService", "TailMessages", wanted.request, client)

    async def _look(self, wanted: _Wanted, begins: dict[int, int], ends: dict[int, int], count: int) -> _Look:
        """The newest `count` of the messages between these offsets."""
        search = Search(self._store, self._loop_share, wanted.topic, wanted.selection, wanted.text, oldest_first=False)
        came = 0
        for queue_id, end in ends.items():
            begin = max(begins.get(queue_id, 0), self._store.queue_range(wanted.topic, queue_id)[0])
            came += max(end - begin, 0)
            if begin < end:
                search.add(queue_id, begin, end)
        found: list[Record] = []
        size = 0
        until = asyncio.get_running_loop().time() + _LOOK_SECONDS
        while search.next_place is not None and len(found) < count and size < _ANSWER_SIZE_MAX:
            if (record := await search.next()) is not None:
                found.append(record)
                size += min(record.size, wanted.body_size_max)
            if asyncio.get_running_loop().time() >= until:
                break
        return _Look(found[::-1], max(came - search.examined_count, 0) + search.held_count)

    def _response(
        self, wanted: _Wanted, client: Client, records: list[Record], dropped: int
    ) -> admin_v1.TailMessagesResponse:
        bodies = wanted.request.include_bodies
        hidden = bodies and not may_read_bodies(client, wanted.topic)
        return admin_v1.TailMessagesResponse(
            status=OK,
            messages=[
                browsed_message(
                    record, wanted.topic, include_body=bodies and not hidden, body_size_max=wanted.body_size_max
                )
                for record in records
            ],
            dropped_count=dropped,
            bodies_hidden=hidden,
        )
