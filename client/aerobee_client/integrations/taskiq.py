"""A broker and a result backend for taskiq. Needs the extra `taskiq`.

    broker = AerobeeBroker("127.0.0.1:8081").with_result_backend(AerobeeResultBackend("127.0.0.1:8081"))

    @broker.task
    async def bill(order: str) -> str: ...

    await bill.kiq("order-7")
    await bill.kicker().with_labels(delay=3600).kiq("order-7")    # the broker keeps it for an hour

A sent task is stored as safely as the broker promises. It is acknowledged when taskiq says so (by default after its
result is saved). Until then the worker renews its invisible time; the task of a dead worker goes to another one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar, Unpack

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import JSONSerializer

from aerobee_client.client import Client, ConnectOptions, connect
from aerobee_client.connections.repeating import PAUSE_SECONDS
from aerobee_client.errors import ClientError, NotFoundError
from aerobee_client.integrations.declaring import TASKS, declare_group, declare_topic
from aerobee_client.integrations.holding import Held, Holder
from aerobee_client.messages.message import Message, StoredMessage
from aerobee_client.producer import Producer
from aerobee_proto import v2

_log = logging.getLogger(__name__)
_RESULT_VERSIONS_MAX = 64  # saved results of one task; a repeated task saves another
ReturnT = TypeVar("ReturnT")


class ResultMissingError(ResultGetError):
    """No result of this task was saved, or it has expired with its topic's messages."""

    __template__ = "task {task_id} has no result in topic {topic}"
    task_id: str
    topic: str


class AerobeeBroker(AsyncBroker):
    """Tasks as messages of `topic`, shared by the workers of `group`. Both are created unless they exist.

    - Labels of a task: `delay`, in seconds, is kept by the broker (up to its `limits.delay_seconds_max`, 40 days).
    - `invisible_seconds`: how long the task of a dead worker waits for another one.
    - `prefetch`: tasks that a worker process receives at once.
    - Further arguments as for `aerobee_client.connect`.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = "127.0.0.1:8081",
        *,
        topic: str = "taskiq",
        group: str = "taskiq-workers",
        namespace: str = "",
        invisible_seconds: float = 60.0,
        prefetch: int = 1,
        **options: Unpack[ConnectOptions],
    ) -> None:
        super().__init__()
        self._endpoint, self._namespace, self._options = endpoint, namespace, options
        self.topic, self.group = topic, group
        self._invisible_seconds, self._prefetch = invisible_seconds, prefetch
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._holders: list[Holder] = []

    async def startup(self) -> None:
        """Connect, and declare topic and group."""
        self._client = connect(self._endpoint, namespace=self._namespace, **self._options)
        await declare_topic(self._client, self.topic, TASKS, namespace=self._namespace)
        await declare_group(self._client, self.group, namespace=self._namespace)
        self._producer = self._client.producer()
        await super().startup()

    async def shutdown(self) -> None:
        """Return tasks that were received and not acknowledged, and disconnect."""
        await super().shutdown()
        await asyncio.gather(*(holder.close() for holder in self._holders))
        self._holders.clear()
        if self._client is not None:
            await self._client.close()
            self._client = self._producer = None

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task. Errors of `Producer.send`; ClientError before `startup`."""
        if self._producer is None:
            raise ClientError("this broker is not started: await broker.startup()")
        delay = float(message.labels.get("delay") or 0)
        due = math.ceil((time.time() + delay) * 1000) if delay > 0 else None
        await self._producer.send(
            Message(topic=self.topic, body=message.message, keys=(message.task_id,), delivery_timestamp=due)
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Tasks without end. NotFoundError if topic or group are gone; other failures are logged and repeated."""
        if self._client is None:
            raise ClientError("this broker is not started: await broker.startup()")
        holder = Holder(self._client.simple_consumer(self.group, self.topic), self._invisible_seconds)
        self._holders.append(holder)
        while True:
            for held in await self._received(holder):
                yield AckableMessage(data=held.message.body, ack=held.ack)

    async def _received(self, holder: Holder) -> list[Held]:
        try:
            messages = await holder.consumer.receive(self._prefetch, invisible_seconds=self._invisible_seconds)
        except NotFoundError:
            raise
        except ClientError as error:
            _log.warning("receive failed topic=%s error=%s", self.topic, error)
            await asyncio.sleep(PAUSE_SECONDS)
            return []
        return [holder.hold(message) for message in messages]


class AerobeeResultBackend(AsyncResultBackend[ReturnT]):
    """Results as messages of `topic` with the id of the task as key. They last as long as the topic's messages do.

    Results are JSON, unless another `serializer` is given. Only Aerobee finds messages by key. Further arguments as for
    `aerobee_client.connect`.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = "127.0.0.1:8081",
        *,
        topic: str = "taskiq-results",
        namespace: str = "",
        serializer: TaskiqSerializer | None = None,
        **options: Unpack[ConnectOptions],
    ) -> None:
        self._endpoint, self._namespace, self._options = endpoint, namespace, options
        self.topic = topic
        self._serializer = serializer or JSONSerializer()
        self._client: Client | None = None
        self._producer: Producer | None = None

    async def startup(self) -> None:
        """Connect, and declare the topic."""
        self._client = connect(self._endpoint, namespace=self._namespace, **self._options)
        await declare_topic(self._client, self.topic, (v2.MessageType.NORMAL,), namespace=self._namespace)
        self._producer = self._client.producer()

    async def shutdown(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.close()
            self._client = self._producer = None

    async def set_result(self, task_id: str, result: TaskiqResult[ReturnT]) -> None:
        """Save a result."""
        await self._save(task_id, self._serializer.dumpb(result.model_dump(mode="json")))

    async def is_result_ready(self, task_id: str) -> bool:
        """Whether there is a result."""
        return await self._latest(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[ReturnT]:
        """The result that was saved last. ResultMissingError if there is none."""
        found = await self._latest(task_id)
        if found is None:
            raise ResultMissingError(task_id=task_id, topic=self.topic)
        result = TaskiqResult[ReturnT].model_validate(self._serializer.loadb(found.body))
        return result if with_logs else result.model_copy(update={"log": None})

    async def set_progress(self, task_id: str, progress: TaskProgress[object]) -> None:
        """Save the progress of a running task."""
        await self._save(_progress_key(task_id), self._serializer.dumpb(progress.model_dump(mode="json")))

    async def get_progress(self, task_id: str) -> TaskProgress[object] | None:
        """The progress that was saved last."""
        found = await self._latest(_progress_key(task_id))
        return None if found is None else TaskProgress[object].model_validate(self._serializer.loadb(found.body))

    async def _save(self, key: str, body: bytes) -> None:
        if self._producer is None:
            raise ClientError("this result backend is not started: await broker.startup()")
        await self._producer.send(Message(topic=self.topic, body=body, keys=(key,)))

    async def _latest(self, key: str) -> StoredMessage | None:
        if self._client is None:
            raise ClientError("this result backend is not started: await broker.startup()")
        topic = f"{self._namespace}%{self.topic}" if self._namespace else self.topic
        found = [each async for each in self._client.admin.query(topic, key=key, max_count=_RESULT_VERSIONS_MAX)]
        return max(found, key=lambda each: (each.store_timestamp, each.queue_offset), default=None)


def _progress_key(task_id: str) -> str:
    return f"{task_id}.progress"
