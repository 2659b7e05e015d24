"""A broker as a replica: follows its master, copies its tables, and serves reads, until it is promoted.

    log        Follower, over one connection at a time, with growing pauses between attempts
    lease      if configured: its holder is followed, and replaced when the lease ends; a diverged tail is set aside
    tables     Metadata, every few seconds
    clients    pulls, offsets and queries of RocketMQ's older protocol; sends are refused, so producers go elsewhere
    operators  status, epochs, promotion

The log is compared with the master's before the first byte: the last record here must be the same there. An Aerobee
master also sends its epochs, which show where two logs differ and which one is older.

A log that ends before the master's begins cannot be continued. The replica then makes a new copy of the whole log
beside it (`new_copy.py`), and serves the old one until the new one is complete.

A replica appends no records of its own, so it runs neither deliveries nor timers, and its store refuses all appends
except the follower's. A promotion ends this part of the broker; the store is closed, opened again and served by a
master. The store is also reopened to set a tail aside, and to exchange the copies of the log.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from aerobee_broker.backoff import Backoff
from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.config import Address, Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import BrokerError
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.listening.peers import Peers
from aerobee_broker.namesrv.registrar import Registrar
from aerobee_broker.remoting.clients import RemotingClients
from aerobee_broker.remoting.offsets import OffsetRequests
from aerobee_broker.remoting.permissions import Permissions
from aerobee_broker.remoting.pull import PullRequests
from aerobee_broker.remoting.queries import QueryRequests
from aerobee_broker.remoting.service import reading_handlers
from aerobee_broker.remoting.whole_tables import WholeTables
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, Handler, RemotingServer
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.replication import new_copy, roles
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.follower import DivergedError, Follower
from aerobee_broker.replication.frames import Protocol
from aerobee_broker.replication.leadership import Leadership, is_member, note_member
from aerobee_broker.replication.lease import LeaseConflictError, LeaseUnavailableError, LeaseView
from aerobee_broker.replication.master_log import (
    ANSWER_SECONDS,
    Extent,
    MasterEpochs,
    begin,
    check_origin,
    compare_epochs,
    compare_last_record,
    epochs_of,
    extent_of,
    queue_ends,
)
from aerobee_broker.replication.metadata import Metadata
from aerobee_broker.replication.requests import ReplicationRequests, diverged_tails
from aerobee_broker.tables.table_files import BatchTopics, Tables
from aerobee_store import LogMismatchError, MessageStore, StoreFullError, SyncTimeoutError
from aerobee_store.clock import Clock
from aerobee_store.durability import log_cut, reseed
from aerobee_store.running_flags import RunningFlags
from aerobee_store.tables.java_json import Bean

_log = logging.getLogger(__name__)

Outcome = Literal["stopped", "promoted", "cut", "reseeded"]
"""The ways in which a replica ends: the process stops, it becomes the master, or its store is reopened to set a tail
aside, or to exchange its log for a new copy."""

METADATA_SECONDS: Final = 3.0
_PAUSE_SECONDS_MAX: Final = 5.0
_DISPATCH_SECONDS: Final = 5.0
_KNOWN_SECONDS: Final = 30.0  # how long the end of the master's log counts as known after its last answer
_PAUSE_SECONDS_MAX_LEASE: Final = 0.5  # the master's messages may wait for this replica
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


class _Master(NamedTuple):
    """A master, asked at the beginning of an attempt to follow it."""

    connection: Connection
    ha: Address | None
    epochs: MasterEpochs | None
    begin: int
    """Where its log begins; 0 if it does not say."""

    @property
    def protocol(self) -> Protocol:
        """Aerobee's masters have epochs."""
        return "plain" if self.epochs is None else "epochs"


