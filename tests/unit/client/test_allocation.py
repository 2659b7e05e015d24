"""Allocation of queues among consumers, and limits on the messages that a consumer buffers."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_client import (
    Allocation,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    NearMachineRoom,
    Queue,
)
from aerobee_client.limits.flow import FlowControl

QUEUES = [Queue("orders", "b", number) for number in range(10)]
CONSUMERS = ["c1", "c2", "c3", "c4"]


def shares(strategy: Allocation, queues: list[Queue] = QUEUES, consumers: list[str] = CONSUMERS) -> list[list[int]]:
    """The queue ids allocated to each consumer."""
    return [[queue.queue_id for queue in strategy.allocate(each, queues, consumers)] for each in consumers]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Averagely(), [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (AveragelyByCircle(), [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
    ],
)
def test_even_shares(strategy: Allocation, expected: list[list[int]]) -> None:
    """Ten queues among four consumers are allocated like RocketMQ's strategies of the same names do."""
    assert shares(strategy) == expected


@pytest.mark.parametrize(
    "strategy", [Averagely(), AveragelyByCircle(), ConsistentHash(), ConsistentHash(1), NearMachineRoom({})]
)
@pytest.mark.parametrize("consumers", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("queues", [0, 1, 5, 16])
def test_every_queue_has_one_reader(strategy: Allocation, consumers: int, queues: int) -> None:
    """Every queue is allocated exactly once, even with more consumers than queues."""
    some = [Queue("t", "b", number) for number in range(queues)]
    found = shares(strategy, some, [f"c{number:02}" for number in range(consumers)])
    assert sorted(queue for each in found for queue in each) == list(range(queues))


def test_by_config() -> None:
    """The configured queues are allocated, except those that do not exist."""
    assert shares(ByConfig([QUEUES[3], Queue("other", "b", 0)]), consumers=["c1"]) == [[3]]


def test_by_machine_room() -> None:
    """Only brokers in the configured rooms count. Each consumer gets an even run of queues; the rest go one each."""
    queues = [Queue("t", broker, number) for broker in ("far@a", "near@b", "plain") for number in range(5)]
    found = [ByMachineRoom({"near"}).allocate(each, queues, ["c1", "c2"]) for each in ("c1", "c2")]
    assert [[(queue.broker, queue.queue_id) for queue in each] for each in found] == [
        [("near@b", 0), ("near@b", 1), ("near@b", 4)],
        [("near@b", 2), ("near@b", 3)],
    ]


def test_near_machine_room() -> None:
    """Queues go to consumers in the same room if there are any. All consumers share the remaining queues."""
    rooms = {"b1": "r1", "b2": "r2", "b3": "r3", "c1": "r1", "c2": "r2"}
    queues = sorted(Queue("t", broker, number) for broker in ("b1", "b2", "b3") for number in range(2))
    strategy = NearMachineRoom(rooms)
    found = {each: strategy.allocate(each, queues, ["c1", "c2"]) for each in ("c1", "c2")}
    assert [(queue.broker, queue.queue_id) for queue in found["c1"]] == [("b1", 0), ("b1", 1), ("b3", 0)]
    assert [(queue.broker, queue.queue_id) for queue in found["c2"]] == [("b2", 0), ("b2", 1), ("b3", 1)]


def test_consistent_hashing_moves_little() -> None:
    """When a consumer leaves, only its queues move."""
    queues = [Queue("t", "b", number) for number in range(64)]
    before = {each: ConsistentHash().allocate(each, queues, CONSUMERS) for each in CONSUMERS}
    after = {each: ConsistentHash().allocate(each, queues, CONSUMERS[:3]) for each in CONSUMERS[:3]}
    for each in CONSUMERS[:3]:
        assert set(before[each]) <= set(after[each])
    assert all(before.values())


class TestFlowControl:
    def test_count_and_bytes(self) -> None:
        """Fetching stops at the count or byte limit and resumes when a message is removed."""
        flow = FlowControl(3, 100, 1000)
        assert flow.free_count() == 3
        flow.add("q", 0, 10)
        assert flow.free_count() == 2
        flow.add("q", 1, 90)
        assert flow.free_count() == 0
        flow.remove("q", 1, 90)
        assert flow.free_count() == 2

    def test_the_span(self) -> None:
        """An unfinished old message blocks its own queue, not the others. Each duplicate counts."""
        flow = FlowControl(100, 1 << 20, 10)
        for offset in (5, 5, 9, 14):
            flow.add("q", offset, 1)
        assert flow.span("q") == 10
        assert (flow.free_count("q"), flow.free_count("other"), flow.free_count()) == (0, 96, 0)
        flow.remove("q", 5, 1)
        assert flow.free_count("q") == 0
        flow.remove("q", 5, 1)
        assert (flow.span("q"), flow.free_count("q")) == (6, 98)
        for offset in (9, 14):
            flow.remove("q", offset, 1)
        assert (flow.span("q"), flow.count, flow.size) == (0, 0, 0)

    async def test_freed_space_wakes_a_waiting_fetch(self) -> None:
        """Freed space wakes a waiting fetch."""
        flow = FlowControl(1, 100, 100)
        flow.add("q", 0, 1)
        waiting = asyncio.create_task(flow.wait_free())
        await asyncio.sleep(0)
        assert not waiting.done()
        flow.remove("q", 0, 1)
        assert await waiting == 1
