"""Several brokers behind one name: which broker a call goes to, and what a consumer keeps for each.

As long as a route names one address, whatever stands there, all calls go to the endpoints that were given. If it names
different addresses for different brokers, calls about a queue go to the address of its broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from aerobee_client.acknowledgement import Acknowledgement
from aerobee_client.connection import Connection
from aerobee_client.endpoints import endpoint_text
from aerobee_client.message import ReceivedMessage
from aerobee_client.receiving import Receiving
from aerobee_client.routes import Routes
from aerobee_client.telemetry import CommandHandler, Telemetry
from aerobee_proto import v2

HOME = ""
"""The endpoints that were given, in place of the address of a broker."""


def broker_endpoints(queues: Iterable[v2.MessageQueue]) -> dict[str, str]:
    """The address of each broker by its name; all of them HOME unless they differ."""
    found = {queue.broker.name: endpoint_text(queue.broker.endpoints) for queue in queues}
    is_spread = len(set(found.values())) > 1 and all(found.values())
    return found if is_spread else dict.fromkeys(found, HOME)


class Lane:
    """What a consumer has for one broker."""

    def __init__(
        self,
        connection: Connection,
        settings: v2.Settings,
        group: str,
        routes: Routes | None,
        on_command: CommandHandler | None,
        endpoint: str,
    ) -> None:
        self.telemetry = Telemetry(connection, settings, group, on_command=on_command)
        self.acknowledgement = Acknowledgement(connection, self.telemetry, group)
        self.routes = routes or Routes(connection, self.telemetry.metadata)
        self.receiving = Receiving(connection, self.telemetry, self.routes, endpoint)


class Lanes:
    """The lanes of one consumer. `home` is there from the beginning."""

    def __init__(
        self, connection: Connection, settings: v2.Settings, group: str, on_command: CommandHandler | None = None
    ) -> None:
        self._connection = connection
        self._settings = v2.Settings()
        self._settings.CopyFrom(settings)
        self._group = group
        self._on_command = on_command
        self.home = Lane(connection, settings, group, None, on_command, HOME)
        self._others: dict[str, Lane] = {}
        self._retired: set[asyncio.Task[None]] = set()

    def towards(self, endpoint: str) -> Lane:
        """The lane of the broker at this address. A new one registers with its broker before its first receive."""
        if endpoint in (HOME, self._connection.endpoint):
            return self.home
        lane = self._others.get(endpoint)
        if lane is None:
            settings = v2.Settings()
            settings.CopyFrom(self._settings)
            connection = self._connection.towards(endpoint)
            lane = Lane(connection, settings, self._group, self.home.routes, self._on_command, endpoint)
            self._others[endpoint] = lane
        return lane

    def of(self, message: ReceivedMessage) -> Lane:
        """The lane by which a message came."""
        return self.towards(message.endpoint)

    def keep(self, endpoints: Collection[str]) -> None:
        """Close the lanes of all other brokers."""
        for endpoint in self._others.keys() - set(endpoints):
            task = asyncio.create_task(self._others.pop(endpoint).telemetry.close(), name=f"leave {endpoint}")
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)

    def resync(self) -> None:
        """Send changed settings to every broker."""
        for lane in (self.home, *self._others.values()):
            lane.telemetry.resync()

    async def close(self) -> None:
        """Say goodbye to every broker."""
        closing = [lane.telemetry.close() for lane in (self.home, *self._others.values())]
        await asyncio.gather(*closing, *self._retired)