class ReplicaBroker:
    """One broker while it is a replica. `serve` ends with a promotion, or when cancelled."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        epochs: Epochs,
        accounts: Accounts | None,
        clock: Clock,
        leadership: Leadership | None = None,
    ) -> None:
        self._config = config = settings.current
        self._store = store
        self._tables = tables
        self._epochs = epochs
        self._clock = clock
        self._metadata = Metadata(store, tables, clock)
        self._whole_tables = WholeTables(asyncio.Lock())  # for another replica
        self._was_replica = self._metadata.is_complete
        self._peers = Peers.load(config.peers)
        self._server = RemotingServer(self._handle, ledger=Ledger(config.limits), identity=self._peers)
        self._leadership = leadership
        self._view: LeaseView | None = None
        self._ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._known: tuple[str, str] | None = None  # the master's remoting and replication addresses, from name servers
        self._follower: Follower | None = None
        self._followed = store
        """The store whose log is copied: this replica's, or a new copy beside it."""
        self._extent: Extent | None = None  # of the master that is followed, and when it was heard
        self._heard_at = 0.0
        self.is_reseeding = reseed.has_begun(store.file_system, config.store)
        self._following: asyncio.Task[None] | None = None
        self._last_error = ""
        self._answered_before = -1  # the furthest that masters may have answered messages; -1: nothing is known
        replication = config.replication
        self.registrar = Registrar(settings, tables, broker_id=replication.broker_id)
        self.registrar.answered = self._hear
        self._deliveries = Deliveries(store, tables, clock, settings, connected=())
        store.retention_listeners.clear()  # the master saves delivery state before retention
        store.running.set(RunningFlags.NOT_WRITEABLE, "this broker is a replica; send to its master")
        clients = RemotingClients(settings, tables, clock)
        self._permissions = Permissions(accounts, store, clients.owner_of, self._peers)
        offsets = OffsetRequests(store, tables, self._deliveries)
        pull = PullRequests(settings, store, tables, self._deliveries, clients, offsets, BrokerCounters(), None)
        queries = QueryRequests(store, self._deliveries.loop_share)
        self.requests = ReplicationRequests(config, store, epochs, replication.broker_id)
        self.requests.following = self._status
        self.requests.promote = self._promote if leadership is None else self._refuse_promotion
        self.requests.leadership = leadership
        self._handlers: dict[int, Handler] = {
            **dict.fromkeys(_SENDS, _refuse),
            Request.PULL_MESSAGE: pull.pull,
            Request.LITE_PULL_MESSAGE: pull.pull,
            **reading_handlers(queries, offsets, clients),
            Request.GET_ALL_TOPIC_CONFIG: self._topics,
            Request.GET_ALL_CONSUMER_OFFSET: self._offsets,
            Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: self._groups,
            **self.requests.handlers,
        }

    async def listen(self) -> Address:
        """Bind the remoting address and return it. Raises ListenError."""
        assert self._config.listen.remoting is not None, "checked by the configuration"
        bound = await self._server.listen("listen.remoting", self._config.listen.remoting)
        await self._server.listen_fast(bound)
        self.registrar.listening(bound)
        return bound

    async def serve(self, stop: asyncio.Event) -> Outcome:
        """Follow until `stop` is set, the replica is promoted, or its log must be cut. Ends its services on return."""
        async with asyncio.TaskGroup() as tasks:
            services = [
                tasks.create_task(self._store.run(), name="store"),
                tasks.create_task(self._follow_log(), name="replica"),
                tasks.create_task(self._follow_tables(), name="replica-tables"),
            ]
            if self._config.name_servers:
                services.append(tasks.create_task(self.registrar.run(), name=self.registrar.name))
            if self._leadership is not None:
                services.append(tasks.create_task(self._follow_lease(self._leadership), name="replica-lease"))
            stopping = tasks.create_task(stop.wait())
            try:
                await asyncio.wait((stopping, self._ended), return_when=asyncio.FIRST_COMPLETED)
                await self.registrar.close()
                self._deliveries.long_polling.drain()
                await self._server.stop(self._config.listen.drain_seconds)
                services[1].cancel()
                services[2].cancel()
                await asyncio.gather(*services[1:3], return_exceptions=True)
                if self._ended.done() and self._ended.result() == "promoted":
                    await self._store_dispatched()
                    await self._metadata.follow_deletions()
                    self._metadata.restore_topics()
                await self._tables.save_all()
            finally:
                for task in (*services, stopping):
                    task.cancel()
        return self._ended.result() if self._ended.done() else "stopped"

    async def _store_dispatched(self) -> None:
        """Return when the queues have everything in the log; after five seconds in any case."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISPATCH_SECONDS):
                while self._store.positions[3] < self._store.positions[1]:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)

    def become_master(self) -> None:
        """Save the new role and begin an epoch. The services of the store have ended, so nothing else writes to the
        log.

        Blocking.
        """
        end = self._store.positions[0]
        reseed.discard(self._store.file_system, self._config.store)
        if self._leadership is None:
            self._epochs.begin(self._epochs.last + 1, end)
            roles.save(self._config, self._store.file_system, "master")
        else:
            assert self._leadership.claim is not None, "the lease was taken"
            self._epochs.begin(self._leadership.claim.epoch, end)
        _log.warning("promoted to master epoch=%d end=%d", self._epochs.last, self._store.positions[0])

    def order_exchange(self) -> None:
        """Let the new copy of the log replace the old one at the next opening. It is complete, and closed. Blocking."""
        reseed.order(self._store.file_system, self._config.store)
        _log.warning(
            "the new copy of the master's log replaces the old one, which ended at %d", self._store.positions[0]
        )

    # --- The lease --------------------------------------------------------------------------------------------

    async def _follow_lease(self, leadership: Leadership) -> None:
        """Follow the holder of the lease, and take the lease when it is free."""
        file_system, directory = self._store.file_system, self._config.store.directory
        pause = min(leadership.lease_seconds / 20, 1.0)
        while True:
            try:
                view = self._view = await leadership.look()
                was_member = await self._store.in_disk_thread(is_member, file_system, directory)
                if not was_member and view.claim is not None and leadership.broker_id in view.claim.in_sync:
                    await self._leave(leadership, view)
                    continue
                self._hear_of_master(view)
                is_first = view.claim is None and self._config.replication.role == "master"
                if is_first or leadership.may_take(view, is_member=was_member, last_epoch=self._epochs.last):
                    await self._store.in_disk_thread(note_member, file_system, directory, leadership.broker_id)
                    if await leadership.take(view, self._epochs.last):
                        self._end("promoted")
                        return
                elif not was_member and view.claim is not None:
                    await self._store.in_disk_thread(note_member, file_system, directory, leadership.broker_id)
                leadership.last_error = ""
            except LeaseConflictError as error:
                _log.info("lease was changed by another broker cause=%s", error)
            except LeaseUnavailableError as error:
                if not leadership.last_error:
                    _log.warning("lease not readable cause=%s; retrying", error)
                leadership.last_error = str(error)
            await asyncio.sleep(pause)

    async def _leave(self, leadership: Leadership, view: LeaseView) -> None:
        """Leave the in-sync set: this store is not the one that the group knows, so it may lack messages."""
        assert view.claim is not None, "this broker is in it"
        if view.claim.in_sync == {leadership.broker_id}:
            self._note(
                f"this store is new, and broker {leadership.broker_id} was the only one in sync: no other broker has "
                f"all messages. Restore its store; or accept the loss of messages: remove "
                f"{self._config.replication.lease_place}, and start the broker with the longest log with the role "
                f"master"
            )
            await asyncio.sleep(_PAUSE_SECONDS_MAX)
            return
        _log.warning("this store is new; broker %d is no longer in sync", leadership.broker_id)
        await leadership.leave(view)

    def _hear_of_master(self, view: LeaseView) -> None:
        holder = view.holder
        known = None if holder is None or not holder.remoting else (holder.remoting, holder.replication)
        if known != self._known:
            self._known = known
            if self._following is not None:
                self._following.cancel()  # another master

    def _end(self, outcome: Outcome) -> None:
        if not self._ended.done():
            self._ended.set_result(outcome)

    # --- The log ----------------------------------------------------------------------------------------------

    async def _follow_log(self) -> None:
        backoff = Backoff(0.1, _PAUSE_SECONDS_MAX if self._leadership is None else _PAUSE_SECONDS_MAX_LEASE)
        while True:
            backoff.begin()
            has_diverged = False
            try:
                await self._follow_until_other_master()
            except DivergedError as error:
                if await self._set_aside(error):
                    return
                self._note(
                    f"{error}; nothing was deleted. Move the store away, so that the replica starts with an empty one, "
                    f"or keep it"
                )
                has_diverged = True
            except (OSError, TimeoutError, BrokerError, LogMismatchError, StoreFullError, SyncTimeoutError) as error:
                self._note(str(error) or type(error).__name__)
            if self._ended.done():
                return
            await asyncio.sleep(backoff.failed(is_hopeless=has_diverged))

    async def _follow_until_other_master(self) -> None:
        """Raises like `_follow_once`; returns if another broker takes the lease."""
        following = self._following = asyncio.create_task(self._follow_once(), name="replica-connection")
        try:
            await asyncio.wait((following,))
        finally:
            self._following = None
            following.cancel()
            await asyncio.wait((following,))
        if not following.cancelled() and (error := following.exception()) is not None:
            raise error

    async def _set_aside(self, error: DivergedError) -> bool:
        """With a lease: order the tail that only this log has to be set aside. None of it was confirmed."""
        view, offset = self._view, error.offset
        if self._leadership is None or view is None or view.claim is None or view.holder is None:
            return False
        # A log without anything in common with the master's is a configuration error, not the result of a fail-over.
        if error.master_epoch != view.claim.epoch or not self._store.min_physical_offset < offset < error.end:
            return False
        if self._leadership.broker_id in view.claim.in_sync or not self._store.is_boundary(offset):
            return False
        _log.warning("log diverged from the master's offset=%d end=%d; the tail is set aside", offset, error.end)
        await self._store.in_disk_thread(log_cut.order, self._store.file_system, self._config.store.directory, offset)
        self._end("cut")
        return True

    def _note(self, cause: str) -> None:
        if cause != self._last_error:
            _log.warning("not following the master cause=%s; retrying", cause)
        self._last_error = cause

    async def _follow_once(self) -> None:
        address, ha = self._addresses()
        connection = await self._connect(address)
        try:
            epochs = await epochs_of(connection)
            host = connection.peer[0]
            if epochs is None and self._peers.key is not None and not self._peers.names(host):
                raise BrokerError(
                    f"{address} did not answer a signed request for its epochs, so it has another secret, or is a "
                    f"RocketMQ: compare peers.secret_key_file, or name {host} in peers.addresses"
                )
            extent = await extent_of(connection)
            self._hear_extent(extent)
            master = _Master(connection, ha, epochs, 0 if extent is None else extent.begin)
            if 0 < self._store.positions[0] < master.begin:
                await self._copy_anew(master)
            else:
                await self._discard_copy()
                await self._follow(master, self._store, self._epochs)
        finally:
            connection.close()

    async def _follow(self, master: _Master, store: MessageStore, epochs: Epochs, *, is_learner: bool = False) -> None:
        """Continue the log of `store`, until that is no longer possible."""
        connection, protocol = master.connection, master.protocol
        compare_epochs(store, epochs.all, master.epochs)
        await compare_last_record(store, connection)
        if protocol == "plain" and not store.positions[0]:
            await begin(store, connection, master.begin)
        ha = master.ha or await self._ha_address(connection)
        connection.close()
        follower = Follower(
            store,
            epochs,
            protocol,
            self._config.replication.broker_id,
            peers=self._peers,
            is_learner=is_learner,
        )
        _log.info("following the master address=%s protocol=%s from=%d", ha, protocol, store.positions[0])
        self._last_error = ""
        self._follower, self._followed = follower, store
        try:
            await follower.run(ha)
        finally:
            self._answered_before = max(self._answered_before, self._answered())
            self._follower, self._followed = None, self._store

    # --- A new copy of the log --------------------------------------------------------------------------------

    async def _copy_anew(self, master: _Master) -> None:
        """Make a new copy of the master's log, and end this replica when it is complete."""
        store = self._store
        ends = await queue_ends(master.connection, sorted({*store.queues(), *(t.name for t in self._tables.topics)}))
        check_origin(store, self._epochs.all, master.epochs, ends, was_replica=self._was_replica)
        extent = await extent_of(master.connection)  # after the ends of the queues
        if extent is None:
            raise BrokerError("the master does not report the extent of its log any more")
        if not self.is_reseeding:
            _log.warning(
                "the master has removed what follows this log end=%d begin=%d; a new copy of its log is made",
                store.positions[0],
                extent.begin,
            )
        self.is_reseeding = True
        batch_topics = BatchTopics(self._config.store.directory, self._clock)
        batch_topics.attach(self._tables.topics)
        try:
            async with new_copy.opened(store, self._clock, batch_topics) as copy:
                if 0 < copy.positions[0] < extent.begin:
                    raise DivergedError(copy.positions[0], copy.positions[0])
                epochs = Epochs(store.file_system, copy.config.directory)
                await self._follow_until(master, copy, epochs, extent.end)
                await copy.continue_queues(ends)
        except DivergedError as error:
            await self._discard_copy()
            raise BrokerError("the new copy of the log cannot be continued either; it is begun again") from error
        self._end("reseeded")

    async def _follow_until(self, master: _Master, copy: MessageStore, epochs: Epochs, end: int) -> None:
        """Fill the new copy up to this physical offset. Raises as `_follow`."""
        self._metadata.followed = copy
        following = asyncio.create_task(self._follow(master, copy, epochs, is_learner=True), name="new-copy-follower")
        complete = asyncio.create_task(self._complete(copy, end), name="new-copy-complete")
        try:
            await asyncio.wait((following, complete), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._metadata.followed = self._store
            following.cancel()
            complete.cancel()
            await asyncio.wait((following, complete))
        if complete.cancelled():
            following.result()

    async def _complete(self, copy: MessageStore, end: int) -> None:
        """Return once the new copy has everything up to this physical offset, and nothing that was deleted: the old
        copy's record of deletions goes with it, and the master may not be there any more to tell."""
        await new_copy.reached(copy, end)
        await self._metadata.deletions_followed(copy, end)

    async def _discard_copy(self) -> None:
        """Remove the new copy, if there is one: it is not needed, or cannot be continued."""
        await self._store.in_disk_thread(reseed.discard, self._store.file_system, self._config.store)
        self.is_reseeding = False

    def _hear_extent(self, extent: Extent | None) -> None:
        """Note where the master's log begins and ends. A log that ends before it gets nothing more, so the connection
        ends."""
        self._extent, self._heard_at = extent, asyncio.get_running_loop().time()
        if self._follower is None or self._following is None or extent is None:
            return
        if 0 < self._followed.positions[0] < extent.begin:
            self._following.cancel()

    # --- Questions to the master --------------------------------------------------------------------------------

    def _addresses(self) -> tuple[Address, Address | None]:
        replication = self._config.replication
        if self._leadership is not None:
            if self._known is None:
                raise BrokerError("no broker holds the lease, or its holder does not serve yet")
            return Address.parse(self._known[0]), Address.parse(self._known[1])
        remoting = replication.master or (self._known[0] if self._known else "")
        ha = replication.master_ha or (self._known[1] if self._known and not replication.master else "")
        if not remoting:
            raise BrokerError("no name server knows a master with this broker's name yet")
        return Address.parse(remoting), Address.parse(ha) if ha else None

    def _hear(self, registered: Command) -> None:
        """Handle a name server's answer to the registration of a replica."""
        master, ha = registered.fields.get("masterAddr"), registered.fields.get("haServerAddr")
        if master and ha and self._leadership is None:
            if self._known not in (None, (master, ha)):
                _log.info("the master has changed address=%s replication=%s", master, ha)
            self._known = master, ha

    async def _connect(self, address: Address, *, reads_tables: bool = False) -> Connection:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self._server.connect(address, reads_tables=reads_tables)

    async def _ha_address(self, master: Connection) -> Address:
        answered = await master.ask(Command(Request.EXCHANGE_BROKER_HA_INFO), ANSWER_SECONDS)
        text = answered.fields.get("masterHaAddress")
        if answered.code != Answer.SUCCESS or not text:
            raise BrokerError(
                f"{self._config.replication.master} did not report its replication address; set replication.master_ha"
            )
        return Address.parse(text)

    # --- The tables -------------------------------------------------------------------------------------------

    async def _follow_tables(self) -> None:
        while True:
            with suppress(OSError, TimeoutError):  # the log's connection reports these
                try:
                    master = await self._connect(self._addresses()[0], reads_tables=True)
                    try:
                        known = self._known
                        while master.is_open and self._known == known:
                            extent = await extent_of(master)
                            self._hear_extent(extent)
                            await self._metadata.copy(
                                master, self._store.positions[2] if extent is None else extent.end
                            )
                            await asyncio.sleep(METADATA_SECONDS)
                    finally:
                        master.close()
                except BrokerError as error:
                    if str(error) != self._metadata.error:
                        _log.warning("tables not copied cause=%s; retrying", error)
                    self._metadata.error = str(error)
            await asyncio.sleep(1.0)

    # --- Requests ---------------------------------------------------------------------------------------------

    async def _handle(self, request: Command, connection: Connection) -> Command | None:
        handler = self._handlers.get(request.code)
        if handler is None:
            raise RemotingError(
                Answer.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported by a replica; ask the master",
            )
        self._permissions.check(request, connection)
        return await handler(request, connection)

    async def _topics(self, request: Command, connection: Connection) -> Command:
        return await self._whole_tables.answer(request, connection, "topics", self._tables.topics.content)

    async def _groups(self, request: Command, connection: Connection) -> Command:
        return await self._whole_tables.answer(request, connection, "groups", self._tables.groups.content)

    async def _offsets(self, request: Command, connection: Connection) -> Command:
        return await self._whole_tables.answer(request, connection, "positions", self._tables.offsets.content)

    @property
    def is_connected(self) -> bool:
        return self._follower is not None

    @property
    def lag_bytes(self) -> int | None:
        """Durable bytes of the master's log that are not on this disk; None if its end is not known."""
        if self._follower is None or self._extent is None:
            return None
        if asyncio.get_running_loop().time() - self._heard_at > _KNOWN_SECONDS:
            return None  # a master need not say by itself how much it has still to send
        end = max(self._follower.master_end, self._extent.end)
        return max(end - self._followed.positions[2], 0)

    def _answered(self) -> int:
        """The furthest that the master on this connection may have answered messages; -1: nothing is known."""
        follower = self._follower
        if follower is None or follower.answered_before < 0 or follower.tells_answered or self._extent is None:
            return -1 if follower is None else follower.answered_before
        return max(follower.answered_before, self._extent.end)

    @property
    def lacking_bytes(self) -> int | None:
        """Bytes with answered messages that are known to be missing here; None if no master was heard of."""
        known = max(self._answered_before, self._answered())
        return None if known < 0 else max(known - self._store.positions[2], 0)

    @property
    def diverged_tails(self) -> int:
        """Files in `quarantine`."""
        return len(diverged_tails(self._store))

    def _status(self) -> Bean:
        follower, end = self._follower, self._store.positions[2]
        lag, lacking = self.lag_bytes, self.lacking_bytes
        try:
            master = str(self._addresses()[0])
        except BrokerError:
            master = ""
        return Bean(
            connected=self.is_connected,
            **({} if lag is None else {"lag": lag}),
            **({} if lacking is None else {"lacking": lacking}),
            lastError=self._last_error,
            lastReadTimestamp=0,
            lastWriteTimestamp=0,
            masterAddr=master,
            masterFlushOffset=end if follower is None else max(follower.master_end, end),
            maxOffset=end,
            reseeding=self.is_reseeding,
            **({} if self._followed is self._store else {"reseedOffset": self._followed.positions[2]}),
            tablesCopied=self._metadata.copied,
            tablesError=self._metadata.error,
            tablesMissing=not self._metadata.is_complete,
            transferredByteInSecond=0,
        )

    def _promote(self, force: bool) -> None:
        if missing := self._missing():
            if not force:
                raise RemotingError(
                    Answer.SYSTEM_ERROR,
                    f"{'; '.join(missing)}. Let it follow the master until it has them, promote another replica, or "
                    f"promote this one without them with: aerobee promote --force",
                )
            _log.warning("promoted by force cause=%s", "; ".join(missing))
        self.requests.promote = None
        self._end("promoted")

    def _missing(self) -> list[str]:
        """What a promotion would lose, as far as known, in sentences without a full stop."""
        found, lacking = [], self.lacking_bytes
        if lacking is None:
            found.append(
                "this replica has not reached the master since its start, so it is not known which messages it lacks"
            )
        elif lacking:
            found.append(
                f"this replica lacks {lacking} bytes with messages that the master may have answered, from physical "
                f"offset {self._store.positions[2]} on"
            )
        if not self._metadata.is_complete:
            cause = f": {self._metadata.error}" if self._metadata.error else ""
            found.append(f"this replica has not copied the master's topics, groups and offsets{cause}")
        return found

    def _refuse_promotion(self, _force: bool) -> None:
        raise RemotingError(
            Answer.SYSTEM_ERROR,
            "the lease decides which broker is the master; stop the master, and a replica in sync takes over",
        )


async def _refuse(_request: Command, _: Connection) -> Command:
    raise RemotingError(
        Answer.SYSTEM_BUSY, "[REJECTREQUEST]this broker is a replica; send to the master that the name servers report"
    )
