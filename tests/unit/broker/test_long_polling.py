"""Who is woken when, and who is not."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.errors import TooManyRequestsError
from aerobee_broker.long_polling import LongPolling, poll_seconds


class Source:
    """Messages that waiting receives take, `size` at most each; and how often anybody looked."""

    def __init__(self, polling: LongPolling) -> None:
        self.polling = polling
        self.available = 0
        self.looks = 0

    def arrive(self, count: int) -> None:
        self.available += count
        self.polling.wake("topic")

    async def receive(self, size: int = 1, *, seconds: float = 20.0, client_id: str = "c") -> int:
        again = False
        while True:
            self.looks += 1
            if self.available:
                taken = min(size, self.available)
                self.available -= taken
                if taken == size:
                    self.polling.wake("topic", "group")
                return taken
            if not await self.polling.wait("topic", "group", client_id, seconds, again=again):
                return 0
            again = True


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_message_wakes_one_of_many() -> None:
    """No thundering herd: a thousand wait, one looks."""
    source = Source(LongPolling())
    waiting = [asyncio.create_task(source.receive()) for _ in range(1000)]
    await settle()
    looks = source.looks
    source.arrive(1)
    await settle()
    assert source.looks == looks + 2  # the one that got it filled its batch and woke the next, to be sure
    assert sum(task.done() for task in waiting) == 1
    source.polling.drain()
    assert sum(await asyncio.gather(*waiting)) == 1
    assert source.polling.waiting_count == 0


async def test_a_burst_reaches_as_many_as_it_needs() -> None:
    """One wake for all of it; the baton does the rest."""
    source = Source(LongPolling())
    waiting = [asyncio.create_task(source.receive(10)) for _ in range(10)]
    await settle()
    source.arrive(35)
    await settle()
    assert sorted(task.result() for task in waiting if task.done()) == [5, 10, 10, 10]
    source.polling.drain()
    await asyncio.gather(*waiting)


async def test_first_to_wait_is_first_to_get() -> None:
    """Also after it was woken in vain."""
    source = Source(LongPolling())
    first = asyncio.create_task(source.receive())
    await settle()
    second = asyncio.create_task(source.receive())
    await settle()
    source.polling.wake("topic", "group")  # for nothing
    await settle()
    source.arrive(1)
    await settle()
    assert first.done()
    assert not second.done()
    source.arrive(1)
    await asyncio.gather(first, second)


@pytest.mark.parametrize("leaves", ["cancelled", "client gone"])
async def test_woken_receive_that_goes_away_passes_the_message_on(leaves: str) -> None:
    """The message was announced to somebody who is not there any more."""
    source = Source(LongPolling())
    first = asyncio.create_task(source.receive(client_id="leaving"))
    await settle()
    second = asyncio.create_task(source.receive(client_id="staying"))
    await settle()
    if leaves == "cancelled":
        source.arrive(1)
        first.cancel()
    else:
        source.polling.end_client("leaving")
        source.arrive(1)
    async with asyncio.timeout(60):
        assert await second == 1
    await asyncio.gather(first, return_exceptions=True)
    assert source.polling.waiting_count == 0


async def test_groups_and_topics_are_told_apart() -> None:
    """A message goes to every group of its topic, a redelivery to its own group."""
    polling = LongPolling()
    a = asyncio.create_task(polling.wait("t", "a", "c", 20))
    b = asyncio.create_task(polling.wait("t", "b", "c", 20))
    other = asyncio.create_task(polling.wait("u", "a", "c", 20))
    await settle()
    polling.wake("t", "a")
    await settle()
    assert (a.done(), b.done(), other.done()) == (True, False, False)
    polling.arrived("t", 0, 1)
    assert await b is True
    polling.drain()
    assert await other is False


async def test_bounds_of_waiting_receives() -> None:
    """One line, and all together; those who wait already are not disturbed."""
    polling = LongPolling(waiting_per_line_max=2, waiting_max=3)
    waiting = [asyncio.create_task(polling.wait("t", group, "c", 20)) for group in ("a", "a", "b")]
    await settle()
    with pytest.raises(TooManyRequestsError, match="of group 'a' already wait for topic 't'"):
        await polling.wait("t", "a", "c", 20)
    with pytest.raises(TooManyRequestsError, match="3 receives are already waiting"):
        await polling.wait("t", "c", "c", 20)
    assert not any(task.done() for task in waiting)
    polling.drain()
    await asyncio.gather(*waiting)


async def test_after_a_drain_nobody_waits() -> None:
    """A stopping broker answers at once."""
    polling = LongPolling()
    polling.drain()
    assert await polling.wait("t", "g", "c", 20) is False


@pytest.mark.parametrize(
    ("requested", "remaining", "expected"),
    [
        (5.0, 8.0, 5.0),
        (40.0, 100.0, 30.0),  # no longer than the broker's limit
        (20.0, 20.0, 19.8),  # Rust: the deadline is the polling time
        (None, 10.0, 9.8),
        (None, None, 30.0),
        (0.0, 3.0, 0.0),
        (5.0, 0.1, 0.0),
        (-1.0, 3.0, 0.0),
    ],
)
def test_poll_time_is_over_before_the_deadline(
    requested: float | None, remaining: float | None, expected: float
) -> None:
    """The smallest of what is asked for, what the deadline leaves, and the limit."""
    assert poll_seconds(requested, remaining, reserve=0.2, longest=30.0) == pytest.approx(expected)


async def test_without_long_polling_a_wait_is_short() -> None:
    """Whatever is asked for."""
    polling = LongPolling(seconds_max=0.01)
    async with asyncio.timeout(60):
        assert not await polling.wait("topic", "group", "c", 3600)
