"""The remoting protocol of the broker: the table of request codes, and the tasks beside the requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from aerobee_broker.config import Address
from aerobee_broker.front.protocol_detection import DetectedProtocol
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.listening.peers import Peers
from aerobee_broker.namesrv.registrar import own_topics
from aerobee_broker.namesrv.requests import LOCAL, WIPED_FILE, KvConfig, NameServerRequests, WritePermissions
from aerobee_broker.namesrv.route_tables import MASTER_ID, Registration, RouteTables
from aerobee_broker.parts import BrokerParts
from aerobee_broker.processors.administration.groups import GroupAdministration
from aerobee_broker.processors.administration.topics import TopicAdministration
from aerobee_broker.remoting.administration import AdministrationRequests
from aerobee_broker.remoting.audit import audited
from aerobee_broker.remoting.clients import RemotingClients, Subscription
from aerobee_broker.remoting.offset_events import OffsetEvents
from aerobee_broker.remoting.offsets import OffsetRequests
from aerobee_broker.remoting.permissions import Permissions
from aerobee_broker.remoting.pop import PopRequests
from aerobee_broker.remoting.pull import PullRequests, filter_of_subscription
from aerobee_broker.remoting.queries import QueryRequests
from aerobee_broker.remoting.replies import ReplyRequests
from aerobee_broker.remoting.request_modes import RequestModes
from aerobee_broker.remoting.retry import RetryRequests
from aerobee_broker.remoting.send import SendRequests
from aerobee_broker.remoting.statistics import StatisticsRequests
from aerobee_broker.remoting.transactions import TransactionRequests
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, Handler, RemotingServer
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, body_object, member
from aerobee_broker.remoting_wire.frame import Command, is_frame
from aerobee_broker.statistics.broker_stats import BrokerStats
from aerobee_broker.tables.operations import Operations
from aerobee_broker.tables.runtime_settings import RuntimeSettings
from aerobee_store.clock import every
from aerobee_store.tables.json_table import JsonTable

_SCAN_SECONDS: Final = 10.0
_OWN_CONNECTION: Final = "own"


class RemotingService:
    """The whole service. `run` beside everything else; `listen` binds an address."""

    name: Final = "remoting"

    def __init__(self, parts: BrokerParts) -> None:
        settings, store, tables, clock = parts.settings, parts.store, parts.tables, parts.clock
        deliveries, transactions, counters = parts.deliveries, parts.transactions, parts.counters
        self._settings = settings
        self._store = store
        self._tables = tables
        self._timer = parts.timer
        self._level_delay = parts.level_delay
        self._clock = clock
        self._deliveries = deliveries
        self.clients = RemotingClients(settings, tables, clock)
        self._deleted_letters = parts.deleted_letters
        self.routes = RouteTables(clock)
        self._registered_revision = -1
        self._has_left = False  # its own name server
        peers = Peers.load(settings.current.peers)
        self._permissions = Permissions(parts.accounts, store, self.clients.owner_of, peers)
        self.server = RemotingServer(self.handle, ledger=parts.ledger, identity=peers)
        self.server.closed_listeners.append(self._closed)
        self._offsets = OffsetRequests(store, tables, deliveries)
        self.request_modes = RequestModes(settings, store, tables, self.clients)
        decisions = TransactionRequests(store, transactions, self.clients, counters, parts.accounts)
        parts.producers.ask_by_group = decisions.ask
        self.clients.producer_listeners.append(lambda group, producer: transactions.group_ready())
        send = SendRequests(
            settings, store, tables, parts.admission, counters, clock, transactions, parts.timer, parts.level_delay
        )
        retry = RetryRequests(store, tables, parts.admission, send, parts.level_delay)
        replies = ReplyRequests(self.clients, send, clock)
        path = store.config.directory / "config" / "kvConfig.json"
        self._values_file = JsonTable(store.file_system, path, stats=store.stats)
        self._values = KvConfig(lambda content: store.in_disk_thread(self._values_file.save, content), parts.ledger)
        self._wiped_file = JsonTable(store.file_system, path.with_name(WIPED_FILE), stats=store.stats)
        self._write_permissions = WritePermissions(
            self.routes, lambda content: store.in_disk_thread(self._wiped_file.save, content)
        )
        name_server = NameServerRequests(
            self.routes,
            self._values,
            self._write_permissions,
            lambda: {"serverMode": "broker", "brokerName": settings.current.name},
        )
        self._handlers: dict[int, Handler] = {
            **_sending(send, replies, decisions),
            Request.CONSUMER_SEND_MESSAGE_BACK: retry.send_back,
            **self._receiving(parts),
            **reading_handlers(QueryRequests(store, deliveries.loop_share), self._offsets, self.clients),
            Request.UPDATE_CONSUMER_OFFSET: self._offsets.update,
            Request.LOCK_BATCH_MQ: self.clients.lock,
            Request.UNLOCK_BATCH_MQ: self.clients.unlock,
            Request.CHECK_CLIENT_CONFIG: partial(_check_client_config, deliveries.loop_share),
            **{code: self._with_own_routes(handler) for code, handler in name_server.handlers.items()},
        }

    def _receiving(self, parts: BrokerParts) -> dict[int, Handler]:
        settings, tables, deliveries, counters = parts.settings, parts.tables, parts.deliveries, parts.counters
        events = OffsetEvents(settings, parts.store, tables, parts.clock)
        pull = PullRequests(settings, parts.store, tables, deliveries, self.clients, self._offsets, counters, events)
        pop = PopRequests(settings, parts.store, tables, deliveries, counters, parts.clock)
        return {
            Request.PULL_MESSAGE: pull.pull,
            Request.LITE_PULL_MESSAGE: pull.pull,
            Request.POP_MESSAGE: pop.pop,
            Request.PEEK_MESSAGE: pop.peek,
            Request.NOTIFICATION: pop.notification,
            Request.ACK_MESSAGE: pop.acknowledge,
            Request.BATCH_ACK_MESSAGE: pop.acknowledge_batch,
            Request.CHANGE_MESSAGE_INVISIBLE_TIME: pop.change_invisible,
            Request.QUERY_ASSIGNMENT: self.request_modes.assignment,
            Request.SET_MESSAGE_REQUEST_MODE: self.request_modes.set,
            Request.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes.all,
        }

    def administer(
        self,
        topics: TopicAdministration,
        groups: GroupAdministration,
        runtime_settings: RuntimeSettings,
        broker_stats: BrokerStats,
        operations: Operations,
    ) -> None:
        """Also answer administration requests, and note those that change something."""
        administration = AdministrationRequests(
            settings=self._settings,
            store=self._store,
            tables=self._tables,
            offsets=self._offsets,
            level_delay=self._level_delay,
            timer=self._timer,
            clock=self._clock,
            topics=topics,
            groups=groups,
            runtime_settings=runtime_settings,
            deleted_letters=self._deleted_letters,
        )
        statistics = StatisticsRequests(
            config=self._settings.current,
            store=self._store,
            tables=self._tables,
            deliveries=self._deliveries,
            clients=self.clients,
            offsets=self._offsets,
            level_delay=self._level_delay,
            timer=self._timer,
            broker_stats=broker_stats,
            clock=self._clock,
        )
        self._handlers |= administration.handlers
        self._handlers |= statistics.handlers
        self._handlers |= audited(self._handlers, operations)

    def add(self, handlers: Mapping[int, Handler]) -> None:
        """Add handlers, replacing existing ones."""
        self._handlers |= handlers

    def open(self) -> None:
        """Read the tables of remoting. Blocking. Raises TableFormatError, UnreadableTableError and OSError."""
        self.request_modes.open()
        self._values.restore(self._values_file.load())
        self._write_permissions.restore(self._wiped_file.load())

    async def listen(self, address: Address) -> Address:
        """Bind; returns the bound address. Raises ListenError."""
        return await self.server.listen("listen.remoting", address)

    def protocol(self) -> DetectedProtocol:
        """The remoting protocol on the gRPC port, detected by the first byte of the length of its first frame."""
        return DetectedProtocol("remoting", is_frame, self.server.connection)

    async def run(self) -> None:
        """Remove silent clients, until cancelled."""
        await every(_SCAN_SECONDS, self._expire)

    def _expire(self) -> None:
        self.clients.expire()
        self.routes.expire()

    async def handle(self, request: Command, connection: Connection) -> Command | None:
        """Answer one request. Raises errors that `errors.refusal` turns into an answer."""
        handler = self._handlers.get(request.code)
        if handler is None:
            raise RemotingError(Answer.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
        self._permissions.check(request, connection)
        return await handler(request, connection)

    def leave_routes(self) -> None:
        """Remove this broker from its own name server, if that knows other brokers."""
        if self.routes.has_others(self._settings.current.name):
            self._has_left = True
            self.routes.unregister(self._settings.current.cluster, self._settings.current.name, LOCAL, _OWN_CONNECTION)

    def _with_own_routes(self, handler: Handler) -> Handler:
        """The broker's current topics are registered with its own name server on every query."""

        async def handle(request: Command, connection: Connection) -> Command | None:
            if self._registered_revision != self._tables.topics.saved_revision and not self._has_left:
                self._register_own()
            return await handler(request, connection)

        return handle

    def _register_own(self) -> None:
        config, table = self._settings.current, self._tables.topics
        self._registered_revision = table.revision
        topics = own_topics(config, self._tables)
        if self.routes.broker(config.name) is None:
            self.routes.register(
                Registration(
                    cluster=config.cluster,
                    broker=config.name,
                    address=LOCAL,
                    broker_id=MASTER_ID,
                    version=table.version,
                    topics={},
                    connection=_OWN_CONNECTION,
                    timeout_seconds=float("inf"),
                )
            )
        self.routes.replace_topics(config.name, topics)

    def _closed(self, connection: Connection) -> None:
        self.clients.connection_closed(connection)
        self.routes.connection_closed(connection.key)
        self._deliveries.long_polling.end_client(connection.key)


