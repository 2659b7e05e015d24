"""A broker as a replica: follows its master, copies its tables, and answers what a replica may, until it is promoted.

    log        Follower, over one connection at a time; with pauses that grow between attempts
    tables     Metadata, every few seconds
    clients    pulls, offsets and queries of RocketMQ's older protocol; sends are refused, so producers go elsewhere
    operators  status, epochs, promotion

Whose log is copied is known before the first byte: the last record here must be the master's at the same place. A
master of ours also tells its epochs, so it is known where two logs differ, and which one is older.

A replica appends nothing of its own, so it runs neither deliveries nor timers, and its store refuses every append but
those of the follower. A promotion ends this part of the
broker; the store is closed, opened again, and served as by any master.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.config import Address, Settings
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import BrokerError
from aerobee_broker.metrics.counters import BrokerCounters
from aerobee_broker.namesrv.registrar import Registrar
from aerobee_broker.remoting.clients import RemotingClients
from aerobee_broker.remoting.codes import Answer, Request
from aerobee_broker.remoting.connection import Connection, Handler, RemotingServer
from aerobee_broker.remoting.errors import RemotingError
from aerobee_broker.remoting.fields import answer
from aerobee_broker.remoting.frame import Command
from aerobee_broker.remoting.offsets import OffsetRequests
from aerobee_broker.remoting.permissions import Permissions
from aerobee_broker.remoting.pull import PullRequests
from aerobee_broker.remoting.queries import QueryRequests
from aerobee_broker.replication import roles
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.follower import DivergedError, Follower
from aerobee_broker.replication.frames import Protocol
from aerobee_broker.replication.metadata import Metadata
from aerobee_broker.replication.requests import ReplicationRequests
from aerobee_broker.tables.tables import Tables
from aerobee_store import CorruptRecordError, LogMismatchError, MessageStore, RecordNotFoundError, StoreFullError
from aerobee_store.clock import Clock
from aerobee_store.records import record
from aerobee_store.running_flags import RunningFlags
from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import Bean

_log = logging.getLogger(__name__)

METADATA_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 5.0
_PAUSE_SECONDS_MAX: Final = 5.0
_SEGMENT_KEYS: Final = ("mappedFileSizeCommitLog", "store.segment_size")
_SENDS: Final = (
    Request.SEND_MESSAGE,
    Request.SEND_MESSAGE_V2,
    Request.SEND_BATCH_MESSAGE,
    Request.CONSUMER_SEND_MESSAGE_BACK,
    Request.SEND_REPLY_MESSAGE,
    Request.SEND_REPLY_MESSAGE_V2,
    Request.END_TRANSACTION,
    Request.UPDATE_CONSUMER_OFFSET,
    Request.LOCK_BATCH_MQ,
    Request.UNLOCK_BATCH_MQ,
)


class ReplicaBroker:
    """One broker, while it is a replica. `serve` ends with a promotion, or cancelled."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        epochs: Epochs,
        accounts: Accounts | None,
        clock: Clock,
    ) -> None:
        self._config = config = settings.current
        self._store = store
        self._tables = tables
        self._epochs = epochs
        self._metadata = Metadata(store, tables, clock)
        self._permissions = Permissions(accounts, store)
        self._server = RemotingServer(self._handle)
        self._promoted = asyncio.Event()
        self._known: tuple[str, str] | None = None  # the master's remoting and replication addresses, of name servers
        self._follower: Follower | None = None
        self._last_error = ""
        replication = config.replication
        self.registrar = Registrar(settings, tables, broker_id=replication.broker_id)
        self.registrar.answered = self._hear
        self._deliveries = Deliveries(store, tables, clock, settings, connected=())
        store.retention_listeners.clear()  # what deliveries would save first is the master's business
        store.running.set(RunningFlags.NOT_WRITEABLE, "this broker is a replica; send to its master")
        clients = RemotingClients(settings, tables, clock)
        offsets = OffsetRequests(store, tables, self._deliveries)
        pull = PullRequests(settings, store, tables, self._deliveries, clients, offsets, BrokerCounters())
        queries = QueryRequests(store, tables, self._deliveries.loop_share)
        self.requests = ReplicationRequests(config, store, epochs, replication.broker_id)
        self.requests.following = self._status
        self.requests.promote = self._promote
        self._handlers: dict[int, Handler] = {
            **dict.fromkeys(_SENDS, _refuse),
            Request.PULL_MESSAGE: pull.pull,
            Request.LITE_PULL_MESSAGE: pull.pull,
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
            Request.GET_ALL_TOPIC_CONFIG: self._topics,
            Request.GET_ALL_CONSUMER_OFFSET: self._offsets,
            Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: self._groups,
            **self.requests.handlers,
        }

    async def listen(self) -> Address:
        """Bind the remoting address; the one that was bound. ListenError."""
        assert self._config.listen.remoting is not None, "the configuration says so"
        bound = await self._server.listen("listen.remoting", self._config.listen.remoting)
        self.registrar.listening(bound)
        return bound

    async def serve(self, stop: asyncio.Event) -> bool:
        """Follow until `stop` is set or the replica is promoted (True). Its services end with it."""
        async with asyncio.TaskGroup() as tasks:
            services = [
                tasks.create_task(self._store.run(), name="store"),
                tasks.create_task(self._follow_log(), name="replica"),
                tasks.create_task(self._follow_tables(), name="replica-tables"),
            ]
            if self._config.name_servers:
                services.append(tasks.create_task(self.registrar.run(), name=self.registrar.name))
            waits = [tasks.create_task(event.wait()) for event in (stop, self._promoted)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                await self.registrar.unregister()
                self._deliveries.long_polling.drain()
                await self._server.stop(self._config.listen.drain_seconds)
                services[1].cancel()
                services[2].cancel()
                await asyncio.gather(*services[1:3], return_exceptions=True)
                await self._tables.save_all()
            finally:
                for task in (*services, *waits):
                    task.cancel()
        return self._promoted.is_set()

    def become_master(self) -> None:
        """Note the new role and begin an epoch. The store is closed; nobody writes to the log. Blocking."""
        self._epochs.begin(self._epochs.last + 1, self._store.positions[0])
        roles.save(self._config, self._store.file_system, "master")
        _log.warning("promoted to master epoch=%d end=%d", self._epochs.last, self._store.positions[0])

    # --- The log ----------------------------------------------------------------------------------------------

    async def _follow_log(self) -> None:
        pause = 0.1
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._follow_once()
            except DivergedError as error:
                self._note(
                    f"{error}; nothing was deleted. Move the store away and let the replica begin anew, or keep it"
                )
                pause = _PAUSE_SECONDS_MAX
            except (OSError, TimeoutError, BrokerError, LogMismatchError, StoreFullError) as error:
                self._note(str(error) or type(error).__name__)
            if asyncio.get_running_loop().time() - began > _PAUSE_SECONDS_MAX:
                pause = 0.1  # it went well for a while
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _note(self, cause: str) -> None:
        if cause != self._last_error:
            _log.warning("not following the master cause=%s; retrying", cause)
        self._last_error = cause

    async def _follow_once(self) -> None:
        master, ha = self._addresses()
        connection = await self._connect(master)
        try:
            protocol = await self._protocol(connection)
            await self._compare_last_record(connection)
            if protocol == "plain":
                await self._begin(connection)
            if ha is None:
                ha = await self._ha_address(connection)
        finally:
            connection.close()
        self._follower = follower = Follower(self._store, self._epochs, protocol, self._config.replication.broker_id)
        _log.info("following the master address=%s protocol=%s from=%d", ha, protocol, self._store.positions[0])
        self._last_error = ""
        try:
            await follower.run(ha)
        finally:
            self._follower = None

    def _addresses(self) -> tuple[Address, Address | None]:
        replication = self._config.replication
        remoting = replication.master or (self._known[0] if self._known else "")
        ha = replication.master_ha or (self._known[1] if self._known and not replication.master else "")
        if not remoting:
            raise BrokerError("no name server knows a master with this broker's name yet")
        return Address.parse(remoting), Address.parse(ha) if ha else None

    def _hear(self, registered: Command) -> None:
        """What a name server answers to the registration of a replica."""
        master, ha = registered.fields.get("masterAddr"), registered.fields.get("haServerAddr")
        if master and ha:
            if self._known not in (None, (master, ha)):
                _log.info("the master has changed address=%s replication=%s", master, ha)
            self._known = master, ha

    async def _connect(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_ANSWER_SECONDS):
            _, connection = await loop.create_connection(self._server.connection, address.host, address.port)
        return connection

    async def _protocol(self, master: Connection) -> Protocol:
        """A broker of ours has epochs."""
        answered = await master.ask(Command(Request.GET_BROKER_EPOCH_CACHE), _ANSWER_SECONDS)
        return "epochs" if answered.code == Answer.SUCCESS else "plain"

    async def _ha_address(self, master: Connection) -> Address:
        answered = await master.ask(Command(Request.EXCHANGE_BROKER_HA_INFO), _ANSWER_SECONDS)
        text = answered.fields.get("masterHaAddress")
        if answered.code != Answer.SUCCESS or not text:
            raise BrokerError(
                f"{self._config.replication.master} did not report its replication address; set replication.master_ha"
            )
        return Address.parse(text)

    async def _compare_last_record(self, master: Connection) -> None:
        """Raise DivergedError if the last record here is not what the master has at its place."""
        end = self._store.positions[0]
        last = self._last_record()
        if last is None:
            return
        fields = {"offset": str(last.physical_offset), "topic": last.topic}
        answered = await master.ask(Command(Request.VIEW_MESSAGE_BY_ID, fields=fields), _ANSWER_SECONDS)
        if answered.code != Answer.SUCCESS or answered.body != self._store.record_bytes(last):
            raise DivergedError(last.physical_offset, end)

    def _last_record(self) -> record.Record | None:
        """The record that ends the log, by the queues; None if the log is empty."""
        best = -1
        for topic, queue_ids in self._store.queues().items():
            for queue_id in queue_ids:
                low, high = self._store.queue_range(topic, queue_id)
                if high > low and (place := self._store.physical_offset_at(topic, queue_id, high - 1)) is not None:
                    best = max(best, place)
        try:
            return None if best < 0 else self._store.record_at(best)
        except (RecordNotFoundError, CorruptRecordError):
            return None

    async def _begin(self, master: Connection) -> None:
        """Let an empty log begin where the master's does. A master of RocketMQ's that is told 0 would leave out all but
        its newest segment, so it is never told so."""
        if self._store.positions[0]:
            return
        answered = await master.ask(Command(Request.GET_BROKER_RUNTIME_INFO), _ANSWER_SECONDS)
        content = java_json.loads(answered.body, object_keys=True) if answered.body else {}
        table = content.get("table") if isinstance(content, dict) else None
        begin = int(str(table.get("commitLogMinOffset", "0"))) if isinstance(table, dict) else 0
        if begin > 0:
            self._store.follower.begin_at(begin)
            return
        first = await master.ask(Command(Request.VIEW_MESSAGE_BY_ID, fields={"offset": "0"}), _ANSWER_SECONDS)
        if first.code == Answer.SUCCESS and first.body:
            end = self._store.follower.receive(0, first.body)
            await self._store.wait_stored(end, durable=True)

    # --- The tables -------------------------------------------------------------------------------------------

    async def _follow_tables(self) -> None:
        while True:
            with suppress(OSError, TimeoutError):
                try:
                    master = await self._connect(self._addresses()[0])
                    try:
                        while master.is_open:
                            await self._metadata.copy(master)
                            await asyncio.sleep(METADATA_SECONDS)
                    finally:
                        master.close()
                except BrokerError as error:
                    _log.debug("tables not copied cause=%s", error)
            await asyncio.sleep(1.0)

    # --- Requests ---------------------------------------------------------------------------------------------

    async def _handle(self, request: Command, connection: Connection) -> Command | None:
        handler = self._handlers.get(request.code)
        if handler is None:
            raise RemotingError(
                Answer.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported by a replica; ask the master",
            )
        self._permissions.check(request)
        return await handler(request, connection)

    async def _topics(self, _request: Command, _: Connection) -> Command:
        return answer(body=self._tables.topics.snapshot())

    async def _groups(self, _request: Command, _: Connection) -> Command:
        return answer(body=self._tables.groups.snapshot())

    async def _offsets(self, _request: Command, _: Connection) -> Command:
        return answer(body=self._tables.offsets.snapshot())

    @property
    def is_connected(self) -> bool:
        return self._follower is not None

    @property
    def lag_bytes(self) -> int:
        """Durable bytes of the master's log, as far as is known, that are not on this disk."""
        end = self._store.positions[2]
        return 0 if self._follower is None else max(self._follower.master_end - end, 0)

    def _status(self) -> Bean:
        follower, end = self._follower, self._store.positions[2]
        try:
            master = str(self._addresses()[0])
        except BrokerError:
            master = ""
        return Bean(
            connected=self.is_connected,
            lag=self.lag_bytes,
            lastError=self._last_error,
            lastReadTimestamp=0,
            lastWriteTimestamp=0,
            masterAddr=master,
            masterFlushOffset=end if follower is None else max(follower.master_end, end),
            maxOffset=end,
            tablesCopied=self._metadata.copied,
            transferredByteInSecond=0,
        )

    def _promote(self) -> None:
        self.requests.promote = None
        self._promoted.set()


async def _refuse(_request: Command, _: Connection) -> Command:
    raise RemotingError(
        Answer.SYSTEM_BUSY, "[REJECTREQUEST]this broker is a replica; send to the master that the name servers report"
    )
