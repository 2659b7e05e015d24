"""Producers and consumers that record everything, and detect violations of the broker's guarantees.

`Load` runs them against a broker that may die at any time, and keeps the answers over its restarts. Calls go through
the bare stubs, without hidden retries, so a message is sent once and identified by its id. Each contradiction to an
answer becomes one line in `violations`.

Moments are numbers of one counter, which is enough because everything happens in one event loop: a call answered
before another began has the smaller number, whatever the clock shows.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from aerobee_proto import v2

TOPIC = "orders"
GROUPS = ("steady", "flaky")  # steady acknowledges everything; flaky forgets, returns, acknowledges late
_METADATA = (("x-mq-client-id", "load@1@0@abc"), ("x-mq-language", "JAVA"))
_SECONDS = 20.0  # timeout of any call; a running broker answers in milliseconds
_BATCH_MAX = 20
_INVISIBLE_MS = (400, 1000, 4000)
_RECEIVE_COUNT = 32
_CLOCK_MS = 30  # rounding difference between two readings of one clock
_VIOLATIONS_MAX = 50
Code = v2.Code

Place = tuple[int, int]
"""Queue id and queue offset."""


@dataclass(slots=True)
class Sent:
    """One message that was sent, once."""

    message_id: str
    began: int
    predecessor: str | None  # must be before it in the same queue
    answered: int | None = None  # moment of its OK
    offset: int = -1  # from the answer


@dataclass(slots=True)
class Taken:
    """The history of one message, as one group saw it."""

    message_id: str
    attempts: set[int] = field(default_factory=set)
    acknowledged: bool = False  # an acknowledgement was answered with OK
    perhaps: bool = False  # an acknowledgement was sent, its answer was lost
    hidden_until_ms: int = 0  # no other delivery may come earlier

    @property
    def attempt(self) -> int:
        """The latest."""
        return max(self.attempts, default=0)


@dataclass(slots=True)
class Group:
    name: str
    taken: dict[Place, Taken] = field(default_factory=dict)
    lost_answers: int = 0  # receives cut off by the broker's end: each may have counted an attempt
    held: list[tuple[v2.Message, int]] = field(default_factory=list)  # to be acknowledged after the next restart
    deliveries: int = 0
    late: int = 0  # acknowledgements refused as too late


@dataclass(slots=True)
class Load:
    """Everything sent and received over all runs of a broker."""

    seed: int
    random: random.Random = field(init=False)
    sent: dict[str, Sent] = field(default_factory=dict)
    stored: dict[str, Place] = field(default_factory=dict)
    queue_ends: Counter[int] = field(default_factory=Counter)
    groups: dict[str, Group] = field(default_factory=lambda: {name: Group(name) for name in GROUPS})
    violations: list[str] = field(default_factory=list)
    violation_count: Counter[str] = field(default_factory=Counter)
    moments: itertools.count[int] = field(default_factory=itertools.count)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    # --- While the broker runs ----------------------------------------------------------------------------------

    async def run(self, endpoint: str, until: Callable[[], Awaitable[None]]) -> None:
        """Send, receive and acknowledge until `until` returns, having ended the broker."""
        options = [("grpc.use_local_subchannel_pool", 1)]  # the next broker must not inherit a channel's backoff
        async with (
            grpc.aio.insecure_channel(endpoint, options=options) as producing,
            grpc.aio.insecure_channel(endpoint, options=options) as consuming,
        ):
            producer, consumer = v2.MessagingServiceStub(producing), v2.MessagingServiceStub(consuming)
            tasks = [
                *(asyncio.create_task(self._send_singles(producer)) for _ in range(12)),
                *(asyncio.create_task(self._send_batches(producer)) for _ in range(4)),
                *(asyncio.create_task(self._send_ordered(producer, f"line-{line}")) for line in range(3)),
                *(asyncio.create_task(self._consume(consumer, self.groups["steady"])) for _ in range(4)),
                *(asyncio.create_task(self._consume(consumer, self.groups["flaky"])) for _ in range(4)),
            ]
            await until()
            async with asyncio.timeout(_SECONDS):  # each worker ends with its first broken call
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(ended, BaseException) and not _broken(ended):
                        raise ended
        self._check_attempts()

    async def _send_singles(self, stub: Any) -> None:
        while True:
            await self._send(stub, [self._message()])

    async def _send_batches(self, stub: Any) -> None:
        while True:
            await self._send(stub, [self._message() for _ in range(self.random.randint(2, _BATCH_MAX))])

    async def _send_ordered(self, stub: Any, line: str) -> None:
        """Send one by one, so that each message has one predecessor in its queue."""
        predecessor: str | None = None
        while True:
            batch = []
            for _ in range(self.random.choice((1, 1, 5))):
                message = self._message(line, predecessor)
                predecessor = message.system_properties.message_id
                batch.append(message)
            await self._send(stub, batch)

    def _message(self, line: str | None = None, predecessor: str | None = None) -> v2.Message:
        message_id = f"{next(self.numbers):08}"
        self.sent[message_id] = Sent(message_id, -1, predecessor)
        message = v2.Message(
            topic=v2.Resource(name=TOPIC),
            body=body_of(self.seed, message_id),
            user_properties={"of": message_id},
            system_properties=v2.SystemProperties(
                message_id=message_id,
                keys=[f"key-{message_id}", f"some-{int(message_id) % 97}"],
                tag=f"tag-{int(message_id) % 7}",
                message_type=v2.MessageType.NORMAL if line is None else v2.MessageType.FIFO,
                message_group=line,
            ),
        )
        message.system_properties.born_timestamp.GetCurrentTime()
        return message

    async def _send(self, stub: Any, messages: list[v2.Message]) -> None:
        batch = [self.sent[message.system_properties.message_id] for message in messages]
        for sent in batch:
            sent.began = next(self.moments)
        answer = await stub.SendMessage(
            v2.SendMessageRequest(messages=messages), metadata=_METADATA, timeout=_SECONDS, wait_for_ready=False
        )
        if answer.status.code != Code.OK or len(answer.entries) != len(batch):
            self.violated("refused", f"a send was answered {answer.status} with {len(answer.entries)} entries")
            return
        for sent, entry in zip(batch, answer.entries, strict=True):
            sent.answered, sent.offset = next(self.moments), entry.offset
            if entry.message_id != sent.message_id:
                self.violated("answer", f"message {sent.message_id} was answered as {entry.message_id!r}")

    async def _consume(self, stub: Any, group: Group) -> None:
        held, group.held = group.held, []
        if held:
            await self._acknowledge(stub, group, held)
        while True:
            received = await self._receive(stub, group)
            if not received:
                continue
            done = []
            for message, until_ms in received:
                chance = self.random.random() if group.name == "flaky" else 0.0
                if chance < 0.6:
                    done.append((message, until_ms))
                elif chance < 0.7:
                    await self._give_back(stub, group, message)
                elif chance < 0.75:
                    group.held.append((message, until_ms))
            if done:
                await self._acknowledge(stub, group, done)

    async def _receive(self, stub: Any, group: Group, wait_seconds: int = 5) -> list[tuple[v2.Message, int]]:
        """Messages, each with the Unix time in milliseconds until which it is certainly invisible to others."""
        invisible_ms = self.random.choice(_INVISIBLE_MS)
        request = v2.ReceiveMessageRequest(group=v2.Resource(name=group.name), batch_size=_RECEIVE_COUNT)
        request.message_queue.topic.name = TOPIC
        request.invisible_duration.FromMilliseconds(invisible_ms)
        request.long_polling_timeout.FromSeconds(wait_seconds)
        until_ms = _now_ms() + invisible_ms
        received: list[tuple[v2.Message, int]] = []
        try:
            async for answer in stub.ReceiveMessage(request, metadata=_METADATA, timeout=_SECONDS):
                if answer.HasField("message"):
                    self._took(group, answer.message, until_ms)
                    received.append((answer.message, until_ms))
                elif answer.HasField("status") and answer.status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
                    self.violated("refused", f"a receive of {group.name} was answered {answer.status}")
        except grpc.RpcError:
            group.lost_answers += 1
            raise
        return received

    def _took(self, group: Group, message: v2.Message, until_ms: int) -> None:
        system = message.system_properties
        place = (system.queue_id, system.queue_offset)
        taken = group.taken.setdefault(place, Taken(system.message_id))
        group.deliveries += 1
        what = f"group {group.name}, queue {place[0]} offset {place[1]}, message {system.message_id}"
        if taken.message_id != system.message_id:
            self.violated("replaced", f"{what}: was message {taken.message_id} before")
        self._check_content(message, what)
        if system.delivery_attempt < taken.attempt and _now_ms() >= until_ms:
            # On a busy machine an answer is read after its time is over, and after a later one of another stream.
            if system.delivery_attempt in taken.attempts:
                self.violated("attempt", f"{what}: attempt {system.delivery_attempt} twice")
            taken.attempts.add(system.delivery_attempt)
            return
        if taken.acknowledged:
            self.violated("redelivered", f"{what}: delivered again, attempt {system.delivery_attempt}, after its OK")
        if system.delivery_attempt <= taken.attempt:
            self.violated("attempt", f"{what}: attempt {system.delivery_attempt} after attempt {taken.attempt}")
        if _now_ms() + _CLOCK_MS < taken.hidden_until_ms:
            self.violated("early", f"{what}: delivered {taken.hidden_until_ms - _now_ms()} ms before its time was over")
        taken.attempts.add(system.delivery_attempt)
        taken.hidden_until_ms = until_ms

    async def _acknowledge(self, stub: Any, group: Group, messages: Sequence[tuple[v2.Message, int]]) -> None:
        request = v2.AckMessageRequest(group=v2.Resource(name=group.name), topic=v2.Resource(name=TOPIC))
        places = []
        for message, _ in messages:
            system = message.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
            places.append((system.queue_id, system.queue_offset))
            group.taken[places[-1]].perhaps = True
        answer = await stub.AckMessage(request, metadata=_METADATA, timeout=_SECONDS)
        now_ms = _now_ms()
        if len(answer.entries) != len(messages):
            self.violated("refused", f"{len(messages)} acknowledgements were answered {answer.status}")
            return
        for entry, place, (_, until_ms) in zip(answer.entries, places, messages, strict=True):
            if entry.status.code == Code.OK:
                group.taken[place].acknowledged = True
            elif entry.status.code != Code.INVALID_RECEIPT_HANDLE or now_ms + _CLOCK_MS < until_ms:
                self.violated("refused", f"group {group.name}, {place}: {until_ms - now_ms} ms left, {entry.status}")
            else:
                group.late += 1

    async def _give_back(self, stub: Any, group: Group, message: v2.Message) -> None:
        system = message.system_properties
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=group.name),
            topic=v2.Resource(name=TOPIC),
            receipt_handle=system.receipt_handle,
            message_id=system.message_id,
        )
        request.invisible_duration.FromMilliseconds(self.random.choice((0, 200)))
        group.taken[system.queue_id, system.queue_offset].hidden_until_ms = 0
        await stub.ChangeInvisibleDuration(request, metadata=_METADATA, timeout=_SECONDS)

    def _check_attempts(self) -> None:
        """Once no answer is under way, only lost ones may be missing."""
        for group in self.groups.values():
            for place, taken in group.taken.items():
                seen = len(taken.attempts)
                if taken.attempt > seen + group.lost_answers:
                    self.violated(
                        "attempt",
                        f"group {group.name}, {place}, message {taken.message_id}: attempt {taken.attempt}, but seen "
                        f"{seen} times and at most {group.lost_answers} answers were lost",
                    )

    # --- After the restart --------------------------------------------------------------------------------------

    async def check_stored(self, endpoint: str, since_ms: int) -> None:
        """Compare every message that the store dates since then with the answers."""
        places: dict[Place, str] = {}
        async with grpc.aio.insecure_channel(endpoint) as channel:
            async for message in _stored_since(channel, since_ms):
                system = message.system_properties
                place = (system.queue_id, system.queue_offset)
                places[place] = system.message_id
                known = self.stored.setdefault(system.message_id, place)
                if known != place:
                    self.violated("twice", f"message {system.message_id}: at {known} and at {place} (queue, offset)")
                self._check_content(message, f"stored, queue {place[0]} offset {place[1]}")
        for message_id, place in self.stored.items():
            if since_ms == 0 and places.get(place) != message_id:
                self.violated("lost", f"message {message_id}: was stored at {place}, now there is {places.get(place)}")
        self._check_queues(places)
        self._check_answers()

    def _check_queues(self, places: dict[Place, str]) -> None:
        """Offsets have no gaps, and a message answered before another was sent has the smaller offset."""
        by_queue: dict[int, list[int]] = {}
        for queue_id, offset in places:
            by_queue.setdefault(queue_id, []).append(offset)
        for queue_id, offsets in by_queue.items():
            offsets.sort()
            end = self.queue_ends[queue_id]
            if offsets[0] > end or offsets[-1] - offsets[0] + 1 != len(offsets):
                self.violated("hole", f"queue {queue_id}: ended at {end}, now {offsets[0]}..{offsets[-1]}, a hole")
            if offsets[-1] + 1 < end:
                self.violated("lost", f"queue {queue_id}: ends at {offsets[-1] + 1}, before at {end}")
            self.queue_ends[queue_id] = offsets[-1] + 1
            first_answered: tuple[int, int] | None = None  # of all later messages: moment, offset
            for offset in reversed(offsets):
                sent = self.sent.get(places[queue_id, offset])
                if sent is None:
                    continue  # already reported
                if first_answered is not None and first_answered[0] < sent.began:
                    self.violated(
                        "reordered",
                        f"queue {queue_id}: offset {offset} was sent after offset {first_answered[1]} was answered",
                    )
                if sent.answered is not None and (first_answered is None or sent.answered < first_answered[0]):
                    first_answered = (sent.answered, offset)
                if sent.predecessor is not None:
                    self._check_predecessor(sent, (queue_id, offset))

    def _check_predecessor(self, sent: Sent, place: Place) -> None:
        before = self.stored.get(str(sent.predecessor))
        if before is None or before[0] != place[0] or before[1] >= place[1]:
            self.violated(
                "reordered", f"message {sent.message_id} at {place}: its predecessor {sent.predecessor} is at {before}"
            )

    def _check_answers(self) -> None:
        for sent in self.sent.values():
            if sent.answered is None:
                continue
            place = self.stored.get(sent.message_id)
            if place is None:
                self.violated("lost", f"message {sent.message_id}: answered with offset {sent.offset}, not stored")
            elif place[1] != sent.offset:
                self.violated("moved", f"message {sent.message_id}: answered with offset {sent.offset}, is at {place}")

    def _check_content(self, message: v2.Message, what: str) -> None:
        system = message.system_properties
        sent = self.sent.get(system.message_id)
        if sent is None or sent.began < 0:
            self.violated("content", f"{what}: message {system.message_id!r} was never sent")
            return
        number = int(system.message_id)
        if (
            message.body != body_of(self.seed, system.message_id)
            or list(system.keys) != [f"key-{system.message_id}", f"some-{number % 97}"]
            or system.tag != f"tag-{number % 7}"
            or dict(message.user_properties) != {"of": system.message_id}
        ):
            self.violated("content", f"{what}: message {system.message_id} is not what was sent")

    async def check_keys(self, endpoint: str, count: int) -> None:
        """Each queried key finds exactly its message."""
        async with grpc.aio.insecure_channel(endpoint) as channel:
            stub: Any = v2.AdminStub(channel)
            for message_id in self.random.sample(sorted(self.stored), min(count, len(self.stored))):
                request = v2.ListMessageRequest(topic=v2.Resource(name=TOPIC), message_key=f"key-{message_id}")
                answer = await stub.QueryMessage(request, metadata=_METADATA, timeout=_SECONDS)
                found = [(m.system_properties.queue_id, m.system_properties.queue_offset) for m in answer.messages]
                if found != [self.stored[message_id]]:
                    self.violated("key", f"message {message_id} at {self.stored[message_id]}: its key finds {found}")

    async def drain(self, endpoint: str, seconds: float) -> None:
        """Consume and acknowledge all remaining messages in every group."""
        async with grpc.aio.insecure_channel(endpoint) as channel:
            stub = v2.MessagingServiceStub(channel)
            await asyncio.gather(*(self._drain(stub, group, seconds) for group in self.groups.values()))
        self._check_attempts()

    async def _drain(self, stub: Any, group: Group, seconds: float) -> None:
        group.held.clear()
        deadline = time.monotonic() + seconds
        empty = 0
        # The longest invisible time is 4 s; afterwards receives must stay empty.
        while empty < 6 and time.monotonic() < deadline:
            received = await self._receive(stub, group, wait_seconds=1)
            empty = 0 if received else empty + 1
            if received:
                await self._acknowledge(stub, group, received)
        if empty < 6:
            self.violated("endless", f"group {group.name}: still gets messages after {seconds:g} s")
        for message_id, place in self.stored.items():
            taken = group.taken.get(place)
            if taken is None or not (taken.acknowledged or taken.perhaps):
                seen = (
                    "never delivered" if taken is None else f"delivered {len(taken.attempts)} times, never acknowledged"
                )
                self.violated("forgotten", f"group {group.name}: message {message_id} at {place}: {seen}")

    # --- Violations ---------------------------------------------------------------------------------------------

    def violated(self, kind: str, line: str) -> None:
        self.violation_count[kind] += 1
        if len(self.violations) < _VIOLATIONS_MAX:
            self.violations.append(f"{kind}: {line}")

    def summary(self) -> str:
        answered = sum(sent.answered is not None for sent in self.sent.values())
        began = sum(sent.began >= 0 for sent in self.sent.values())
        taken: Iterable[Taken] = [t for group in self.groups.values() for t in group.taken.values()]
        lost, reordered, again = (self.violation_count[kind] for kind in ("lost", "reordered", "redelivered"))
        return (
            f"sent={began} answered={answered} stored={len(self.stored)} lost={lost} reordered={reordered} "
            f"deliveries={sum(group.deliveries for group in self.groups.values())} "
            f"acknowledged={sum(t.acknowledged for t in taken)} redelivered={again} "
            f"attempt_max={max((t.attempt for t in taken), default=0)} "
            f"late={sum(group.late for group in self.groups.values())} violations={self.violation_count.total()}"
        )


def body_of(seed: int, message_id: str) -> bytes:
    """The same bytes for the same message: 20 bytes to 2 KiB, occasionally 100 KiB."""
    dice = random.Random(f"{seed}/{message_id}")
    size = 100 << 10 if dice.random() < 0.005 else dice.randint(0, 2048)
    return f"body {message_id} ".encode() + dice.randbytes(size)


async def _stored_since(channel: Any, since_ms: int) -> Any:
    stub: Any = v2.AdminStub(channel)
    request = v2.ListMessageRequest(topic=v2.Resource(name=TOPIC), max_message_nums=64)
    if since_ms:
        request.begin_timestamp.FromMilliseconds(since_ms)
    while True:
        answer = await stub.QueryMessage(request, metadata=_METADATA, timeout=_SECONDS)
        assert answer.status.code == Code.OK, answer.status
        for message in answer.messages:
            yield message
        if not answer.scroll_id:
            return
        request.scroll_id = answer.scroll_id


def _broken(error: BaseException) -> bool:
    """Whether a call ended because the broker did."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.UNAVAILABLE


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
