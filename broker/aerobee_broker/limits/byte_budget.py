"""Bounds the bytes of requests and answers in memory: in total, and per connection and account."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

from aerobee_broker.errors import TooManyRequestsError
from aerobee_broker.limits.wakes import Wakes


class Total(Protocol):
    """What several budgets share: see `ledger.Ledger`."""

    def has_room(self, size: int) -> bool:
        """Whether this many bytes more may be taken."""

    def grew(self) -> None:
        """Bytes were taken that are in memory already."""

    def waits(self, budget: ByteBudget) -> None:
        """Calls wait for bytes of the total: call `budget.advance` when some are free."""

    def freed(self) -> None:
        """Bytes were returned."""


class _Unshared:
    """The total of a budget by itself."""

    def has_room(self, size: int) -> bool:
        return True

    def grew(self) -> None:
        pass

    def waits(self, budget: ByteBudget) -> None:
        pass

    def freed(self) -> None:
        pass


_UNSHARED: Final = _Unshared()


class _Waiter(Struct, eq=False):
    size: int
    owners: Sequence[str]
    granted: asyncio.Future[bool]
    has_bytes: bool = False


class ByteBudget:
    """A limit of bytes that calls take and return; calls that exceed it wait in order of arrival.

    An *owner* is a connection or an account, by name; bytes may have several owners. Each owner may have `owner_max`
    bytes, all together `total_max`. An owner without bytes may take more than its maximum at once, and so may any call
    when nothing is taken, so no size waits forever. Event loop only.
    """

    __slots__ = (
        "_of_owner",
        "_of_total",
        "_owners",
        "_total",
        "_wakes",
        "_what",
        "owner_max",
        "refused",
        "total_max",
        "used",
        "waited",
    )

    def __init__(self, what: str, *, total_max: int, owner_max: int, total: Total = _UNSHARED) -> None:
        """`what` names the bytes in errors: "requests in progress"; `total` is shared with other budgets."""
        self._what = what
        self._total = total
        self.total_max = total_max
        self.owner_max = owner_max
        self.used = 0
        self.waited = 0  # calls that had to wait
        self.refused = 0  # calls that timed out while waiting
        self._owners: dict[str, int] = {}
        self._of_owner: dict[str, deque[_Waiter]] = {}  # calls that wait for bytes of this owner
        self._of_total: deque[_Waiter] = deque()  # calls that wait for bytes of the total
        self._wakes = Wakes()

    def used_by(self, owner: str) -> int:
        return self._owners.get(owner, 0)

    def has_free(self, size: int, owners: Sequence[str]) -> bool:
        """Whether this many bytes may be taken now."""
        return self._total_has_free(size) and self._full_owner(size, owners) is None

    def has_free_for_all(self) -> bool:
        """Whether one more byte may be taken by any owner: the total is not used up."""
        return not self.used or (self.used < min(self.total_max, self.owner_max) and self._total.has_room(1))

    def take_now(self, size: int, owners: Sequence[str]) -> None:
        """Take the bytes unconditionally: they are in memory already."""
        self._add(size, owners)
        self._total.grew()

    def _add(self, size: int, owners: Sequence[str]) -> None:
        self.used += size
        for owner in owners:
            self._owners[owner] = self._owners.get(owner, 0) + size

    def try_take(self, size: int, owners: Sequence[str]) -> bool:
        """Take the bytes if that many are free and no call waits for them. Returns whether they were taken."""
        if self._of_total or not self._total_has_free(size) or self._full_owner(size, owners) is not None:
            return False
        self._add(size, owners)
        return True

    async def take(self, size: int, owners: Sequence[str], *, seconds: float) -> None:
        """Wait for the bytes and take them. TooManyRequestsError if that takes longer than `seconds`.

        A cancelled call has taken nothing. Callers must `give` the same bytes back to the same owners.
        """
        if self.try_take(size, owners):
            return
        self.waited += 1
        waiter = _Waiter(size, owners, asyncio.get_running_loop().create_future())
        self._enqueue(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter.granted
        except BaseException as error:
            if waiter.has_bytes:
                self.give(size, owners)  # granted in the same moment
            else:
                waiter.granted.cancel()
                self._advance(owners)
            if isinstance(error, TimeoutError):
                self.refused += 1
                raise self._too_many(seconds) from None
            raise

    async def wait_free(self, owners: Sequence[str], *, seconds: float) -> None:
        """Return when at least one byte is free. TooManyRequestsError like `take`."""
        if not self.has_free(1, owners):
            await self.take(1, owners, seconds=seconds)
            self.give(1, owners)

    def give(self, size: int, owners: Sequence[str]) -> None:
        """Return bytes, and grant them to waiting calls."""
        self.used -= size
        for owner in owners:
            left = self._owners[owner] - size
            if left:
                self._owners[owner] = left
            else:
                del self._owners[owner]
        if self._of_total or self._of_owner:
            self._advance(owners)
        self._total.freed()

    def advance(self) -> bool:
        """Serve calls that wait for bytes of the total; return whether some still wait."""
        self._advance(())
        return bool(self._of_total)

    def _total_has_free(self, size: int) -> bool:
        return not self.used or (self.used + size <= self.total_max and self._total.has_room(size))

    def _full_owner(self, size: int, owners: Sequence[str]) -> str | None:
        for owner in owners:
            used = self._owners.get(owner, 0)
            if used and used + size > self.owner_max:
                return owner
        return None

    def _enqueue(self, waiter: _Waiter, *, is_first: bool = False) -> None:
        """Grant the request, or queue it for the limit that it exceeds; `is_first`: it has waited longest for the
        total."""
        full = self._full_owner(waiter.size, waiter.owners)
        if full is not None:
            self._of_owner.setdefault(full, deque()).append(waiter)
        elif (self._of_total and not is_first) or not self._total_has_free(waiter.size):
            self._of_total.append(waiter)
            self._total.waits(self)
        else:
            self._add(waiter.size, waiter.owners)
            waiter.has_bytes = True
            self._wakes.resolve(waiter.granted, True)

    def _advance(self, owners: Sequence[str]) -> None:
        """Serve calls after bytes were freed: first those that wait for the total, then those of these owners."""
        while self._of_total:
            waiter = self._of_total[0]
            if not waiter.granted.done():
                if not self._total_has_free(waiter.size):
                    break
                self._enqueue(waiter, is_first=True)  # it may have to wait for its owner now
            self._of_total.popleft()
        for owner in owners:
            queue = self._of_owner.get(owner)
            moved = False
            while queue:
                waiter = queue[0]
                if not waiter.granted.done():
                    # Only one call per owner waits for the total, so an owner with many calls does not delay others.
                    if (moved and self._of_total) or self._full_owner(waiter.size, (owner,)) is not None:
                        break
                    self._enqueue(waiter)
                    moved = True
                queue.popleft()
            if queue is not None and not queue:
                del self._of_owner[owner]

    def _too_many(self, seconds: float) -> TooManyRequestsError:
        return TooManyRequestsError(
            f"the call waited {seconds:g} s for memory: {self._what} in progress take {self.used} bytes; the limits "
            f"are "
            f"{self.total_max} in total and {self.owner_max} per connection or account; send fewer requests at once"
        )


class Share:
    """The bytes that one call has taken from a budget. Always `close` it: this returns what is left."""

    __slots__ = ("_budget", "_owners", "size")

    def __init__(self, budget: ByteBudget, owners: Sequence[str]) -> None:
        self._budget = budget
        self._owners = owners
        self.size = 0

    def has_free(self) -> bool:
        return self._budget.has_free(1, self._owners)

    async def wait_free(self, seconds: float) -> None:
        """Like ByteBudget.wait_free."""
        await self._budget.wait_free(self._owners, seconds=seconds)

    async def take(self, size: int, seconds: float) -> None:
        """Like ByteBudget.take."""
        await self._budget.take(size, self._owners, seconds=seconds)
        self.size += size

    def take_now(self, size: int) -> None:
        """Like ByteBudget.take_now."""
        self._budget.take_now(size, self._owners)
        self.size += size

    def give(self, size: int) -> None:
        """Return this many bytes."""
        if size:
            self.size -= size
            self._budget.give(size, self._owners)

    def close(self) -> None:
        self.give(self.size)
