"""The sessions of a consumer with several brokers of one cluster, and the broker that each call goes to.

While a route names a single address, all calls go to the configured endpoints, whatever that address is. If it names
different addresses for different brokers, calls about a queue go to the address of its broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from aerobee_client.connections.connection import Connection
from aerobee_client.connections.routes import DEFAULT, Routes
from aerobee_client.connections.telemetry import CommandHandler, Telemetry
from aerobee_client.consuming.acknowledgement import Acknowledgement
from aerobee_client.consuming.receiving import Receiving
from aerobee_client.messages.message import ReceivedMessage
from aerobee_proto import v2


class BrokerSession:
    """A consumer's session with one broker: Telemetry stream, receives and acknowledgements."""

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


class BrokerSessions:
    """The sessions of one consumer. `default` exists from the start."""

    def __init__(
        self, connection: Connection, settings: v2.Settings, group: str, on_command: CommandHandler | None = None
    ) -> None:
        self._connection = connection
        self._settings = v2.Settings()
        self._settings.CopyFrom(settings)
        self._group = group
        self._on_command = on_command
        self.default = BrokerSession(connection, settings, group, None, on_command, DEFAULT)
        self._others: dict[str, BrokerSession] = {}
        self._retired: set[asyncio.Task[None]] = set()

    def at(self, endpoint: str) -> BrokerSession:
        """The session with the broker at this address. A new one registers with its broker before its first receive."""
        if endpoint in (DEFAULT, self._connection.endpoint):
            return self.default
        session = self._others.get(endpoint)
        if session is None:
            settings = v2.Settings()
            settings.CopyFrom(self._settings)
            connection = self._connection.at(endpoint)
            session = BrokerSession(connection, settings, self._group, self.default.routes, self._on_command, endpoint)
            self._others[endpoint] = session
        return session

    def of(self, message: ReceivedMessage) -> BrokerSession:
        """The session that received a message."""
        return self.at(message.endpoint)

    def keep(self, endpoints: Collection[str]) -> None:
        """Close the sessions with all other brokers."""
        for endpoint in self._others.keys() - set(endpoints):
            task = asyncio.create_task(self._others.pop(endpoint).telemetry.close(), name=f"leave {endpoint}")
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)

    def resync(self) -> None:
        """Send changed settings to every broker."""
        for session in (self.default, *self._others.values()):
            session.telemetry.resync()

    async def close(self) -> None:
        """Unregister from every broker."""
        closing = [session.telemetry.close() for session in (self.default, *self._others.values())]
        await asyncio.gather(*closing, *self._retired)
