"""Receives that wait for a message, without polling.

Each (group, topic) has one waiting list, or each queue if a receive takes from one queue only. A wait ends
when a message arrives or becomes ready again (`wake`), the client terminates, the broker drains, or the time is over.

A wake wakes one receive of a list, however many messages there are. That receive takes all it can, and wakes the next
one if more may be left. A message therefore costs one examination of the queues instead of a thousand, and no receive
waits while messages are available: a woken receive that ends without examining the queues also wakes the next one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final, TypeVar

from aerobee_broker.errors import TooManyRequestsError
from aerobee_broker.limits.wakes import AT_ONCE, Wakes

WAITING_PER_GROUP_MAX: Final = 1024  # RocketMQ's limits
WAITING_MAX: Final = 100_000
SHORT_POLLING_SECONDS: Final = 1.0  # RocketMQ's shortPollingTimeMills, without long polling

_NUMBERS: Final = itertools.count()
_STEP_SECONDS: Final = 0.002  # of going through many lists before the loop does something else
_T = TypeVar("_T")

Place = str | tuple[str, int]
"""The source of the messages: the stored name of a topic, or of a topic and one of its queues."""


class _Waiter:
    __slots__ = ("client_id", "future")

    def __init__(self, future: asyncio.Future[bool], client_id: str) -> None:
        self.future = future  # True: look again; False: the wait is over
        self.client_id = client_id


class _WaitingList:
    """Receives that wait, the first one first. An OrderedDict as a set, because waiters also leave from the middle."""

    __slots__ = ("awake", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self.awake = 0  # receives that were woken and have not looked yet; they will see later arrivals too


class LongPolling:
    """All waiting receives. Event loop only."""

    def __init__(
        self,
        *,
        waiting_per_group_max: int = WAITING_PER_GROUP_MAX,
        waiting_max: int = WAITING_MAX,
        seconds_max: float = math.inf,
    ) -> None:
        """`seconds_max`: the longest wait, whatever the request."""
        self._seconds_max = seconds_max
        self._lists: dict[Place, dict[str, _WaitingList]] = {}  # place -> group
        self._of_client: dict[str, set[_Waiter]] = {}
        self._waiting_per_group_max = waiting_per_group_max
        self._waiting_max = waiting_max
        self._draining = False
        self._walked: dict[Place, bool] = {}  # places whose many lists are being woken; whether to do so once more
        self._wakes = Wakes()  # one arrival may wake thousands of pulls, and a connection that ends as many
        self.waiting_count = 0

    async def wait(
        self,
        topic: str,
        group: str,
        client_id: str,
        seconds: float,
        *,
        queue_id: int | None = None,
        again: bool = False,
    ) -> bool:
        """Return True when a message may be available, False when the wait is over (timeout, drain, client gone).

        Must be called in the same step of the loop in which the caller examined the queues and found nothing. `again`:
        the caller was woken before and keeps its place at the head of the list. `queue_id` None: any queue. Raises
        TooManyRequestsError when too many receives wait.
        """
        seconds = min(seconds, self._seconds_max)
        if seconds <= 0 or self._draining:
            return False
        place = topic if queue_id is None else (topic, queue_id)
        waiting = self._lists.setdefault(place, {}).setdefault(group, _WaitingList())
        if not again and len(waiting.waiters) >= self._waiting_per_group_max:
            raise TooManyRequestsError(
                f"polling full: {len(waiting.waiters)} receives of group {group!r} already wait for topic {topic!r}; "
                "use fewer consumers or fewer receives at a time"
            )
        if not again and self.waiting_count >= self._waiting_max:
            self._remove_unused(place, group, waiting)
            raise TooManyRequestsError(
                f"polling full: {self.waiting_count} receives are already waiting; try again later"
            )
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), client_id)
        waiting.waiters[waiter] = None
        if again:
            waiting.waiters.move_to_end(waiter, last=False)
        self._of_client.setdefault(client_id, set()).add(waiter)
        self.waiting_count += 1
        timer = loop.call_later(seconds, self._wakes.resolve, waiter.future, False)
        look = False
        try:
            look = await waiter.future
            return look
        finally:
            timer.cancel()
            was_woken = waiter not in waiting.waiters
            if not was_woken:
                del waiting.waiters[waiter]
            self.waiting_count -= 1
            self._forget(waiter)
            if was_woken:
                waiting.awake -= 1
                if not look:
                    self._wake_next(waiting)  # woken, but cancelled or ended before it could look
            self._remove_unused(place, group, waiting)

    def wake(self, topic: str, group: str | None = None, queue_id: int | None = None) -> None:
        """Wake one waiting receive of the group, or one of each group, because there may be a message.

        `queue_id`: the queue of the message, so that receives of this queue alone are woken too.
        """
        self._wake_place(topic, group)
        if queue_id is not None:
            self._wake_place((topic, queue_id), group)

    def _wake_place(self, place: Place, group: str | None) -> None:
        lists = self._lists.get(place)
        if lists is None:
            return
        if group is None:
            if len(lists) <= AT_ONCE:
                for waiting in lists.values():
                    self._wake_next(waiting)
            elif place in self._walked:
                self._walked[place] = True
            else:
                self._walk(place)
        elif (of_group := lists.get(group)) is not None:
            self._wake_next(of_group)

    def _walk(self, place: Place) -> None:
        """Wake the next of every list that is here now, in many steps of the loop, and once more if a message comes
        meanwhile."""
        self._walked[place] = False
        _go_through(iter(list(self._lists.get(place, {}).values())), self._wake_next, lambda: self._has_walked(place))

    def _has_walked(self, place: Place) -> None:
        if self._walked.pop(place):
            self._walk(place)

    def arrived(self, topic: str, queue_id: int, max_offset: int) -> None:
        """A listener for `MessageStore.arrival_listeners`."""
        self.wake(topic, None, queue_id)

    def end_client(self, client_id: str) -> None:
        """End the waits of this client."""
        for waiter in tuple(self._of_client.get(client_id, ())):
            self._wakes.resolve(waiter.future, False)

    def end_waits(self, topic: str | None = None, group: str | None = None) -> None:
        """After a change or deletion of topic or group: wake all waiting receives, so that they notice it.

        Includes groups whose names begin with the group's name and a space.
        """
        _go_through(self._waiters_of(topic, group), lambda waiter: self._wakes.resolve(waiter.future, True))

    def _waiters_of(self, topic: str | None, group: str | None) -> Iterator[_Waiter]:
        """Those of this topic and this group, or of all, while others come and go."""
        for place, lists in list(self._lists.items()):
            if topic is None or topic == (place if isinstance(place, str) else place[0]):
                for group_name, waiting in list(lists.items()):
                    if group is None or group_name.partition(" ")[0] == group:
                        yield from list(waiting.waiters)

    def drain(self) -> None:
        """End every wait; none begins after this."""
        self._draining = True
        for waiters in tuple(self._of_client.values()):
            for waiter in tuple(waiters):
                self._wakes.resolve(waiter.future, False)

    def _wake_next(self, waiting: _WaitingList) -> None:
        if waiting.awake or not waiting.waiters:
            return
        waiter, _ = waiting.waiters.popitem(last=False)
        waiting.awake += 1
        # A receive that timed out or was cancelled in this same step wakes the next one when it runs.
        self._wakes.resolve(waiter.future, True)

    def _forget(self, waiter: _Waiter) -> None:
        waiters = self._of_client[waiter.client_id]
        waiters.discard(waiter)
        if not waiters:
            del self._of_client[waiter.client_id]

    def _remove_unused(self, place: Place, group: str, waiting: _WaitingList) -> None:
        if not waiting.waiters and not waiting.awake:
            lists = self._lists.get(place)
            if lists is not None and lists.get(group) is waiting:
                del lists[group]
                if not lists:
                    del self._lists[place]


def _go_through(items: Iterator[_T], act: Callable[[_T], object], done: Callable[[], object] = lambda: None) -> None:
    """Do something for each item: some now, the others in later steps of the loop, of which none takes long."""
    ends = monotonic() + _STEP_SECONDS
    for item in items:
        act(item)
        if monotonic() > ends:
            asyncio.get_running_loop().call_soon(_go_through, items, act, done)
            return
    done()


class QueueWait:
    """The waits of one pull for messages of one queue.

    Every pull gets every message, so each has a list of its own, and one arrival wakes all of them. The name of the
    list begins with the group and has a space, so that no group has this name.
    """

    __slots__ = ("_again", "_client_id", "_name", "_polling", "queue_id", "topic", "until")

    def __init__(
        self, polling: LongPolling, topic: str, queue_id: int, group: str, client_id: str, seconds: float
    ) -> None:
        """`seconds`: of all waits together, from now on. `group`: empty for a reader without one."""
        self._polling = polling
        self._name = f"{group} pull {next(_NUMBERS)}"
        self._client_id = client_id
        self.until = asyncio.get_running_loop().time() + seconds
        """When all waits are over, in loop time."""
        self._again = False
        self.topic = topic
        self.queue_id = queue_id

    @property
    def seconds_left(self) -> float:
        return max(self.until - asyncio.get_running_loop().time(), 0.0)

    async def wait(self) -> bool:
        """Like LongPolling.wait, until the time of all waits is over."""
        again, self._again = self._again, True
        return await self._polling.wait(
            self.topic, self._name, self._client_id, self.seconds_left, queue_id=self.queue_id, again=again
        )


def poll_seconds(requested: float | None, remaining: float | None, *, reserve: float, longest: float) -> float:
    """How long a receive may wait: the requested time, ending `reserve` before its deadline, and at most `longest`.

    `requested` None: an old client, which waits until its deadline. `remaining` None: no deadline. Never negative; 0
    means to answer at once.
    """
    limit = longest if remaining is None else min(longest, remaining - reserve)
    return max(0.0, limit if requested is None else min(requested, limit))
