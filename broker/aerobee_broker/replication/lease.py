"""Who is the master: a lease with an expiry, and beside it the epoch and the brokers that are in sync.

All of it lies in a system that agrees by itself, such as etcd (`etcd.py`); a Lease of Kubernetes could stand behind the
same calls, with its resourceVersion for `version`. What is needed of such a system:

    claim     the epoch, its master, and the brokers in sync; stays when the lease ends, and is changed only by
              compare-and-swap on its version
    holder    where the master is reached; gone when it does not renew for the agreed seconds

To take the lease changes both at once, so one epoch never has two masters, whatever clocks say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aerobee_broker.errors import BrokerError


class LeaseUnavailableError(BrokerError):
    """The system that keeps the lease did not answer. Whether it did what was asked is not known."""


class LeaseConflictError(BrokerError):
    """Somebody else has changed the claim, or holds the lease."""


class LeaseLostError(BrokerError):
    """The lease has expired, and may be another broker's by now."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`in_sync`: ids of the brokers that have every confirmed message; only they may take the lease."""

    epoch: int
    master: int
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True)
class Holder:
    """The broker that holds the lease; the addresses are empty until it serves."""

    broker_id: int
    remoting: str = ""
    replication: str = ""


@dataclass(frozen=True, slots=True)
class LeaseView:
    """What is there at one moment. `version` of the claim, 0 if there has never been one."""

    version: int
    claim: Claim | None
    holder: Holder | None


class Lease(Protocol):
    """The lease of one group of brokers, as one of them sees it. Every call may raise LeaseUnavailableError."""

    async def read(self) -> LeaseView:
        """The newest state."""

    async def take(self, seen: LeaseView, claim: Claim) -> int:
        """Take the lease that nobody holds; the version of the new claim. LeaseConflictError."""

    async def renew(self) -> None:
        """Begin the agreed seconds anew. LeaseLostError."""

    async def announce(self, holder: Holder) -> None:
        """Say where the master is reached. LeaseLostError."""

    async def change(self, version: int, claim: Claim) -> int:
        """Replace the claim of this version; the new version. LeaseConflictError."""

    async def release(self) -> None:
        """End the lease at once, if it is held."""
