"""An event loop in a thread of its own, and how blocking calls run coroutines of a client in it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from aerobee_client.connections.closing import AsyncClosing
from aerobee_client.errors import ClientError

ResultT = TypeVar("ResultT")
WrappedT = TypeVar("WrappedT")
ClosingT = TypeVar("ClosingT", bound=AsyncClosing)

_END = object()


class LoopThread:
    """Runs coroutines and functions in an event loop in a thread of its own. Safe to use from several threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aerobee client", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[ResultT], timeout_seconds: float | None = None) -> ResultT:
        """Run a coroutine and return its result. On timeout, raises TimeoutError and cancels the coroutine."""
        future = self.start(work)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a plain function in the thread of the loop and return the result."""

        async def called() -> ResultT:
            return function()

        return self.run(called())

    def iterate(self, iterator: AsyncIterator[ResultT]) -> Iterator[ResultT]:
        """The items of an asynchronous iterator. One that is left early is closed."""
        try:
            while (item := self.run(anext(iterator, _END))) is not _END:
                yield cast("ResultT", item)
        finally:
            if inspect.isasyncgen(iterator):
                self.run(iterator.aclose())

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[ResultT]) -> Iterator[ResultT]:
        """The block of an asynchronous context manager."""
        value = self.run(context.__aenter__())
        try:
            yield value
        except BaseException as error:
            if not self.run(context.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.run(context.__aexit__(None, None, None))

    def start(self, work: Awaitable[ResultT]) -> Future[ResultT]:
        """Start a coroutine. ClientError if the thread has ended."""
        if self._loop.is_closed():
            if inspect.iscoroutine(work):
                work.close()
            raise ClientError("this client is closed; make a new one with connect()")
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop)

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread. What runs in it is not waited for."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Wrapper(Generic[WrappedT]):
    """The blocking form of an object of a client; `asynchronous` is the object itself."""

    def __init__(self, loop_thread: LoopThread, asynchronous: WrappedT) -> None:
        self._loop_thread = loop_thread
        self.asynchronous = asynchronous


class ClosingWrapper(Wrapper[ClosingT]):
    """The blocking form of an object with a beginning and an end."""

    def close(self) -> None:
        """As the asynchronous object's."""
        self._loop_thread.run(self.asynchronous.close())

    def __enter__(self) -> Self:
        self._loop_thread.run(self.asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop_thread.run(self.asynchronous.__aexit__(kind, error, traceback))


async def _awaited(work: Awaitable[ResultT]) -> ResultT:
    return await work
