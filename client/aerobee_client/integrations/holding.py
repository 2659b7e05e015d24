"""Received messages whose invisible time is renewed until the program decides about them."""

from __future__ import annotations

import asyncio
import logging

from aerobee_client.errors import ClientError
from aerobee_client.messages.message import ReceivedMessage
from aerobee_client.simple_consumer import SimpleConsumer

_log = logging.getLogger(__name__)


class _ReturnedError(Exception):
    """The message goes back to its group."""


class Held:
    """One received message. `ack` or `nack` ends the holding; later calls wait for the first one."""

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message
        self._acknowledge: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def ack(self) -> None:
        """Acknowledge it. A failure is logged: the message is delivered again."""
        await self._end(acknowledge=True)

    async def nack(self) -> None:
        """Return it to the group, which receives it again at once, with the next attempt number."""
        await self._end(acknowledge=False)

    async def _end(self, *, acknowledge: bool) -> None:
        if not self._acknowledge.done():
            self._acknowledge.set_result(acknowledge)
        assert self._task is not None, "Holder.hold started it"
        await asyncio.shield(self._task)

    async def keep(self, consumer: SimpleConsumer, invisible_seconds: float) -> None:
        """Renew the invisible time until the decision, and carry that out."""
        try:
            async with consumer.keep_invisible(self.message, invisible_seconds):
                if not await self._acknowledge:
                    raise _ReturnedError
        except _ReturnedError:
            pass
        except ClientError as error:
            _log.warning(
                "not acknowledged, and delivered again topic=%s id=%s error=%s",
                self.message.topic,
                self.message.message_id,
                error,
            )

    def started(self, task: asyncio.Task[None]) -> None:
        """`task` runs `keep`."""
        self._task = task


class Holder:
    """The messages that a consumer has received and not decided about. The process dies: they come again after
    `invisible_seconds`."""

    def __init__(self, consumer: SimpleConsumer, invisible_seconds: float) -> None:
        self.consumer = consumer
        self.invisible_seconds = invisible_seconds
        self._held: dict[Held, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, message: ReceivedMessage) -> Held:
        """Keep a message that was just received."""
        held = Held(message)
        task = asyncio.create_task(held.keep(self.consumer, self.invisible_seconds), name="hold a message")
        held.started(task)
        self._held[held] = task
        task.add_done_callback(lambda _: self._held.pop(held, None))
        return held

    async def close(self) -> None:
        """Return all messages without a decision, and close the consumer."""
        await asyncio.gather(*(held.nack() for held in list(self._held)))
        await self.consumer.close()
