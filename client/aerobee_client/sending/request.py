"""One request of a producer: by SendMessage of RocketMQ's protocol, or by AppendRecords of Aerobee's RecordService."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from zlib import crc32

from aerobee_client.allocation import Queue
from aerobee_client.connections.connection import Connection, Metadata, Peer, Retry
from aerobee_client.connections.routes import DEFAULT, WRITABLE, Routes, broker_endpoints, queue_of
from aerobee_client.errors import BadRequestError, ClientError, NotFoundError, status_error
from aerobee_client.messages import packing
from aerobee_client.messages.message import Message, Outgoing, SendResult
from aerobee_client.records import Records
from aerobee_client.sending.latency import LatencyAvoidance
from aerobee_proto import records_v1, v2

QueueSelector = Callable[[Message, Sequence[Queue]], Queue]
"""Chooses the queue of a message among the writable queues of its topic."""

Outcome = SendResult | ClientError
_ONE_ATTEMPT = Retry(seconds=0)


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
        self._looking: dict[str, asyncio.Task[None]] = {}  # routes that are asked for, by topic
        self._turn = random.randrange(1 << 16)  # noqa: S311  # so that producers do not begin with the same queue

    async def send_message(self, messages: Sequence[Outgoing]) -> list[Outcome]:
        """Send by SendMessage: the server chooses the queue, again for each attempt.

        A request that failed as a whole is retried; single messages of it are not.
        """
        request = v2.SendMessageRequest(messages=[message.to_wire() for message in messages])
        topic = messages[0].message.topic
        choice = self._choice(topic, await self._peers_for(messages[0]))
        try:
            answer = await self._connection.call(
                lambda stubs: stubs.messaging.SendMessage,
                request,
                self._metadata,
                check=_request_error,
                choose=choice,
            )
        except ClientError as error:
            if isinstance(error, NotFoundError):  # possibly because the broker has it no longer
                self._routes.forget(topic)
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
        topic = messages[0].message.topic
        stored_name, hosts = self._connection.stored_name(topic), self._records.hosts
        resource = v2.Resource(name=topic)
        chosen = 0

        def request(attempt: int) -> records_v1.AppendRecordsRequest:
            nonlocal chosen
            chosen = queues[(first + attempt) % len(queues)].queue_id
            records = packing.pack_outgoing(stored_name, chosen, messages, hosts=hosts)
            return records_v1.AppendRecordsRequest(topic=resource, queue_id=chosen, records=records)

        choice: _Turns | _Choice | None = None
        try:
            writable = await self._routes.writable(topic)
            endpoints = broker_endpoints(writable)
            queues = [queue_of(wire) for wire in writable] if queue is None else [queue]
            self._turn = first = self._turn + 1
            if any(endpoints.values()):
                of_queues = [self._peer(endpoints.get(each.broker, DEFAULT)) for each in queues]
                choice = _Turns(of_queues, first, lambda: self._routes.forget(topic))
            else:
                choice = self._choice(topic, self._connection.peers)
            answer = await self._connection.call(
                lambda stubs: stubs.records.AppendRecords,
                request(1),
                self._metadata,
                choose=choice,
                renew=request if len(queues) > 1 else None,
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

    async def close(self) -> None:
        """End the work that runs beside the requests."""
        for task in self._looking.values():
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)

    async def _peers_for(self, message: Outgoing) -> list[Peer]:
        """The brokers that may take a message by SendMessage: the endpoints that were given, if no route names several
        brokers, or no broker answers.

        Messages of one group go to one broker. Messages that are found again by a handle go to the given endpoints.
        """
        topic, given = message.message.topic, self._connection.peers
        if message.kind not in (v2.MessageType.NORMAL, v2.MessageType.FIFO, v2.MessageType.PRIORITY):
            return given
        if not self._routes.is_fresh(topic):
            looking = self._looking.get(topic)
            if looking is None:
                looking = self._looking[topic] = asyncio.create_task(self._look(topic), name=f"route of {topic}")
                looking.add_done_callback(lambda _: self._looking.pop(topic, None))
            if not self._routes.known(topic):
                await asyncio.wait((looking,))
        writable = [wire for wire in self._routes.known(topic) if wire.permission in WRITABLE]
        endpoints = sorted({endpoint for endpoint in broker_endpoints(writable).values() if endpoint != DEFAULT})
        if not endpoints:
            return given
        if message.kind == v2.MessageType.FIFO:
            group = message.message.message_group or ""
            endpoints = [endpoints[crc32(group.encode()) % len(endpoints)]]
        return [self._peer(endpoint) for endpoint in endpoints]

    async def _look(self, topic: str) -> None:
        with suppress(ClientError):  # the send itself reports the error of the topic
            await self._routes.queues(topic, retry=_ONE_ATTEMPT)

    def _peer(self, endpoint: str) -> Peer:
        known = {peer.endpoint: peer for peer in self._connection.peers}
        if endpoint == DEFAULT:
            return self._connection.peer
        return known.get(endpoint) or self._connection.at(endpoint).peer

    def _choice(self, topic: str, peers: Sequence[Peer]) -> _Turns | _Choice | None:
        if self._avoidance is not None:
            return _Choice(self._avoidance, peers)
        if peers is self._connection.peers:
            return None
        self._turn += 1
        return _Turns(peers, self._turn, lambda: self._routes.forget(topic))


class _Turns:
    """The peers for the attempts of one request: the next one for each attempt."""

    def __init__(self, peers: Sequence[Peer], first: int, failed: Callable[[], None]) -> None:
        """`failed` is called before each attempt but the first."""
        self._peers = peers
        self._first = first
        self._failed = failed

    def __call__(self, attempt: int) -> Peer:
        if attempt > 1:
            self._failed()
        return self._peers[(self._first + attempt) % len(self._peers)]

    def succeeded(self) -> None:
        """Nothing is recorded."""


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
