"""Tables that forget: a cache, or a memory of what happened lately, with a limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V], Generic[K, V]):
    """A mapping of at most `count_max` entries: a further one removes the entry that was set the longest time ago.

    To set an entry again makes it the latest; to read it does not. An OrderedDict, because a plain dict takes ever
    longer to find its first entry while first entries are removed.
    """

    __slots__ = ("_evicted", "count_max")

    def __init__(self, count_max: int, evicted: Callable[[K, V], object] | None = None) -> None:
        """`evicted` is called with each entry that made room, after it has gone; not with those that others remove."""
        super().__init__()
        self.count_max = count_max
        self._evicted = evicted

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.count_max:
            evicted = self.popitem(last=False)
            if self._evicted is not None:
                self._evicted(*evicted)
