"""Cached directory listings, read again only after a change.

A directory's modification time changes with its entries. It is only as precise as the kernel's clock, so listings read
within two seconds of a change are not trusted: git calls such entries racy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

ContentT = TypeVar("ContentT")

_RACY_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Listing(Generic[ContentT]):
    """The content of a directory. `complete`: it does not change unless the directory does."""

    content: ContentT
    complete: bool = True


class Listings:
    """Caches directory contents. `clock`: nanoseconds since the Unix epoch, as for files."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._known: dict[Path, tuple[int, Any]] = {}

    def get(self, directory: Path, read: Callable[[], Listing[ContentT]]) -> tuple[ContentT, bool]:
        """The content of a directory, and whether it had to be read. A missing one is always read."""
        try:
            modified = directory.stat().st_mtime_ns
        except OSError:
            modified = None
        known = self._known.get(directory)
        if known is not None and known[0] == modified:
            return known[1], False
        now = self._clock()
        found = read()
        self._known.pop(directory, None)
        if modified is not None and found.complete and now - modified > _RACY_NS:
            self._known[directory] = modified, found.content
        return found.content, True
