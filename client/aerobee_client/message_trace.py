"""The trace of messages as clients of RocketMQ 4 write it: `connect(..., hooks=[MessageTraceHooks(plain, ...)])`.

    async with connect(endpoint) as plain:
        trace = MessageTraceHooks(plain, group="billing", topic="Traces")
        async with connect(endpoint, hooks=[trace]) as client: ...

Each send, and each call of a handler before and after it, is an entry in a message of the topic for traces, with the id
of the traced message as its key: `mqadmin queryMsgTraceById -i ID -t Traces` and the dashboard show them. An Aerobee
broker has the topic with `topics.trace` and `topics.trace_topic`; RMQ_SYS_TRACE_TOPIC takes no messages over gRPC.

A trace is written beside the work and never fails it: what cannot be stored is dropped, and counted in `dropped`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from aerobee_client.client import Client
from aerobee_client.errors import ClientError
from aerobee_client.hooks import Hooks
from aerobee_client.messages.message import Message, ReceivedMessage, SendResult, new_message_id

_REGION: Final = "DefaultRegion"
_WAITING_MAX: Final = 1000
_OPEN_MAX: Final = 100_000  # sends and handlers that have begun, including those that never end
_NORMAL, _DELAYED, _ORDERED = 0, 3, 4  # RocketMQ's numbers of message types
_SUCCESS, _FAILED = 0, 3  # RocketMQ's codes of what a handler returned


class MessageTraceHooks(Hooks):
    """Pass an instance to `connect`. `client` writes the traces, and must be another one without these hooks.

    `group`: the name under which the program appears in the trace.
    """

    def __init__(self, client: Client, *, group: str, topic: str) -> None:
        self._producer = client.producer()
        self._group = group
        self._topic = topic
        # Limited by hand, in two lines: the broker's table for this is not the client's to import.
        self._began: OrderedDict[str, float] = OrderedDict()
        self._writing: set[asyncio.Task[None]] = set()
        self.dropped = 0

    def before_send(self, message: Message) -> Message:
        """Note the time, and choose the id of the message."""
        if message.message_id is None:
            message = replace(message, message_id=new_message_id())
        self._begin(f"send {message.message_id}")
        return message

    def after_send(self, message: Message, outcome: SendResult | ClientError) -> None:
        """Write the send."""
        message_id = message.message_id or ""
        cost = self._end(f"send {message_id}")
        kind = _ORDERED if message.message_group else _DELAYED if message.delivery_timestamp is not None else _NORMAL
        keys = " ".join(message.keys)
        rest = ("", len(message.body), cost, kind, "", isinstance(outcome, SendResult))
        self._write(
            message_id,
            message.keys,
            ("Pub", _now(), _REGION, self._group, message.topic, message_id, message.tag or "", keys, *rest),
        )

    def before_handle(self, message: ReceivedMessage) -> None:
        """Write that the handler begins."""
        self._begin(message.receipt_handle)
        fields = (_REGION, self._group, message.message_id, message.message_id, message.delivery_attempt - 1)
        self._write(message.message_id, message.keys, ("SubBefore", _now(), *fields, " ".join(message.keys)))

    def after_handle(self, message: ReceivedMessage, error: BaseException | None) -> None:
        """Write how the handler ended."""
        cost = self._end(message.receipt_handle)
        ended = (message.message_id, message.message_id, cost, error is None, " ".join(message.keys))
        code = _SUCCESS if error is None else _FAILED
        self._write(message.message_id, message.keys, ("SubAfter", *ended, code, _now(), self._group))

    async def drain(self) -> None:
        """Return once everything so far is stored or dropped."""
        while self._writing:
            await asyncio.wait(self._writing)

    def _begin(self, key: str) -> None:
        self._began[key] = time.perf_counter()
        if len(self._began) > _OPEN_MAX:
            self._began.popitem(last=False)

    def _end(self, key: str) -> int:
        """The milliseconds since it began."""
        now = time.perf_counter()
        return round((now - self._began.pop(key, now)) * 1000)

    def _write(self, message_id: str, keys: tuple[str, ...], fields: tuple[object, ...]) -> None:
        if len(self._writing) >= _WAITING_MAX:
            self.dropped += 1
            return
        body = "\x01".join(_text(value) for value in fields) + "\x02"
        task = asyncio.ensure_future(
            self._send(Message(topic=self._topic, body=body.encode(), keys=(message_id, *keys)))
        )
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _send(self, message: Message) -> None:
        try:
            await self._producer.send(message)
        except ClientError:
            self.dropped += 1


def _now() -> int:
    return round(time.time() * 1000)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
