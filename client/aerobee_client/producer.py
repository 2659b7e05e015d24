"""Sends messages: how they are gathered into requests, the call used, and the result of each message."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Sequence
from typing import Final, TypedDict

from aerobee_client.allocation import Queue
from aerobee_client.connections.closing import AsyncClosing
from aerobee_client.connections.connection import Connection, Retry
from aerobee_client.connections.routes import ROUTE_SECONDS
from aerobee_client.connections.telemetry import Telemetry
from aerobee_client.errors import (
    BadRequestError,
    BatchError,
    ClientError,
    ConfigurationError,
    UnsupportedError,
)
from aerobee_client.hooks import Hooks, after_send, before_send
from aerobee_client.limits.bounds import MemoryLimit
from aerobee_client.messages import packing
from aerobee_client.messages.checks import check, check_name
from aerobee_client.messages.compression import COMPRESS_ABOVE, Compression, require
from aerobee_client.messages.message import Message, Outgoing, SendResult, outgoing, stored_message
from aerobee_client.records import Records
from aerobee_client.sending.gathering import Gathering, PendingSend
from aerobee_client.sending.latency import LatencyAvoidance
from aerobee_client.sending.request import QueueSelector, Sending
from aerobee_client.transaction import WIRE_RESOLUTIONS, Resolution, Transaction, TransactionChecker
from aerobee_proto import v2
from aerobee_store.records.message_rules import ServerLimits

_log = logging.getLogger(__name__)

REQUEST_COUNT_MAX = 500
REQUEST_SIZE_MAX = 4 << 20
_BY_LIMITS: Final = (v2.Code.MESSAGE_BODY_TOO_LARGE, v2.Code.MESSAGE_PROPERTIES_TOO_LARGE)
RECORDS_COUNT_MIN = 8  # below this, SendMessage is as fast
RECORDS_COUNT_MAX = 32_768  # the limit of one AppendRecords
WAITING_SIZE_MAX = 64 << 20
WAITING_COUNT_MAX = 100_000


class ProducerOptions(TypedDict, total=False):
    """The options of `Client.producer`, which documents them, for functions that pass them on."""

    topics: Iterable[str]
    linger_seconds: float
    request_count_max: int
    request_size_max: int
    max_in_flight: int
    waiting_size_max: int
    waiting_count_max: int
    compression: Compression | None
    compress_above: int
    avoid_slow_endpoints: bool
    use_records: bool
    queue_selector: QueueSelector | None
    transaction_checker: TransactionChecker | None


class Producer(AsyncClosing):
    """Sends messages. Safe to share between tasks; `Client.producer` makes one and documents its options.

    A send that failed temporarily (no connection, no answer, a server failure) is retried with the same message id. So
    a message may be stored twice, which consumers of RocketMQ must expect.
    """

    def __init__(
        self,
        connection: Connection,
        records: Records,
        *,
        topics: Iterable[str] = (),
        linger_seconds: float = 0.0,
        request_count_max: int = REQUEST_COUNT_MAX,
        request_size_max: int = REQUEST_SIZE_MAX,
        max_in_flight: int = 4,
        waiting_size_max: int = WAITING_SIZE_MAX,
        waiting_count_max: int = WAITING_COUNT_MAX,
        compression: Compression | None = None,
        compress_above: int = COMPRESS_ABOVE,
        avoid_slow_endpoints: bool = False,
        use_records: bool = True,
        queue_selector: QueueSelector | None = None,
        transaction_checker: TransactionChecker | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> None:
        if isinstance(topics, str):
            raise TypeError(f"topics is the text {topics!r}; give a list of topics")
        counts = {"request_count_max": request_count_max, "request_size_max": request_size_max}
        for name, count in {**counts, "max_in_flight": max_in_flight}.items():
            if count < 1:
                raise ValueError(f"{name} is {count}; give at least 1")
        if not linger_seconds >= 0:
            raise ValueError(f"linger_seconds is {linger_seconds}; give 0 or more")
        if compression is not None:
            require(compression)
            if compression != "zlib":
                raise ConfigurationError(
                    f"compression {compression!r}: SendMessage supports zlib only; use compression='zlib' here"
                )
        self._connection = connection
        self._max_in_flight = max_in_flight
        self._request_count_max = request_count_max
        self._compression = compression
        self._compress_above = compress_above
        self._checker = transaction_checker
        self._hooks = hooks
        self._topics = set(topics)
        self._publishing = v2.Publishing(
            topics=[v2.Resource(name=topic) for topic in sorted(self._topics)], validate_message_type=True
        )
        self._settings = v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=self._publishing)
        self._telemetry = Telemetry(connection, self._settings, on_command=self._obey)
        avoidance: LatencyAvoidance | None = None
        if avoid_slow_endpoints and len(connection.peers) > 1:
            avoidance = LatencyAvoidance(asyncio.get_running_loop().time)
        self._sending = Sending(connection, records, self._telemetry.metadata, avoidance)
        self._records = records
        self._use_records = use_records
        self._queue_selector = queue_selector
        self._no_records_until: dict[str, float] = {}  # topics whose records were refused; in loop time
        self.uses_records: bool | None = None
        """Whether requests of many messages use AppendRecords; None before the first one that may."""
        self._gathering = Gathering(
            self._send_request,
            MemoryLimit(waiting_size_max, waiting_count_max),
            size_max=request_size_max,
            linger_seconds=linger_seconds,
        )

    async def send(self, message: Message) -> SendResult:
        """Return when the broker has stored the message as safely as it promises.

        Concurrent sends share requests. Raises NotFoundError if the topic does not exist, BadRequestError if the
        message exceeds a limit, and UnavailableError, DeadlineError or InternalServerError after the last attempt.
        After the last two, and after a cancellation, the message may be stored nevertheless.
        """
        return await (await self.submit(message))

    async def submit(self, message: Message) -> asyncio.Future[SendResult]:
        """Return when there is space in memory for the message, with a future for the result of the send.

        Messages of one message group are stored in the order of submission; so are other messages of one topic if the
        producer has `max_in_flight=1` and no attempt is repeated. Cancelling the future before the message is sent
        withdraws it. Raises BadRequestError if the message exceeds a limit.
        """
        await self._telemetry.ready()
        return await self._put(message)

    async def send_many(self, messages: Sequence[Message]) -> list[SendResult]:
        """Send messages in few requests; the results have the order of `messages`.

        Raises BatchError if some failed: its `outcomes` tell which, with a SendResult for those that are stored. Order
        in the broker as for `submit`.
        """
        if not messages:
            return []
        await self._telemetry.ready()
        outcomes: list[SendResult | ClientError] = []
        futures: list[asyncio.Future[SendResult] | ClientError] = []
        try:
            for message in messages:
                try:
                    futures.append(await self._put(message))
                except ClientError as error:
                    futures.append(error)
            for future in futures:
                try:
                    outcomes.append(future if isinstance(future, ClientError) else await future)
                except ClientError as error:
                    outcomes.append(error)
        except asyncio.CancelledError:
            for future in futures:
                if isinstance(future, asyncio.Future):
                    future.cancel()
            raise
        results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
        if len(results) < len(outcomes):
            raise BatchError(outcomes)
        return results

    async def send_one_way(self, message: Message) -> None:
        """Return when there is space in memory for the message, without a result.

        A failure is logged at debug level. `flush` and `close` wait for the message.
        """
        (await self.submit(message)).add_done_callback(_forget)

    def transaction(self) -> Transaction:
        """Messages that are held back until another operation succeeds: see `Transaction`.

        ConfigurationError without a `transaction_checker`: the broker must be able to ask for the outcome.
        """
        if self._checker is None:
            raise ConfigurationError(
                "a transaction needs a producer with a transaction_checker, which the broker asks after a crash"
            )
        return Transaction(self)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Recall a delayed message that is not due yet; returns its message id. `SendResult.recall_handle` is its
        handle.

        Raises BadRequestError if it is already delivered or recalled.
        """
        check_name(topic)
        await self._telemetry.ready()
        request = v2.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=recall_handle)
        answer = await self._connection.call(
            lambda stubs: stubs.messaging.RecallMessage, request, self._telemetry.metadata
        )
        return answer.message_id

    async def flush(self) -> None:
        """Return when every submitted message is stored or has failed."""
        await self._gathering.flush()

    async def close(self) -> None:
        """Send submitted messages, and unregister from the broker."""
        if self._telemetry.closed:
            return
        try:
            await self._gathering.flush()
        finally:
            await self._gathering.close()
            await self._sending.close()
            await self._telemetry.close()

    # --- What a Transaction uses ------------------------------------------------------------------------------

    async def send_half(self, message: Message) -> SendResult:
        """Store a half message, which is held back until `end_half`."""
        message = before_send(self._hooks, message)
        await self._check(message)
        if message.message_group is not None or message.delivery_timestamp is not None:
            raise BadRequestError(
                v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message cannot have a message group or a delivery timestamp",
            )
        if message.topic not in self._topics:  # the broker asks producers of the topic
            self._topics.add(message.topic)
            self._settings.publishing.topics.add().name = message.topic
            self._telemetry.resync()
        await self._telemetry.ready()
        half = outgoing(message, compression=self._compression, compress_above=self._compress_above, transactional=True)
        outcome = (await self._sending.send_message([half]))[0]
        after_send(self._hooks, message, outcome)
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    async def end_half(self, topic: str, half: SendResult, resolution: Resolution) -> None:
        """Commit a half message, or discard it."""
        await self._end_transaction(topic, half.message_id, half.transaction_id, resolution, checked=False)

    # ----------------------------------------------------------------------------------------------------------

    async def _put(self, message: Message) -> asyncio.Future[SendResult]:
        message = before_send(self._hooks, message)
        await self._check(message)
        queue = None if self._queue_selector is None else await self._select(self._queue_selector, message)
        new = outgoing(message, compression=self._compression, compress_above=self._compress_above)
        outcome: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        entry = PendingSend(new, new.size, queue, outcome, self._finished)
        key: object = (message.topic, new.kind, queue)
        in_flight_max, count_max = self._max_in_flight, self._request_count_max
        if new.kind != v2.MessageType.NORMAL and not await self._connection.is_aerobee():
            # RocketMQ honours the message group and the delay only of a message sent alone.
            count_max = 1
            if new.kind == v2.MessageType.FIFO:
                key = (message.topic, message.message_group)
        if new.kind == v2.MessageType.FIFO:
            in_flight_max = 1
        await self._gathering.put(key, entry, in_flight_max=in_flight_max, count_max=count_max)
        return outcome

    async def _check(self, message: Message) -> None:
        """BadRequestError if the message breaks a rule of the server, as far as that is known."""
        try:
            check(message, self._limits)
        except BadRequestError as error:
            if error.code not in _BY_LIMITS:
                raise
            try:
                await self._records.supported(retry=Retry(seconds=0))
            except ClientError:
                raise error from None
            check(message, self._limits)  # as the server has told them by now

    @property
    def _limits(self) -> ServerLimits:
        limits, told = self._records.limits, self._telemetry.settings.publishing.max_body_size
        return limits if told in (0, limits.body_size_max) else limits._replace(body_size_max=told)

    async def _select(self, selector: QueueSelector, message: Message) -> Queue:
        if not await self._records.supported():
            raise ConfigurationError(
                f"the server at {self._connection.endpoint} chooses the queue itself: RocketMQ's protocol "
                f"has no queue selector. Leave it out; a message_group keeps messages in one queue"
            )
        if message.message_group is not None:
            raise BadRequestError(
                v2.Code.BAD_REQUEST, "the message group determines the queue; leave out the group or the queue selector"
            )
        packing.check_packable(message, self._limits)
        return await self._sending.select(selector, message)

    def _finished(self, entry: PendingSend, outcome: SendResult | ClientError) -> None:
        if self._hooks:
            after_send(self._hooks, entry.outgoing.message, outcome)

    async def _send_request(self, entries: Sequence[PendingSend]) -> list[SendResult | ClientError]:
        """One outcome per entry. If the broker refuses a whole request because of one message, its messages are sent
        one by one, in order: nothing of it was stored."""
        queue = entries[0].queue
        messages = [entry.outgoing for entry in entries]

        async def send(some: Sequence[Outgoing]) -> list[SendResult | ClientError]:
            if queue is not None:
                return await self._sending.append_records(some, queue)
            return await self._sending.send_message(some)

        if queue is None and await self._goes_as_records(messages):
            outcomes = await self._sending.append_records(messages, None)
            if not isinstance(outcomes[0], BadRequestError | UnsupportedError):
                return outcomes
            # Nothing is stored. A topic may accept as messages what it refuses as records.
            self._no_records_until[messages[0].message.topic] = asyncio.get_running_loop().time() + ROUTE_SECONDS
        outcomes = await send(messages)
        refused = all(isinstance(each, BadRequestError) for each in outcomes)
        if len(entries) == 1 or not refused or outcomes[0] is not outcomes[-1]:
            return outcomes
        return [(await send([message]))[0] for message in messages]

    async def _goes_as_records(self, messages: Sequence[Outgoing]) -> bool:
        if not self._use_records or not RECORDS_COUNT_MIN <= len(messages) <= RECORDS_COUNT_MAX:
            return False
        if messages[0].kind != v2.MessageType.NORMAL or not all(packing.is_packable(each.message) for each in messages):
            return False
        try:
            supported = await self._records.supported(retry=Retry(seconds=0))
        except ClientError:  # SendMessage reports the error
            return False
        if self.uses_records is None:
            self.uses_records = supported
            _log.info(
                "bulk sends use %s endpoint=%s",
                *("AppendRecords" if supported else "SendMessage", self._connection.endpoint),
            )
        topic = messages[0].message.topic
        return supported and asyncio.get_running_loop().time() >= self._no_records_until.get(topic, 0.0)

    async def _obey(self, command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        """Handle the broker's check of a transaction."""
        if not command.HasField("recover_orphaned_transaction_command") or self._checker is None:
            return None
        orphan = command.recover_orphaned_transaction_command
        message = stored_message(orphan.message)
        try:
            found = self._checker(message)
            resolution = await found if inspect.isawaitable(found) else found
        except Exception:  # whatever the application's checker raises: the broker asks again
            _log.exception("the transaction checker failed topic=%s id=%s", message.topic, message.message_id)
            return None
        if resolution not in WIRE_RESOLUTIONS:
            _log.error(
                "the transaction checker returned %r instead of commit, rollback or unknown; the broker asks again "
                "topic=%s id=%s",
                *(resolution, message.topic, message.message_id),
            )
            return None
        await self._end_transaction(message.topic, message.message_id, orphan.transaction_id, resolution, checked=True)
        return None

    async def _end_transaction(
        self, topic: str, message_id: str, transaction_id: str, resolution: Resolution, *, checked: bool
    ) -> None:
        source = v2.TransactionSource.SOURCE_SERVER_CHECK if checked else v2.TransactionSource.SOURCE_CLIENT
        request = v2.EndTransactionRequest(
            topic=v2.Resource(name=topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=WIRE_RESOLUTIONS[resolution],
            source=source,
        )
        await self._connection.call(lambda stubs: stubs.messaging.EndTransaction, request, self._telemetry.metadata)


def _forget(outcome: asyncio.Future[SendResult]) -> None:
    if not outcome.cancelled() and (error := outcome.exception()) is not None:
        _log.debug("a one-way message was not stored: %s", error)
