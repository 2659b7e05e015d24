"""Allocation of the queues of a topic to the consumers of a group: RocketMQ's strategies.

Every consumer computes the whole allocation from the same lists, so no coordinator is needed. While the lists differ (a
consumer has just joined or left), a queue may be read by two consumers, or by none, for a moment.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic, on one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.queue_id}]"  # as in RocketMQ


class Allocation(Protocol):
    """A strategy. Equal arguments give equal results in every process."""

    def allocate(self, consumer: str, queues: Sequence[Queue], consumers: Sequence[str]) -> list[Queue]:
        """The queues of `consumer`. `queues` and `consumers` are sorted; `consumer` is one of them."""


class Averagely:
    """Contiguous queues, in shares that differ by at most one. The default."""

    def allocate(self, consumer: str, queues: Sequence[Queue], consumers: Sequence[str]) -> list[Queue]:
        index = consumers.index(consumer)
        share, rest = divmod(len(queues), len(consumers))
        first = index * share + min(index, rest)
        return list(queues[first : first + share + (index < rest)])


class AveragelyByCircle:
    """Every n-th queue, for n consumers: the queues of each broker are spread over all of them."""

    def allocate(self, consumer: str, queues: Sequence[Queue], consumers: Sequence[str]) -> list[Queue]:
        return list(queues[consumers.index(consumer) :: len(consumers)])


class ByConfig:
    """A fixed list of queues for this consumer, whatever the others read."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._queues = frozenset(queues)

    def allocate(self, consumer: str, queues: Sequence[Queue], consumers: Sequence[str]) -> list[Queue]:
        return [queue for queue in queues if queue in self._queues]


class ByMachineRoom:
    """The queues of brokers in some machine rooms, named ROOM@BROKER, averagely."""

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(self, consumer: str, queues: Sequence[Queue], consumers: Sequence[str]) -> list[Queue]:
        near = [queue for queue in queues if queue.broker.partition("@")[0] in self._rooms and "@" in queue.broker]
        index = consumers.index(consumer)
        share, rest = divmod(len(near), len(consumers))
        mine = near[index * share : (index + 1) * share]
        if index < rest:
            mine.append(near[index + share * len(consumers)])
        return mine


class NearMachineRoom:
    """Queues go to consumers in their broker's machine room; queues of a room without consumers go to all, by `inner`.

    `room_of` gives the machine room of a broker's or consumer's name.
    """

    def __init__(self, room_of: Mapping[str, str], inner: Allocation | None = None) -> None:
        self._room_of = room_of
        self._inner = inner or Averagely()

    def allocate(self, consumer: str, queues: Sequence[Queue], consumers: Sequence[str]) -> list[Queue]:
        room_of = self._room_of.get
        rooms = {room_of(each) for each in consumers}
        mine = [queue for queue in queues if room_of(queue.broker) == room_of(consumer)]
        neighbours = [each for each in consumers if room_of(each) == room_of(consumer)]
        remote = [queue for queue in queues if room_of(queue.broker) not in rooms]
        return sorted(
            self._inner.allocate(consumer, mine, neighbours) + self._inner.allocate(consumer, remote, consumers)
        )


class ConsistentHash:
    """Queues move as little as possible when consumers join or leave; shares are less even."""

    def __init__(self, virtual_nodes: int = 10) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"virtual_nodes is {virtual_nodes}; give at least 1")
        self._virtual_nodes = virtual_nodes

    def allocate(self, consumer: str, queues: Sequence[Queue], consumers: Sequence[str]) -> list[Queue]:
        ring = sorted((_hash(f"{each}-{number}"), each) for each in consumers for number in range(self._virtual_nodes))
        places = [place for place, _ in ring]
        mine = []
        for queue in queues:
            index = bisect.bisect_left(places, _hash(str(queue)))
            if ring[index % len(ring)][1] == consumer:
                mine.append(queue)
        return mine


def _hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")
