"""One broker's view of the lease: whether it is the master, for how long, and which broker may become it.

The lease counts from the moment at which its renewal was *requested*. The clock cannot be set, and continues while the
process or the machine is suspended. The lease ends here before another broker may take it, so a master that was paused
notices first that its time is over. No confirmed message depends on this. A message is confirmed by every broker of the
claim, and a missing broker is removed from the claim by compare-and-swap, which fails once another broker has begun an
epoch. The expiry prevents an old master from serving consumers beside the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from aerobee_broker.replication.lease import (
    Claim,
    Holder,
    Lease,
    LeaseConflictError,
    LeaseLostError,
    LeaseUnavailableError,
    LeaseView,
    suspended_too,
)
from aerobee_store.disk.file_system import FileSystem
from aerobee_store.log_follower import MEMBER_FILE_NAME

_log = logging.getLogger(__name__)

# share of the lease's duration that counts here; the rest allows for clocks of different speed
_HELD_SHARE: Final = 0.8
_RENEWALS: Final = 5  # share of the lease's duration


class Leadership:
    """The leadership of one broker during the life of its process. Event loop only."""

    def __init__(
        self, lease: Lease, broker_id: int, lease_seconds: float, *, now: Callable[[], float] = suspended_too
    ) -> None:
        self._lease = lease
        self.broker_id = broker_id
        self.lease_seconds = lease_seconds
        self._now = now
        self._valid_until = 0.0
        self._taken = asyncio.Event()
        self.lost = asyncio.Event()
        """Set while this broker is not the master."""
        self.lost.set()
        self.claim: Claim | None = None
        self.version = 0
        self.last_error = ""

    @property
    def is_held(self) -> bool:
        """Whether this broker holds the lease at this moment."""
        return not self.lost.is_set() and self._now() < self._valid_until

    @property
    def seconds_left(self) -> float:
        """How long this broker holds the lease without another renewal."""
        return max(self._valid_until - self._now(), 0.0) if not self.lost.is_set() else 0.0

    # --- Becoming the master -----------------------------------------------------------------------------------

    async def look(self) -> LeaseView:
        """The state of the group. Raises LeaseUnavailableError."""
        view = await self._lease.read()
        self.claim, self.version = view.claim, view.version
        return view

    def may_take(self, view: LeaseView, *, is_member: bool, last_epoch: int) -> bool:
        """Whether this broker has every confirmed message of a group that has no master, or whose master it was until
        its process ended: no other process has this store open, and no other broker's log ends in this epoch of its.

        `is_member`: its store was in the group before; `last_epoch`: the newest one in its log.
        """
        claim = view.claim
        if claim is None or not is_member or self.broker_id not in claim.in_sync:
            return False
        if view.holder is not None:
            return view.holder.broker_id == self.broker_id == claim.master and last_epoch == claim.epoch
        # A broker that took the lease and died before it wrote anything has not saved its epoch.
        return last_epoch == claim.epoch or claim.master == self.broker_id

    async def take(self, view: LeaseView, last_epoch: int) -> bool:
        """Try to become the master of a new epoch. Raises LeaseUnavailableError."""
        epoch = max(last_epoch, 0 if view.claim is None else view.claim.epoch) + 1
        claim = Claim(epoch, self.broker_id, frozenset((self.broker_id,)))
        began = self._now()
        try:
            self.version = await self._lease.take(view, claim)
        except LeaseConflictError:
            return False
        self.claim = claim
        self._valid_until = began + _HELD_SHARE * self.lease_seconds
        self.lost.clear()
        self._taken.set()
        _log.warning("lease taken epoch=%d seconds=%g", epoch, self.lease_seconds)
        return True

    async def leave(self, view: LeaseView) -> None:
        """Remove this broker, whose store is new, from the brokers in sync. Raises LeaseUnavailableError and
        LeaseConflictError."""
        assert view.claim is not None, "it is in sync there"
        claim = replace(view.claim, in_sync=view.claim.in_sync - {self.broker_id})
        self.version = await self._lease.change(view.version, claim)
        self.claim = claim

    # --- Remaining the master ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the lease while it is held, until cancelled."""
        while True:
            await self._taken.wait()
            self._taken.clear()
            while not self.lost.is_set():
                await self._renew_once()

    async def _renew_once(self) -> None:
        pause = self.lease_seconds / _RENEWALS * _HELD_SHARE
        await asyncio.sleep(min(pause, self.seconds_left))
        if not self.is_held:
            self._lose(self.last_error or "the renewal took too long")
            return
        began = self._now()
        try:
            async with asyncio.timeout(self.seconds_left):
                await self._lease.renew()
        except LeaseLostError as error:
            self._lose(str(error))
        except (LeaseUnavailableError, TimeoutError) as error:
            self.last_error = str(error) or "timeout"
            _log.warning("lease not renewed cause=%s left_seconds=%.1f", self.last_error, self.seconds_left)
        else:
            self.last_error = ""
            self._valid_until = max(self._valid_until, began + _HELD_SHARE * self.lease_seconds)

    def _lose(self, cause: str) -> None:
        if not self.lost.is_set():
            _log.error("lease lost cause=%s; this broker is no longer the master", cause)
        self.lost.set()

    def lose(self, cause: str) -> None:
        """Record that another broker is the master."""
        self._lose(cause)

    async def announce(self, remoting: str, replication: str) -> None:
        """Publish the addresses of this master. Raises LeaseLostError and LeaseUnavailableError."""
        await self._lease.announce(Holder(self.broker_id, remoting, replication))

    async def change(self, in_sync: frozenset[int]) -> None:
        """Replace the brokers in sync. Raises LeaseConflictError, and LeaseUnavailableError: the outcome is unknown."""
        assert self.claim is not None, "a master has a claim"
        claim = replace(self.claim, in_sync=in_sync)
        self.version = await self._lease.change(self.version, claim)
        self.claim = claim

    async def release(self) -> None:
        """Let another broker take the lease at once. Nothing may be written to the log any more."""
        self.lost.set()
        await self._lease.release()


def is_member(file_system: FileSystem, directory: Path) -> bool:
    """Whether this store was in its group before. Blocking."""
    return file_system.exists(directory / MEMBER_FILE_NAME)


def note_member(file_system: FileSystem, directory: Path, broker_id: int) -> None:
    """Record that this store is a member of its group. Blocking; durable on return. Raises OSError."""
    if not is_member(file_system, directory):
        file_system.write_new(directory / MEMBER_FILE_NAME, f"{broker_id}\n".encode())
        file_system.sync_directory(directory)
