"""`DiskThread`: order, results, errors, cancellation, and its end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from aerobee_store.disk.disk_thread import DiskThread


@pytest.fixture
def thread() -> Iterator[DiskThread]:
    thread = DiskThread("test-disk")
    yield thread
    thread.close()


def _alive(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


async def test_calls_run_in_one_thread_in_order(thread: DiskThread) -> None:
    ran: list[int] = []

    def note(number: int, *, factor: int = 1) -> str:
        ran.append(number * factor)
        return threading.current_thread().name

    names = await asyncio.gather(*(thread.call(note, number, factor=2) for number in range(20)))
    assert ran == [2 * number for number in range(20)]
    assert set(names) == {"test-disk"}


async def test_the_loop_runs_during_a_call(thread: DiskThread) -> None:
    go = threading.Event()
    waiting = thread.call(go.wait, 30)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    go.set()
    assert await waiting is True


async def test_an_error_reaches_its_caller_only(thread: DiskThread) -> None:
    def fail() -> None:
        raise OSError(5, "the disk is gone")

    failing, following = thread.call(fail), thread.call(lambda: 7)
    with pytest.raises(OSError, match="the disk is gone"):
        await failing
    assert await following == 7


async def test_an_error_that_ends_threads_reaches_its_caller(thread: DiskThread) -> None:
    with pytest.raises(SystemExit):
        await thread.call(sys.exit, 3)
    assert await thread.call(lambda: 7) == 7


async def test_a_cancelled_call_runs_nevertheless(thread: DiskThread) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
    go, ran = threading.Event(), threading.Event()
    waiting, cancelled = thread.call(go.wait, 30), thread.call(ran.set)
    cancelled.cancel()
    go.set()
    await waiting
    await thread.call(lambda: None)
    assert ran.is_set()
    assert cancelled.cancelled()
    assert not problems


async def test_wait_covers_the_calls_before_it(thread: DiskThread) -> None:
    ended: list[int] = []

    def end(number: int) -> None:
        time.sleep(0.02)
        ended.append(number)

    futures = [thread.call(end, number) for number in range(3)]
    thread.wait()
    assert ended == [0, 1, 2]
    await asyncio.gather(*futures)


async def test_close_waits_for_what_was_called_and_refuses_more() -> None:
    thread, ran = DiskThread("closed-disk"), threading.Event()
    thread.wait()  # nothing was called

    def end() -> None:
        time.sleep(0.05)
        ran.set()

    waiting = thread.call(end)
    thread.close()
    assert ran.is_set()
    assert not _alive("closed-disk")
    await waiting
    with pytest.raises(RuntimeError, match="closed-disk has ended"):
        thread.call(ran.set)
    thread.close()
    thread.wait()


def test_close_without_a_call_needs_no_thread() -> None:
    thread = DiskThread("unused-disk")
    thread.close()
    assert not _alive("unused-disk")


def test_a_closed_loop_does_not_end_the_thread(thread: DiskThread) -> None:
    go, ran = threading.Event(), threading.Event()

    async def leave() -> None:
        thread.call(go.wait, 30)

    asyncio.run(leave())
    go.set()
    thread.wait()

    async def come_back() -> bool:
        return await thread.call(ran.is_set)

    assert asyncio.run(come_back()) is False


async def test_a_thread_that_waits_keeps_nothing_alive(thread: DiskThread) -> None:
    class Thing:
        def use(self) -> Thing:
            return self

    thing = Thing()
    gone = weakref.ref(thing)
    assert await thread.call(thing.use) is thing
    del thing
    deadline = time.monotonic() + 30
    while gone() is not None:
        assert time.monotonic() < deadline, "something keeps it"
        gc.collect()
        await asyncio.sleep(0.001)


async def test_the_thread_ends_with_its_owner() -> None:
    thread = DiskThread("forgotten-disk")
    await thread.call(lambda: None)
    assert _alive("forgotten-disk")
    del thread
    gc.collect()
    deadline = time.monotonic() + 30
    while _alive("forgotten-disk"):
        assert time.monotonic() < deadline, "the thread still runs"
        await asyncio.sleep(0.001)


def test_an_open_thread_does_not_hold_up_the_end_of_the_process() -> None:
    program = """
import asyncio
from aerobee_store.disk.disk_thread import DiskThread
thread = DiskThread("open-disk")
async def main():
    print(await thread.call(lambda: 7))
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "7\n"
    assert not ended.stderr
