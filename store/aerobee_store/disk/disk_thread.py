"""A thread for blocking work on files, awaited from the event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Call = tuple[Callable[[], Any], asyncio.Future[Any] | None]


class DiskThread:
    """Runs functions one after the other, in the order of their calls.

    The same as `ThreadPoolExecutor(1)` with `run_in_executor`, at about two thirds of its processor time: one queue
    written in C instead of two futures with a condition each. A lone send waits for this way to the disk and back. The
    thread starts with the first call. It ends with `close`, with this object, or with the process.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._calls: Final[SimpleQueue[_Call | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """The future result of the function in the thread. Event loop only.

        Cancelling the future only stops the waiting: the function runs nevertheless. RuntimeError after `close`.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(lambda: function(*args, **kwargs), future)
        return future

    def wait(self) -> None:
        """Return when every function called so far has ended. Blocking."""
        if self._thread is not None and not self._closed:
            ended = threading.Event()
            self._put(ended.set, None)
            ended.wait()

    def close(self) -> None:
        """Wait for the functions called so far, and end the thread. Blocking."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)
        if self._thread is not None:
            self._thread.join()

    def _put(self, function: Callable[[], Any], future: asyncio.Future[Any] | None) -> None:
        if self._closed:
            raise RuntimeError(f"the thread {self._name} has ended; nothing can run in it")
        self._calls.put((function, future))
        if self._thread is None:
            # The thread must not keep this object, whose end is the thread's end.
            self._thread = threading.Thread(target=_run, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._calls.put, None).atexit = False


def _run(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        function, future = call
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:  # of any kind: the caller would wait for ever
            error = raised
        if future is not None:
            try:  # noqa: SIM105  # `suppress` would hold up the loop, which waits for this thread to wait again
                future.get_loop().call_soon_threadsafe(_end, future, result, error)
            except RuntimeError:
                pass  # the loop is closed, and nobody waits any more
        del call, function, future, result, error  # while the thread waits, it keeps nothing alive


def _end(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
