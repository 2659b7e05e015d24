"""Producers and consumers of every kind, which record what they do and see, and never give up.

Calls go through the bare stubs, without hidden retries. A failed call counts as unanswered: it may have taken effect.
Each worker then continues. `history.check` judges everything except what only a worker sees: bodies that differ from
those sent, and invalid answers.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from aerobee_client import connect
from aerobee_proto import v2
from tests.chaos.history import (
    Acknowledged,
    AskedAgain,
    Attempted,
    ClientGone,
    ConsumeAttempted,
    Consumed,
    DecisionAttempted,
    Delivered,
    Event,
    GivenBack,
    Kind,
    Outcome,
    Place,
    Read,
    RecallAcknowledged,
    RecallAttempted,
    Subscribed,
    Wrong,
)

Code = v2.Code
_SECONDS: Final = 15.0  # timeout of any call; pauses of the broker are shorter
_QUEUES: Final = 4
_PROGRESS: Final = 5  # sends answered between two disturbances
_HIDDEN_MS: Final = (500, 1500, 4000)
_LITE_TOPICS: Final = ("red", "green", "blue")
# Codes for refusals during or after a disturbance; the message may be stored or not.
_TROUBLE: Final = (Code.TOO_MANY_REQUESTS, Code.MASTER_PERSISTENCE_TIMEOUT)
_NO_SPACE: Final = "no space left on the disk"  # with INTERNAL_SERVER_ERROR: this machine's disk is full

TOPICS: Final = {
    "chaos-normal": v2.MessageType.NORMAL,
    "chaos-fifo": v2.MessageType.FIFO,
    "chaos-delay": v2.MessageType.DELAY,
    "chaos-transaction": v2.MessageType.TRANSACTION,
    "chaos-priority": v2.MessageType.PRIORITY,
    "chaos-lite": v2.MessageType.LITE,
}
GROUPS: Final = (  # topic, group, whether the group is ordered
    ("chaos-normal", "steady", False),
    ("chaos-normal", "careless", False),
    ("chaos-normal", "renewing", False),
    ("chaos-fifo", "ordered", True),
    ("chaos-delay", "patient", False),
    ("chaos-transaction", "settled", False),
    ("chaos-priority", "urgent", False),
    ("chaos-lite", "reader", False),
)
_TYPES: Final = {
    Kind.NORMAL: ("chaos-normal", v2.MessageType.NORMAL),
    Kind.FIFO: ("chaos-fifo", v2.MessageType.FIFO),
    Kind.DELAYED: ("chaos-delay", v2.MessageType.DELAY),
    Kind.TRANSACTIONAL: ("chaos-transaction", v2.MessageType.TRANSACTION),
    Kind.PRIORITY: ("chaos-priority", v2.MessageType.PRIORITY),
    Kind.LITE: ("chaos-lite", v2.MessageType.LITE),
}
_CHANNEL: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
)


async def create(endpoint: str) -> None:
    """Create topics and groups, whose attempts never run out during a run."""
    async with connect(endpoint) as client:
        for topic, kind in TOPICS.items():
            await client.admin.create_topic(topic, queue_count=_QUEUES, message_types=(kind,))
        for _, group, ordered in GROUPS:
            await client.admin.create_group(group, max_attempts=10_000, fifo=ordered)
        await client.admin.create_group("pulling")


@dataclass(slots=True)
class _Committed:
    """What a group has committed in a queue: the offset of the last commit that was answered, or one of those that were
    not, which a broker may still carry out later."""

    answered: int | None = None
    perhaps: set[int] = field(default_factory=set)


class Workers:
    """All producers and consumers of one run, and their history."""

    def __init__(self, seed: int, endpoint: str, pace: float) -> None:
        """`pace`: average seconds that each producer waits between its messages."""
        self.history: list[Event] = []
        self._acknowledged = 0
        self._seed = seed
        self._dice = random.Random(seed)
        self._endpoint = endpoint
        self._pace = pace
        self._numbers = itertools.count(1)
        self._calls = itertools.count(1)
        self._outcomes: dict[str, Outcome] = {}
        self._producing = True
        self._draining = False
        self._unfinished: dict[str, set[str]] = {group: set() for _, group, _ in GROUPS}
        self._tasks: list[asyncio.Task[None]] = []
        for topic, group, ordered in GROUPS:
            self.note(Subscribed(topic, group, ordered))

    def note(self, event: Event) -> None:
        self.history.append(event)
        if isinstance(event, Acknowledged):
            self._acknowledged += 1

    async def progress(self) -> None:
        """Return when a few more sends are answered with OK. TimeoutError after three minutes."""
        wanted = self._acknowledged + _PROGRESS
        async with asyncio.timeout(180):
            while self._acknowledged < wanted:
                self.check_alive()
                await asyncio.sleep(0.05)

    # --- The run --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all workers."""
        workers = (
            *(self._producer(f"normal-{n}", Kind.NORMAL) for n in range(3)),
            *(self._producer(f"fifo-{n}", Kind.FIFO) for n in range(3)),
            *(self._producer(f"delay-{n}", Kind.DELAYED) for n in range(2)),
            *(self._transactional(f"transaction-{n}") for n in range(2)),
            self._producer("priority", Kind.PRIORITY),
            self._producer("lite", Kind.LITE),
            *(self._consumer(f"steady-{n}", "chaos-normal", "steady") for n in range(2)),
            *(self._consumer(f"careless-{n}", "chaos-normal", "careless", careless=True) for n in range(2)),
            *(self._renewing(f"renewing-{n}") for n in range(2)),
            *(self._consumer(f"ordered-{n}", "chaos-fifo", "ordered", careless=True, ordered=True) for n in range(2)),
            *(self._consumer(f"patient-{n}", "chaos-delay", "patient", careless=True) for n in range(2)),
            self._consumer("settled", "chaos-transaction", "settled", careless=True),
            self._consumer("urgent", "chaos-priority", "urgent"),
            self._lite_reader(),
            *(self._puller(queue_id) for queue_id in range(_QUEUES)),
        )
        self._tasks = [asyncio.create_task(worker) for worker in workers]

    def check_alive(self) -> None:
        """Raise the exception that ended a worker: a failure of these tests, because no broker failure may end one."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def drain(self, seconds: float, left: Callable[[], int]) -> None:
        """Stop sending, and consume until nothing is `left` for a while.

        A long run leaves thousands of ordered messages, since consumers that return messages are slower than
        producers. Therefore `seconds` limits the time without progress, not the total.
        """
        self._producing = False
        self._draining = True
        deadline = time.monotonic() + seconds
        least = left()
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            self.check_alive()
            count = left()
            quiet = quiet + 1 if count == 0 else 0
            if count < least:
                least = count
                deadline = time.monotonic() + seconds
        await self.stop()
        await self._read_everything()

    async def stop(self) -> None:
        """Cancel all workers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _channel(self) -> Any:
        return grpc.aio.insecure_channel(self._endpoint, options=_CHANNEL)

    def _metadata(self, client: str) -> Any:
        return (("x-mq-client-id", f"{client}@1@0@chaos"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.1"))

    async def _answered(self, call: Awaitable[Any]) -> Any:
        """The answer, or None if the broker or the connection failed."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            self._only_trouble(error)
            await asyncio.sleep(self._dice.uniform(0.05, 0.3))
            return None

    def _only_trouble(self, error: grpc.aio.AioRpcError) -> None:
        """Accept the errors of broken connections and stopped brokers; any other is recorded as a wrong answer."""
        # grpcio reports a reset stream as INTERNAL or CANCELLED, and a server that ends as UNKNOWN.
        expected = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        if error.code() not in (*expected, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
            self.note(Wrong(_now_ms(), f"a call ended with {error.code()}: {error.details()}"))

    def _expect(self, what: str, status: v2.Status, *codes: int) -> None:
        """Only OK, one of these codes, or trouble is right."""
        is_full = status.code == Code.INTERNAL_SERVER_ERROR and _NO_SPACE in status.message
        if status.code not in (Code.OK, *codes, *_TROUBLE) and not is_full:
            self.note(Wrong(_now_ms(), f"{what} was answered {v2.Code.Name(status.code)}: {status.message}"))

    # --- Producers ------------------------------------------------------------------------------------------

    async def _producer(self, name: str, kind: Kind) -> None:
        async with self._channel() as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            while self._producing:
                await asyncio.sleep(self._dice.uniform(0, 2 * self._pace))
                batch = [self._message(kind, name) for _ in range(self._batch(kind))]
                entries = await self._send(stub, name, kind, batch)
                if not entries and kind is Kind.NORMAL and self._dice.random() < 0.5:
                    entries = await self._send(stub, name, kind, batch)  # clients retry with the same message, too
                if entries and kind is Kind.DELAYED and self._dice.random() < 0.3:
                    await asyncio.sleep(self._dice.uniform(0, 1))
                    await self._recall(stub, name, entries[0])

    def _batch(self, kind: Kind) -> int:
        return self._dice.choice((1, 1, 1, 5)) if kind in (Kind.NORMAL, Kind.FIFO) else 1

    def _message(self, kind: Kind, line: str) -> v2.Message:
        topic, message_type = _TYPES[kind]
        message_id = f"{next(self._numbers):010}"
        system = v2.SystemProperties(message_id=message_id, message_type=message_type)
        if kind is Kind.FIFO:
            system.message_group = line
        elif kind is Kind.DELAYED:
            system.delivery_timestamp.FromMilliseconds(_now_ms() + self._dice.randint(200, 5000))
        elif kind is Kind.PRIORITY:
            system.priority = self._dice.randint(0, 9)
        elif kind is Kind.LITE:
            system.lite_topic = self._dice.choice(_LITE_TOPICS)
        return v2.Message(topic=v2.Resource(name=topic), body=body_of(self._seed, message_id), system_properties=system)

    async def _send(self, stub: Any, client: str, kind: Kind, batch: Sequence[v2.Message]) -> Sequence[Any]:
        """The entries of the answer; none without an answer with OK."""
        for message in batch:
            system = message.system_properties
            deliver_ms = system.delivery_timestamp.ToMilliseconds() if kind is Kind.DELAYED else 0
            outcome = self._outcomes.get(system.message_id, Outcome.COMMIT)
            topic, line = message.topic.name, system.message_group
            self.note(Attempted(_now_ms(), system.message_id, topic, kind, line, deliver_ms, outcome))
        request = v2.SendMessageRequest(messages=batch)
        answer = await self._answered(stub.SendMessage(request, metadata=self._metadata(client), timeout=_SECONDS))
        if answer is None:
            return ()
        self._expect(f"a send of {kind}", answer.status)
        if answer.status.code != Code.OK:
            return ()
        if [entry.message_id for entry in answer.entries] != [m.system_properties.message_id for m in batch]:
            self.note(Wrong(_now_ms(), f"a send of {len(batch)} messages was answered {answer}"))
            return ()
        for message in batch:
            self.note(Acknowledged(_now_ms(), message.system_properties.message_id))
        return list(answer.entries)

    async def _recall(self, stub: Any, client: str, entry: v2.SendResultEntry) -> None:
        self.note(RecallAttempted(_now_ms(), entry.message_id))
        request = v2.RecallMessageRequest(
            topic=v2.Resource(name=_TYPES[Kind.DELAYED][0]), recall_handle=entry.recall_handle
        )
        answer = await self._answered(stub.RecallMessage(request, metadata=self._metadata(client), timeout=_SECONDS))
        if answer is not None and answer.status.code == Code.OK:
            self.note(RecallAcknowledged(_now_ms(), entry.message_id))

    # --- Transactions ---------------------------------------------------------------------------------------

    async def _transactional(self, name: str) -> None:
        """Decides at once, later, or only on a check, which arrives on its Telemetry stream."""
        async with self._channel() as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            answering = asyncio.create_task(self._answer_checks(stub, name))
            try:
                while self._producing:
                    await asyncio.sleep(self._dice.uniform(0, 2 * self._pace))
                    message = self._message(Kind.TRANSACTIONAL, name)
                    message_id = message.system_properties.message_id
                    self._outcomes[message_id] = Outcome.ROLLBACK if self._dice.random() < 0.4 else Outcome.COMMIT
                    message.system_properties.orphaned_transaction_recovery_duration.FromSeconds(1)
                    entries = await self._send(stub, name, Kind.TRANSACTIONAL, [message])
                    if entries and self._dice.random() < 0.6:
                        await self._decide(stub, name, message_id, entries[0].transaction_id, asked=False)
                await answering
            finally:
                answering.cancel()
                with suppress(asyncio.CancelledError):
                    await answering

    async def _decide(self, stub: Any, client: str, message_id: str, transaction_id: str, *, asked: bool) -> None:
        outcome = self._outcomes[message_id]
        self.note(DecisionAttempted(_now_ms(), message_id, outcome))
        resolution, source = v2.TransactionResolution, v2.TransactionSource
        request = v2.EndTransactionRequest(
            topic=v2.Resource(name=_TYPES[Kind.TRANSACTIONAL][0]),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=resolution.COMMIT if outcome is Outcome.COMMIT else resolution.ROLLBACK,
            source=source.SOURCE_SERVER_CHECK if asked else source.SOURCE_CLIENT,
        )
        answer = await self._answered(stub.EndTransaction(request, metadata=self._metadata(client), timeout=_SECONDS))
        if answer is not None:  # it may already be decided if an answer was lost
            self._expect("a decision", answer.status, Code.INVALID_TRANSACTION_ID)

    async def _answer_checks(self, stub: Any, client: str) -> None:
        publishing = v2.Publishing(topics=[v2.Resource(name=_TYPES[Kind.TRANSACTIONAL][0])])
        settings = v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=publishing)
        while True:
            stream = stub.Telemetry(metadata=self._metadata(client))
            try:
                await stream.write(v2.TelemetryCommand(settings=settings))
                async for command in stream:
                    if command.WhichOneof("command") == "recover_orphaned_transaction_command":
                        asked = command.recover_orphaned_transaction_command
                        message_id = asked.message.system_properties.message_id
                        if message_id not in self._outcomes:
                            self.note(Wrong(_now_ms(), f"asked about message {message_id!r}, which nobody sent"))
                        elif self._draining or self._dice.random() < 0.7:  # the others are checked again
                            await self._decide(stub, client, message_id, asked.transaction_id, asked=True)
            except grpc.aio.AioRpcError as error:
                self._only_trouble(error)
            finally:
                stream.cancel()
            await asyncio.sleep(0.2)

    # --- Consumers ------------------------------------------------------------------------------------------

    async def _consumer(
        self, name: str, topic: str, group: str, *, careless: bool = False, ordered: bool = False
    ) -> None:
        async with self._channel() as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            late: list[v2.Message] = []
            while True:
                hidden_ms = 500 if self._draining else self._dice.choice(_HIDDEN_MS)
                received = await self._receive(stub, name, topic, group, hidden_ms)
                await self._finish(stub, name, topic, group, received, late, careless=careless, ordered=ordered)

    async def _finish(
        self,
        stub: Any,
        name: str,
        topic: str,
        group: str,
        received: Sequence[v2.Message],
        late: list[v2.Message],
        *,
        careless: bool,
        ordered: bool,
    ) -> None:
        """Acknowledge, return, forget, or acknowledge too late.

        For ordered groups, a failure stops its message group.
        """
        done: list[v2.Message] = []
        stopped: set[str] = set()
        for message in received:
            line = message.system_properties.message_group
            if ordered and line in stopped:
                continue
            chance = self._dice.random() if careless and not self._draining else 0.0
            if chance < 0.7:
                done.append(message)
                continue
            stopped.add(line)
            if chance < 0.85:
                await self._give_back(stub, name, topic, group, message)
            elif chance < 0.92 and not ordered:
                late.append(message)
        if late and (self._draining or self._dice.random() < 0.3):
            done += late
            late.clear()
        # One call per message, or one for all.
        calls = [[message] for message in done] if self._dice.random() < 0.3 else [done]
        for messages in calls:
            if messages:
                await self._acknowledge(stub, name, topic, group, messages)

    async def _receive(
        self, stub: Any, name: str, topic: str, group: str, hidden_ms: int | None, attempt_id: str = ""
    ) -> list[v2.Message]:
        """The messages that arrived, even from an incomplete answer. `hidden_ms` None: as long as the client lives."""
        messages, _ = await self._receive_whole(stub, name, topic, group, hidden_ms, attempt_id)
        return messages

    async def _receive_whole(
        self, stub: Any, name: str, topic: str, group: str, hidden_ms: int | None, attempt_id: str = ""
    ) -> tuple[list[v2.Message], bool]:
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=group), batch_size=self._dice.choice((1, 8, 32)), auto_renew=hidden_ms is None
        )
        request.message_queue.topic.name = topic
        request.long_polling_timeout.FromMilliseconds(1000 if self._draining else 5000)
        if hidden_ms is not None:
            request.invisible_duration.FromMilliseconds(hidden_ms)
        if attempt_id:
            request.attempt_id = attempt_id
        call, called_ms = next(self._calls), _now_ms()
        messages: list[v2.Message] = []
        try:
            async for answer in stub.ReceiveMessage(request, metadata=self._metadata(name), timeout=_SECONDS):
                if answer.HasField("message"):
                    messages.append(answer.message)
                    self._note_delivered(answer.message, topic, group, call, called_ms, hidden_ms, name)
                elif answer.HasField("status"):
                    self._expect(f"a receive of {group}", answer.status, Code.MESSAGE_NOT_FOUND)
        except grpc.aio.AioRpcError as error:
            self._only_trouble(error)
            await asyncio.sleep(self._dice.uniform(0.05, 0.3))
            return messages, False
        return messages, True

    def _note_delivered(
        self,
        message: v2.Message,
        topic: str,
        group: str,
        call: int,
        called_ms: int,
        hidden_ms: int | None,
        client: str,
    ) -> None:
        system = message.system_properties
        self._check_body(message)
        self.note(
            Delivered(
                at_ms=_now_ms(),
                group=group,
                message_id=system.message_id,
                topic=topic,
                place=_place(message),
                attempt=system.delivery_attempt,
                call=call,
                called_ms=called_ms,
                hidden_ms=hidden_ms,
                client=client,
            )
        )

    def _check_body(self, message: v2.Message) -> None:
        message_id = message.system_properties.message_id
        if message.body != body_of(self._seed, message_id):
            self.note(Wrong(_now_ms(), f"message {message_id} came with another body: {message.body[:60]!r}"))

    async def _acknowledge(self, stub: Any, name: str, topic: str, group: str, messages: Sequence[v2.Message]) -> None:
        request = v2.AckMessageRequest(group=v2.Resource(name=group), topic=v2.Resource(name=topic))
        for message in messages:
            system = message.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
            self.note(ConsumeAttempted(_now_ms(), group, system.message_id, _place(message)))
        answer = await self._answered(stub.AckMessage(request, metadata=self._metadata(name), timeout=_SECONDS))
        if answer is None:
            return
        if not answer.entries:  # the whole call was refused
            self._expect("an acknowledgement", answer.status)
            return
        for entry, message in zip(answer.entries, messages, strict=True):
            system = message.system_properties
            if entry.status.code == Code.OK:
                attempt = system.delivery_attempt
                self.note(Consumed(_now_ms(), group, system.message_id, _place(message), attempt))
            else:  # too late: another consumer may have it by now
                self._expect("an acknowledgement", entry.status, Code.INVALID_RECEIPT_HANDLE)

    async def _give_back(self, stub: Any, name: str, topic: str, group: str, message: v2.Message) -> None:
        system = message.system_properties
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            receipt_handle=system.receipt_handle,
            message_id=system.message_id,
        )
        request.invisible_duration.FromMilliseconds(self._dice.choice((0, 300)))
        self.note(GivenBack(_now_ms(), group, system.message_id, _place(message)))
        call = stub.ChangeInvisibleDuration(request, metadata=self._metadata(name), timeout=_SECONDS)
        answer = await self._answered(call)
        if answer is not None:
            self._expect("a change", answer.status, Code.INVALID_RECEIPT_HANDLE)

    async def _renewing(self, name: str) -> None:
        """Holds messages as long as it lives, retries receives whose answers broke off, and sometimes dies."""
        topic, group = "chaos-normal", "renewing"
        async with self._channel() as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            for life in itertools.count():
                client = f"{name}-{life}"
                settings = v2.HeartbeatRequest(group=v2.Resource(name=group), client_type=v2.ClientType.PUSH_CONSUMER)
                await self._answered(stub.Heartbeat(settings, metadata=self._metadata(client), timeout=_SECONDS))
                for number in range(3 if self._draining else self._dice.randint(2, 12)):
                    attempt_id, whole = f"{client}/{number}", False
                    messages: list[v2.Message] = []
                    while not whole:
                        messages, whole = await self._receive_whole(stub, client, topic, group, None, attempt_id)
                        if not whole:
                            self.note(AskedAgain(_now_ms(), client))
                    kept = 0.0 if self._draining else 0.2  # messages still held when it dies
                    done = [message for message in messages if self._dice.random() >= kept]
                    if done:
                        await self._acknowledge(stub, client, topic, group, done)
                self.note(ClientGone(_now_ms(), client))
                goodbye = v2.NotifyClientTerminationRequest(group=v2.Resource(name=group))
                answer = None
                while answer is None:
                    call = stub.NotifyClientTermination(goodbye, metadata=self._metadata(client), timeout=_SECONDS)
                    answer = await self._answered(call)

    async def _lite_reader(self) -> None:
        """Subscribes its lite topics again after each failure: a broker forgets them when it dies."""
        name, topic, group = "reader", "chaos-lite", "reader"
        async with self._channel() as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            while True:
                request = v2.SyncLiteSubscriptionRequest(
                    action=v2.LiteSubscriptionAction.COMPLETE_ADD,
                    topic=v2.Resource(name=topic),
                    group=v2.Resource(name=group),
                    lite_topic_set=_LITE_TOPICS,
                )
                call = stub.SyncLiteSubscription(request, metadata=self._metadata(name), timeout=_SECONDS)
                answer = await self._answered(call)
                if answer is None:
                    continue
                self._expect("a lite subscription", answer.status)
                whole = True
                while whole:
                    hidden_ms = 500 if self._draining else self._dice.choice(_HIDDEN_MS)
                    messages, whole = await self._receive_whole(stub, name, topic, group, hidden_ms)
                    if messages:
                        await self._acknowledge(stub, name, topic, group, messages)

    # --- Readers --------------------------------------------------------------------------------------------

    async def _puller(self, queue_id: int) -> None:
        """Reads one queue from its first message on, without changing any state."""
        async with self._channel() as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            offset = 0
            committed = _Committed()
            while True:
                offset, _ = await self._pull(stub, "chaos-normal", queue_id, offset, wait_ms=3000)
                await self._look_at_offset(stub, queue_id, committed)
                if self._dice.random() < 0.5:
                    await self._commit(stub, queue_id, self._dice.randint(0, offset), committed)

    async def _commit(self, stub: Any, queue_id: int, offset: int, committed: _Committed) -> None:
        """Commit an offset, forwards or back."""
        committed.perhaps.add(offset)
        request = v2.UpdateOffsetRequest(group=v2.Resource(name="pulling"), offset=offset)
        request.message_queue.topic.name, request.message_queue.id = "chaos-normal", queue_id
        answer = await self._answered(stub.UpdateOffset(request, metadata=self._metadata("puller"), timeout=_SECONDS))
        if answer is None:
            return
        self._expect("a commit", answer.status)
        if answer.status.code == Code.OK:
            committed.answered = offset
            committed.perhaps.discard(offset)

    async def _look_at_offset(self, stub: Any, queue_id: int, committed: _Committed) -> None:
        """The offset that was answered last is committed, or one whose commit was not answered."""
        request = v2.GetOffsetRequest(group=v2.Resource(name="pulling"))
        request.message_queue.topic.name, request.message_queue.id = "chaos-normal", queue_id
        answer = await self._answered(stub.GetOffset(request, metadata=self._metadata("puller"), timeout=_SECONDS))
        if answer is None:
            return
        self._expect("a look at an offset", answer.status, Code.OFFSET_NOT_FOUND)
        offset = None if answer.status.code == Code.OFFSET_NOT_FOUND else answer.offset
        if offset not in (committed.answered, *committed.perhaps):
            self.note(Wrong(_now_ms(), f"offset {offset} of queue {queue_id} is committed, not {committed}"))

    async def _pull(self, stub: Any, topic: str, queue_id: int, offset: int, *, wait_ms: int) -> tuple[int, bool]:
        """One call; returns the next offset, and whether an answer with messages came."""
        request = v2.PullMessageRequest(group=v2.Resource(name="pulling"), offset=offset, batch_size=32)
        request.message_queue.topic.name, request.message_queue.id = topic, queue_id
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        next_offset, status = offset, v2.Status()
        try:
            async for answer in stub.PullMessage(request, metadata=self._metadata("puller"), timeout=_SECONDS):
                if answer.HasField("message"):
                    system = answer.message.system_properties
                    if (system.queue_id, system.queue_offset) != (queue_id, next_offset):
                        what = f"{topic} {queue_id} {next_offset}: pulled {system.queue_id} {system.queue_offset}"
                        self.note(Wrong(_now_ms(), what))
                    next_offset = system.queue_offset + 1
                    self._check_body(answer.message)
                    self.note(Read(_now_ms(), topic, system.message_id, (system.queue_id, system.queue_offset)))
                elif answer.HasField("status"):
                    status = answer.status
                    self._expect(f"a pull at {offset}", status, Code.MESSAGE_NOT_FOUND)
        except grpc.aio.AioRpcError as error:
            self._only_trouble(error)
            await asyncio.sleep(self._dice.uniform(0.05, 0.3))
        return next_offset, status.code == Code.OK

    async def _read_everything(self) -> None:
        """Read all messages of all queues, so that the checker finds missing ones.

        Lite topics have queues of another kind.
        """
        async with self._channel() as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            for topic in TOPICS:
                if topic == "chaos-lite":
                    continue
                for queue_id in range(_QUEUES):
                    offset, more = 0, True
                    while more:
                        offset, more = await self._pull(stub, topic, queue_id, offset, wait_ms=0)


def body_of(seed: int, message_id: str) -> bytes:
    """The same bytes for the same message: 20 bytes to 1 KiB, occasionally 60 KiB."""
    dice = random.Random(f"{seed}/{message_id}")
    return f"body {message_id} ".encode() + dice.randbytes(60_000 if dice.random() < 0.005 else dice.randint(0, 1000))


def _place(message: v2.Message) -> Place:
    system = message.system_properties
    # Each lite topic is a separate queue.
    queue_id = _LITE_TOPICS.index(system.lite_topic) if system.lite_topic else system.queue_id
    return queue_id, system.queue_offset


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
