"""All states that a model can reach."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


def reachable(start: S, following: Callable[[S], Iterable[S]]) -> Iterator[S]:
    """Each state once, those with the fewest steps from `start` first."""
    seen = {start}
    waiting = deque(seen)
    while waiting:
        state = waiting.popleft()
        yield state
        for each in following(state):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
