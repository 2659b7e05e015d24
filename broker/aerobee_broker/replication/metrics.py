"""The metrics of replication; without replication there are none."""

from __future__ import annotations

import math
from typing import Protocol

from aerobee_broker.counters.families import GaugeFamily, Pieces
from aerobee_broker.replication.acknowledgements import Acknowledgements
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.leadership import Leadership


class _Following(Protocol):
    """The state of a replica for its metrics."""

    @property
    def is_connected(self) -> bool: ...
    @property
    def is_reseeding(self) -> bool: ...
    @property
    def lag_bytes(self) -> int | None: ...
    @property
    def diverged_tails(self) -> int: ...


class MasterCollector:
    """The metrics of a master."""

    def __init__(
        self, acknowledgements: Acknowledgements, epochs: Epochs, leadership: Leadership | None = None
    ) -> None:
        self._acknowledgements = acknowledgements
        self._epochs = epochs
        self._leadership = leadership

    def collect(self) -> Pieces:
        found = self._acknowledgements
        yield _role("master")
        yield _gauge("aerobee_replication_epoch", "The epoch in which this master writes.", self._epochs.last)
        yield _gauge("aerobee_replicas_connected", "Connections of replicas.", len(found.connections))
        yield _gauge("aerobee_replicas_in_sync", "Replicas that have every answered message.", found.in_sync_count)
        yield _gauge("aerobee_replication_waiting", "Sends that wait for replicas.", found.waiting_count)
        lag = GaugeFamily(
            "aerobee_replica_lag_bytes", "Durable bytes that a replica has not confirmed.", labels=("replica",)
        )
        if self._leadership is not None:
            left = self._leadership.seconds_left
            yield _gauge("aerobee_replication_lease_seconds", "How long the lease lasts without a renewal.", left)
            claim = self._leadership.claim
            members = 0 if claim is None else len(claim.in_sync)
            yield _gauge(
                "aerobee_replication_in_sync", "Brokers that may become the master, this one included.", members
            )
        end = found.store.positions[2]
        for replica in found.connections:
            lag.add_metric((replica.key[1],), max(end - max(replica.acked, 0), 0))
        yield lag


class ReplicaCollector:
    """The metrics of a replica."""

    def __init__(self, replica: _Following) -> None:
        self._replica = replica

    def collect(self) -> Pieces:
        yield _role("replica")
        connected = self._replica.is_connected
        yield _gauge("aerobee_replica_connected", "Whether this replica follows its master.", int(connected))
        yield _gauge(
            "aerobee_replica_reseeding",
            "Whether this replica makes a new copy of its master's log, because it cannot continue its own.",
            int(self._replica.is_reseeding),
        )
        lag = self._replica.lag_bytes
        yield _gauge(
            "aerobee_replica_behind_bytes",
            "Bytes of the master's log not on disk; NaN if not known.",
            math.nan if lag is None else lag,
        )
        tails = self._replica.diverged_tails
        yield _gauge(
            "aerobee_replica_diverged_tails", "Files with a tail of the log that the master did not have.", tails
        )


def _role(name: str) -> GaugeFamily:
    family = GaugeFamily("aerobee_replication_role", "1 for the role that this broker has now.", labels=("role",))
    for role in ("master", "replica"):
        family.add_metric((role,), int(role == name))
    return family


def _gauge(name: str, text: str, value: float) -> GaugeFamily:
    family = GaugeFamily(name, text, labels=())
    family.add_metric((), value)
    return family
