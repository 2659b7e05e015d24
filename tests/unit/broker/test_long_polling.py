"""Which waiting receives are woken."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.delivery.receive import long_polling
from aerobee_broker.delivery.receive.long_polling import LongPolling, QueueWait, poll_seconds
from aerobee_broker.errors import TooManyRequestsError
from aerobee_broker.limits.wakes import Wakes


class Source:
    """Messages for waiting receives, at most `size` for each receive, and a count of reads."""

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
    """Let all ready tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_message_wakes_one_of_many() -> None:
    """Of a thousand waiting receives, only one is woken to read."""
    source = Source(LongPolling())
    waiting = [asyncio.create_task(source.receive()) for _ in range(1000)]
    await settle()
    looks = source.looks
    source.arrive(1)
    await settle()
    assert source.looks == looks + 2  # the receive filled its batch and woke the next one
    assert sum(task.done() for task in waiting) == 1
    source.polling.drain()
    assert sum(await asyncio.gather(*waiting)) == 1
    assert source.polling.waiting_count == 0


async def test_a_burst_wakes_as_many_receives_as_needed() -> None:
    """One wake is enough: each receive that fills its batch wakes the next one."""
    source = Source(LongPolling())
    waiting = [asyncio.create_task(source.receive(10)) for _ in range(10)]
    await settle()
    source.arrive(35)
    await settle()
    assert sorted(task.result() for task in waiting if task.done()) == [5, 10, 10, 10]
    source.polling.drain()
    await asyncio.gather(*waiting)


async def test_first_to_wait_is_first_to_get() -> None:
    """The order holds after a wake without a message."""
    source = Source(LongPolling())
    first = asyncio.create_task(source.receive())
    await settle()
    second = asyncio.create_task(source.receive())
    await settle()
    source.polling.wake("topic", "group")  # without a message
    await settle()
    source.arrive(1)
    await settle()
    assert first.done()
    assert not second.done()
    source.arrive(1)
    await asyncio.gather(first, second)


@pytest.mark.parametrize("leaves", ["cancelled", "client gone"])
async def test_woken_receive_that_goes_away_passes_the_message_on(leaves: str) -> None:
    """A message announced to a receive that has ended goes to the next one."""
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


@pytest.mark.parametrize("ends", ["arrivals", "the topic"])
async def test_thousands_of_pulls_are_woken_in_many_steps(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one looks once more after the last message, also after one that came while others were being woken."""
    monkeypatch.setattr(long_polling, "_STEP_SECONDS", 0.0)  # one at a time
    resolved, resolve = 0, Wakes.resolve

    def counted(wakes: Wakes, future: asyncio.Future[bool], result: bool) -> None:
        nonlocal resolved
        resolved += 1
        resolve(wakes, future, result)

    monkeypatch.setattr(Wakes, "resolve", counted)
    polling, count, number = LongPolling(), 500, 0
    seen = [-1] * count

    async def pull(index: int) -> None:
        wait = QueueWait(polling, "topic", 0, "group", f"c{index}", 20.0)
        while True:
            seen[index] = number
            if not await wait.wait():
                return

    pulls = [asyncio.create_task(pull(index)) for index in range(count)]
    await settle()
    for number in (1, 2, 3):
        resolved = 0
        if ends == "arrivals":
            polling.arrived("topic", 0, number)
        else:
            polling.end_waits("topic")
        assert resolved < count / 2
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while set(seen) != {3}:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    polling.drain()
    await asyncio.gather(*pulls)
    assert polling.waiting_count == 0


async def test_groups_and_topics_are_distinguished() -> None:
    """A message wakes every group of its topic, a redelivery only its own group."""
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
    """Waiting receives are limited for each topic and group and in total. Those already waiting stay."""
    polling = LongPolling(waiting_per_group_max=2, waiting_max=3)
    waiting = [asyncio.create_task(polling.wait("t", group, "c", 20)) for group in ("a", "a", "b")]
    await settle()
    with pytest.raises(TooManyRequestsError, match="of group 'a' already wait for topic 't'"):
        await polling.wait("t", "a", "c", 20)
    with pytest.raises(TooManyRequestsError, match="3 receives are already waiting"):
        await polling.wait("t", "c", "c", 20)
    assert not any(task.done() for task in waiting)
    polling.drain()
    await asyncio.gather(*waiting)


async def test_after_a_drain_no_receive_waits() -> None:
    """A stopping broker answers at once, also receives that wait already."""
    polling = LongPolling()
    waiting = asyncio.create_task(polling.wait("t", "g", "c", 20))
    await settle()
    polling.drain()
    await settle()
    assert waiting.done()
    assert waiting.result() is False
    async with asyncio.timeout(10):
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
def test_poll_time_ends_before_the_deadline(requested: float | None, remaining: float | None, expected: float) -> None:
    """The time is the minimum of the request, the deadline minus a reserve, and the limit."""
    assert poll_seconds(requested, remaining, reserve=0.2, longest=30.0) == pytest.approx(expected)


async def test_without_long_polling_a_wait_is_short() -> None:
    """The wait is short, whatever the client requests."""
    polling = LongPolling(seconds_max=0.01)
    async with asyncio.timeout(60):
        assert not await polling.wait("topic", "group", "c", 3600)
