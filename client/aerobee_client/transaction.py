"""Transactions: messages that consumers see only if another operation succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Protocol, Self

from aerobee_client.errors import ClientError
from aerobee_client.messages.message import Message, SendResult, StoredMessage
from aerobee_proto import v2

Resolution = Literal["commit", "rollback", "unknown"]

TransactionChecker = Callable[[StoredMessage], Resolution | Awaitable[Resolution]]
"""Returns the outcome of a transaction whose message the broker still holds. "unknown": the broker asks again later."""

WIRE_RESOLUTIONS: dict[Resolution, v2.TransactionResolution.ValueType] = {
    "commit": v2.TransactionResolution.COMMIT,
    "rollback": v2.TransactionResolution.ROLLBACK,
    "unknown": v2.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class HalfSender(Protocol):
    """What a Transaction needs of its producer."""

    async def send_half(self, message: Message) -> SendResult: ...

    async def end_half(self, topic: str, half: SendResult, resolution: Resolution) -> None: ...


class Transaction:
    """Messages that the broker holds back until `commit`. `Producer.transaction` makes one.

        async with producer.transaction() as transaction:
            await transaction.send(Message(topic="orders", body=b"..."))
            await database.commit()

    Leaving the block commits, an exception rolls back. If the program dies in between, or is cancelled, the broker asks
    the producer's checker some seconds later, in this or another process.
    """

    def __init__(self, producer: HalfSender) -> None:
        self._producer = producer
        self._halves: list[tuple[str, SendResult]] = []
        self._ended = False

    async def send(self, message: Message) -> SendResult:
        """Return once the broker holds the message. Errors like `Producer.send`."""
        if self._ended:
            raise ClientError("this transaction has ended; begin a new one")
        result = await self._producer.send_half(message)
        self._halves.append((message.topic, result))
        return result

    async def commit(self) -> None:
        """Release the messages to consumers. After an error the broker asks the checker."""
        await self._end("commit")

    async def rollback(self) -> None:
        """Discard the messages. After an error the broker asks the checker."""
        await self._end("rollback")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None:
            await self.commit()
        elif isinstance(error, Exception):
            try:
                await self.rollback()
            except ClientError as failed:
                error.add_note(f"the roll-back failed as well, the broker will ask the checker: {failed}")

    async def _end(self, resolution: Resolution) -> None:
        if self._ended:
            raise ClientError("this transaction has already ended")
        self._ended = True
        ends = (self._producer.end_half(topic, half, resolution) for topic, half in self._halves)
        failed = [each for each in await asyncio.gather(*ends, return_exceptions=True) if each is not None]
        if failed:
            raise failed[0]
