"""Every entrance for messages against every kind of destination: each asks the same questions, with the same verdict.

`tests/property/test_send_entrances.py` does the same for the rules of the message itself, and
`tests/unit/broker/clients/test_permissions.py` for the permissions of accounts.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from aerobee_broker.config import TopicsConfig
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_proto import admin_v1, records_v1, v2
from aerobee_store import StoreConfig
from aerobee_store.records import properties as p
from aerobee_store.records import record
from aerobee_store.records.message_fields import TIMER_TOPIC, properties_of
from aerobee_store.records.record import Draft, Message
from tests.support.in_process_broker import METADATA, InProcessBroker, message
from tests.support.remoting_client import RemotingClient, remoting_broker, send_fields

T = v2.MessageType
OK: Final = "OK"
DELAY_SECONDS: Final = 100
GROUP: Final = "G"


class Entrances:
    """Every way by which a client's message gets into the log. Each answers with the name of a code; the remoting
    protocol's SUCCESS is OK, too."""

    def __init__(self, broker: InProcessBroker, remoting: RemotingClient) -> None:
        self.broker = broker
        self.remoting = remoting
        self._records: Any = records_v1.RecordServiceStub(broker.channel)
        self._numbers = itertools.count()

    def _id(self) -> str:
        return f"01{next(self._numbers):06}"

    # --- SendMessage ------------------------------------------------------------------------------------------

    async def _send(self, topic: str, count: int = 1, **system: Any) -> str:
        messages = [message(topic, message_id=self._id(), **system) for _ in range(count)]
        request = v2.SendMessageRequest(messages=messages)
        answer = await self.broker.messaging.SendMessage(request, metadata=METADATA, timeout=60)
        return v2.Code.Name(answer.status.code)

    async def single(self, topic: str) -> str:
        return await self._send(topic)

    async def known_layout(self, topic: str) -> str:
        """The layout is known from the first one."""
        return {await self._send(topic), await self._send(topic)}.pop()

    async def few(self, topic: str) -> str:
        """Read by protobuf, because some are of another type than NORMAL and FIFO."""
        return await self._send(topic, 3, trace_context="\u00e9")

    async def few_of_known_layout(self, topic: str) -> str:
        return {await self._send(topic, 3), await self._send(topic, 3)}.pop()

    async def many(self, topic: str) -> str:
        """Copied by columns, once the topic is known."""
        return {await self._send(topic, 40), await self._send(topic, 40)}.pop()

    async def fifo(self, topic: str) -> str:
        return {await self._send(topic, message_group="g"), await self._send(topic, message_group="g")}.pop()

    async def many_fifo(self, topic: str) -> str:
        return {await self._send(topic, 9, message_group="g"), await self._send(topic, 9, message_group="g")}.pop()

    async def half(self, topic: str) -> str:
        return await self._send(topic, message_type=T.TRANSACTION)

    async def delayed(self, topic: str, seconds: int = DELAY_SECONDS) -> str:
        return await self._send(topic, delivery_timestamp={"seconds": int(time.time()) + seconds})

    async def already_due(self, topic: str) -> str:
        return await self._send(topic, delivery_timestamp={"seconds": 1})

    async def lite(self, topic: str) -> str:
        return await self._send(topic, lite_topic="a")

    async def priority(self, topic: str) -> str:
        return await self._send(topic, priority=3)

    # --- Other calls ------------------------------------------------------------------------------------------

    async def admin_send(self, topic: str) -> str:
        request = v2.AdminSendMessageRequest(topic=v2.Resource(name=topic), body=b"x")
        answer = await self.broker.admin.AdminSendMessage(request, timeout=60)
        return v2.Code.Name(answer.status.code)

    async def _append(
        self, topic: str, *, queue_id: int = 0, timer: dict[str, str] | None = None, stream: bool = False, **fields: str
    ) -> str:
        properties = properties_of(message_id=self._id(), message_group=fields.get("message_group"))
        made = Message(topic, queue_id, b"body", properties, born_timestamp=1)
        if timer is not None:
            made = Message(TIMER_TOPIC, 0, b"body", {**properties, **timer}, born_timestamp=1)
        records = Draft(made, store_host=record.NO_HOST, property_crc=True).encode_unplaced()
        request = records_v1.AppendRecordsRequest(topic=v2.Resource(name=topic), queue_id=queue_id, records=records)
        if not stream:
            answer = await self._records.AppendRecords(request, metadata=METADATA, timeout=60)
            return v2.Code.Name(answer.status.code)
        answers = self._records.StreamAppendRecords(iter([request]), metadata=METADATA, timeout=60)
        (answer,) = [answer async for answer in answers]
        return v2.Code.Name(answer.status.code)

    async def append(self, topic: str) -> str:
        return await self._append(topic)

    async def stream_append(self, topic: str) -> str:
        return await self._append(topic, stream=True)

    async def append_fifo(self, topic: str) -> str:
        return await self._append(topic, message_group="g")

    async def append_delayed(self, topic: str, seconds: int = DELAY_SECONDS) -> str:
        timer = {p.TIMER_DELIVER_MS: str(int((time.time() + seconds) * 1000)), p.TIMER_OUT_MS: "0" * 13}
        return await self._append(topic, timer={**timer, p.REAL_TOPIC: topic, p.REAL_QUEUE_ID: "0"})

    async def resend(self, topic: str) -> str:
        """A dead letter, to a topic that the operator names."""
        request = admin_v1.ResendDeadLettersRequest(group=GROUP, offsets=[0], topic=topic, again=True)
        answer = await self.broker.administration.ResendDeadLetters(request, timeout=60)
        return v2.Code.Name(answer.status.code)

    # --- Remoting ---------------------------------------------------------------------------------------------

    async def _remote(self, code: int, fields: dict[str, object], body: bytes = b"x") -> str:
        answer = await self.remoting.call(code, fields, body)
        return OK if answer.code == Answer.SUCCESS else Answer(answer.code).name

    def _properties(self, **properties: object) -> str:
        return p.encode_properties({p.UNIQ_KEY: self._id(), **{k: str(v) for k, v in properties.items()}}).decode()

    async def _remote_v2(self, topic: str, **properties: object) -> str:
        return await self._remote(
            Request.SEND_MESSAGE_V2, send_fields(topic, properties=self._properties(**properties))
        )

    async def remoting_v1(self, topic: str) -> str:
        fields = {"producerGroup": "PG", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
        fields |= {"queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
        fields |= {"properties": self._properties(), "unitMode": False, "batch": False}
        return await self._remote(Request.SEND_MESSAGE, fields)

    async def remoting_v2(self, topic: str) -> str:
        return await self._remote_v2(topic)

    async def remoting_batch(self, topic: str) -> str:
        raw = self._properties().encode()
        item = struct.pack(">iiiii", 23 + len(raw), 0, 0, 0, 1) + b"x" + struct.pack(">h", len(raw)) + raw
        return await self._remote(Request.SEND_BATCH_MESSAGE, send_fields(topic, m=True), item * 2)

    async def remoting_half(self, topic: str) -> str:
        return await self._remote_v2(topic, TRAN_MSG="true")

    async def remoting_level(self, topic: str) -> str:
        return await self._remote_v2(topic, DELAY=3)

    async def remoting_delayed(self, topic: str, seconds: int = DELAY_SECONDS) -> str:
        return await self._remote_v2(topic, TIMER_DELAY_SEC=seconds)

    async def remoting_reply(self, topic: str) -> str:
        """Nobody waits for the reply, so that it is only stored."""
        fields = send_fields(topic, properties=self._properties())
        answer = await self.remoting.call(Request.SEND_REPLY_MESSAGE_V2, fields, b"x")
        is_stored = answer.code == Answer.SYSTEM_ERROR and "the reply is stored" in (answer.remark or "")
        return OK if is_stored else Answer(answer.code).name

    async def queue(self, queue_id: int) -> tuple[str, str]:
        """By AppendRecords and over remoting, to this queue of a topic."""
        over_remoting = send_fields("orders", queue_id=queue_id, properties=self._properties())
        return (
            await self._append("orders", queue_id=queue_id),
            await self._remote(Request.SEND_MESSAGE_V2, over_remoting),
        )

    async def send_back(self, group: str = GROUP) -> str:
        answer = await self.broker.admin.AdminSendMessage(
            v2.AdminSendMessageRequest(topic=v2.Resource(name="mixed"), body=b"x"), timeout=60
        )
        assert answer.status.code in (v2.Code.OK, v2.Code.INTERNAL_SERVER_ERROR)
        fields = {"group": group, "offset": 0, "delayLevel": 0, "originTopic": "mixed"}
        return await self._remote(Request.CONSUMER_SEND_MESSAGE_BACK, fields, b"")

    # --- Operators --------------------------------------------------------------------------------------------

    async def create(self, name: str, *kinds: v2.MessageType.ValueType, **changes: Any) -> None:
        topic = admin_v1.Topic(
            name=name, read_queue_count=1, write_queue_count=1, accept_message_types=kinds, **changes
        )
        answer = await self.broker.administration.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), timeout=60)
        assert answer.status.code == v2.Code.OK, answer.status

    async def create_all(self) -> None:
        await self.create("orders", T.NORMAL)
        await self.create("ordered", T.FIFO)
        await self.create("halves", T.TRANSACTION)
        await self.create("later", T.DELAY)
        await self.create("mixed", *MIXED)
        await self.create("light", T.LITE)
        await self.create("urgent", T.PRIORITY)
        await self.create("batches", *MIXED, attributes={"queue.type": "BatchCQ"})
        await self.create("closed", *MIXED, permission=v2.Permission.READ)
        request = admin_v1.CreateGroupRequest(group=admin_v1.Group(name=GROUP))
        assert (await self.broker.administration.CreateGroup(request, timeout=60)).status.code == v2.Code.OK
        dead = send_fields(f"%RETRY%{GROUP}", properties=self._properties(), j=99)
        assert await self._remote(Request.SEND_MESSAGE_V2, dead) == OK
        assert await self.half("mixed") == OK  # creates topics of the broker itself


