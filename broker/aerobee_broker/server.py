"""The broker as a whole: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.clients.registry import ClientRegistry
from aerobee_broker.config import Address, BrokerConfig, Settings
from aerobee_broker.config.replication import Role
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.counters.loop_delay import LoopDelay
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import ListenError
from aerobee_broker.filters.consumer_filters import ConsumerFilters
from aerobee_broker.front.methods import Method
from aerobee_broker.front.sockets import Front
from aerobee_broker.grpc_methods import grpc_methods
from aerobee_broker.limits.garbage import GarbageCollection
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.limits.wakes import Gate, Wakes
from aerobee_broker.listening.listeners import Listening, check_certificate, check_ports, listen_native
from aerobee_broker.listening.peers import Peers
from aerobee_broker.messages.admission import Admission
from aerobee_broker.metrics.http_endpoint import HttpEndpoint
from aerobee_broker.metrics.page import Metrics
from aerobee_broker.namesrv.cluster_routes import ClusterRoutes
from aerobee_broker.namesrv.registrar import Registrar
from aerobee_broker.parts import BrokerParts
from aerobee_broker.remoting.service import RemotingService
from aerobee_broker.services.requests import RequestLimits
from aerobee_broker.statistics.broker_stats import BrokerStats
from aerobee_broker.tables.deleted_letters import DeletedLetters
from aerobee_broker.tables.operations import Operations
from aerobee_broker.tables.runtime_settings import RuntimeSettings
from aerobee_broker.tables.table_files import BatchTopics, Tables
from aerobee_broker.tables.topics import is_system_topic
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_broker.transactions.producers import Producers
from aerobee_broker.watching.watch import Watch
from aerobee_store import MessageStore, SystemClock
from aerobee_store.clock import Clock
from aerobee_store.deferred import load_deferred
from aerobee_store.log_follower import ROLE_FILE_NAME

if TYPE_CHECKING:
    from aerobee_broker.replication.leadership import Leadership
    from aerobee_broker.replication.lease import Lease
    from aerobee_broker.replication.master_broker import MasterBroker
    from aerobee_broker.replication.metrics import MasterCollector
    from aerobee_proto import admin_v1

_log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.05  # between looks whether clients of a leaving broker are still connected


class Server(Protocol):
    """A server of the methods."""

    async def start(self) -> None:
        """Begin to serve."""

    @property
    def connection_count(self) -> int | None:
        """Connections of clients; None if the server does not know."""

    def hang_up(self, connection: str, /) -> None:
        """Let the connection of this name end, once its calls are answered. Unknown names are ignored."""

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


class _Process(Struct, frozen=True, kw_only=True):
    """The parts that survive the promotion of a replica to a master."""

    config: BrokerConfig
    accounts: Accounts | None
    stop: asyncio.Event
    hurry: asyncio.Event
    clock: Clock
    metrics: Metrics
    metrics_address: Address
    ready: _Readiness
    leadership: Leadership | None
    promoted: asyncio.Event  # by an operator, since the start


def _announce_nothing(_remoting: Address, _metrics: Address) -> None:
    """Does nothing."""


async def run(
    config: BrokerConfig,
    stop: asyncio.Event,
    announce: Callable[[Listening, Address], None],
    *,
    hurry: asyncio.Event | None = None,
    clock: Clock | None = None,
    announce_replica: Callable[[Address, Address], None] = _announce_nothing,
) -> int:
    """Serve until `stop` is set, then leave the routes, drain and return 0; once `hurry` is set, without waiting for
    clients.

    `announce` is called once, when the broker serves, with the addresses for clients and for metrics;
    `announce_replica` before that with the remoting address of a replica. Raises StoreError or BrokerError for problems
    that an operator must solve (a locked store, a port in use), and the error that ended a service, after logging its
    traceback: a half-alive broker is worse than a restart.
    """
    clock = clock or SystemClock()
    _warn(config)
    check_ports(config)
    check_certificate(config)
    Peers.load(config.peers)  # a missing secret is found before the store recovers
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
        hurry=hurry or asyncio.Event(),
        clock=clock,
        metrics=metrics,
        metrics_address=metrics_address,
        ready=ready,
        leadership=leadership,
        promoted=asyncio.Event(),
    )
    try:
        while await _live(process, announce, announce_replica) and not stop.is_set():
            pass
    finally:
        if leadership is not None and keeping is not None:
            keeping.cancel()
            await (
                leadership.release()
            )  # nothing is written to the log any more, so another broker may take over at once
        await endpoint.stop()
    _log.info("broker stopped")
    return 0


async def _live(
    process: _Process,
    announce: Callable[[Listening, Address], None],
    announce_replica: Callable[[Address, Address], None],
) -> bool:
    """Open the store, run as a master, a replica or a single broker, and close the store. True: continue in another
    role."""
    config = process.config
    batch_topics = BatchTopics(config.store.directory, process.clock)
    store = await asyncio.to_thread(MessageStore.open, config.store, clock=process.clock, is_batch_topic=batch_topics)
    process.ready.store = store
    try:
        role = await asyncio.to_thread(_role, process, store)
        if role == "replica":
            return await _follow(process, store, batch_topics, announce_replica)
        return await _serve(process, store, batch_topics, announce, is_master=role == "master")
    finally:
        # Blocking, because nothing else runs: only the probes must still be answered.
        await asyncio.to_thread(store.close)


def _leadership(config: BrokerConfig) -> tuple[Leadership | None, asyncio.Task[None] | None]:
    """With a lease: its state in this broker, and the task that renews it."""
    replication = config.replication
    if not replication.has_lease:
        return None, None
    from aerobee_broker.replication.leadership import Leadership  # a single broker does not import replication

    lease = _lease(config)
    leadership = Leadership(lease, replication.broker_id, replication.lease_seconds)
    return leadership, asyncio.create_task(leadership.run(), name="lease")


def _lease(config: BrokerConfig) -> Lease:
    replication = config.replication
    timeout_seconds = replication.lease_seconds / 4
    if replication.kubernetes_lease:
        from aerobee_broker.replication.kubernetes import KubernetesAccess, KubernetesLease

        return KubernetesLease(
            KubernetesAccess.load(replication),
            replication.kubernetes_lease,
            replication.broker_id,
            replication.lease_seconds,
            timeout_seconds=timeout_seconds,
        )
    from aerobee_broker.replication.etcd import EtcdAccess, EtcdLease

    return EtcdLease(
        replication.etcd,
        f"{replication.etcd_prefix}/{config.cluster}/{config.name}",
        replication.broker_id,
        replication.lease_seconds,
        timeout_seconds=timeout_seconds,
        access=EtcdAccess.load(replication),
    )


def _role(process: _Process, store: MessageStore) -> Role:
    """The role in which the store is served next. Blocking."""
    config, leadership = process.config, process.leadership
    if config.replication.role == "none" and not store.file_system.exists(config.store.directory / ROLE_FILE_NAME):
        return "none"
    from aerobee_broker.replication import roles  # a single broker does not import replication

    if leadership is not None:
        roles.forget(config, store.file_system)
        return "master" if leadership.is_held else "replica"
    return "master" if process.promoted.is_set() else roles.check(config, store.file_system)


async def _follow(
    process: _Process, store: MessageStore, batch_topics: BatchTopics, announce: Callable[[Address, Address], None]
) -> bool:
    """Run as a replica until `stop` is set (False), or until its store must be reopened, as a replica or as the master
    (True)."""
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
        "reseeded": "the new copy of the master's log replaces the old one",
        "stopped": "stopping",
    }[outcome]
    if outcome == "promoted":
        await asyncio.to_thread(replica.become_master)
        process.promoted.set()
    elif outcome == "reseeded":
        await asyncio.to_thread(replica.order_exchange)
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
    settings, ready = Settings(process.config), process.ready
    runtime_settings = RuntimeSettings.load(settings, store)
    tables = Tables.load(settings, process.clock, store.file_system, store.in_disk_thread, store.stats)
    if not process.promoted.is_set():  # forced to be master without the tables, it has to go on without them
        tables.check_queues(store.queues())
    tables.count_memory(store.queues(), store.queue_ids)
    batch_topics.attach(tables.topics)
    parts = await _open_parts(process, store, tables, settings)
    remoting = RemotingService(parts)
    await asyncio.to_thread(remoting.open)
    process.metrics.attach(parts)
    is_deposed = False
    try:
        async with asyncio.TaskGroup() as tasks:
            running = _run_services(parts, remoting, tasks)
            await asyncio.sleep(0)  # the store's services are up before the first append
            master = await _open_master(process, parts) if is_master else None
            await parts.deliveries.adopt()
            store.limit_light_queues(tables.space.require_light_queues)
            store.count_deleted_topics(tables.space.count_deleted_topics)
            tables.space.opened()
            registrar = Registrar(settings, tables)
            cluster = ClusterRoutes(settings.current.name, lambda: registrar.connections, remoting.routes)
            replication = None if master is None else master.describe
            watch = Watch(
                parts,
                None if replication is None else partial(_replica_lags, replication),
                remoting.clients.consumer_groups,
            )
            running.append(tasks.create_task(watch.run(), name=watch.name))
            operations = Operations(store, parts.clock)
            running.append(tasks.create_task(operations.run(), name=operations.name))
            front = await _listen(parts, runtime_settings, remoting, cluster, master, watch, operations)
            serving = _Serving(process, parts, remoting, registrar, cluster, master, front)
            ends = [tasks.create_task(process.stop.wait())]
            try:
                await serving.start(tasks, running, ends)
                ready.reason = None
                if settings.current.listen.front != "native" or settings.current.listen.remoting is not None:
                    _load_deferred()
                announce(serving.front.listening, process.metrics_address)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)  # cancelled if a service dies
                losses = ends[1:]
                if process.stop.is_set():
                    ready.reason = "draining: the broker stops"
                    await serving.leave(lambda: any(loss.done() for loss in losses))
                is_deposed = any(loss.done() for loss in losses)
                ready.reason = "the lease is lost" if is_deposed else "draining: the broker stops"
                await serving.drain(is_deposed=is_deposed)
                await operations.save()
            finally:
                process.metrics.detach()
                ready.reason = ready.reason or "stopping: a service of the broker died"
                with suppress(asyncio.CancelledError):
                    await serving.stop()
            for task in (*running, *ends):
                task.cancel()
    except BaseExceptionGroup as group:
        cause = _first(group)
        if not isinstance(cause, ListenError):
            _log.critical("a service failed; the broker stops", exc_info=cause)
        raise cause from None
    return is_deposed


async def _open_parts(process: _Process, store: MessageStore, tables: Tables, settings: Settings) -> BrokerParts:
    """The parts of the broker, recovered from the store."""
    config, clock, accounts = settings.current, process.clock, process.accounts
    if not config.auto_create_topics and all(is_system_topic(topic.name) for topic in tables.topics):
        endpoint = config.listen.grpc.dialled if config.listen.grpc.port else "HOST:PORT"
        _log.info("there are no topics yet; create one with: aerobee topic create NAME --endpoint %s", endpoint)
    tables.warn_of_attributes()
    ledger = Ledger(config.limits)
    clients = ClientRegistry(clock, expiry_seconds=config.limits.client_expiry_seconds, ledger=ledger)
    deliveries = Deliveries(store, tables, clock, settings, connected=clients)
    if accounts is not None:
        accounts.changed_listeners.append(lambda: clients.hang_up(lambda client: accounts.still_good(client.account)))
    clients.gone_listeners.append(deliveries.client_gone)
    deliveries.lite.unsubscribed_listeners.append(clients.notify_unsubscribe_lite)
    await asyncio.to_thread(deliveries.open)
    timer = Timer(store, clock, config.timer, topics=tables.topics, loop_share=deliveries.loop_share)
    producers = Producers(clients, accounts)
    transactions = Transactions(store, tables, clock, settings, producers, timer)
    clients.producer_listeners.append(transactions.producer_ready)
    await asyncio.to_thread(transactions.open)
    await asyncio.to_thread(timer.open)
    level_delay = LevelDelay(store, clock, deliveries.loop_share)
    await asyncio.to_thread(level_delay.open)
    consumer_filters = ConsumerFilters(store, clock, config.delivery) if config.delivery.filter_bitmaps else None
    if consumer_filters is not None:
        await asyncio.to_thread(consumer_filters.open)
    counters = BrokerCounters()
    return BrokerParts(
        settings=settings,
        clock=clock,
        store=store,
        tables=tables,
        admission=Admission(settings, tables),
        clients=clients,
        accounts=accounts,
        deliveries=deliveries,
        consumer_filters=consumer_filters,
        timer=timer,
        level_delay=level_delay,
        producers=producers,
        transactions=transactions,
        deleted_letters=await asyncio.to_thread(DeletedLetters, store),
        counters=counters,
        broker_stats=BrokerStats(counters, tables, store, clock, deliveries.read_offset),
        loop_delay=LoopDelay(),
        ledger=ledger,
    )


def _run_services(parts: BrokerParts, remoting: RemotingService, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
    """Start the services that run beside the requests, as tasks of the group."""
    return [
        tasks.create_task(parts.store.run(), name="store"),
        *(
            tasks.create_task(service.run(), name=service.name)
            for service in (
                parts.deliveries,
                parts.transactions,
                parts.timer,
                parts.level_delay,
                parts.clients,
                parts.tables,
                *(() if parts.consumer_filters is None else (parts.consumer_filters,)),
                parts.broker_stats,
                remoting,
                parts.loop_delay,
                GarbageCollection(),
            )
        ),
    ]


def _replica_lags(replication: Callable[[], admin_v1.BrokerReplication]) -> dict[str, int]:
    return {replica.id: replica.lag_bytes for replica in replication().replicas}


async def _open_master(process: _Process, parts: BrokerParts) -> MasterBroker:
    from aerobee_broker.replication import master_broker  # a single broker does not import replication

    return await master_broker.MasterBroker.open(parts.settings.current, parts.store, process.leadership, parts.ledger)


class _GrpcFront(Struct, frozen=True, kw_only=True):
    """The gRPC server and its addresses.

    `leaving` removes the broker from routes, and ends streams of health; `draining` ends streams of reflection and
    records.
    """

    server: Server
    listening: Listening
    leaving: Gate
    draining: Gate


async def _listen(
    parts: BrokerParts,
    runtime_settings: RuntimeSettings,
    remoting: RemotingService,
    cluster: ClusterRoutes,
    master: MasterBroker | None,
    watch: Watch,
    operations: Operations,
) -> _GrpcFront:
    """Bind the ports and serve every service on them. Raises ListenError."""
    config = parts.settings.current
    limits = RequestLimits(parts.ledger.requests, parts.ledger.answers, body_size_max=config.store.body_size_max)
    remoting_address = None if config.listen.remoting is None else await remoting.listen(config.listen.remoting)
    methods: dict[str, Method] = {}  # complete before the loop accepts the first connection
    server: Server
    if config.listen.front == "native":
        server = front = Front(
            methods,
            config.front,
            parts.counters.front,
            protocols=(remoting.protocol(),),
            ledger=parts.ledger,
            first_connection=_load_deferred if config.listen.remoting is None else lambda: None,
        )
        try:
            listening = listen_native(front, config)
        except BaseException:
            front.close()
            raise
    else:
        from aerobee_broker.listening.grpcio_listeners import listen_grpcio

        server, listening = listen_grpcio(methods, config, request_size_max=limits.request_size_max)

    listening, wakes = replace(listening, remoting=remoting_address), Wakes()
    leaving, draining = Gate(wakes, is_open=False), Gate(wakes, is_open=False)
    methods |= grpc_methods(
        parts,
        limits,
        runtime_settings,
        remoting,
        listening,
        cluster,
        None if master is None else master.describe,
        watch,
        operations,
        leaving,
        draining,
        server.hang_up,
    )
    if master is not None:  # a replica that gets no answer about epochs takes the master for one of RocketMQ
        remoting.add(master.handlers)
    await server.start()
    return _GrpcFront(server=server, listening=listening, leaving=leaving, draining=draining)


class _Serving:
    """A serving broker, with its replicas and name servers, until it drains."""

    def __init__(
        self,
        process: _Process,
        parts: BrokerParts,
        remoting: RemotingService,
        registrar: Registrar,
        cluster: ClusterRoutes,
        master: MasterBroker | None,
        front: _GrpcFront,
    ) -> None:
        self.front = front
        self._process = process
        self._parts = parts
        self._remoting = remoting
        self._master = master
        self._registrar = registrar
        self._cluster = cluster
        self._collectors: list[MasterCollector] = []

    async def start(
        self, tasks: asyncio.TaskGroup, running: list[asyncio.Task[None]], ends: list[asyncio.Task[Any]]
    ) -> None:
        """Serve replicas and register with name servers, if configured; adds tasks to `running`, and to `ends` those
        with which serving ends."""
        listening = self.front.listening
        address = listening.remoting
        if address is not None:
            await self._remoting.server.listen_fast(address)
        if self._master is not None:
            assert address is not None, "checked by the configuration"
            await self._master.start(self._registrar, address)
            ends.append(tasks.create_task(self._master.keep_lease(), name="lease-keeping"))
            collector = self._master.collector
            self._collectors.append(collector)
            self._process.metrics.collectors.append(collector)
        if self._parts.settings.current.name_servers:
            assert address is not None, "checked by the configuration"
            self._registrar.listening(address, listening)
            running.append(tasks.create_task(self._registrar.run(), name=self._registrar.name))

    async def leave(self, is_deposed: Callable[[], bool]) -> None:
        """Leave the routes, and serve on while clients that have fetched them earlier may still come.

        The wait is for clients that can go to other brokers of the cluster. It ends after `listen.leave_seconds`, when
        no client is connected, when the master is deposed, or when the stop is hurried.
        """
        config, hurry = self._parts.settings.current, self._process.hurry
        self.front.leaving.set()
        ends = asyncio.get_running_loop().time() + config.listen.leave_seconds
        if not config.listen.leave_seconds or not await self._cluster.has_others():
            return
        _log.info("broker leaving the routes; it serves on for at most %g s", config.listen.leave_seconds)
        self._remoting.leave_routes()
        await self._registrar.unregister()
        while self._has_clients() and not is_deposed() and not hurry.is_set():
            remaining = ends - asyncio.get_running_loop().time()
            if remaining <= 0:
                break
            with suppress(TimeoutError):  # connections tell nobody of their end
                async with asyncio.timeout(min(remaining, _LOOK_SECONDS)):
                    await hurry.wait()

    def _has_clients(self) -> bool:
        count = self.front.server.connection_count
        return bool(self._remoting.clients or (len(self._parts.clients) if count is None else count))

    async def drain(self, *, is_deposed: bool) -> None:
        """Answer the calls in flight, then save everything. A deposed master neither answers nor appends."""
        _log.info("broker draining")
        parts = self._parts
        self.front.leaving.set()
        self.front.draining.set()
        await self._registrar.close()
        parts.deliveries.long_polling.drain()
        parts.clients.close_streams()
        await self._end_calls(0 if is_deposed else parts.settings.current.listen.drain_seconds)
        await parts.timer.close()
        if not is_deposed:  # these append to the log
            await parts.deliveries.close()
            await parts.transactions.close()
        await parts.tables.save_all()
        if parts.consumer_filters is not None:
            await parts.consumer_filters.close()

    async def _end_calls(self, grace_seconds: float) -> None:
        """Refuse new calls, and give running calls this much time, until the stop is hurried."""
        servers = self.front.server, self._remoting.server
        hurry = asyncio.create_task(self._process.hurry.wait(), name="hurry")
        ended = asyncio.gather(*(server.stop(grace_seconds) for server in servers))
        try:
            await asyncio.wait((hurry, ended), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await asyncio.gather(*(server.stop(0) for server in servers))
            await ended
        finally:
            hurry.cancel()
            ended.cancel()

    async def stop(self) -> None:
        """Stop everything that still runs, at once."""
        await self.front.server.stop(0)
        await self._remoting.server.stop(0)
        if self._master is not None:
            await self._master.stop()
        for collector in self._collectors:
            self._process.metrics.collectors.remove(collector)


def _load_deferred() -> None:
    """Import, in a thread, the modules that are needed to serve clients but not by an idle broker."""
    threading.Thread(target=load_deferred, name="aerobee-imports", daemon=True).start()


def _warn(config: BrokerConfig) -> None:
    if config.ignored_rocketmq_keys:
        from aerobee_broker.config.rocketmq_conf import INSTEAD

        named = [f"{key} ({INSTEAD[key]})" if key in INSTEAD else key for key in config.ignored_rocketmq_keys]
        _log.warning("settings of broker.conf without an equivalent are ignored: %s", ", ".join(named))
    if config.ignored_log_paths:
        _log.warning(
            "the log of %s is in this directory; paths of the log are ignored that the settings file names for another "
            "store: %s. If they are this store's, name them in AEROBEE_STORE_COMMIT_LOG_PATHS, or make store.directory "
            "(storePathRootDir) in the file the same",
            config.store.directory,
            ", ".join(map(str, config.ignored_log_paths)),
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
