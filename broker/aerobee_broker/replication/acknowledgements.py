"""The progress of the replicas, and the sends that wait for it. No sockets.

    replica     identified by its id (Aerobee) or its IP address (RocketMQ); several connections count once
    counts      an Aerobee replica; a RocketMQ replica only with replication.rocketmq_acks, because it confirms
                received messages before they are durable
    near        it counts, is connected, and is at most replication.lag_bytes_max behind: sends may wait for it
    in sync     it has every message that was answered, so that none is lost if it becomes the master; with a lease
                it is also one of the brokers that every message waits for
    confirmed   the offset before which enough replicas have the log: of n acknowledgements the n-th highest report;
                of "all" the lowest of those near; with a lease the lowest of all brokers of the claim, and these
                must be at least n (in_sync_set.py)

Waiters are sorted by offset, so a long wait does not block others.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from aerobee_broker.config.replication import ReplicationConfig
from aerobee_store.errors import ReplicaMissingError, ReplicaTimeoutError
from aerobee_store.running_flags import RunningFlags, RunningState

ReplicaKey = tuple[str, str]
"""("id", number) or ("host", address)."""


@dataclass(slots=True)
class Replica:
    """One replica while it is connected. Offsets are physical; `acked` is -1 before the first report."""

    key: ReplicaKey
    address: str
    counts: bool
    acked: int = -1
    sent: int = 0


class ReplicatedStore(Protocol):
    """The part of the store that acknowledgements use."""

    @property
    def running(self) -> RunningState: ...

    @property
    def positions(self) -> tuple[int, int, int, int]:
        """Wrote, committed, flushed, dispatched: physical offsets."""
        ...

    def request_flush(self) -> None: ...


@dataclass(slots=True)
class Acknowledgements:
    """The acknowledgements of one master. Event loop only. Its store has it as `replicas`."""

    config: ReplicationConfig
    store: ReplicatedStore
    connections: list[Replica] = field(default_factory=list)
    is_master: Callable[[], bool] = lambda: True
    """Whether the lease is held; None without a lease."""
    confirmed_before: int = -1
    """No message beyond this offset was confirmed before; until anything is known, the end of the log at the start."""
    _claimed: tuple[frozenset[int], int] | None = None
    _waiters: list[tuple[int, int, asyncio.Future[None]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        if self.confirmed_before < 0:
            self.confirmed_before = self.store.positions[2]
        self._look()

    # --- Events of replicas -----------------------------------------------------------------------------------

    def connected(self, replica: Replica) -> None:
        self.connections.append(replica)
        self._look()

    def gone(self, replica: Replica) -> None:
        """The replica's connection ended, so its progress is unknown."""
        self.connections.remove(replica)
        self._look()

    def reported(self, replica: Replica, offset: int) -> None:
        """The replica has the log before `offset` on disk."""
        replica.acked = offset
        self._look()

    # --- For the master -----------------------------------------------------------------------------------------

    def acked(self) -> dict[ReplicaKey, int]:
        """The highest report of each replica that counts."""
        found: dict[ReplicaKey, int] = {}
        for replica in self.connections:
            if replica.counts:
                found[replica.key] = max(found.get(replica.key, -1), replica.acked)
        return found

    @property
    def answered_before(self) -> int:
        """The physical offset before which messages may have been answered with success."""
        if self._claimed is None and self.config.acks_wanted == 0:
            return self.store.positions[2]
        return max(self.confirmed(), self.confirmed_before)

    def is_in_sync(self, replica: Replica) -> bool:
        """Whether no answered message is lost if this replica becomes the master."""
        if self._claimed is not None and replica.key not in {("id", str(number)) for number in self._claimed[0]}:
            return False
        return replica.acked >= self.answered_before

    @property
    def in_sync_count(self) -> int:
        """How many of the replicas that count are in sync."""
        return len({replica.key for replica in self.connections if replica.counts and self.is_in_sync(replica)})

    def near(self) -> list[int]:
        """The reports of the replicas that sends may wait for, highest first."""
        if self._claimed is not None:
            acked = self.acked()
            found = (acked.get(("id", str(broker_id)), -1) for broker_id in self._claimed[0])
            return sorted((offset for offset in found if offset >= 0), reverse=True)
        behind = self.store.positions[2] - self.config.lag_bytes_max
        return sorted((offset for offset in self.acked().values() if offset >= 0 and offset >= behind), reverse=True)

    def confirmed(self) -> int:
        """The physical offset before which enough replicas have the log; -1 if there are too few."""
        wanted = self.config.acks_wanted
        if self._claimed is not None:
            return self._confirmed_by_claim(*self._claimed, wanted or 0)
        offsets = self.near()
        if wanted is None:
            found = min(offsets, default=self.store.positions[2])
        elif not wanted:
            found = self.store.positions[2]
        else:
            found = offsets[wanted - 1] if len(offsets) >= wanted else -1
        self.confirmed_before = max(self.confirmed_before, found)
        return found

    def _confirmed_by_claim(self, brokers: frozenset[int], claimed_count: int, wanted: int) -> int:
        if claimed_count < wanted or not self.is_master():
            return -1
        acked = self.acked()
        # A disconnected replica is waited for until it has left the claim.
        found = min(
            (max(acked.get(("id", str(broker_id)), 0), 0) for broker_id in brokers), default=self.store.positions[2]
        )
        self.confirmed_before = max(self.confirmed_before, found)
        return found

    def wait_for(self, brokers: frozenset[int], *, claimed_count: int) -> None:
        """With a lease: messages need confirmation by all these brokers, at least `count` of which are in the claim."""
        if self._claimed != (brokers, claimed_count):
            self._claimed = brokers, claimed_count
            self._look()

    @property
    def waiting_count(self) -> int:
        """Sends that wait for replicas, including those that timed out a moment ago."""
        return len(self._waiters)

    async def wait(self, end: int) -> None:
        """Return once enough replicas have the log before `end` on disk. Does not wait for this broker's own disk."""
        if self.store.positions[2] < end:
            self.store.request_flush()  # replicas get only bytes that are durable here
        confirmed = self.confirmed()
        if confirmed >= end:
            return
        if not self.is_master():
            raise ReplicaMissingError(
                "the message is stored, but the lease of this master has expired; another broker may be the master, "
                "and this message may not be there; send it again"
            )
        if confirmed < 0:
            raise ReplicaMissingError(
                f"the message is stored, but {len(self.near())} replicas are in sync, and replication.acks is "
                f"{self.config.acks}; list the replicas with: aerobee replication"
            )
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (end, next(self._numbers), waiter))
        try:
            async with asyncio.timeout(self.config.ack_timeout_seconds):
                await waiter
        except TimeoutError:
            raise ReplicaTimeoutError(
                f"the message is stored, but too few replicas confirmed it within "
                f"{self.config.ack_timeout_seconds:g} s (replication.acks = {self.config.acks}); they may still do so"
            ) from None

    def _look(self) -> None:
        """Wake the sends that are confirmed, and refuse messages while too few brokers are in sync."""
        if self._waiters:
            confirmed = self.confirmed()
            while self._waiters and (self._waiters[0][0] <= confirmed or self._waiters[0][2].done()):
                _, _, waiter = heapq.heappop(self._waiters)
                if not waiter.done():
                    waiter.set_result(None)
        wanted = self.config.min_in_sync
        if wanted > 1:
            found = 1 + len(self.near())
            if found >= wanted:
                self.store.running.clear(RunningFlags.REPLICAS_MISSING)
            else:
                self.store.running.set(
                    RunningFlags.REPLICAS_MISSING,
                    f"{found} of {wanted} brokers are in sync (replication.min_in_sync); start the replicas, or look "
                    f"at them with: aerobee replication",
                )
