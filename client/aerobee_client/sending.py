"""One request of a producer: by SendMessage of RocketMQ's protocol, or by AppendRecords of Aerobee's RecordService."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from aerobee_client import packing
from aerobee_client.allocation import Queue
from aerobee_client.connection import Connection, Metadata, Peer
from aerobee_client.errors import BadRequestError, ClientError, status_error
from aerobee_client.latency import LatencyAvoidance
from aerobee_client.message import Message, Outgoing, SendResult
from aerobee_client.records import Records
from aerobee_client.routes import Routes, queue_of
from aerobee_proto import records_v1, v2

QueueSelector = Callable[[Message, Sequence[Queue]], Queue]
"""Chooses the queue of a message among the writable queues of its topic."""

Outcome = SendResult | ClientError


class Sending:
    """The requests of one producer. Errors of the broker are not raised: each message has an outcome."""

    def __init__(
        self, connection: Connection, records: Records, metadata: Metadata, avoidance: LatencyAvoidance | None
    ) -> None:
        self._connection = connection
        self._records = records
        self._metadata = metadata
        self._avoidance = avoidance
        self._routes = Routes(connection, metadata)
        self._turn = random.randrange(1 << 16)  # noqa: S311  # so that producers do not begin with the same queue

    async def send_message(self, messages: Sequence[Outgoing]) -> list[Outcome]:
        """Send by SendMessage: the server chooses the queue, anew for each attempt.

        A request that failed as a whole is retried; single messages of it are not.
        """
        request = v2.SendMessageRequest(messages=[message.to_wire() for message in messages])
        choice = self._choice()
        try:
            answer = await self._connection.call(
                lambda stubs: stubs.messaging.SendMessage,
                request,
                self._metadata,
                check=_request_error,
                choose=choice,
            )
        except ClientError as error:
            return [error] * len(messages)
        if choice is not None:
            choice.succeeded()
        entries = list(answer.entries)
        if len(entries) == 1:  # RocketMQ's server answers a batch with one entry for all
            entries *= len(messages)
        if len(entries) != len(messages):
            text = f"the broker answered {len(messages)} messages with {len(entries)} results"
            return [ClientError(text)] * len(messages)
        return [_outcome(message, entry) for message, entry in zip(messages, entries, strict=True)]

    async def append_records(self, messages: Sequence[Outgoing], queue: Queue | None) -> list[Outcome]:
        """Send by AppendRecords, all or none, to `queue`; None: to the queues in turn, a different one for each
        attempt.

        All messages are of one topic and `packing.is_packable`.
        """
        choice = self._choice()
        topic = messages[0].message.topic
        stored_name, hosts = self._connection.stored_name(topic), self._records.hosts
        resource = v2.Resource(name=topic)
        chosen = 0

        def request(attempt: int) -> records_v1.AppendRecordsRequest:
            nonlocal chosen
            chosen = queue_ids[(first + attempt) % len(queue_ids)]
            records = packing.pack_outgoing(stored_name, chosen, messages, hosts=hosts)
            return records_v1.AppendRecordsRequest(topic=resource, queue_id=chosen, records=records)

        try:
            writable = [wire.id for wire in await self._routes.writable(topic)]
            queue_ids = writable if queue is None else [queue.queue_id]
            self._turn = first = self._turn + 1
            answer = await self._connection.call(
                lambda stubs: stubs.records.AppendRecords,
                request(1),
                self._metadata,
                choose=choice,
                renew=request if len(queue_ids) > 1 else None,
            )
        except ClientError as error:
            if isinstance(error, BadRequestError):  # possibly because the route is outdated
                self._routes.forget(topic)
            return [error] * len(messages)
        if choice is not None:
            choice.succeeded()
        return [
            SendResult(message.message_id, answer.first_queue_offset + index, call="AppendRecords", queue_id=chosen)
            for index, message in enumerate(messages)
        ]

    async def select(self, selector: QueueSelector, message: Message) -> Queue:
        """The queue chosen by `selector` for `message`. BadRequestError if it is not a writable queue."""
        queues = sorted(queue_of(wire) for wire in await self._routes.writable(message.topic))
        chosen = selector(message, queues)
        if chosen not in queues:
            raise BadRequestError(
                v2.Code.BAD_REQUEST,
                f"the queue selector chose {chosen}, which is not one of the {len(queues)} writable queues",
            )
        return chosen

    def _choice(self) -> _Choice | None:
        return None if self._avoidance is None else _Choice(self._avoidance, self._connection.peers)


class _Choice:
    """The peers for the attempts of one request: fast ones, and another one for each attempt."""

    def __init__(self, avoidance: LatencyAvoidance, peers: Sequence[Peer]) -> None:
        self._avoidance = avoidance
        self._peers = {peer.endpoint: peer for peer in peers}
        self._last: str | None = None
        self._began = 0.0

    def __call__(self, attempt: int) -> Peer:
        if self._last is not None:
            self._avoidance.record(self._last, self._took(), failed=True)
        self._last = self._avoidance.choose(list(self._peers), last=self._last)
        self._began = asyncio.get_running_loop().time()
        return self._peers[self._last]

    def succeeded(self) -> None:
        """Record that the last attempt succeeded."""
        assert self._last is not None, "a request was sent"
        self._avoidance.record(self._last, self._took())

    def _took(self) -> float:
        return asyncio.get_running_loop().time() - self._began


def _request_error(answer: v2.SendMessageResponse) -> ClientError | None:
    """The error of the whole request; None if its entries have the outcomes."""
    return None if answer.status.code == v2.Code.MULTIPLE_RESULTS else status_error(answer.status)


def _outcome(message: Outgoing, entry: v2.SendResultEntry) -> Outcome:
    error = status_error(entry.status)
    if error is not None:
        return error
    half = message.kind == v2.MessageType.TRANSACTION
    return SendResult(message.message_id, entry.offset, entry.recall_handle, entry.transaction_id if half else "")
