"""How many bytes of requests and answers may be in memory at once: in all, and of each connection and account."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from aerobee_broker.errors import TooManyRequestsError


@dataclass(slots=True, eq=False)
class _Waiter:
    size: int
    owners: Sequence[str]
    granted: asyncio.Future[None]


class ByteBudget:
    """Bytes that are taken and given back; whoever finds none left waits, in the order of arrival.

    A *owner* is a connection or an account, by name; bytes have any number of owners. Each may have `owner_max`
    bytes, all together `total_max`. A owner that has nothing may take more than its maximum at once, and so may
    everybody when nothing is taken: no size waits for ever. Event loop only.
    """

    __slots__ = ("_owners", "_of_owner", "_of_total", "_what", "owner_max", "refused", "total_max", "used", "waited")

    def __init__(self, what: str, *, total_max: int, owner_max: int) -> None:
        """`what` names the bytes in errors: "requests in progress"."""
        self._what = what
        self.total_max = total_max
        self.owner_max = owner_max
        self.used = 0
        self.waited = 0  # how often somebody had to wait
        self.refused = 0  # how often somebody waited in vain
        self._owners: dict[str, int] = {}
        self._of_owner: dict[str, deque[_Waiter]] = {}  # who waits for bytes of this owner
        self._of_total: deque[_Waiter] = deque()  # who waits for any bytes

    def used_by(self, owner: str) -> int:
        return self._owners.get(owner, 0)

    def has_room(self, size: int, owners: Sequence[str]) -> bool:
        """Whether so many bytes may be taken now."""
        return self._total_has_room(size) and self._full_owner(size, owners) is None

    def has_room_for_anybody(self) -> bool:
        """Whether `has_room` says yes to a byte more, whoever asks: no owner has more than all have together."""
        return not self.used or self.used < min(self.total_max, self.owner_max)

    def take_now(self, size: int, owners: Sequence[str]) -> None:
        """Take the bytes, whether there is room or not: they are in memory already."""
        self.used += size
        for owner in owners:
            self._owners[owner] = self._owners.get(owner, 0) + size

    async def take(self, size: int, owners: Sequence[str], *, seconds: float) -> None:
        """Take the bytes when there is room. TooManyRequestsError if there is none for so long.

        Cancelled, it has taken nothing. Whoever takes must `give` the same to the same owners.
        """
        if not self._of_total and self.has_room(size, owners):
            self.take_now(size, owners)
            return
        self.waited += 1
        waiter = _Waiter(size, owners, asyncio.get_running_loop().create_future())
        self._enqueue(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter.granted
        except BaseException as error:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.give(size, owners)  # granted in the same moment
            else:
                waiter.granted.cancel()
                self._advance(owners)
            if isinstance(error, TimeoutError):
                self.refused += 1
                raise self._too_many(seconds) from None
            raise

    async def room(self, owners: Sequence[str], *, seconds: float) -> None:
        """Return when there is room for a byte more. TooManyRequestsError as of `take`."""
        if not self.has_room(1, owners):
            await self.take(1, owners, seconds=seconds)
            self.give(1, owners)

    def give(self, size: int, owners: Sequence[str]) -> None:
        """Give bytes back that were taken, and let those have them who waited."""
        self.used -= size
        for owner in owners:
            left = self._owners[owner] - size
            if left:
                self._owners[owner] = left
            else:
                del self._owners[owner]
        if self._of_total or self._of_owner:
            self._advance(owners)

    def _total_has_room(self, size: int) -> bool:
        return not self.used or self.used + size <= self.total_max

    def _full_owner(self, size: int, owners: Sequence[str]) -> str | None:
        for owner in owners:
            used = self._owners.get(owner, 0)
            if used and used + size > self.owner_max:
                return owner
        return None

    def _enqueue(self, waiter: _Waiter, *, is_first: bool = False) -> None:
        """Grant, or let it wait for what it lacks; `is_first`: nobody waits longer for any bytes."""
        full = self._full_owner(waiter.size, waiter.owners)
        if full is not None:
            self._of_owner.setdefault(full, deque()).append(waiter)
        elif (self._of_total and not is_first) or not self._total_has_room(waiter.size):
            self._of_total.append(waiter)
        else:
            self.take_now(waiter.size, waiter.owners)
            waiter.granted.set_result(None)

    def _advance(self, owners: Sequence[str]) -> None:
        """Bytes of these owners are free: first those who waited for any, then those who waited for these."""
        while self._of_total:
            waiter = self._of_total[0]
            if not waiter.granted.done():
                if not self._total_has_room(waiter.size):
                    break
                self._enqueue(waiter, is_first=True)  # maybe it has to wait for its owner now
            self._of_total.popleft()
        for owner in owners:
            queue = self._of_owner.get(owner)
            moved = False
            while queue:
                waiter = queue[0]
                if not waiter.granted.done():
                    # One at a time waits for any bytes: a owner with thousands of calls is not in front of others.
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
    """What one call holds of a budget. `close` it whatever happens: it gives back all that is left."""

    __slots__ = ("_budget", "_owners", "size")

    def __init__(self, budget: ByteBudget, owners: Sequence[str]) -> None:
        self._budget = budget
        self._owners = owners
        self.size = 0

    def has_room(self) -> bool:
        return self._budget.has_room(1, self._owners)

    async def room(self, seconds: float) -> None:
        """As ByteBudget.room."""
        await self._budget.room(self._owners, seconds=seconds)

    async def take(self, size: int, seconds: float) -> None:
        """As ByteBudget.take."""
        await self._budget.take(size, self._owners, seconds=seconds)
        self.size += size

    def take_now(self, size: int) -> None:
        """As ByteBudget.take_now."""
        self._budget.take_now(size, self._owners)
        self.size += size

    def give(self, size: int) -> None:
        """Give so many bytes back."""
        if size:
            self.size -= size
            self._budget.give(size, self._owners)

    def close(self) -> None:
        self.give(self.size)