MIXED: Final = (T.NORMAL, T.FIFO, T.DELAY, T.TRANSACTION)
Entrance = Callable[[Entrances, str], Awaitable[str]]
# With the type of the message; clients of RocketMQ 4 know no types, and an operator may ignore them.
ENTRANCES: Final[dict[Entrance, v2.MessageType.ValueType]] = {
    Entrances.single: T.NORMAL,
    Entrances.known_layout: T.NORMAL,
    Entrances.few: T.NORMAL,
    Entrances.few_of_known_layout: T.NORMAL,
    Entrances.many: T.NORMAL,
    Entrances.fifo: T.FIFO,
    Entrances.many_fifo: T.FIFO,
    Entrances.half: T.TRANSACTION,
    Entrances.delayed: T.DELAY,
    Entrances.already_due: T.DELAY,
    Entrances.lite: T.LITE,
    Entrances.priority: T.PRIORITY,
    Entrances.admin_send: T.NORMAL,
    Entrances.append: T.NORMAL,
    Entrances.stream_append: T.NORMAL,
    Entrances.append_fifo: T.FIFO,
    Entrances.append_delayed: T.DELAY,
}
UNTYPED: Final[tuple[Entrance, ...]] = (Entrances.resend,)
REMOTING: Final[tuple[Entrance, ...]] = (
    Entrances.remoting_v1,
    Entrances.remoting_v2,
    Entrances.remoting_batch,
    Entrances.remoting_half,
    Entrances.remoting_level,
    Entrances.remoting_delayed,
    Entrances.remoting_reply,
)
# What each destination takes.
TAKEN: Final = {
    "orders": (T.NORMAL,),
    "ordered": (T.FIFO,),
    "halves": (T.TRANSACTION,),
    "later": (T.DELAY,),
    "mixed": MIXED,
    "light": (T.LITE,),
    "urgent": (T.PRIORITY,),
    f"%RETRY%{GROUP}": tuple(ENTRANCES.values()),
    f"%DLQ%{GROUP}": tuple(ENTRANCES.values()),
}
# Destinations that refuse everything: with this code, over remoting with this one.
_SYSTEM: Final = ("ILLEGAL_TOPIC", "NO_PERMISSION")
REFUSED: Final = {
    "missing": ("TOPIC_NOT_FOUND", "TOPIC_NOT_EXIST"),
    "no topic": ("ILLEGAL_TOPIC", "INVALID_PARAMETER"),
    "%RETRY%absent": ("CONSUMER_GROUP_NOT_FOUND", "SUBSCRIPTION_GROUP_NOT_EXIST"),
    "%LMQ%$light$a": ("ILLEGAL_TOPIC", "INVALID_PARAMETER"),
    "closed": ("FORBIDDEN", "NO_PERMISSION"),
    "batches": ("BAD_REQUEST", "INVALID_PARAMETER"),
    "SCHEDULE_TOPIC_XXXX": _SYSTEM,
    "rmq_sys_wheel_timer": _SYSTEM,
    "RMQ_SYS_TRANS_HALF_TOPIC": _SYSTEM,
    "TRANS_CHECK_MAX_TIME_TOPIC": _SYSTEM,
    "TBW102": _SYSTEM,
    "rmq_sys_other": _SYSTEM,
}


