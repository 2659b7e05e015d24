"""The parts that only a master has: its epochs, its replicas, and the requests about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.namesrv.registrar import Registrar
from aerobee_broker.namesrv.route_tables import MASTER_ID
from aerobee_broker.remoting_wire.connection import Handler
from aerobee_broker.replication.acknowledgements import Acknowledgements
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.in_sync_set import InSyncSet
from aerobee_broker.replication.leadership import Leadership
from aerobee_broker.replication.lease import LeaseLostError, LeaseUnavailableError
from aerobee_broker.replication.master import ReplicationMaster
from aerobee_broker.replication.metrics import MasterCollector
from aerobee_broker.replication.requests import ReplicationRequests
from aerobee_proto import admin_v1
from aerobee_store import MessageStore
from aerobee_store.running_flags import RunningFlags

_log = logging.getLogger(__name__)


class MasterBroker:
    """The parts of a master. Created by `open`; `stop` ends them."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        epochs: Epochs,
        leadership: Leadership | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        replication = config.replication
        self._config = config
        self._store = store
        self._remoting_address = self._ha_address = Address("127.0.0.1", 0)
        self.epochs = epochs
        self.acknowledgements = Acknowledgements(replication, store)
        self._master = ReplicationMaster(
            replication, store, epochs, self.acknowledgements, peers=config.peers, ledger=ledger
        )
        self._requests = ReplicationRequests(config, store, epochs, MASTER_ID)
        self._requests.acknowledgements = self.acknowledgements
        self._requests.leadership = self._leadership = leadership
        self._in_sync_set: InSyncSet | None = None
        if leadership is not None:
            self.acknowledgements.is_master = lambda: leadership.is_held
            self._in_sync_set = InSyncSet(
                leadership, self.acknowledgements, epochs, in_sync_seconds=replication.in_sync_seconds
            )

    @classmethod
    async def open(
        cls, config: BrokerConfig, store: MessageStore, leadership: Leadership | None, ledger: Ledger | None = None
    ) -> MasterBroker:
        """Make sends wait for replicas, before clients can send. `leadership`: with the lease held.

        Raises EpochFileError and OSError.
        """
        epochs = await asyncio.to_thread(Epochs, store.file_system, config.store.directory)
        if not epochs.last:
            await asyncio.to_thread(epochs.begin, 1, store.min_physical_offset)
        broker = cls(config, store, epochs, leadership, ledger)
        if config.replication.acks != "none":
            store.replicas = broker.acknowledgements
        return broker

    async def start(self, registrar: Registrar, bound: Address) -> None:
        """Accept replicas. `bound`: the remoting address. Raises ListenError."""
        address = await self._master.listen()
        advertised = self._config.replication.advertise
        if advertised:
            address = Address.parse(advertised)
        self._requests.ha_address = registrar.ha_address = address
        self._remoting_address, self._ha_address = self._config.listen.advertise_remoting or bound, address
        if self._leadership is not None and self._leadership.claim is not None:
            registrar.epoch = self._leadership.claim.epoch

    async def keep_lease(self) -> None:
        """Publish this master's addresses and maintain the brokers in sync until the lease is lost; after that the
        store refuses appends. Without a lease, waits forever."""
        leadership, in_sync_set = self._leadership, self._in_sync_set
        if leadership is None or in_sync_set is None:
            await asyncio.Event().wait()
            return
        changes = asyncio.create_task(in_sync_set.run(), name="in-sync-set")
        announced = asyncio.create_task(self._announce(leadership), name="lease-announcement")
        try:
            await leadership.lost.wait()
            self._store.running.set(
                RunningFlags.FENCED, "the lease of this master has expired; send to the master, which routes name"
            )
        finally:
            for task in (changes, announced):
                task.cancel()
            await asyncio.gather(changes, announced, return_exceptions=True)

    async def _announce(self, leadership: Leadership) -> None:
        while True:
            try:
                await leadership.announce(str(self._remoting_address), str(self._ha_address))
                return
            except LeaseLostError as error:
                leadership.lose(str(error))
                return
            except LeaseUnavailableError as error:
                _log.warning("address not announced cause=%s; retrying", error)
            await asyncio.sleep(0.2)

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The remoting requests about replication."""
        return self._requests.handlers

    @property
    def collector(self) -> MasterCollector:
        """The metrics."""
        return MasterCollector(self.acknowledgements, self.epochs, self._leadership)

    def describe(self) -> admin_v1.BrokerReplication:
        """For the status of the broker."""
        end = self._store.positions[2]
        found = admin_v1.BrokerReplication(
            epoch=self.epochs.last,
            replicas=(
                admin_v1.ReplicaStatus(
                    id=replica.key[1],
                    address=replica.address,
                    lag_bytes=max(end - max(replica.acked, 0), 0),
                    in_sync=self.acknowledgements.is_in_sync(replica),
                    counts=replica.counts,
                )
                for replica in self.acknowledgements.connections
            ),
        )
        leadership = self._leadership
        if leadership is not None and leadership.claim is not None:
            claim = leadership.claim
            found.lease.CopyFrom(
                admin_v1.BrokerLease(
                    holder=claim.master,
                    epoch=claim.epoch,
                    in_sync=sorted(claim.in_sync),
                    error=leadership.last_error,
                )
            )
            found.lease.left.FromMilliseconds(int(leadership.seconds_left * 1000))
        return found

    async def stop(self) -> None:
        """Disconnect all replicas."""
        self._store.replicas = None
        await self._master.stop()
