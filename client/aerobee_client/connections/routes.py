"""The queues of topics, cached for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from aerobee_client.allocation import Queue
from aerobee_client.connections.connection import Connection, Metadata, Retry
from aerobee_client.connections.endpoints import endpoint_text
from aerobee_client.errors import ClientError, ForbiddenError, NotFoundError
from aerobee_proto import v2

_log = logging.getLogger(__name__)

ROUTE_SECONDS = 30.0  # lifetime of a route, as in the official clients
READABLE = (v2.Permission.READ, v2.Permission.READ_WRITE)
WRITABLE = (v2.Permission.WRITE, v2.Permission.READ_WRITE)
DEFAULT = ""
"""The configured endpoints, in place of a broker's address."""


def queue_of(wire: v2.MessageQueue) -> Queue:
    """The queue named by a route or a message."""
    return Queue(wire.topic.name, wire.broker.name, wire.id)


def broker_endpoints(queues: Iterable[v2.MessageQueue]) -> dict[str, str]:
    """The address of each broker by name; DEFAULT for all unless the addresses differ."""
    found = {queue.broker.name: endpoint_text(queue.broker.endpoints) for queue in queues}
    is_spread = len(set(found.values())) > 1 and all(found.values())
    return found if is_spread else dict.fromkeys(found, DEFAULT)


class Routes:
    """The routes of one producer or consumer. A failed refresh keeps the cached route."""

    def __init__(self, connection: Connection, metadata: Metadata) -> None:
        self._connection = connection
        self._metadata = metadata
        self._known: dict[str, tuple[float, list[v2.MessageQueue]]] = {}

    async def queues(self, topic: str, *, retry: Retry | None = None) -> list[v2.MessageQueue]:
        """All queues of `topic`, of masters only. NotFoundError if the topic does not exist."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and now < known[0]:
            return known[1]
        request = v2.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=self._connection.peer.endpoints)
        try:
            answer = await self._connection.call(
                lambda stubs: stubs.messaging.QueryRoute, request, self._metadata, retry=retry
            )
        except ClientError as error:
            if known is None or isinstance(error, NotFoundError):
                self._known.pop(topic, None)
                raise
            _log.info("route refresh failed topic=%s error=%s", topic, error)
            return known[1]
        queues = [queue for queue in answer.message_queues if queue.broker.id == 0]  # 0 is the master
        self._known[topic] = (now + ROUTE_SECONDS, queues)
        return queues

    def known(self, topic: str) -> list[v2.MessageQueue]:
        """The queues of the cached route, however old; none without one."""
        known = self._known.get(topic)
        return [] if known is None else known[1]

    def is_fresh(self, topic: str) -> bool:
        """Whether `queues` would answer without a call."""
        known = self._known.get(topic)
        return known is not None and asyncio.get_running_loop().time() < known[0]

    async def readable(self, topic: str) -> list[v2.MessageQueue]:
        """The queues that consumers may read. ForbiddenError if there are none."""
        queues = [queue for queue in await self.queues(topic) if queue.permission in READABLE]
        if not queues:
            self.forget(topic)
            raise ForbiddenError(v2.Code.FORBIDDEN, f"topic {topic!r} has no readable queue; check its permission")
        return queues

    async def writable(self, topic: str) -> list[v2.MessageQueue]:
        """The queues that producers may write. ForbiddenError if there are none."""
        queues = [queue for queue in await self.queues(topic) if queue.permission in WRITABLE]
        if not queues:
            self.forget(topic)
            raise ForbiddenError(v2.Code.FORBIDDEN, f"topic {topic!r} has no writable queue; check its permission")
        return queues

    def forget(self, topic: str) -> None:
        """Fetch the route again on the next use."""
        self._known.pop(topic, None)