def expected(topic: str, kind: v2.MessageType.ValueType | None, *, remoting: bool) -> str:
    """The verdict about a message of this type; None: of any."""
    if topic in TAKEN:
        return OK if kind is None or kind in TAKEN[topic] else "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    if topic in ("closed", "batches") and kind not in (*MIXED, None):
        return "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    return REFUSED[topic][remoting]


@asynccontextmanager
async def broker_with_topics(directory: Path, *, light_queues: bool = True) -> AsyncIterator[Entrances]:
    store = replace(StoreConfig.tiny(directory), light_queues=light_queues)
    async with remoting_broker(directory, store=store, topics=TopicsConfig(auto_create=False)) as (broker, remoting):
        entrances = Entrances(broker, remoting)
        await entrances.create_all()
        yield entrances


async def test_each_destination_has_one_verdict(tmp_path: Path) -> None:
    """For each entrance and each destination: what is taken, and the code of the refusal."""
    wrong: dict[tuple[str, str], tuple[str, str]] = {}
    async with broker_with_topics(tmp_path) as entrances:
        for topic in (*TAKEN, *REFUSED):
            for entrance in (*ENTRANCES, *UNTYPED, *REMOTING):
                verdict = expected(topic, ENTRANCES.get(entrance), remoting=entrance in REMOTING)
                if entrance is Entrances.resend and topic.startswith("%DLQ%"):
                    verdict = "FORBIDDEN"  # it is a dead letter already
                if entrance is Entrances.remoting_batch and topic in TAKEN and topic.startswith("%RETRY%"):
                    verdict = "MESSAGE_ILLEGAL"  # each message of a retry topic counts its own attempts
                found = await entrance(entrances, topic)
                if found != verdict:
                    wrong[entrance.__name__, topic] = (found, verdict)
    assert not wrong


