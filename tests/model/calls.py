"""Calls to one broker over bare stubs, without retries, which tell the model what was promised.

`Calls.answers` has what each call was answered with: OK, the name of a code, or `no answer: ` and gRPC's status.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import grpc

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command, FrameReader, encode
from aerobee_broker.remoting_wire.signature import PeerKey
from aerobee_client import Client, Credentials, Message, blocking
from aerobee_client.admin import Admin
from aerobee_client.errors import BatchError, ClientError, DeadlineError, ServerError, code_name
from aerobee_proto import v2
from tests.model.promises import NO_OFFSET, Delivery, Kind, Promise, Promises, Sent, body_of
from tests.support.remoting_client import pull_fields, records, send_fields

Code = v2.Code
_Result = TypeVar("_Result")
_SECONDS: Final = 60.0
_FRAME_SIZE: Final = 1000  # of bulk reads: a message or two
NO_ANSWER: Final = "no answer: "
HUNG: Final = f"{NO_ANSWER}DEADLINE_EXCEEDED"
# Refusals after which the message may be stored all the same.
_UNDECIDED: Final = frozenset(
    (Code.MASTER_PERSISTENCE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT, Code.HA_NOT_AVAILABLE, Code.INTERNAL_ERROR)
)
_UNDECIDED_ANSWERS: Final = frozenset(
    (Answer.FLUSH_DISK_TIMEOUT, Answer.FLUSH_SLAVE_TIMEOUT, Answer.SLAVE_NOT_AVAILABLE, Answer.SYSTEM_ERROR)
)
_TYPES: Final = {
    Kind.NORMAL: v2.MessageType.NORMAL,
    Kind.FIFO: v2.MessageType.FIFO,
    Kind.DELAY: v2.MessageType.DELAY,
    Kind.TRANSACTION: v2.MessageType.TRANSACTION,
    Kind.PRIORITY: v2.MessageType.PRIORITY,
    Kind.LITE: v2.MessageType.LITE,
}
SETTINGS: Final[Mapping[str, object]] = {
    "store.segment_size": 4 << 20,
    "store.segments_ahead": 0,
    "store.queue_file_size": 400,
    "store.index_slot_count": 50,
    "store.index_entry_count": 200,
    "store.disk_headroom": 0,
    "store.retention_hours": 24.0 * 4000,
    "store.disk_clean_ratio": 1.0,
    "store.disk_force_clean_ratio": 1.0,
    "store.disk_full_ratio": 1.0,
    "delivery.snapshot_event_count": 20,
    "transactions.check_max": 100_000,
}
"""Small files, frequent snapshots, and a broker that does not ask how full this machine's disk is."""
LITE_TOPICS: Final = ("red", "green")
_METADATA: Final = (("x-mq-client-id", "model@1@0@x"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.1"))


class Calls:
    """A connection to a broker. An answer that does not come is `Promise.PERHAPS`."""

    def __init__(self, endpoint: str, promises: Promises, credentials: Credentials | None = None) -> None:
        self.answers: list[tuple[str, str]] = []
        self.retry_seconds = 0.0  # of our own client
        self._credentials = credentials
        self._channel = grpc.insecure_channel(endpoint, options=(("grpc.use_local_subchannel_pool", 1),))
        self._stub: Any = v2.MessagingServiceStub(self._channel)
        self._promises = promises
        self._endpoint = endpoint

    def close(self) -> None:
        self._channel.close()

    # --- Sending

    def begin_send(self, batch: Sequence[Sent], **properties: int) -> Any:
        """Send without waiting; `end_send` takes the answer."""
        messages = [_message(sent, **properties) for sent in batch]
        return self._stub.SendMessage.future(
            v2.SendMessageRequest(messages=messages), metadata=self._metadata(), timeout=_SECONDS
        )

    def end_send(self, call: Any, batch: Sequence[Sent]) -> None:
        """Record the answer to a send."""
        try:
            answer = call.result()
        except grpc.RpcError as error:
            self._note("SendMessage", _problem(error))
            return
        entries = answer.entries or [v2.SendResultEntry(status=answer.status)] * len(batch)
        for sent, entry in zip(batch, entries, strict=True):
            self._note("SendMessage", code_name(entry.status.code))
            if entry.status.code == Code.OK:
                sent.stored = Promise.YES
                sent.transaction_id, sent.recall_handle = entry.transaction_id, entry.recall_handle
            elif entry.status.code not in _UNDECIDED:
                sent.stored = Promise.NO

    def send(self, batch: Sequence[Sent], **properties: int) -> None:
        """One request with these messages."""
        self.end_send(self.begin_send(batch, **properties), batch)

    def decide(self, sent: Sent, *, commit: bool) -> None:
        """Commit or roll back a transaction."""
        resolution = v2.TransactionResolution.COMMIT if commit else v2.TransactionResolution.ROLLBACK
        request = v2.EndTransactionRequest(
            topic=v2.Resource(name=sent.topic),
            message_id=sent.message_id,
            transaction_id=sent.transaction_id,
            resolution=resolution,
            source=v2.TransactionSource.SOURCE_CLIENT,
        )
        if commit:
            sent.committed = Promise.PERHAPS
        else:
            sent.rolled_back = Promise.PERHAPS
        answer = self._answer("EndTransaction", request)
        if answer is not None:
            outcome = Promise.YES if answer.status.code == Code.OK else Promise.PERHAPS
            if commit:
                sent.committed = outcome
            else:
                sent.rolled_back = outcome

    def recall(self, sent: Sent) -> None:
        """Recall a delayed message."""
        sent.recalled = Promise.PERHAPS
        request = v2.RecallMessageRequest(topic=v2.Resource(name=sent.topic), recall_handle=sent.recall_handle)
        answer = self._answer("RecallMessage", request)
        if answer is not None and answer.status.code == Code.OK:
            sent.recalled = Promise.YES

    def send_in_bulk(self, batch: Sequence[Sent]) -> None:
        """Plain messages by the client, which packs eight or more for AppendRecords."""
        messages = [
            Message(topic=sent.topic, body=body_of(sent.message_id), message_id=sent.message_id) for sent in batch
        ]
        try:
            with self.client() as client:
                outcomes: Sequence[object] = client.producer().send_many(messages)
        except BatchError as error:
            outcomes = error.outcomes
        except ClientError as error:
            outcomes = [error] * len(batch)
        for sent, outcome in zip(batch, outcomes, strict=True):
            self._note("AppendRecords", _outcome(outcome))
            if not isinstance(outcome, Exception):
                sent.stored = Promise.YES

    def send_over_remoting(self, sent: Sent, *, level: int = 0) -> None:
        """One message by RocketMQ's older protocol, with a delay level if it has one."""
        properties = {"UNIQ_KEY": sent.message_id, **({"DELAY": str(level)} if level else {})}
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        fields = send_fields(sent.topic, properties=text)
        answer = self.remoting(Request.SEND_MESSAGE_V2, fields, body_of(sent.message_id))
        if answer is not None and answer.code == Answer.SUCCESS:
            sent.stored = Promise.YES
        elif answer is not None and answer.code not in _UNDECIDED_ANSWERS:
            sent.stored = Promise.NO

    # --- Consuming

    def subscribe_lite(self, topic: str, group: str) -> None:
        """Subscribe the lite topics, which a broker forgets when it ends."""
        request = v2.SyncLiteSubscriptionRequest(
            action=v2.LiteSubscriptionAction.COMPLETE_ADD,
            topic=v2.Resource(name=topic),
            group=v2.Resource(name=group),
            lite_topic_set=LITE_TOPICS,
        )
        self._answer("SyncLiteSubscription", request)

    def receive(self, group: str, topic: str, *, count: int, hidden_seconds: int) -> list[Delivery]:
        """Receive what there is, without waiting."""
        call = self.begin_receive(group, topic, count=count, hidden_seconds=hidden_seconds)
        return self.end_receive(call, group)

    def begin_receive(self, group: str, topic: str, *, count: int, hidden_seconds: int, wait_ms: int = 1) -> Any:
        """Receive, but read the answers with `end_receive`."""
        request = v2.ReceiveMessageRequest(group=v2.Resource(name=group), batch_size=count)
        request.message_queue.topic.name = topic
        request.invisible_duration.FromSeconds(hidden_seconds)
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        return self._stub.ReceiveMessage(request, metadata=self._metadata(), timeout=_SECONDS)

    def end_receive(self, call: Any, group: str) -> list[Delivery]:
        """What a receive is answered with."""
        deliveries = []
        try:
            for answer in call:
                if answer.HasField("status"):
                    self._note("ReceiveMessage", code_name(answer.status.code))
                elif answer.HasField("message"):
                    system = answer.message.system_properties
                    deliveries.append(
                        Delivery(
                            system.message_id,
                            system.queue_id if not system.lite_topic else LITE_TOPICS.index(system.lite_topic),
                            system.queue_offset,
                            system.receipt_handle,
                            answer.message.body,
                            system.delivery_attempt,
                        )
                    )
        except grpc.RpcError as error:
            self._note("ReceiveMessage", _problem(error))
        self._promises.delivered(group, deliveries)
        return deliveries

    def acknowledge(self, group: str, topic: str, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge messages in one call."""
        request = v2.AckMessageRequest(group=v2.Resource(name=group), topic=v2.Resource(name=topic))
        names = []
        for delivery in deliveries:
            request.entries.add(message_id=delivery.message_id, receipt_handle=delivery.handle)
            names.append(delivery.message_id)
        if not names:
            return
        answer = self._answer("AckMessage", request)
        if answer is None:
            self._promises.finished(group, names, Promise.PERHAPS)
            return
        for name, entry in itertools.zip_longest(names, answer.entries):
            code = answer.status.code if entry is None else entry.status.code
            if code == Code.OK:
                self._promises.finished(group, [name], Promise.YES)
            elif code != Code.INVALID_RECEIPT_HANDLE:
                self._promises.finished(group, [name], Promise.PERHAPS)

    def renew(self, group: str, topic: str, delivery: Delivery, seconds: int) -> str | None:
        """Change the invisible time; returns the new handle. 0 seconds: give the message back."""
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            receipt_handle=delivery.handle,
            message_id=delivery.message_id,
        )
        request.invisible_duration.FromSeconds(seconds)
        answer = self._answer("ChangeInvisibleDuration", request)
        return None if answer is None or answer.status.code != Code.OK else str(answer.receipt_handle)

    def bury(self, group: str, topic: str, delivery: Delivery) -> None:
        """Move a message to the dead letters of the group."""
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            receipt_handle=delivery.handle,
            message_id=delivery.message_id,
            delivery_attempt=delivery.attempt,
            max_delivery_attempts=delivery.attempt,
        )
        answer = self._answer("ForwardMessageToDeadLetterQueue", request)
        outcome = Promise.PERHAPS
        if answer is not None and answer.status.code == Code.OK:
            outcome = Promise.YES
        elif answer is not None and answer.status.code not in _UNDECIDED:
            outcome = Promise.NO
        self._promises.buried(group, delivery.message_id, outcome)

    def pop(self, group: str, topic: str, *, count: int, hidden_seconds: int) -> list[Delivery]:
        """Receive by RocketMQ's POP, without waiting."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": -1,
            "maxMsgNums": count,
            "invisibleTime": hidden_seconds * 1000,
            "pollTime": 0,
            "bornTime": 0,
            "initMode": 0,
            "exp": "*",
            "expType": "TAG",
            "order": "false",
        }
        answer = self.remoting(Request.POP_MESSAGE, fields)
        deliveries = []
        for record in records(answer.body) if answer is not None else ():
            handle = record.properties["POP_CK"]
            queue_id, queue_offset = (int(part) for part in handle.split(" ")[6:8])
            message_id, attempt = record.properties["UNIQ_KEY"], record.reconsume_times + 1
            deliveries.append(Delivery(message_id, queue_id, queue_offset, handle, bytes(record.body), attempt))
        self._promises.delivered(group, deliveries)
        return deliveries

    def acknowledge_popped(self, group: str, topic: str, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge such messages one by one."""
        for delivery in deliveries:
            answer = self.remoting(Request.ACK_MESSAGE, _popped(group, topic, delivery))
            is_done = answer is not None and answer.code == Answer.SUCCESS
            if answer is None or is_done or answer.code in _UNDECIDED_ANSWERS:
                self._promises.finished(group, [delivery.message_id], Promise.YES if is_done else Promise.PERHAPS)

    def hide_popped(self, group: str, topic: str, delivery: Delivery, seconds: int) -> None:
        """Change the invisible time of such a message, whose handle is used up by this."""
        self.remoting(
            Request.CHANGE_MESSAGE_INVISIBLE_TIME,
            _popped(group, topic, delivery) | {"invisibleTime": seconds * 1000},
        )

    def pull(self, group: str, topic: str, queue_id: int) -> set[str]:
        """The ids of all messages of a queue, read by RocketMQ's pull without a position."""
        found: set[str] = set()
        offset = 0
        while True:
            fields = pull_fields(topic, queue_id=queue_id, offset=offset, group=group, suspendTimeoutMillis=0)
            answer = self.remoting(Request.PULL_MESSAGE, fields)
            if answer is None or "nextBeginOffset" not in answer.fields:
                return found
            found |= {record.properties["UNIQ_KEY"] for record in records(answer.body)}
            following = int(answer.fields["nextBeginOffset"])
            if answer.code != Answer.SUCCESS and following <= offset:
                return found
            offset = following

    def queue_end(self, topic: str, queue_id: int) -> int | None:
        """Where a queue ends; None without an answer."""
        request = v2.QueryOffsetRequest(
            message_queue=_queue(topic, queue_id), query_offset_policy=v2.QueryOffsetPolicy.END
        )
        answer = self._answer("QueryOffset", request)
        return None if answer is None or answer.status.code != Code.OK else int(answer.offset)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset of a group that only pulls."""
        kept = self._promises.offset_of(topic, queue_id)
        kept.attempted(offset)
        queue, name = _queue(topic, queue_id), v2.Resource(name=group)
        answer = self._answer("UpdateOffset", v2.UpdateOffsetRequest(group=name, message_queue=queue, offset=offset))
        if answer is not None and answer.status.code == Code.OK:
            kept.answered(offset)

    def look_at_offset(self, group: str, topic: str, queue_id: int) -> None:
        """Judge what the group has committed."""
        request = v2.GetOffsetRequest(group=v2.Resource(name=group), message_queue=_queue(topic, queue_id))
        answer = self._answer("GetOffset", request)
        if answer is not None and answer.status.code in (Code.OK, Code.OFFSET_NOT_FOUND):
            offset = answer.offset if answer.status.code == Code.OK else NO_OFFSET
            self._promises.committed(topic, queue_id, offset)

    def read_records(self, topic: str) -> set[str] | None:
        """The ids of all messages of a topic, read in bulk: between the offsets that it names; None without them."""

        async def read(client: Client) -> set[str]:
            found = set()
            for queue in await client.records.offsets(topic):
                at = queue.min_offset
                frames = client.records.read(
                    topic, queue.queue_id, queue.min_offset, end=queue.max_offset, frame_size_max=_FRAME_SIZE
                )
                async for frame in frames:
                    if frame.start_offset != at or frame.lost_count:
                        raise AssertionError(f"{topic}/{queue.queue_id}: {frame.start_offset} comes after {at}")
                    at = frame.next_offset
                    found |= {message.message_id for message in frame.messages(topic, "")}
                if at != queue.max_offset:
                    raise AssertionError(f"{topic}/{queue.queue_id}: reading ended at {at}, not at {queue.max_offset}")
            return found

        try:
            with self.client() as client:
                result = client.run(read(client.asynchronous))
        except ClientError as error:
            self._note("ReadRecords", _outcome(error))
            return None
        self._note("ReadRecords", "OK")
        return result

    # --- Both

    def client(self) -> blocking.BlockingClient:
        """Our own client."""
        return blocking.connect(self._endpoint, retry_seconds=self.retry_seconds, credentials=self._credentials)

    def remoting(self, code: Request, fields: Mapping[str, object], body: bytes = b"") -> Command | None:
        """A request of RocketMQ's older protocol, on a connection of its own; None without an answer."""
        request = Command(code, opaque=1, fields={name: str(value) for name, value in fields.items()}, body=body)
        if self._credentials is not None:
            PeerKey(self._credentials.access_key, self._credentials.secret_key.encode()).sign(request)
        host, _, port = self._endpoint.rpartition(":")
        frames = FrameReader()
        answers: list[Command] = []
        try:
            with socket.create_connection((host, int(port)), timeout=_SECONDS) as connection:
                connection.sendall(encode(request))
                while not answers and (data := connection.recv(1 << 16)):
                    answers += frames.feed(data)
        except TimeoutError:
            self._note(code.name, HUNG)
            return None
        except OSError:
            pass
        for answer in answers[:1]:
            self._note(code.name, "OK" if answer.code == Answer.SUCCESS else Answer(answer.code).name)
            return answer
        self._note(code.name, f"{NO_ANSWER}CLOSED")
        return None

    def administer(self, work: Callable[[Admin], Awaitable[_Result]]) -> _Result | None:
        """An operator's call by our own client; None if it did not succeed."""
        try:
            with self.client() as client:
                result = client.run(work(client.asynchronous.admin))
        except ClientError as error:
            self._note("AdminService", _outcome(error))
            return None
        self._note("AdminService", "OK")
        return result

    def _answer(self, method: str, request: Any) -> Any:
        try:
            answer = getattr(self._stub, method)(request, metadata=self._metadata(), timeout=_SECONDS)
        except grpc.RpcError as error:
            self._note(method, _problem(error))
            return None
        self._note(method, code_name(answer.status.code))
        return answer

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (*_METADATA, *(() if self._credentials is None else self._credentials.headers()))

    def _note(self, method: str, answer: str) -> None:
        self.answers.append((method, answer))


def _problem(error: grpc.RpcError) -> str:
    return f"{NO_ANSWER}{error.code().name}"


def _outcome(outcome: object) -> str:
    if isinstance(outcome, ServerError):
        return code_name(outcome.code)
    if isinstance(outcome, DeadlineError):
        return HUNG
    return f"{NO_ANSWER}{type(outcome).__name__}" if isinstance(outcome, Exception) else "OK"


def _queue(topic: str, queue_id: int) -> v2.MessageQueue:
    return v2.MessageQueue(topic=v2.Resource(name=topic), id=queue_id)


def _popped(group: str, topic: str, delivery: Delivery) -> dict[str, object]:
    names = {"consumerGroup": group, "topic": topic, "extraInfo": delivery.handle}
    return {**names, "queueId": delivery.queue_id, "offset": delivery.queue_offset}


def _message(sent: Sent, *, priority: int = 0, lite_topic: int = 0) -> v2.Message:
    system = v2.SystemProperties(message_id=sent.message_id, message_type=_TYPES[sent.kind])
    if sent.kind is Kind.FIFO:
        system.message_group = sent.message_group
    elif sent.kind is Kind.DELAY:
        system.delivery_timestamp.FromMilliseconds(sent.due_ms)
    elif sent.kind is Kind.PRIORITY:
        system.priority = priority
    elif sent.kind is Kind.LITE:
        system.lite_topic = LITE_TOPICS[lite_topic]
    elif sent.kind is Kind.TRANSACTION:
        system.orphaned_transaction_recovery_duration.FromSeconds(3600)
    topic = v2.Resource(name=sent.topic)
    return v2.Message(topic=topic, body=body_of(sent.message_id), system_properties=system)
