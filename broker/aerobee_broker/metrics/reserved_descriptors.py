"""Descriptors that only probes may use."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_COUNT: Final = 4


class ReservedDescriptors:
    """Open descriptors that are closed, one by one, when clients use all others."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self.take()

    def take(self) -> None:
        """Reserve descriptors, as far as there are any."""
        with suppress(OSError):
            while len(self._kept) < _COUNT:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def give_up_one(self) -> bool:
        """Make one descriptor available; False if none is reserved."""
        if self._kept:
            os.close(self._kept.pop())
            return True
        return False

    def close(self) -> None:
        """Make all of them available."""
        while self.give_up_one():
            pass
