"""`async with` for objects that close at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class AsyncClosing(ABC):
    """An object whose `async with` block calls `close` at its end."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for running work, and release what the object holds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
