"""SendMessage: check, choose a queue, append, and answer when the messages are as safe as the flush mode promises.

This is the broker's hottest path besides the receive: data that depends only on the topic is in a `Destination` until a
topic changes, and no call logs, locks or schedules anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from aerobee_broker.clients.naming import stored_topic_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.messages.admission import Admission, Destination
from aerobee_broker.messages.message_mapping import (
    DELAY,
    LITE,
    NORMAL,
    TRANSACTION,
    delivery_ms,
    message_type,
    to_store_message,
)
from aerobee_broker.messages.validation import check_message
from aerobee_broker.processors.sending.send_answer import send_answer
from aerobee_broker.processors.sending.send_known import SendKnown
from aerobee_broker.tables.topics import TopicMessageType, light_topic_name
from aerobee_broker.timer.recall_handle import RecallHandle
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_proto import v2
from aerobee_store import Appended, MessageStore
from aerobee_store.clock import Clock
from aerobee_store.deferred import deferred
from aerobee_store.records.properties import INNER_MULTI_DISPATCH, jump_hash
from aerobee_store.records.record import Draft, Message
from aerobee_store.records.record_template import TemplateMessage

if TYPE_CHECKING:
    from aerobee_broker.processors.sending import send_alike
    from aerobee_broker.processors.sending.send_alike import AnySendRequest, SendAlike
else:
    send_alike = deferred("aerobee_broker.processors.sending.send_alike")


_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
_ENTRY: Final = v2.SendResultEntry(status=_OK)

_KINDS: Final = {kind: name.lower() for name, kind in v2.MessageType.items()}
"""The types of messages, as metrics name them."""
_KEYS_MAX: Final = 16_384  # of messages stored one by one: the index handles a whole request in one step


class _Ready(NamedTuple):
    """The messages of a request, ready to be appended: those of a transaction as `halves`."""

    to_store: list[Message | Draft]
    halves: list[Message]
    kinds: list[str]
    queue_ids: list[int]


class SendProcessor:
    """Answers SendMessage."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        admission: Admission,
        counters: BrokerCounters,
        clock: Clock,
        transactions: Transactions,
        timer: Timer,
    ) -> None:
        self._settings = settings
        config = settings.current
        self._body_size_max = config.store.body_size_max
        self._store = store
        self._admission = admission
        self._counters = counters
        self._clock = clock
        self._transactions = transactions
        self._timer = timer
        self._broker_name = config.name

    async def answer(self, request: AnySendRequest, client: Client) -> v2.SendMessageResponse | bytes:
        """Like `process`, for a request that may have been read without protobuf; the answer may be encoded bytes."""
        while not isinstance(request, v2.SendMessageRequest):
            if isinstance(request, SendKnown):
                answer = await self._store_known(request, client)
            else:
                answer = await self._store_alike(request, client)
            if answer is not None:
                return answer
            request = request.otherwise()
        messages, queue_offsets, recall_handles = await self._store_all(request, client)
        if len(messages) == 1 and not recall_handles:
            return send_answer([messages[0].system_properties.message_id.encode()], queue_offsets)
        return _response(messages, queue_offsets, recall_handles)

    async def process(self, request: v2.SendMessageRequest, client: Client) -> v2.SendMessageResponse:
        """Store all messages of the request or none. Raises errors that `processors.statuses` maps to status codes."""
        return _response(*await self._store_all(request, client))

    async def _store_all(
        self, request: v2.SendMessageRequest, client: Client
    ) -> tuple[Sequence[v2.Message], Sequence[int], Mapping[int, str]]:
        """The messages, their queue offsets, and the handles to recall the delayed ones, by number of the message."""
        started = perf_counter()
        messages = request.messages
        if not messages:
            raise InvalidRequestError(v2.Code.MESSAGE_CORRUPTED, "the request has no message to send")
        stored_name = topic_name(messages[0].topic, client)
        now_ms = self._clock.now_ms()
        transactional = messages[0].system_properties.message_type == TRANSACTION
        turns = None
        if len(messages) == 1:
            check_message(messages[0], self._settings.current.limits, self._body_size_max, now_ms)
        else:
            turns = Turns()
            await self._check_together(messages, turns, now_ms)
        while True:
            destination = await self._admission.destination(stored_name)
            revision = self._admission.revision
            ready = await self._ready(messages, destination, client, now_ms, turns, transactional=transactional)
            if revision == self._admission.revision:  # a large batch takes its time
                break
        if transactional:
            queue_offsets = await self._append_halves(messages, ready.halves, client)
        else:
            appended = self._store.append(ready.to_store)
            queue_offsets = await self._stored(destination.topic, ready.kinds, ready.queue_ids, appended, started)

        recall_handles = {
            number: self._recall_handle(message, destination, now_ms)
            for number, message in enumerate(messages)
            if message.system_properties.HasField("delivery_timestamp")
        }
        return messages, queue_offsets, recall_handles

    async def _ready(
        self,
        messages: Sequence[v2.Message],
        destination: Destination,
        client: Client,
        now_ms: int,
        turns: Turns | None,
        *,
        transactional: bool,
    ) -> _Ready:
        """Choose the queue of each message and prepare it, as the topic is now. `turns`: between many of them."""
        ready = _Ready([], [], [], [])
        next_queue = destination.take_queue()
        for message in messages:
            if ready.queue_ids and turns is not None:
                await turns.next()
            kind = message_type(message.system_properties)
            destination.check(kind)
            group = message.system_properties.message_group
            queue_id = jump_hash(group, destination.queue_count) if group else next_queue
            prepared = self._prepared(message, kind, destination, queue_id, client, now_ms)
            if transactional:
                ready.halves.append(prepared)
            else:
                ready.to_store.append(prepared if turns is None else self._store.draft(prepared))
            ready.kinds.append(_KINDS[kind])
            ready.queue_ids.append(queue_id)
        return ready

    async def _check_together(self, messages: Sequence[v2.Message], turns: Turns, now_ms: int) -> None:
        """Check each message, and that the messages may be in one request. InvalidRequestError."""
        resource = messages[0].topic
        transactional = messages[0].system_properties.message_type == TRANSACTION
        keys_left = _KEYS_MAX
        for number, message in enumerate(messages):
            if number:
                await turns.next()
            keys_left -= len(message.system_properties.keys)
            if keys_left < 0:
                raise InvalidRequestError(
                    v2.Code.PAYLOAD_TOO_LARGE,
                    f"the messages of the request have more than {_KEYS_MAX} keys together; send several requests",
                )
            if message.topic != resource:
                raise InvalidRequestError(
                    v2.Code.MESSAGE_CORRUPTED, "the messages of the request have different topics; send them one by one"
                )
            if (message.system_properties.message_type == TRANSACTION) != transactional:
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST,
                    "some messages of the request are transactional and some are not; send them separately",
                )
            check_message(message, self._settings.current.limits, self._body_size_max, now_ms)

    async def _store_known(self, request: SendKnown, client: Client) -> bytes | None:
        """Store messages of known layouts. None, with nothing stored, if a message does not allow that."""
        started = perf_counter()
        first = request.messages[0].layout
        destination = self._admission.known(stored_topic_name(first.namespace or client.namespace, first.name))
        if destination is None:
            return None
        revision = self._admission.revision
        now_ms, limits = self._clock.now_ms(), self._settings.current.limits
        next_queue = destination.take_queue()
        turns = Turns() if len(request.messages) > 1 else None
        to_store: list[TemplateMessage] = []
        kinds: list[str] = []
        for known in request.messages:
            if to_store and turns is not None:
                await turns.next()
            layout = known.layout
            if not destination.takes(layout.kind):
                return None
            group = known.message_group
            queue_id = jump_hash(group, destination.queue_count) if group else next_queue
            message = known.templated(destination.topic, queue_id, client.peer, now_ms, limits, self._store.config)
            if message is None:
                return None
            to_store.append(message)
            kinds.append(_KINDS[layout.kind])
        if revision != self._admission.revision:
            return None
        appended = self._store.append(to_store)
        queue_ids = [message.queue_id for message in to_store]
        queue_offsets = await self._stored(destination.topic, kinds, queue_ids, appended, started)
        return send_answer([known.words[0] for known in request.messages], queue_offsets)

    async def _store_alike(self, request: SendAlike, client: Client) -> bytes | None:
        """Store normal messages as one batch in one queue. None, with nothing stored, if these messages do not allow
        that."""
        started = perf_counter()
        destination = self._admission.known(topic_name(request.topic, client))
        if destination is None or not destination.takes(NORMAL):
            return None
        queue_id = destination.take_queue()
        now_ms, limits = self._clock.now_ms(), self._settings.current.limits
        place = destination.topic, queue_id, client.peer, now_ms, limits, self._store.config
        packed = send_alike.pack(request.parts, *place)
        if packed is None:
            return None
        batch, message_ids = packed
        appended = self._store.append_records(destination.topic, queue_id, batch)
        counter = self._counters.stored_records(destination.topic, "normal", queue_id, batch.size, appended.count)
        await self._store.wait_stored(appended.end)
        counter.milliseconds.observe((perf_counter() - started) * 1000)
        return send_answer(message_ids, count(appended.first_queue_offset))

    async def _stored(
        self,
        topic: str,
        kinds: Sequence[str],
        queue_ids: Sequence[int],
        appended: Sequence[Appended],
        started: float,
    ) -> list[int]:
        """Count appended messages, and wait until they are safe; returns their queue offsets."""
        sent = self._counters.stored(topic, kinds, queue_ids, [place.size for place in appended])
        await self._store.wait_stored(appended[-1].end)
        sent.milliseconds.observe((perf_counter() - started) * 1000)
        return [place.queue_offset for place in appended]

    async def _append_halves(self, messages: Sequence[v2.Message], halves: list[Message], client: Client) -> list[int]:
        """Transactional messages are counted at their commit, because their topic does not have them before."""
        if any(message.system_properties.HasField("delivery_timestamp") for message in messages):
            raise InvalidRequestError(
                v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message cannot have a delivery timestamp; leave it out, or send without a transaction",
            )
        places = await self._transactions.begin(halves, client.client_id)
        await self._store.wait_stored(max(place.end for place in places))
        return [place.queue_offset for place in places]

    def _prepared(
        self,
        message: v2.Message,
        kind: v2.MessageType.ValueType,
        destination: Destination,
        queue_id: int,
        client: Client,
        now_ms: int,
    ) -> Message:
        system = message.system_properties
        stored = to_store_message(message, destination.topic, queue_id, client.peer, now_ms)
        if kind == LITE and destination.config.message_type is TopicMessageType.LITE:
            name = light_topic_name(destination.topic, system.lite_topic)
            stored.properties = {**stored.properties, INNER_MULTI_DISPATCH: name}
        if kind == DELAY and (deliver_ms := delivery_ms(system.delivery_timestamp)) > now_ms:
            return self._timer.delayed(stored, deliver_ms)
        return stored

    def _recall_handle(self, message: v2.Message, destination: Destination, now_ms: int) -> str:
        """None for a message that was already due and has been delivered."""
        deliver_ms = delivery_ms(message.system_properties.delivery_timestamp)
        if deliver_ms <= now_ms:
            return ""
        return RecallHandle(
            destination.topic, self._broker_name, deliver_ms, message.system_properties.message_id
        ).encode()


def _response(
    messages: Sequence[v2.Message], queue_offsets: Sequence[int], recall_handles: Mapping[int, str]
) -> v2.SendMessageResponse:
    response = v2.SendMessageResponse(status=_OK)
    for number, (message, queue_offset) in enumerate(zip(messages, queue_offsets, strict=True)):
        entry = response.entries.add()
        entry.CopyFrom(_ENTRY)  # a third of the cost of building it again
        entry.message_id = entry.transaction_id = message.system_properties.message_id
        entry.offset = queue_offset
        if number in recall_handles:
            entry.recall_handle = recall_handles[number]
    return response
