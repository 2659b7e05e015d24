"""aerobee.v1.RecordService: messages in bulk, as records of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from time import perf_counter
from typing import Any, Final

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.clients.permissions import check_again
from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.errors import BadRecordError
from aerobee_broker.front.methods import ClientWentAwayError, Context, Method
from aerobee_broker.limits.byte_budget import Share
from aerobee_broker.limits.wakes import Gate
from aerobee_broker.processors.records.append import AnyAppendRequest, AppendProcessor, read_append_request
from aerobee_broker.processors.records.offsets import OffsetsProcessor
from aerobee_broker.processors.records.query import QueryProcessor
from aerobee_broker.processors.records.read import ReadProcessor
from aerobee_broker.processors.statuses import status_of
from aerobee_broker.services.requests import RequestLimits
from aerobee_broker.services.rpc import (
    MEMORY_OF_REQUEST,
    MEMORY_WAIT_SECONDS,
    ClientIdentity,
    code_name,
    introduce,
    owners_of,
    service_methods,
)
from aerobee_proto import records_v1
from aerobee_store import AppendedBatch

SERVICE: Final = "aerobee.v1.RecordService"
_STREAM: Final = "StreamAppendRecords"
IN_FLIGHT_MAX: Final = 64
"""Requests of one append stream that wait for the disk; no more are read."""


class RecordService:
    """One line per method, except for the stream of appends."""

    def __init__(
        self,
        *,
        accounts: Accounts | None,
        clients: ClientRegistry,
        counters: BrokerCounters,
        limits: RequestLimits,
        append: AppendProcessor,
        read: ReadProcessor,
        query: QueryProcessor,
        offsets: OffsetsProcessor,
        draining: Gate,
    ) -> None:
        """`draining`: once set, append streams end when the requests already read are answered."""
        self._accounts = accounts
        self._identify = ClientIdentity(clients, accounts)
        self._counters = counters
        self._limits = limits
        self._read_request: Callable[[bytes], Any] = limits.reader(_STREAM, records_v1.AppendRecordsRequest).read
        self._append_processor = append
        self._read_processor = read
        self._query = query
        self._offsets = offsets
        self._draining = draining

    def methods(self) -> dict[str, Method]:
        return service_methods(
            SERVICE,
            self._identify,
            self._counters,
            self._limits,
            unary={
                "AppendRecords": self._append,
                "QueryRecords": self._query.process,
                "QueueOffsets": self._offsets.process,
            },
            streams={"ReadRecords": self._read},
            readers={"AppendRecords": read_append_request},
            conversations={_STREAM: self._append_stream},
        )

    async def _append(self, request: AnyAppendRequest, client: Client) -> records_v1.AppendRecordsResponse:
        try:
            return await self._append_processor.process(request, client)
        except BadRecordError as error:
            return _refusal(error)

    async def _read(
        self, request: records_v1.ReadRecordsRequest, client: Client, context: Context
    ) -> AsyncGenerator[records_v1.ReadRecordsResponse | bytes, None]:
        async with aclosing(self._read_processor.read(request, client, context.time_remaining())) as responses:
            async for response in responses:
                yield response

    async def _append_stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """A task reads and appends, this one waits for the disk and answers, so that requests share a sync."""
        running = self._counters.running(SERVICE, _STREAM)
        running.count += 1
        appended: asyncio.Queue[_InFlight | None] = asyncio.Queue(IN_FLIGHT_MAX)
        held: Share | None = None
        try:
            client = self._identify(context)
            introduce(client, context)
            held = Share(self._limits.in_progress, owners_of(client, context))
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(
                    self._append_requests(requests, client, appended, held), name="append-reader"
                )
                draining = tasks.create_task(self._end_when_draining(reading), name="append-drain")
                try:
                    while (item := await appended.get()) is not None:
                        await context.write((await self._answer(item)).SerializeToString())
                        held.give(item[2])
                except ClientWentAwayError:
                    return
                finally:
                    reading.cancel()
                    draining.cancel()
        except Exception as error:
            with suppress(ClientWentAwayError):
                await context.write(_refusal(error).SerializeToString())
        finally:
            running.count -= 1
            if held is not None:
                held.close()

    async def _append_requests(
        self,
        requests: AsyncIterator[bytes],
        client: Client,
        appended: asyncio.Queue[_InFlight | None],
        held: Share,
    ) -> None:
        try:
            async for data in requests:
                await appended.put(await self._append_one(data, client, held))
                del data  # it would stay until the next request, which may never come
                await asyncio.sleep(0)  # a large request takes milliseconds; let other tasks run in between
        except asyncio.CancelledError:
            if not self._draining.is_set():
                raise
        await appended.put(None)

    async def _append_one(self, data: bytes, client: Client, held: Share) -> _InFlight:
        started = perf_counter()
        outcome: AppendedBatch | Exception
        size = 0
        try:
            memory = MEMORY_OF_REQUEST * len(data)
            await held.take(memory, MEMORY_WAIT_SECONDS)
            size = memory
            request = read_append_request(data, self._read_request)
            check_again(self._accounts, SERVICE, _STREAM, request, client)
            outcome = await self._append_processor.append(request, client)
        except Exception as error:
            outcome = error
        return started, outcome, size

    async def _end_when_draining(self, reading: asyncio.Task[None]) -> None:
        await self._draining.wait()
        reading.cancel()

    async def _answer(self, item: _InFlight) -> records_v1.AppendRecordsResponse:
        started, outcome, _ = item
        try:
            if isinstance(outcome, Exception):
                raise outcome
            response = await self._append_processor.finish(outcome, started)
        except Exception as error:
            response = _refusal(error)
        milliseconds = (perf_counter() - started) * 1000
        self._counters.answered(SERVICE, _STREAM, code_name(response.status.code)).observe(milliseconds)
        return response


_InFlight = tuple[float, AppendedBatch | Exception, int]
"""The arrival time of a request, its result or error, and its bytes."""


def _refusal(error: Exception) -> records_v1.AppendRecordsResponse:
    response = records_v1.AppendRecordsResponse(status=status_of(error, _STREAM))
    if isinstance(error, BadRecordError):
        response.bad_record_index = error.index
    return response