async def _check_client_config(share: LoopShare, request: Command, _: Connection) -> Command:
    """Check a consumer's filter; clients ask before they start."""
    data = body_object(request).get("subscriptionData")
    found: dict[str, object] = data if isinstance(data, dict) else {}
    await filter_of_subscription(
        Subscription(member(found, "topic"), member(found, "subString"), member(found, "expressionType"), 0), share
    )
    return answer()


def _sending(send: SendRequests, replies: ReplyRequests, decisions: TransactionRequests) -> dict[int, Handler]:
    return {
        Request.SEND_MESSAGE: send.send,
        Request.SEND_MESSAGE_V2: send.send_v2,
        Request.SEND_BATCH_MESSAGE: send.send_v2,
        Request.SEND_REPLY_MESSAGE: replies.reply,
        Request.SEND_REPLY_MESSAGE_V2: replies.reply_v2,
        Request.END_TRANSACTION: decisions.end,
    }


def reading_handlers(queries: QueryRequests, offsets: OffsetRequests, clients: RemotingClients) -> dict[int, Handler]:
    """The requests that change nothing of the store, which a replica answers too."""
    return {
        Request.QUERY_MESSAGE: queries.by_key,
        Request.VIEW_MESSAGE_BY_ID: queries.by_place,
        Request.QUERY_CONSUMER_OFFSET: offsets.query,
        Request.GET_MAX_OFFSET: offsets.maximum,
        Request.GET_MIN_OFFSET: offsets.minimum,
        Request.SEARCH_OFFSET_BY_TIMESTAMP: offsets.by_time,
        Request.GET_EARLIEST_MESSAGE_STORE_TIME: offsets.earliest_time,
        Request.HEART_BEAT: clients.heartbeat,
        Request.UNREGISTER_CLIENT: clients.unregister,
        Request.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_ids,
    }
