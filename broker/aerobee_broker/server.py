"""The broker as a whole: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from aerobee_broker.byte_budget import ByteBudget
from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.clients.clients import ClientRegistry
from aerobee_broker.config import Address, BrokerConfig, Settings
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import ListenError
from aerobee_broker.front.calls import Method
from aerobee_broker.front.front import Front
from aerobee_broker.listeners import Listening, check_certificate, check_ports, listen_native
from aerobee_broker.metrics.broker_stats import BrokerStats
from aerobee_broker.metrics.counters import BrokerCounters
from aerobee_broker.metrics.http_endpoint import HttpEndpoint
from aerobee_broker.metrics.loop_delay import LoopDelay
from aerobee_broker.metrics.metrics import Metrics
from aerobee_broker.namesrv.cluster_routes import ClusterRoutes
from aerobee_broker.namesrv.registrar import Registrar
from aerobee_broker.parts import BrokerParts
from aerobee_broker.processors.acknowledge import AcknowledgeProcessor
from aerobee_broker.processors.administration.accumulation import Accumulation
from aerobee_broker.processors.administration.clients import ClientAdministration
from aerobee_broker.processors.administration.configuration import ConfigurationAdministration
from aerobee_broker.processors.administration.dead_letters import DeadLetterAdministration
from aerobee_broker.processors.administration.groups import GroupAdministration
from aerobee_broker.processors.administration.messages import MessageAdministration
from aerobee_broker.processors.administration.status import StatusAdministration
from aerobee_broker.processors.administration.topics import TopicAdministration
from aerobee_broker.processors.heartbeat import HeartbeatProcessor
from aerobee_broker.processors.lite import LiteProcessor
from aerobee_broker.processors.pull import PullProcessor
from aerobee_broker.processors.query import QueryProcessor
from aerobee_broker.processors.recall import RecallProcessor
from aerobee_broker.processors.receive import ReceiveProcessor
from aerobee_broker.processors.records.append import AppendProcessor
from aerobee_broker.processors.records.offsets import OffsetsProcessor
from aerobee_broker.processors.records.query import QueryProcessor as RecordQueryProcessor
from aerobee_broker.processors.records.read import ReadProcessor
from aerobee_broker.processors.route import RouteProcessor
from aerobee_broker.processors.send import SendProcessor
from aerobee_broker.processors.telemetry import TelemetryProcessor
from aerobee_broker.processors.transaction import TransactionProcessor
from aerobee_broker.remoting.service import RemotingService
from aerobee_broker.replication.config import Role
from aerobee_broker.runtime_settings import RuntimeSettings
from aerobee_broker.services import admin_service, aerobee_admin_service, messaging_service, record_service
from aerobee_broker.services.admin_service import AdminService
from aerobee_broker.services.aerobee_admin_service import Administration, aerobee_admin_methods
from aerobee_broker.services.messaging_service import MessagingProcessors, MessagingService
from aerobee_broker.services.record_service import RecordService
from aerobee_broker.services.requests import RequestLimits
from aerobee_broker.services.standard_services import health_methods, reflection_methods
from aerobee_broker.tables.tables import BatchTopics, Tables
from aerobee_broker.tables.topics import is_system_topic
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.timer import Timer
from aerobee_broker.transactions.producers import Producers
from aerobee_broker.transactions.transactions import Transactions
from aerobee_store import MessageStore, SystemClock
from aerobee_store.clock import Clock
from aerobee_store.deferred import load_deferred

if TYPE_CHECKING:
    from aerobee_broker.replication.leadership import Leadership
    from aerobee_broker.replication.master_broker import MasterBroker
    from aerobee_broker.replication.metrics import MasterCollector

_log = logging.getLogger(__name__)

_SERVICES: Final = (
    messaging_service.SERVICE,
    admin_service.SERVICE,
    aerobee_admin_service.SERVICE,
    record_service.SERVICE,
)


class Server(Protocol):
    """A server of the methods."""

    async def start(self) -> None:
        """Begin to serve."""

    async def stop(self, grace_seconds: float, /) -> None:
        """Refuse new calls, give running calls this much time, then end them. May be called again."""


class _Readiness:
    """Why the broker is not ready; None if it is."""

    def __init__(self) -> None:
        self.reason: str | None = "starting: the store recovers"
        self.store: MessageStore | None = None

    def unreadiness(self) -> str | None:
        """Why the broker is not ready; None if it is."""
        if self.store is not None and self.store.state == "failed":
            return f"the store has failed: {self.store.failure}"
        return self.reason

    def note(self) -> str:
        """Restrictions of a ready broker. A full disk is no reason to take it out of service: no other broker has its
        messages, and consumers still get them."""
        if self.store is None or not self.store.running.reason:
            return ""
        flags = self.store.running.flags
        what = "messages" if flags.readable else "messages, and serves none"
        return f"the store refuses {what}: {self.store.running.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """The parts that stay when a replica becomes a master."""

    config: BrokerConfig
    accounts: Accounts | None
    stop: asyncio.Event
    clock: Clock
    metrics: Metrics
    metrics_address: Address
    ready: _Readiness
    leadership: Leadership | None


def _announce_nothing(_remoting: Address, _metrics: Address) -> None:
    """Announce nothing."""


async def run(
    config: BrokerConfig,
    stop: asyncio.Event,
    announce: Callable[[Listening, Address], None],
    *,
    clock: Clock | None = None,
    announce_replica: Callable[[Address, Address], None] = _announce_nothing,
) -> int:
    """Serve until `stop` is set, then drain and return 0.

    `announce` is called once, when the broker serves, with the addresses for clients and for metrics;
    `announce_replica` before that with the remoting address of a replica. Raises StoreError or BrokerError for problems
    that an operator must solve (a locked store, a port in use), and the error that ended a service, after logging its
    traceback: a half-alive broker is worse than a restart.
    """
    clock = clock or SystemClock()
    _warn(config)
    check_ports(config)
    check_certificate(config)
    accounts = None if config.auth.accounts is None else Accounts(config.auth.accounts)
    leadership, keeping = _leadership(config)
    metrics, ready = Metrics(config), _Readiness()
    endpoint = HttpEndpoint(config.listen.metrics, metrics, ready)
    try:
        metrics_address = endpoint.start()
    except OSError as error:
        raise ListenError("listen.metrics", config.listen.metrics, error.strerror or str(error)) from None
    process = _Process(
        config=config,
        accounts=accounts,
        stop=stop,
        clock=clock,
        metrics=metrics,
        metrics_address=metrics_address,
        ready=ready,
        leadership=leadership,
    )
    try:
        while True:
            batch_topics = BatchTopics(config.store.directory, clock)
            store = await asyncio.to_thread(MessageStore.open, config.store, clock=clock, is_batch_topic=batch_topics)
            ready.store = store
            again = False
            try:
                role = _role(config, store, leadership)
                if role == "replica":
                    again = await _follow(process, store, batch_topics, announce_replica)
                else:
                    again = await _serve(process, store, batch_topics, announce, is_master=role == "master")
            finally:
                # Blocking, because nothing else runs: only the probes must still be answered.
                await asyncio.to_thread(store.close)
            if not again or stop.is_set():
                break
    finally:
        if leadership is not None and keeping is not None:
            keeping.cancel()
            await leadership.release()  # the log is written no more, so another broker may go on at once
        await endpoint.stop()
    _log.info("broker stopped")
    return 0


def _leadership(config: BrokerConfig) -> tuple[Leadership | None, asyncio.Task[None] | None]:
    """With a lease: what this broker knows of it, and the task that renews it."""
    replication = config.replication
    if not replication.etcd:
        return None, None
    from aerobee_broker.replication.etcd import EtcdLease  # a single broker loads nothing of replication
    from aerobee_broker.replication.leadership import Leadership

    lease = EtcdLease(
        replication.etcd,
        f"{replication.etcd_prefix}/{config.cluster}/{config.name}",
        replication.broker_id,
        replication.lease_seconds,
        timeout_seconds=replication.lease_seconds / 4,
    )
    leadership = Leadership(lease, replication.broker_id, replication.lease_seconds)
    return leadership, asyncio.create_task(leadership.run(), name="lease")


def _role(config: BrokerConfig, store: MessageStore, leadership: Leadership | None) -> Role:
    if config.replication.role == "none":
        return "none"
    if leadership is not None:
        return "master" if leadership.is_held else "replica"
    from aerobee_broker.replication import roles  # a single broker loads nothing of replication

    return roles.load(config, store.file_system)


async def _follow(
    process: _Process, store: MessageStore, batch_topics: BatchTopics, announce: Callable[[Address, Address], None]
) -> bool:
    """Be a replica until `stop` is set (False), or it goes on as another one or as the master (True)."""
    from aerobee_broker.replication.epochs import Epochs
    from aerobee_broker.replication.metrics import ReplicaCollector
    from aerobee_broker.replication.replica import ReplicaBroker

    config, clock = process.config, process.clock
    settings = Settings(config)
    tables = Tables.load(settings, clock, store.file_system, store.in_disk_thread, store.stats)
    batch_topics.attach(tables.topics)
    epochs = await asyncio.to_thread(Epochs, store.file_system, config.store.directory)
    replica = ReplicaBroker(settings, store, tables, epochs, process.accounts, clock, process.leadership)
    bound = await replica.listen()
    collector = ReplicaCollector(replica)
    process.metrics.collectors.append(collector)
    process.ready.reason = None
    announce(bound, process.metrics_address)
    try:
        outcome = await replica.serve(process.stop)
    except BaseExceptionGroup as group:
        cause = _first(group)
        _log.critical("a service failed; the replica stops", exc_info=cause)
        raise cause from None
    finally:
        process.metrics.collectors.remove(collector)
    process.ready.reason = {
        "promoted": "promoted: the broker starts as a master",
        "cut": "the tail of the log that the master has not is set aside",
        "stopped": "stopping",
    }[outcome]
    if outcome == "promoted":
        await asyncio.to_thread(replica.become_master)
    return outcome != "stopped"


async def _serve(
    process: _Process,
    store: MessageStore,
    batch_topics: BatchTopics,
    announce: Callable[[Listening, Address], None],
    *,
    is_master: bool,
) -> bool:
    """Serve until `stop` is set (False), or another broker may be the master (True)."""
    settings, clock, accounts = Settings(process.config), process.clock, process.accounts
    runtime_settings = RuntimeSettings.load(settings, store)
    config, metrics, ready = settings.current, process.metrics, process.ready
    leadership, is_deposed = process.leadership, False
    tables = Tables.load(settings, clock, store.file_system, store.in_disk_thread, store.stats)
    batch_topics.attach(tables.topics)
    if not config.auto_create_topics and all(is_system_topic(topic.name) for topic in tables.topics):
        endpoint = config.listen.grpc.dialled if config.listen.grpc.port else "HOST:PORT"
        _log.info("there are no topics yet; create one with: aerobee topic create NAME --endpoint %s", endpoint)
    clients = ClientRegistry(clock, expiry_seconds=config.limits.client_expiry_seconds)
    deliveries = Deliveries(store, tables, clock, settings, connected=clients)
    if accounts is not None:
        accounts.changed_listeners.append(lambda: clients.hang_up(lambda client: accounts.still_good(client.account)))
    clients.gone_listeners.append(deliveries.client_gone)
    deliveries.lite.unsubscribed_listeners.append(clients.notify_unsubscribe_lite)
    await asyncio.to_thread(deliveries.open)
    timer = Timer(store, clock, config.timer, topics=tables.topics, loop_share=deliveries.loop_share)
    producers = Producers(clients)
    transactions = Transactions(store, tables, clock, settings, producers, timer)
    clients.producer_listeners.append(transactions.producer_ready)
    await asyncio.to_thread(transactions.open)
    await asyncio.to_thread(timer.open)
    level_delay = LevelDelay(store, clock)
    await asyncio.to_thread(level_delay.open)
    counters = BrokerCounters()
    parts = BrokerParts(
        settings=settings,
        clock=clock,
        store=store,
        tables=tables,
        clients=clients,
        accounts=accounts,
        deliveries=deliveries,
        timer=timer,
        level_delay=level_delay,
        producers=producers,
        transactions=transactions,
        counters=counters,
        broker_stats=BrokerStats(counters, tables, store, clock),
        loop_delay=LoopDelay(),
        requests=ByteBudget(
            "requests in progress",
            total_max=config.limits.request_bytes_max,
            owner_max=config.limits.request_bytes_per_client_max,
        ),
        answers=ByteBudget(
            "messages for clients",
            total_max=config.limits.answer_bytes_max,
            owner_max=config.limits.answer_bytes_per_client_max,
        ),
    )
    remoting = RemotingService(parts)
    await asyncio.to_thread(remoting.request_modes.open)
    registrar = Registrar(settings, tables)
    metrics.attach(parts)
    try:
        async with asyncio.TaskGroup() as tasks:
            services = [
                tasks.create_task(service(), name=name)
                for name, service in (
                    ("store", store.run),
                    (deliveries.name, deliveries.run),
                    (transactions.name, transactions.run),
                    (timer.name, timer.run),
                    (level_delay.name, level_delay.run),
                    (clients.name, clients.run),
                    (tables.name, tables.run),
                    (parts.broker_stats.name, parts.broker_stats.run),
                    (remoting.name, remoting.run),
                    (parts.loop_delay.name, parts.loop_delay.run),
                )
            ]
            await asyncio.sleep(0)  # the store's services are up before the first append
            master: MasterBroker | None = None
            if is_master:
                from aerobee_broker.replication import master_broker

                master = await master_broker.MasterBroker.open(config, store, leadership)
            cluster = ClusterRoutes(lambda: registrar.connections, remoting.routes)
            server, draining, listening = await _listen(parts, runtime_settings, remoting, cluster)
            keeping: asyncio.Task[None] | None = None
            collector: MasterCollector | None = None
            stopping = tasks.create_task(process.stop.wait())
            try:
                if master is not None:
                    assert listening.remoting is not None, "the configuration says so"
                    await master.start(registrar, remoting.server, listening.remoting)
                    keeping = tasks.create_task(master.keep_lease(), name="lease-keeping")
                    remoting.add(master.handlers)
                    collector = master.collector
                    metrics.collectors.append(collector)
                if config.name_servers:
                    assert listening.remoting is not None, "the configuration says so"
                    registrar.listening(listening.remoting, listening)
                    services.append(tasks.create_task(registrar.run(), name=registrar.name))
                ready.reason = None
                if config.listen.front != "native" or config.listen.remoting is not None:
                    _load_deferred()
                announce(listening, process.metrics_address)
                ends = (stopping,) if keeping is None else (stopping, keeping)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)  # cancelled if a service dies
                is_deposed = not process.stop.is_set()
                ready.reason = "the lease is lost" if is_deposed else "draining: the broker stops"
                _log.info("broker draining")
                draining.set()
                await registrar.unregister()
                deliveries.long_polling.drain()
                clients.close_streams()
                drain_seconds = 0 if is_deposed else settings.current.listen.drain_seconds
                await asyncio.gather(server.stop(drain_seconds), remoting.server.stop(drain_seconds))
                await timer.close()
                if not is_deposed:  # these append to the log
                    await deliveries.close()
                    await transactions.close()
                await tables.save_all()
            finally:
                metrics.detach()
                ready.reason = ready.reason or "stopping: a service of the broker died"
                with suppress(asyncio.CancelledError):
                    await server.stop(0)
                    await remoting.server.stop(0)
                    if master is not None:
                        await master.stop()
                    if collector is not None:
                        metrics.collectors.remove(collector)
            if keeping is not None:
                keeping.cancel()
            for service in (*services, stopping):
                service.cancel()
    except BaseExceptionGroup as group:
        cause = _first(group)
        if not isinstance(cause, ListenError):
            _log.critical("a service failed; the broker stops", exc_info=cause)
        raise cause from None
    return is_deposed


async def _listen(
    parts: BrokerParts, runtime_settings: RuntimeSettings, remoting: RemotingService, cluster: ClusterRoutes
) -> tuple[Server, asyncio.Event, Listening]:
    """Bind the gRPC ports and serve every service on them. Setting the event ends streams of health and reflection.

    Raises ListenError.
    """
    settings, clock, store, tables = parts.settings, parts.clock, parts.store, parts.tables
    clients, deliveries, counters = parts.clients, parts.deliveries, parts.counters
    config = settings.current
    limits = RequestLimits(parts.requests, body_size_max=config.store.body_size_max)
    remoting_address = None if config.listen.remoting is None else await remoting.listen(config.listen.remoting)
    methods: dict[str, Method] = {}  # complete before the loop accepts the first connection
    server: Server
    if config.listen.front == "native":
        server = front = Front(
            methods,
            config.front,
            counters.front,
            protocols=(remoting.protocol(),),
            first_connection=_load_deferred if config.listen.remoting is None else lambda: None,
        )
        try:
            listening = listen_native(front, config)
        except BaseException:
            front.close()
            raise
    else:
        from aerobee_broker.grpcio_listeners import listen_grpcio

        server, listening = listen_grpcio(methods, config, request_size_max=limits.request_size_max)
    listening = replace(listening, remoting=remoting_address)
    route = RouteProcessor(settings, tables, listening, cluster)
    send = SendProcessor(settings, store, tables, counters, clock, parts.transactions, parts.timer)
    processors = MessagingProcessors(
        route=route,
        heartbeat=HeartbeatProcessor(clients),
        telemetry=TelemetryProcessor(settings, tables, clients),
        send=send,
        receive=ReceiveProcessor(settings, tables, deliveries, clock),
        pull=PullProcessor(settings, store, tables, deliveries),
        lite=LiteProcessor(tables, deliveries),
        recall=RecallProcessor(tables, parts.timer),
        acknowledge=AcknowledgeProcessor(settings, deliveries, counters),
        transaction=TransactionProcessor(parts.transactions, counters),
    )
    messaging = MessagingService(parts, limits, processors)
    accumulation = Accumulation(config=config, store=store, tables=tables, deliveries=deliveries, clock=clock)
    administration = Administration(
        topics=TopicAdministration(
            settings=settings, store=store, tables=tables, clients=clients, deliveries=deliveries, route=route
        ),
        groups=GroupAdministration(
            store=store,
            tables=tables,
            clients=clients,
            deliveries=deliveries,
            timer=parts.timer,
            accumulation=accumulation,
            clock=clock,
        ),
        clients=ClientAdministration(
            config=config, store=store, tables=tables, clients=clients, deliveries=deliveries, clock=clock
        ),
        accumulation=accumulation,
        messages=MessageAdministration(store=store, tables=tables, deliveries=deliveries, send=send, clock=clock),
        dead_letters=DeadLetterAdministration(
            store=store, tables=tables, counters=counters, loop_share=deliveries.loop_share
        ),
        configuration=ConfigurationAdministration(runtime_settings),
        status=StatusAdministration(parts, listening),
    )
    remoting.administer(administration.topics, administration.groups, runtime_settings, parts.broker_stats)
    admin = AdminService(
        accounts=parts.accounts,
        counters=counters,
        limits=limits,
        administration=administration,
        query=QueryProcessor(store, tables, deliveries),
    )
    draining = asyncio.Event()
    records = RecordService(
        accounts=parts.accounts,
        clients=clients,
        counters=counters,
        limits=limits,
        append=AppendProcessor(settings, store, tables, counters),
        read=ReadProcessor(settings, store, tables, deliveries.long_polling),
        query=RecordQueryProcessor(store, tables, deliveries.loop_share),
        offsets=OffsetsProcessor(store, tables),
        draining=draining,
    )
    methods |= {
        **messaging.methods(),
        **admin.methods(),
        **aerobee_admin_methods(administration, counters, limits, parts.accounts),
        **records.methods(),
        **health_methods(_SERVICES, draining),
        **reflection_methods(_SERVICES, draining),
    }
    await server.start()
    return server, draining, listening


def _load_deferred() -> None:
    """Import, in a thread, what serving clients needs and a broker at rest does not."""
    threading.Thread(target=load_deferred, name="aerobee-imports", daemon=True).start()


def _warn(config: BrokerConfig) -> None:
    if config.ignored_rocketmq_keys:
        _log.warning(
            "settings of broker.conf without an equivalent are ignored: %s", ", ".join(config.ignored_rocketmq_keys)
        )
    reachable = [
        address
        for address in (config.listen.grpc, config.listen.tls, config.listen.remoting)
        if address and not address.is_loopback
    ]
    if reachable and config.auth.accounts is None:
        _log.warning(
            "listening on %s without authentication: anyone who can reach it may read, write and delete; "
            "set auth.accounts, listen on 127.0.0.1, or restrict access to your own machines",
            " and ".join(map(str, reachable)),
        )
    elif not config.listen.grpc.is_loopback:
        _log.warning(
            "listening on %s without TLS: anyone who can read the traffic can replay the credentials; set "
            "listen.tls, and listen.grpc to 127.0.0.1",
            config.listen.grpc,
        )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, which says more than the group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
