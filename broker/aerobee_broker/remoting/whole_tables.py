"""Answers with whole tables. They may have any size, and take longer than a step of the event loop may.

Replicas copy tables in one frame each. Replicas of Aerobee say how long a frame they read. RocketMQ's brokers and tools
do not, so they get none above the protocol's limit: they would close the connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import FRAME_SIZE, answer, integer
from aerobee_broker.remoting_wire.frame import FRAME_SIZE_MAX, Command
from aerobee_store.tables import java_json

_log = logging.getLogger(__name__)
_HEADER_SIZE: Final = 1024  # bytes, more than the frame of such an answer has besides its body
_WARNING_SECONDS: Final = 60.0


class WholeTables:
    """Makes the answers, one at a time."""

    def __init__(self, one: asyncio.Lock) -> None:
        """`one`: held while an answer is made."""
        self._one = one
        self._next_warning: dict[str, float] = {}  # table -> when

    async def answer(
        self,
        request: Command,
        connection: Connection,
        what: str,
        take: Callable[[], Callable[[], object]],
        fields: Mapping[str, object] | None = None,
    ) -> Command:
        """The JSON of a whole table, made in another thread. `what`: the objects in it.

        `take` is called when its turn has come, and what it returns in that thread. Raises RemotingError if the peer
        does not read so much.
        """
        reads = integer(request, FRAME_SIZE, FRAME_SIZE_MAX)
        async with self._one:
            content = take()
            body = await asyncio.to_thread(lambda: java_json.dumps(content(), pretty=False))
        size_max = max(FRAME_SIZE_MAX, min(reads, connection.table_frame_size_max))
        if len(body) + _HEADER_SIZE > size_max:
            raise RemotingError(Answer.SYSTEM_ERROR, self._refusal(what, len(body), size_max, request, connection))
        answered = answer(fields, body=body)
        answered.frame_size_max = size_max
        return answered

    def _refusal(self, what: str, size: int, size_max: int, request: Command, connection: Connection) -> str:
        """Why the table is not sent, and what to do; also logged, because a replica lacks it after a fail-over."""
        remedy = (
            f"raise limits.waiting_bytes_max of master and replica, or delete {what} that nobody needs"
            if FRAME_SIZE in request.fields
            else f"RocketMQ's replicas and tools read no longer ones: delete {what} that nobody needs, or let a broker "
            "of Aerobee be the replica"
        )
        text = f"the table of {what} has {size} bytes, and a frame for this peer {size_max}; {remedy}"
        now = time.monotonic()
        if now >= self._next_warning.get(what, 0.0):
            self._next_warning[what] = now + _WARNING_SECONDS
            _log.warning("table not sent peer=%s:%d request=%d cause=%s", *connection.peer, request.code, text)
        return text
