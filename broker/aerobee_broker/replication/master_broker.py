"""What a master has besides all that any broker has: its epochs, its replicas, and what is asked about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.errors import ListenError
from aerobee_broker.namesrv.registrar import Registrar
from aerobee_broker.namesrv.route_tables import MASTER_ID
from aerobee_broker.remoting.connection import Handler, RemotingServer
from aerobee_broker.replication.acknowledgements import Acknowledgements
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.master import ReplicationMaster
from aerobee_broker.replication.metrics import MasterCollector
from aerobee_broker.replication.requests import ReplicationRequests
from aerobee_store import MessageStore

_log = logging.getLogger(__name__)

FAST_PORT_DISTANCE: Final = 2  # RocketMQ's replicas ask for topics at the remoting port less two


class MasterBroker:
    """Built by `start`; `stop` ends it."""

    def __init__(self, config: BrokerConfig, store: MessageStore, epochs: Epochs) -> None:
        replication = config.replication
        self._config = config
        self._store = store
        self.epochs = epochs
        self.acknowledgements = Acknowledgements(replication, store)
        self._master = ReplicationMaster(replication, store, epochs, self.acknowledgements)
        self._requests = ReplicationRequests(config, store, epochs, MASTER_ID)
        self._requests.acknowledgements = self.acknowledgements

    @classmethod
    async def start(
        cls, config: BrokerConfig, store: MessageStore, registrar: Registrar, remoting: RemotingServer, bound: Address
    ) -> MasterBroker:
        """Take replicas, and let sends wait for them. `bound`: the remoting address. ListenError, EpochFileError,
        OSError."""
        epochs = await asyncio.to_thread(Epochs, store.file_system, config.store.directory)
        if not epochs.last:
            await asyncio.to_thread(epochs.begin, 1, store.min_physical_offset)
        broker = cls(config, store, epochs)
        address = await broker._master.listen()
        advertised = config.replication.advertise
        if advertised:
            address = Address.parse(advertised)
        broker._requests.ha_address = registrar.ha_address = address
        try:
            await remoting.listen("listen.remoting", Address(bound.host, bound.port - FAST_PORT_DISTANCE))
        except ListenError as error:
            _log.warning(
                "replicas of RocketMQ cannot copy topics and groups because port %d is not available cause=%s",
                bound.port - FAST_PORT_DISTANCE,
                error,
            )
        if config.replication.acks != "none":
            store.replicas = broker.acknowledgements
        return broker

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The remoting requests about replication."""
        return self._requests.handlers

    @property
    def collector(self) -> MasterCollector:
        """The metrics."""
        return MasterCollector(self.acknowledgements, self.epochs)

    async def stop(self) -> None:
        """Let all replicas go."""
        self._store.replicas = None
        await self._master.stop()
