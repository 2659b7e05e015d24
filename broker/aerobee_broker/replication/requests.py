"""Requests about replication from operators and other brokers, over the remoting protocol.

906   EXCHANGE_BROKER_HA_INFO      the master's address for replicas, and the end of its durable log
907   GET_BROKER_HA_STATUS         the replicas and their lag; or the master that this broker follows
1007  GET_BROKER_EPOCH_CACHE       the epochs of the log
1008  NOTIFY_BROKER_ROLE_CHANGED   become the master: `masterBrokerId` is this broker's
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.namesrv.route_tables import MASTER_ID
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, Handler
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, boolean, integer
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.replication.acknowledgements import Acknowledgements
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.leadership import Leadership
from aerobee_store import MessageStore
from aerobee_store.durability.log_cut import DIVERGED
from aerobee_store.tables.java_json import Bean


def diverged_tails(store: MessageStore) -> list[str]:
    """The files with diverged tails of this log; they stay until an operator removes them."""
    quarantine = store.config.directory / "quarantine"
    if not store.file_system.exists(quarantine):
        return []
    return sorted(name for name in store.file_system.list(quarantine) if name.startswith(DIVERGED))


class ReplicationRequests:
    """Requests that masters and replicas share; only 907 differs. `handlers` is the table."""

    def __init__(self, config: BrokerConfig, store: MessageStore, epochs: Epochs, broker_id: int) -> None:
        self._config = config
        self._store = store
        self._epochs = epochs
        self._broker_id = broker_id
        self.acknowledgements: Acknowledgements | None = None  # of a master
        self.ha_address: Address | None = None  # the address of a master for replicas
        self.following: Callable[[], Bean] | None = None  # of a replica: its master and its progress
        self.promote: Callable[[bool], None] | None = None  # of a replica
        self.leadership: Leadership | None = None  # with a lease
        self.handlers: dict[int, Handler] = {
            Request.EXCHANGE_BROKER_HA_INFO: self.exchange,
            Request.GET_BROKER_HA_STATUS: self.status,
            Request.GET_BROKER_EPOCH_CACHE: self.epochs,
            Request.NOTIFY_BROKER_ROLE_CHANGED: self.change_role,
        }

    async def exchange(self, _request: Command, _: Connection) -> Command:
        """Only a master returns addresses."""
        fields: dict[str, object] = {"masterFlushOffset": self._store.positions[2]}
        if self.ha_address is not None:
            fields["masterHaAddress"] = self.ha_address
        return answer(fields)

    async def status(self, _request: Command, _: Connection) -> Command:
        """The status in RocketMQ's form, with additional members that its tools ignore."""
        end = self._store.positions[2]
        found = self.acknowledgements
        connections: list[object] = []
        if found is not None:
            for replica in found.connections:
                lag = end - max(replica.acked, 0)
                connections.append(
                    Bean(
                        addr=replica.address,
                        diff=lag,
                        inSync=found.is_in_sync(replica),
                        slaveAckOffset=replica.acked,
                        transferFromWhere=replica.sent,
                        transferredByteInSecond=0,
                        counts=replica.counts,
                        replicaId=replica.key[1],
                    )
                )
        idle = Bean(
            lastReadTimestamp=0, lastWriteTimestamp=0, masterFlushOffset=0, maxOffset=0, transferredByteInSecond=0
        )
        return answer(
            body=Bean(
                **self._lease(),
                epoch=self._epochs.last,
                haClientRuntimeInfo=idle if self.following is None else self.following(),
                haConnectionInfo=connections,
                inSyncSlaveNums=0 if found is None else found.in_sync_count,
                master=found is not None,
                masterCommitLogMaxOffset=self._store.positions[0],
            )
        )

    def _lease(self) -> dict[str, object]:
        found = self.leadership
        if found is None:
            return {}
        claim = found.claim
        tails = diverged_tails(self._store)
        return {
            "brokerId": found.broker_id,
            "divergedTails": list[object](tails),
            "leaseEpoch": 0 if claim is None else claim.epoch,
            "leaseError": found.last_error,
            "leaseInSync": list[object]([] if claim is None else sorted(claim.in_sync)),
            "leaseMaster": 0 if claim is None else claim.master,
            "leaseSecondsLeft": round(found.seconds_left, 1),
        }

    async def epochs(self, _request: Command, _: Connection) -> Command:
        """The last epoch ends with the log."""
        end = self._store.positions[0]
        epochs = self._epochs.all
        ends = [*(epoch.start for epoch in epochs[1:]), end]
        listed = [
            Bean(endOffset=epoch_end, epoch=epoch.number, startOffset=epoch.start)
            for epoch, epoch_end in zip(epochs, ends, strict=False)
        ]
        return answer(
            body=Bean(
                brokerId=self._broker_id,
                brokerName=self._config.name,
                clusterName=self._config.cluster,
                epochList=list[object](listed),
                maxOffset=end,
            )
        )

    async def change_role(self, request: Command, _: Connection) -> Command:
        """Make a replica the master. Other role changes come from the master or the name servers."""
        if self.promote is None:
            if self._broker_id == MASTER_ID:
                return answer()  # repeated after a lost answer
            raise RemotingError(Answer.SYSTEM_ERROR, "this broker is already changing its role; query its status")
        wanted = integer(request, "masterBrokerId")
        if wanted != self._broker_id:
            raise RemotingError(
                Answer.INVALID_PARAMETER,
                f"masterBrokerId is {wanted}, but this broker has id {self._broker_id}; send the request to broker "
                f"{wanted}",
            )
        self.promote(boolean(request, "force"))
        return answer()
