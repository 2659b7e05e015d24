"""The in-sync set of a master with a lease, and its changes.

    confirm     every other broker of the claim confirms messages; during a change, of the old and of the new claim
    leave       a broker leaves when it has not reached the end of the log for `in_sync_seconds`; messages wait for
                it until it has left
    join        a broker joins when it reaches the end of the log: messages wait for it from then on, and it enters
                the claim once it has all messages that were confirmed before

The claim changes before the wait does. If etcd does not answer, the outcome of a change is unknown; until it is known,
messages wait for both the old and the new brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aerobee_broker.replication.acknowledgements import Acknowledgements
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.leadership import Leadership
from aerobee_broker.replication.lease import LeaseConflictError, LeaseUnavailableError

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.1
_NEVER: Final = float("-inf")
_ALWAYS: Final = float("inf")


@dataclass(slots=True)
class _Progress:
    """One broker: when it was last at the end of the log. To count again it must reach `end`, the end at time `at`."""

    end: int
    at: float
    caught_up_at: float


@dataclass(slots=True)
class InSyncSet:
    """The in-sync set of one master. `run` runs beside the other services."""

    leadership: Leadership
    acknowledgements: Acknowledgements
    epochs: Epochs
    in_sync_seconds: float
    now: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    members: frozenset[int] = frozenset()
    """The set in the claim, as far as known."""
    _joining: frozenset[int] = frozenset()
    _wanted: frozenset[int] | None = None
    _progress: dict[int, _Progress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.leadership.claim is not None, "a master has a claim"
        # Bytes written before this epoch may have been confirmed.
        self.acknowledgements.confirmed_before = self.epochs.all[-1].start
        self._settle(self.leadership.claim.in_sync)

    async def run(self) -> None:
        """Maintain the claim while the lease is held."""
        while not self.leadership.lost.is_set():
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Change the claim if necessary."""
        if self._wanted is not None:
            await self._find_out()
            return
        wanted = self._judge()
        if wanted != self.members:
            await self._change(wanted)

    def _judge(self) -> frozenset[int]:
        """The brokers that should be in the claim now."""
        acked = {int(key[1]): offset for key, offset in self.acknowledgements.acked().items() if key[0] == "id"}
        now, end = self.now(), self.acknowledgements.store.positions[2]
        for gone in self._progress.keys() - acked.keys() - self.members:
            del self._progress[gone]
        for broker_id in acked.keys() | self.members:
            found = self._progress.setdefault(broker_id, _Progress(end, now, _NEVER))
            if acked.get(broker_id, -1) >= found.end:
                found.caught_up_at, found.end, found.at = found.at, end, now
        near = {
            broker_id for broker_id, found in self._progress.items() if now - found.caught_up_at <= self.in_sync_seconds
        }
        confirmed = self.acknowledgements.confirmed_before
        joined = {broker_id for broker_id in self._joining & near if acked.get(broker_id, -1) >= confirmed}
        self._joining = frozenset((near & acked.keys()) - self.members)
        self._wait_for_all()
        return frozenset((self.leadership.broker_id,)) | (self.members & near) | joined

    async def _change(self, wanted: frozenset[int]) -> None:
        before = self.members
        self._wanted = wanted
        self._wait_for_all()
        try:
            await self.leadership.change(wanted)
        except (LeaseConflictError, LeaseUnavailableError) as error:
            _log.warning("brokers in sync not changed to=%s cause=%s", sorted(wanted), error)
            return
        self._settle(wanted)
        _log.info("brokers in sync changed from=%s to=%s", sorted(before), sorted(wanted))

    def _settle(self, members: frozenset[int]) -> None:
        """Adopt this claim as the current one."""
        self.members, self._wanted = members, None
        self._joining -= members
        now = self.now()
        for member in members:
            self._progress.setdefault(member, _Progress(self.acknowledgements.store.positions[2], now, now))
        own = self._progress[self.leadership.broker_id]
        own.caught_up_at = _ALWAYS
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        own = {self.leadership.broker_id}
        waited = self.members | self._joining  # the wanted set consists of members and joining brokers only
        claimed = self.members if self._wanted is None else self.members & self._wanted
        self.acknowledgements.wait_for(waited - own, claimed_count=len(claimed - own))

    async def _find_out(self) -> None:
        """Read the claim after a change without an answer."""
        epoch = self.epochs.last
        try:
            view = await self.leadership.look()
        except LeaseUnavailableError:
            return
        if view.claim is None or view.claim.epoch != epoch or view.claim.master != self.leadership.broker_id:
            self.leadership.lose(f"the epoch is {view.claim.epoch if view.claim else 'gone'}, and was {epoch}")
            return
        self._settle(view.claim.in_sync)
