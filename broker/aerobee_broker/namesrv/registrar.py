"""Registers this broker with name servers of Aerobee or RocketMQ while it runs.

Each name server has its own connection and task. The broker registers at the start, when a topic was created or
changed, and every 30 seconds as a heartbeat; at the end it unregisters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from zlib_ng.zlib_ng import crc32

from aerobee_broker.backoff import Backoff
from aerobee_broker.config import Address, BrokerConfig, Settings
from aerobee_broker.errors import BrokerError
from aerobee_broker.listening.listeners import Listening
from aerobee_broker.listening.peers import Peers
from aerobee_broker.namesrv.route_tables import MASTER_ID, QueueData
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, RemotingServer
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.predefined_topics import predefined_topics
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import MESSAGE_TYPE
from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import Bean

_log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 30.0  # RocketMQ's; name servers drop brokers that are silent for 120 s
_LOOK_SECONDS: Final = 0.5  # delay before a new topic is registered
_ANSWER_SECONDS: Final = 6.0
_GOODBYE_SECONDS: Final = 2.0
_RETRY_SECONDS_MAX: Final = 10.0
# Name servers of RocketMQ 5 refuse a first registration with a single topic; every RocketMQ broker has these.
_ALWAYS_THERE: Final = ("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")
_CRC_MASK: Final = 0x7FFFFFFF


def own_topics(config: BrokerConfig, tables: Tables) -> dict[str, QueueData]:
    """The topics to register: those of the table, and those that clients expect of every broker."""
    expected = [topic for topic in predefined_topics(config).values() if topic.name not in tables.topics]
    return {
        topic.name: QueueData(
            topic.read_queue_count,
            topic.write_queue_count,
            int(topic.permission),
            topic.sys_flag,
            topic.attributes.get(MESSAGE_TYPE, ""),
        )
        for topic in (*tables.topics, *expected)
    }


def _nothing(_answer: Command) -> None:
    """A master ignores the answer."""


class Registrar:
    """Registers one broker with all configured name servers. `run` beside everything else."""

    name: Final = "registrar"

    def __init__(self, settings: Settings, tables: Tables, *, broker_id: int = MASTER_ID) -> None:
        self._settings = settings
        self._broker_id = broker_id
        self.ha_address: Address | None = None  # the address for replicas
        self.epoch = 0  # of a master with a lease: it replaces a master with a lower epoch
        self.answered: Callable[[Command], None] = _nothing  # called with each answer to a registration
        self._tables = tables
        self._servers: Sequence[Address] = settings.current.name_servers
        self._bound: Address | None = None
        self._grpc: Listening | None = None
        self._connections: dict[Address, Connection] = {}
        self._leaving = False
        # refuses all requests of the name server
        self._outgoing = RemotingServer(self._ignore, identity=Peers.load(settings.current.peers))

    def listening(self, bound: Address, grpc: Listening | None = None) -> None:
        """Set the addresses of the broker, before `run` registers it; without `grpc` it serves no gRPC."""
        self._bound, self._grpc = bound, grpc

    @property
    def connections(self) -> Sequence[Connection]:
        """To the name servers with which this broker is registered."""
        return tuple(self._connections.values())

    async def run(self) -> None:
        """Keep the broker registered, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers:
                tasks.create_task(self._keep_registered(server))
            await asyncio.Event().wait()

    async def unregister(self) -> None:
        """Unregister from all name servers that answer within two seconds. They can be asked until `close`."""
        if self._leaving:
            return
        self._leaving = True
        await asyncio.gather(*(self._say_goodbye(connection) for connection in self.connections))

    async def close(self) -> None:
        """Unregister, and close the connections to the name servers."""
        await self.unregister()
        self._connections = {}
        await self._outgoing.stop(0)

    async def _keep_registered(self, server: Address) -> None:
        backoff = Backoff(1.0, _RETRY_SECONDS_MAX)
        while not self._leaving:
            backoff.begin()
            try:
                await self._registered(server)
            except (OSError, TimeoutError, BrokerError) as error:
                self._connections.pop(server, None)
                seconds = backoff.failed()
                _log.warning("not registered name_server=%s cause=%s; retrying in %g s", server, error, seconds)
                await asyncio.sleep(seconds)

    async def _registered(self, server: Address) -> None:
        """Register, and repeat it whenever it is due, while the connection lives."""
        loop = asyncio.get_running_loop()
        connection = await self._outgoing.connect(server)
        try:
            while connection.is_open and not self._leaving:
                revision = self._tables.topics.saved_revision
                await self._register(connection)
                if server not in self._connections:
                    _log.info("registered name_server=%s address=%s", server, self._address(connection))
                self._connections[server] = connection
                again_at = loop.time() + _PERIOD_SECONDS
                while (  # noqa: ASYNC110 - tables tell nobody of their changes
                    connection.is_open and self._tables.topics.saved_revision == revision and loop.time() < again_at
                ):
                    await asyncio.sleep(_LOOK_SECONDS)
            if not self._leaving:
                raise BrokerError("the connection ended")
        finally:
            if self._connections.get(server) is not connection:
                connection.close()

    async def _register(self, connection: Connection) -> None:
        body = self._body()
        fields = {
            **self._identity(connection),
            "haServerAddr": str(self.ha_address or self._address(connection)),
            "compressed": "false",
            "bodyCrc32": str(crc32(body) & _CRC_MASK),
            **self._grpc_addresses(connection),
        }
        answer = await connection.ask(Command(Request.REGISTER_BROKER, fields=fields, body=body), _ANSWER_SECONDS)
        if answer.code != Answer.SUCCESS:
            raise BrokerError(f"it refused the registration: code {answer.code}: {answer.remark}")
        self.answered(answer)

    async def _say_goodbye(self, connection: Connection) -> None:
        goodbye = Command(Request.UNREGISTER_BROKER, fields=self._identity(connection))
        try:
            await connection.ask(goodbye, _GOODBYE_SECONDS)
        except (TimeoutError, BrokerError) as error:
            _log.warning("not unregistered from a name server cause=%s", error)

    def _identity(self, connection: Connection) -> dict[str, str]:
        return {
            "brokerName": self._settings.current.name,
            "clusterName": self._settings.current.cluster,
            "brokerId": str(self._broker_id),
            "brokerAddr": self._address(connection),
        }

    def _address(self, connection: Connection) -> str:
        """The broker's address for clients: the configured or listening one; if it listens everywhere, the address from
        which it reaches the name server."""
        assert self._bound is not None, "the broker listens before it registers"
        advertised = self._settings.current.listen.advertise_remoting
        if advertised is not None:
            return str(advertised)
        return str(Address(connection.local.host, self._bound.port) if self._bound.is_wildcard else self._bound)

    def _grpc_addresses(self, connection: Connection) -> dict[str, str]:
        """The addresses for gRPC clients: fields of Aerobee, which name servers of RocketMQ ignore."""
        if self._grpc is None:
            return {}
        listen = self._settings.current.listen
        found = {"grpcAddr": (self._grpc.grpc, listen.advertise), "grpcTlsAddr": (self._grpc.tls, listen.advertise_tls)}
        addresses = {}
        for name, (bound, advertised) in found.items():
            if advertised is not None:
                addresses[name] = str(advertised)
            elif bound is not None and bound.unix_path is None:
                addresses[name] = str(Address(connection.local.host, bound.port) if bound.is_wildcard else bound)
        return addresses

    def _body(self) -> bytes:
        topics = own_topics(self._settings.current, self._tables)
        for name in _ALWAYS_THERE:
            topics.setdefault(name, QueueData(1, 1, 0))
        table = {
            name: Bean(
                attributes={MESSAGE_TYPE: queues.message_type} if queues.message_type else {},
                order=False,
                perm=queues.permission,
                readQueueNums=queues.read_queue_count,
                topicFilterType="SINGLE_TAG",
                topicName=name,
                topicSysFlag=queues.sys_flag,
                writeQueueNums=queues.write_queue_count,
            )
            for name, queues in topics.items()
        }
        version = self._tables.topics.version
        version = replace(version, state_version=max(version.state_version, self.epoch))
        wrapper = Bean(dataVersion=version.to_json(), topicConfigTable=table)
        return java_json.dumps(Bean(filterServerList=[], topicConfigSerializeWrapper=wrapper), pretty=False)

    async def _ignore(self, request: Command, connection: Connection) -> Command | None:
        return None
