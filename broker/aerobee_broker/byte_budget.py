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
    holders: Sequence[str]
    granted: asyncio.Future[None]


class ByteBudget:
    """Bytes that are taken and given back; whoever finds none left waits, in the order of arrival.

    A *holder* is a connection or an account, by name; bytes have any number of holders. Each may have `holder_max`
    bytes, all together `total_max`. A holder that has nothing may take more than its maximum at once, and so may
    everybody when nothing is taken: no size waits for ever. Event loop only.
    """

    __slots__ = ("_holders", "_of_holder", "_of_total", "_what", "holder_max", "refused", "total_max", "used", "waited")

    def __init__(self, what: str, *, total_max: int, holder_max: int) -> None:
        """`what` names the bytes in errors: "requests in progress"."""
        self._what = what
        self.total_max = total_max
        self.holder_max = holder_max
        self.used = 0
        self.waited = 0  # how often somebody had to wait
        self.refused = 0  # how often somebody waited in vain
        self._holders: dict[str, int] = {}
        self._of_holder: dict[str, deque[_Waiter]] = {}  # who waits for bytes of this holder
        self._of_total: deque[_Waiter] = deque()  # who waits for any bytes

    def used_by(self, holder: str) -> int:
        return self._holders.get(holder, 0)

    def has_room(self, size: int, holders: Sequence[str]) -> bool:
        """Whether so many bytes may be taken now."""
        return self._total_has_room(size) and self._full_holder(size, holders) is None

    def has_room_for_anybody(self) -> bool:
        """Whether `has_room` says yes to a byte more, whoever asks: no holder has more than all have together."""
        return not self.used or self.used < min(self.total_max, self.holder_max)

    def take_now(self, size: int, holders: Sequence[str]) -> None:
        """Take the bytes, whether there is room or not: they are in memory already."""
        self.used += size
        for holder in holders:
            self._holders[holder] = self._holders.get(holder, 0) + size

    async def take(self, size: int, holders: Sequence[str], *, seconds: float) -> None:
        """Take the bytes when there is room. TooManyRequestsError if there is none for so long.

        Cancelled, it has taken nothing. Whoever takes must `give` the same to the same holders.
        """
        if not self._of_total and self.has_room(size, holders):
            self.take_now(size, holders)
            return
        self.waited += 1
        waiter = _Waiter(size, holders, asyncio.get_running_loop().create_future())
        self._enqueue(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter.granted
        except BaseException as error:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.give(size, holders)  # granted in the same moment
            else:
                waiter.granted.cancel()
                self._advance(holders)
            if isinstance(error, TimeoutError):
                self.refused += 1
                raise self._too_many(seconds) from None
            raise

    async def room(self, holders: Sequence[str], *, seconds: float) -> None:
        """Return when there is room for a byte more. TooManyRequestsError as of `take`."""
        if not self.has_room(1, holders):
            await self.take(1, holders, seconds=seconds)
            self.give(1, holders)

    def give(self, size: int, holders: Sequence[str]) -> None:
        """Give bytes back that were taken, and let those have them who waited."""
        self.used -= size
        for holder in holders:
            left = self._holders[holder] - size
            if left:
                self._holders[holder] = left
            else:
                del self._holders[holder]
        if self._of_total or self._of_holder:
            self._advance(holders)

    def _total_has_room(self, size: int) -> bool:
        return not self.used or self.used + size <= self.total_max

    def _full_holder(self, size: int, holders: Sequence[str]) -> str | None:
        for holder in holders:
            used = self._holders.get(holder, 0)
            if used and used + size > self.holder_max:
                return holder
        return None

    def _enqueue(self, waiter: _Waiter, *, is_first: bool = False) -> None:
        """Grant, or let it wait for what it lacks; `is_first`: nobody waits longer for any bytes."""
        full = self._full_holder(waiter.size, waiter.holders)
        if full is not None:
            self._of_holder.setdefault(full, deque()).append(waiter)
        elif (self._of_total and not is_first) or not self._total_has_room(waiter.size):
            self._of_total.append(waiter)
        else:
            self.take_now(waiter.size, waiter.holders)
            waiter.granted.set_result(None)

    def _advance(self, holders: Sequence[str]) -> None:
        """Bytes of these holders are free: first those who waited for any, then those who waited for these."""
        while self._of_total:
            waiter = self._of_total[0]
            if not waiter.granted.done():
                if not self._total_has_room(waiter.size):
                    break
                self._enqueue(waiter, is_first=True)  # maybe it has to wait for its holder now
            self._of_total.popleft()
        for holder in holders:
            queue = self._of_holder.get(holder)
            moved = False
            while queue:
                waiter = queue[0]
                if not waiter.granted.done():
                    # One at a time waits for any bytes: a holder with thousands of calls is not in front of others.
                    if (moved and self._of_total) or self._full_holder(waiter.size, (holder,)) is not None:
                        break
                    self._enqueue(waiter)
                    moved = True
                queue.popleft()
            if queue is not None and not queue:
                del self._of_holder[holder]

    def _too_many(self, seconds: float) -> TooManyRequestsError:
        return TooManyRequestsError(
            f"the call waited {seconds:g} s for memory: {self._what} in progress take {self.used} bytes; the limits "
            f"are "
            f"{self.total_max} in total and {self.holder_max} per connection or account; send fewer requests at once"
        )


class Share:
    """What one call holds of a budget. `close` it whatever happens: it gives back all that is left."""

    __slots__ = ("_budget", "_holders", "size")

    def __init__(self, budget: ByteBudget, holders: Sequence[str]) -> None:
        self._budget = budget
        self._holders = holders
        self.size = 0

    def has_room(self) -> bool:
        return self._budget.has_room(1, self._holders)

    async def room(self, seconds: float) -> None:
        """As ByteBudget.room."""
        await self._budget.room(self._holders, seconds=seconds)

    async def take(self, size: int, seconds: float) -> None:
        """As ByteBudget.take."""
        await self._budget.take(size, self._holders, seconds=seconds)
        self.size += size

    def take_now(self, size: int) -> None:
        """As ByteBudget.take_now."""
        self._budget.take_now(size, self._holders)
        self.size += size

    def give(self, size: int) -> None:
        """Give so many bytes back."""
        if size:
            self.size -= size
            self._budget.give(size, self._holders)

    def close(self) -> None:
        self.give(self.size)
