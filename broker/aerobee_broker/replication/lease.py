"""The lease that names the master. It expires; the epoch and the brokers in sync are stored with it.

A consensus system stores all of it: etcd (`etcd.py`), or Kubernetes (`kubernetes.py`). The system must provide:

    claim     the epoch, its master, and the brokers in sync; stays when the lease ends, and is changed only by
              compare-and-swap on its version
    holder    the master's addresses; gone if it does not renew the lease in time. etcd removes it; with Kubernetes each
              broker judges for itself, by the time for which it has seen no renewal

Taking the lease changes both atomically, so an epoch never has two masters, whatever the clocks say.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from aerobee_broker.errors import BrokerError


class LeaseUnavailableError(BrokerError):
    """The system that keeps the lease did not answer. The outcome of the request is unknown."""


class LeaseConflictError(BrokerError):
    """Another broker has changed the claim or holds the lease."""


class LeaseLostError(BrokerError):
    """The lease has expired; another broker may hold it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`in_sync`: ids of the brokers that have every confirmed message; only they may take the lease."""

    epoch: int
    master: int
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of the lease; the addresses are empty until it serves."""

    broker_id: int
    remoting: str = ""
    replication: str = ""


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The state at one moment. `version` is that of the claim, 0 if there has never been one."""

    version: int
    claim: Claim | None
    holder: Holder | None


def suspended_too() -> float:
    """The clock of leases: seconds since the machine started, including those in which it was suspended. It cannot be
    set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease(Protocol):
    """The lease of one group of brokers, as seen by one of them. Every call may raise LeaseUnavailableError."""

    async def read(self) -> LeaseView:
        """The newest state. A holder that has not renewed the lease in time is left out."""

    async def take(self, seen: LeaseView, claim: Claim) -> int:
        """Take the lease; returns the version of the new claim. Raises LeaseConflictError.

        It must be free, or `seen` shows that an earlier process of this broker holds it, which is then ended.
        """

    async def renew(self) -> None:
        """Renew the lease for its full duration. Raises LeaseLostError."""

    async def announce(self, holder: Holder) -> None:
        """Publish the master's addresses. Raises LeaseLostError."""

    async def change(self, version: int, claim: Claim) -> int:
        """Replace the claim of this version; returns the new version. Raises LeaseConflictError."""

    async def release(self) -> None:
        """End the lease at once, if it is held."""