async def test_lite_messages_need_light_queues(tmp_path: Path) -> None:
    """The topic takes lite messages, but the store has no light queues."""
    async with broker_with_topics(tmp_path, light_queues=False) as entrances:
        assert await entrances.lite("light") == "NOT_IMPLEMENTED"
        assert await entrances.lite("orders") == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


async def test_queues_that_clients_name(tmp_path: Path) -> None:
    """Only queues of the topic; over remoting also those that have become read-only, for clients with an old route."""
    async with broker_with_topics(tmp_path) as entrances:
        assert await entrances.queue(0) == (OK, OK)
        assert await entrances.queue(1) == ("BAD_REQUEST", "INVALID_PARAMETER")
        request = admin_v1.UpdateTopicRequest(name="orders", read_queue_count=2)
        assert (await entrances.broker.administration.UpdateTopic(request, timeout=60)).status.code == v2.Code.OK
        assert await entrances.queue(1) == ("BAD_REQUEST", OK)
        assert await entrances.queue(2) == ("BAD_REQUEST", "INVALID_PARAMETER")


async def test_times_too_far_ahead(tmp_path: Path) -> None:
    """One limit for delays, however a client asks for one."""
    async with broker_with_topics(tmp_path) as entrances:
        for seconds, verdicts in ((3600, (OK, OK)), (10**8, ("ILLEGAL_DELIVERY_TIME", "MESSAGE_ILLEGAL"))):
            assert await entrances.delayed("later", seconds) == verdicts[0]
            assert await entrances.append_delayed("later", seconds) == verdicts[0]
            assert await entrances.remoting_delayed("later", seconds) == verdicts[1]


async def test_messages_that_consumers_send_back(tmp_path: Path) -> None:
    """The retry topic is asked like any other destination."""
    async with broker_with_topics(tmp_path) as entrances:
        assert await entrances.send_back("absent") == "SUBSCRIPTION_GROUP_NOT_EXIST"
        assert await entrances.send_back() == OK
        request = admin_v1.UpdateTopicRequest(name=f"%RETRY%{GROUP}", permission=v2.Permission.READ)
        assert (await entrances.broker.administration.UpdateTopic(request, timeout=60)).status.code == v2.Code.OK
        assert await entrances.send_back() == "NO_PERMISSION"


async def test_a_full_disk_refuses_at_every_entrance(tmp_path: Path) -> None:
    """Only what consumers send back is stored: they could not continue without."""
    async with broker_with_topics(tmp_path):
        pass
    store = replace(StoreConfig.tiny(tmp_path), light_queues=True, disk_full_ratio=1e-9, clean_forcibly=False)
    wrong: dict[str, str] = {}
    async with remoting_broker(tmp_path, store=store, topics=TopicsConfig(auto_create=False)) as (broker, remoting):
        entrances = Entrances(broker, remoting)
        for entrance in (*ENTRANCES, *UNTYPED, *REMOTING):
            kind = ENTRANCES.get(entrance, T.NORMAL)
            topic = next(name for name, kinds in TAKEN.items() if kind in kinds)
            verdict = "SERVICE_NOT_AVAILABLE" if entrance in REMOTING else "INTERNAL_SERVER_ERROR"
            found = await entrance(entrances, topic)
            if found != verdict:
                wrong[entrance.__name__] = found
        assert await entrances.send_back() == OK
    assert not wrong
