"""A working store in a process that a test may interrupt at any system call: see tests/crash/test_system_calls.py.

    python -m tests.support.struck_store FD        FD: a socket for the child's reports

reads commands from standard input, one per line: WORKLOAD DIRECTORY. For each it forks a child, prints `child PID` on
standard output, and `status N` when the child has ended. The child waits for SIGUSR1, so that a tracer can attach. Then
it does its work and reports on the socket, one per line,

    opened             the store is open
    sent A B           messages A up to B, but not B, are about to be appended
    stored A B         these messages were acknowledged as durable
    expiring B         retention may remove messages before B
    failed NAME TEXT   an error of the store ended the work
    refused NAME TEXT  the store took no message, and the work went on
    surprise TEXT      any other exception was raised
    removals-failed N  failed removals, as counted by retention
    warned TEXT        a warning of the log
    done               the work ended

No report uses a system call that tests interrupt: lines are sent with `sendto`.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from aerobee_store import Message, MessageStore, StoreConfig, StoreError, StoreFullError
from aerobee_store.records.properties import KEYS
from aerobee_store.testing import ManualClock

_PR_SET_PTRACER: Final = 0x59616D61
TOPIC: Final = "orders"
HOUR: Final = 3600


def config(directory: Path) -> StoreConfig:
    """Files of one or two pages, so that few system calls fill each kind of file."""
    return replace(
        StoreConfig.tiny(directory),
        segment_size=8192,
        body_size_max=4096,
        queue_file_size=10 * 20,
        index_slot_count=5,
        index_entry_count=20,
        derived_flush_interval_seconds=0.01,
        flush_interval_seconds=0.01,
        retention_hours=72,
        disk_headroom=0,
        disk_clean_ratio=1.0,
        disk_force_clean_ratio=1.0,
        disk_full_ratio=1.0,
        delete_when_hours=tuple(range(24)),
    )


def body(number: int) -> bytes:
    """A third of the messages fill a large part of a segment."""
    return f"{number:08d}".encode() + b"." * (40, 300, 1800)[number % 3]


class Worker:
    """One child's work. `tell` sends a line to the test."""

    def __init__(self, directory: Path, tell: Callable[[str], None]) -> None:
        self._config = config(directory)
        self._tell = tell
        self._clock = ManualClock()
        self._next = 0

    def run(self, workload: str) -> None:
        """Run the workload, and continue briefly after an error: a failed store must not acknowledge anything."""
        store: MessageStore | None = None
        try:
            for life in range(2):
                store = MessageStore.open(self._config, clock=self._clock)
                self._tell("opened")
                self._blocking(store, life) if workload == "blocking" else asyncio.run(self._serving(store))
                self._tell(f"removals-failed {store.stats.retention_failures}")
                store.close()
        except StoreError as error:
            self._tell(f"failed {type(error).__name__} {error}")
            if store is not None:
                self._go_on(store)
        except BaseException as error:
            self._tell(f"surprise {error!r}")
        self._tell("done")

    def _go_on(self, store: MessageStore) -> None:
        with suppress(StoreError):
            self._send(store, 1)
            store.flush()
            self._stored(1)
        with suppress(StoreError):
            store.close()

    def _send(self, store: MessageStore, count: int) -> int:
        first = self._next
        self._next += count
        self._tell(f"sent {first} {self._next}")
        self._clock.advance(1)
        messages = []
        for number in range(first, self._next):
            properties = {KEYS: f"n{number} k{number % 3}"}
            messages.append(Message(TOPIC, number % 2, body(number), properties, born_host=("10.0.0.1", 4000)))
        return store.append(messages)[-1].end

    def _stored(self, count: int) -> None:
        self._tell(f"stored {self._next - count} {self._next}")

    def _blocking(self, store: MessageStore, life: int) -> None:
        for _ in range(3):
            try:
                self._send(store, 4)
            except StoreFullError as error:
                self._tell(f"refused {type(error).__name__} {error}")
                continue
            store.flush()
            self._stored(4)
        if life == 0:
            self._tell(f"expiring {self._next}")
            self._clock.advance(80 * HOUR)
            self._send(store, 3)
            store.append([Message("gone", 0, b"of a topic that is deleted", {}, born_host=("10.0.0.1", 4000))])
            store.flush()
            self._stored(3)
            asyncio.run(store.retention.clean())
            store.delete_topic("gone")

    async def _serving(self, store: MessageStore) -> None:
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)

        async def send() -> None:
            end = self._send(store, 2)
            first = self._next - 2
            await store.wait_stored(end, durable=True)
            self._tell(f"stored {first} {first + 2}")

        try:
            async with asyncio.timeout(60):
                for _ in range(3):
                    ended = await asyncio.gather(*(send() for _ in range(3)), return_exceptions=True)
                    for error in ended:
                        if isinstance(error, StoreFullError):
                            self._tell(f"refused {type(error).__name__} {error}")
                        elif isinstance(error, BaseException):
                            raise error
                    await asyncio.sleep(0.015)  # queues, index and checkpoint are flushed
        finally:
            services.cancel()
            with suppress(asyncio.CancelledError):
                await services


class _Warnings(logging.Handler):
    """Tells the test of each warning."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(f"warned {record.getMessage()}")


def _child(workload: str, directory: Path, link: socket.socket) -> None:
    mutex = threading.Lock()

    def tell(line: str) -> None:
        with mutex:
            link.sendall(line.replace("\n", " ").encode() + b"\n")

    logging.disable(logging.NOTSET)
    logging.basicConfig(handlers=[_Warnings(tell)])
    signal.sigwait({signal.SIGUSR1})
    Worker(directory, tell).run(workload)


def main() -> None:
    """Serve commands until standard input ends."""
    logging.disable(logging.CRITICAL)
    link = socket.socket(fileno=int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    warm = Path(sys.argv[2])
    for workload in ("blocking", "serving"):  # imports happen now, not in an interrupted child
        Worker(warm / workload, lambda line: None).run(workload)
    for line in sys.stdin:
        workload, directory = line.split()
        child = os.fork()
        if not child:
            with suppress(OSError):  # a kernel without Yama needs no permission for a tracer
                ctypes.CDLL(None).prctl(_PR_SET_PTRACER, -1, 0, 0, 0)
            _child(workload, Path(directory), link)
            os._exit(0)
        print(f"child {child}", flush=True)
        _, status = os.waitpid(child, 0)
        print(f"status {status}", flush=True)


if __name__ == "__main__":
    main()
