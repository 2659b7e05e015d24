"""The replica's side of replication: follows the log of one master over one connection.

    units -> LogFollower.receive     checked and appended
          -> wait_stored             on this disk
          -> report                  only then

Data that arrives during a sync waits in the socket, so memory stays bounded. The connection ends if bytes do not
continue the log (none of them is appended), if the master is silent, or if its epoch is older than the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from aerobee_broker.config import Address
from aerobee_broker.errors import BrokerError
from aerobee_broker.listening.peers import Peers
from aerobee_broker.replication.authentication import introduce
from aerobee_broker.replication.epochs import Epochs, common_end
from aerobee_broker.replication.frames import (
    Epoch,
    MasterReader,
    Protocol,
    ReplicaHandshake,
    ReplicationFormatError,
    Unit,
    encode_report,
)
from aerobee_broker.replication.master import HEARTBEAT_SECONDS, SILENCE_SECONDS, write
from aerobee_store import MessageStore
from aerobee_store.clock import every

_CONNECT_SECONDS: Final = 5.0
_READ_SIZE: Final = 1 << 20  # bytes per sync at most


class DivergedError(BrokerError):
    """This log has bytes from `offset` on that the master's log never had."""

    def __init__(self, offset: int, end: int, master_epoch: int = -1) -> None:
        super().__init__(
            f"the log of this replica differs from the master's from physical offset {offset} on, and ends at {end}"
        )
        self.offset = offset
        self.end = end
        # -1: epochs were not compared, so the logs may already differ before the offset
        self.master_epoch = master_epoch


class MasterGoneError(BrokerError):
    """The connection to the master ended."""


class Follower:
    """Follows the master at one address. `run` returns only by raising."""

    def __init__(
        self,
        store: MessageStore,
        epochs: Epochs,
        protocol: Protocol,
        replica_id: int,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        peers: Peers | None = None,
        is_learner: bool = False,
    ) -> None:
        """`peers`: what both sides prove; a master of RocketMQ (`plain`) is not asked for the secret.

        `is_learner`: nothing that is received counts as replicated. With the plain protocol, which has no learners, the
        first report is repeated.
        """
        self._peers = peers
        self._is_learner = is_learner
        self._reported = -1
        self._store = store
        self._epochs = epochs
        self._protocol = protocol
        self._replica_id = replica_id
        self._heartbeat_seconds = heartbeat_seconds
        self._silence_seconds = silence_seconds
        self._masters: list[Epoch] = []
        self.master_end = -1  # the known end of the master's log
        self._confirmed = -1  # as far as a master with epochs has said
        self.caught_up = asyncio.Event()  # set once the master had nothing left to send

    @property
    def tells_answered(self) -> bool:
        """Whether the master says which messages it has answered."""
        return self._confirmed >= 0

    @property
    def answered_before(self) -> int:
        """The offset before which the master may have answered messages, as far as known; -1: nothing is known."""
        return self._confirmed if self._confirmed >= 0 else self.master_end

    async def run(self, master: Address) -> None:
        """Connect and follow. Raises OSError, TimeoutError, BrokerError (DivergedError) and StoreError."""
        peers = self._peers
        async with asyncio.timeout(_CONNECT_SECONDS):
            context = None if peers is None else peers.context_to(master.host)
            reader, writer = await asyncio.open_connection(master.host, master.port, limit=_READ_SIZE, ssl=context)
        try:
            if peers is not None and peers.key is not None and self._protocol == "epochs":
                await introduce(reader, writer, peers.key)
            await self._follow(reader, writer)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # all tasks fail for the same reason
        finally:
            writer.close()
            self._store.follower.forget_rest()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = MasterReader(self._protocol)
        units: list[Unit] = []
        # Bytes from the previous connection are appended but may not be synced; the master continues after them.
        await self._store.wait_stored(self._store.positions[0], durable=True)
        if self._protocol == "epochs":
            write(writer, ReplicaHandshake(self._replica_id, is_learner=self._is_learner).encode())
            while frames.handshake is None:
                units += frames.feed(await self._some(reader))
            self._compare(frames.handshake.epochs, frames.handshake.end)
        self._report(writer)
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(every(self._heartbeat_seconds, partial(self._send_heartbeat, writer)))
            try:
                while True:
                    await self._take(units, writer)
                    frames.check()
                    units = frames.feed(await self._some(reader))
            finally:
                beats.cancel()

    def _compare(self, epochs: Sequence[Epoch], master_end: int) -> None:
        """Raise DivergedError if this log has bytes that the master's log does not have."""
        end = self._store.positions[0]
        newest = epochs[-1].number if epochs else 0
        if newest < self._epochs.last:
            raise ReplicationFormatError(
                f"the master's last epoch is {newest}, but this replica has seen {self._epochs.last}: another "
                f"master has taken over"
            )
        common = common_end(self._epochs.all, end, epochs, master_end)
        if common is None:
            common = 0 if self._epochs.all else min(end, master_end)
        if common < end:
            raise DivergedError(common, end, newest)
        self._masters = list(epochs)
        self.master_end = master_end
        self._epochs.follow(epochs, end)

    async def _take(self, units: Sequence[Unit], writer: asyncio.StreamWriter) -> None:
        """Append, sync, report."""
        end = None
        for unit in units:
            self._note_epoch(unit)
            self._confirmed = max(self._confirmed, unit.confirmed)  # also if this disk has no space for the bytes
            if unit.body:
                if unit.offset and not self._store.positions[0]:
                    self._store.follower.begin_at(unit.offset)  # the master's log begins at that offset now
                end = self._store.follower.receive(unit.offset, unit.body)
            else:
                self.caught_up.set()
            self.master_end = max(self.master_end, unit.offset + len(unit.body), unit.confirmed)
        if end is not None:
            await self._store.wait_stored(end, durable=True)
            self._report(writer)
            await writer.drain()

    def _note_epoch(self, unit: Unit) -> None:
        if self._protocol == "plain" or unit.epoch < 0:
            return
        if unit.epoch < self._epochs.last:
            raise ReplicationFormatError(
                f"the master writes in epoch {unit.epoch}, but this replica has seen {self._epochs.last}"
            )
        if unit.epoch > self._epochs.last and unit.body:
            self._masters.append(Epoch(unit.epoch, unit.epoch_start))
            self._epochs.follow([*self._epochs.all, self._masters[-1]], unit.offset)

    def _report(self, writer: asyncio.StreamWriter) -> None:
        """Report the end of the log that is durable on this disk, never more."""
        if self._reported < 0 or not (self._is_learner and self._protocol == "plain"):
            self._reported = min(self._store.positions[0], self._store.positions[2])
        write(writer, encode_report(self._reported, self._protocol))

    async def _send_heartbeat(self, writer: asyncio.StreamWriter) -> None:
        self._report(writer)
        await writer.drain()

    async def _some(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self._silence_seconds):
                data = await reader.read(_READ_SIZE)
        except TimeoutError:
            raise MasterGoneError(f"the master was silent for {self._silence_seconds:g} s") from None
        if not data:
            raise MasterGoneError("the master closed the connection")
        return data
