"""An in-memory lease, for tests that control when it expires and when it does not answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from aerobee_broker.replication.lease import (
    Claim,
    Holder,
    LeaseConflictError,
    LeaseLostError,
    LeaseUnavailableError,
    LeaseView,
)


@dataclass(slots=True)
class LeaseState:
    """The state that all brokers of a group share."""

    version: int = 0
    claim: Claim | None = None
    holder: Holder | None = None


@dataclass(slots=True)
class MemoryLease:
    """One broker's view of the lease. `loses` names what the network loses: "requests" or "answers"."""

    broker_id: int
    state: LeaseState = field(default_factory=LeaseState)
    loses: str = ""

    def _request(self) -> None:
        if self.loses == "requests":
            raise LeaseUnavailableError("the network is down")

    def _answer(self) -> None:
        if self.loses == "answers":
            raise LeaseUnavailableError("no answer came")

    async def read(self) -> LeaseView:
        self._request()
        self._answer()
        return LeaseView(self.state.version, self.state.claim, self.state.holder)

    async def take(self, seen: LeaseView, claim: Claim) -> int:
        self._request()
        held = self.state.holder
        is_own = held is not None and held == seen.holder and held.broker_id == self.broker_id
        if (held is not None and not is_own) or self.state.version != seen.version:
            raise LeaseConflictError("taken")
        self.state.holder = Holder(self.broker_id)
        return self._change(claim)

    async def renew(self) -> None:
        self._request()
        if self.state.holder is None or self.state.holder.broker_id != self.broker_id:
            raise LeaseLostError("expired")
        self._answer()

    async def announce(self, holder: Holder) -> None:
        await self.renew()
        self.state.holder = holder

    async def change(self, version: int, claim: Claim) -> int:
        self._request()
        if self.state.version != version:
            raise LeaseConflictError("changed")
        return self._change(claim)

    def _change(self, claim: Claim) -> int:
        self.state.version += 1
        self.state.claim = claim
        self._answer()
        return self.state.version

    async def release(self) -> None:
        self._request()
        if self.state.holder is not None and self.state.holder.broker_id == self.broker_id:
            self.state.holder = None
