"""The process is killed at every line of the store's code: in use, while opening, and while opening again.

`kill -9` keeps the page cache, so it leaves the store as it is between two writes. A trace function compares the disk
before every line that the store runs, in any thread. Each new state is one that a kill can leave. A copy into a mapping
is not atomic, so states with only the first or only the last part of a change are added.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import aerobee_store
from aerobee_store import MessageStore, StoreConfig
from aerobee_store.config import FlushMode
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support import seeds
from tests.support.stored_messages import DIRECTORY, Sender, Sent, compare

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("silent_log")]

IS_LONG = "AEROBEE_CRASH_CYCLES" in os.environ
SEED = seeds.seed("AEROBEE_CRASH_SEED")
# Number of kills in use that are checked, and of those after which the opening is killed too; None for all.
TRIED, TRIED_AGAIN, TRIED_TWICE = (None, 60, 12) if IS_LONG else (40, 1, 1)
ROUNDS = (9, 5) if IS_LONG else (3, 1)

_CODE: Final = str(Path(aerobee_store.__file__).parent)
_WORD: Final = 8  # bytes; aligned words are stored atomically
Contents = dict[Path, bytes]


@dataclass(frozen=True, slots=True)
class Death:
    """A disk state that a kill can leave, and the number of messages answered by then."""

    where: str
    contents: Contents
    directories: frozenset[Path]
    answered: int

    def disk(self, clock: ManualClock) -> MemoryFileSystem:
        """Return the disk for the next process, with blocks reserved for all files."""
        disk = MemoryFileSystem(clock=clock)
        for path in sorted(self.directories):
            disk.make_directory(path)
        for path, data in self.contents.items():
            file = disk.create(path, len(data))
            if data:
                file.reserve(0, len(data))
                file.write([data], 0)
        return disk


@dataclass
class Watch:
    """Collects the disk states that a kill can leave during some work on one disk."""

    disk: MemoryFileSystem
    answered: Callable[[], int]
    deaths: list[Death] = field(default_factory=list)
    lines: int = 0
    _last: Contents = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return (
            self._line
            if frame.f_code.co_filename.startswith(_CODE) and "testing.py" not in frame.f_code.co_filename
            else None
        )

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        with self._mutex:
            self.lines += 1
            self._look(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return self._line

    def _look(self, where: str) -> None:
        last = self._last
        now: Contents = {}
        changed = []
        for path, inode in self.disk.files():
            data = last.get(path)
            if data is None or data != inode.data:
                data = bytes(inode.data)
                changed.append(path)
            now[path] = data
        if not changed and now.keys() == last.keys():
            return
        for path in changed:
            if path in last and len(last[path]) == len(now[path]):
                for part in _halfway(last[path], now[path]):
                    self._note(f"within {where}", {**last, path: part})
        self._last = now
        self._note(where, now)

    def _note(self, where: str, contents: Contents) -> None:
        digest = hash(tuple((path, hash(data)) for path, data in sorted(contents.items()) if path.name != "abort"))
        if digest not in self._seen:
            self._seen.add(digest)
            directories = frozenset(parent for path in contents for parent in path.parents if parent != Path("/"))
            self.deaths.append(Death(where, contents, directories, self.answered()))


def _halfway(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield partly written states: the first changed words only, or the last changed words only."""
    words = [at for at in range(0, len(new), _WORD) if old[at : at + _WORD] != new[at : at + _WORD]]
    for count in {1, len(words) // 3, len(words) // 2, len(words) - 1} - {0, len(words)}:
        for part in (words[:count], words[count:]):
            mixed = bytearray(old)
            for at in part:
                mixed[at : at + _WORD] = new[at : at + _WORD]
            yield bytes(mixed)


@dataclass
class Harness:
    """A small store and the messages sent to it."""

    flush: FlushMode
    clock: ManualClock = field(default_factory=ManualClock)
    sender: Sender = field(default_factory=Sender)
    answered: list[Sent] = field(default_factory=list)

    @property
    def config(self) -> StoreConfig:
        # Small log, queue and index files, so that every few messages begin a new one.
        return replace(
            StoreConfig.tiny(DIRECTORY, flush=self.flush),
            segment_size=4096,
            body_size_max=2048,
            queue_file_size=8 * 20,
            index_slot_count=5,
            index_entry_count=24,
            derived_flush_interval_seconds=0.003,
            flush_interval_seconds=0.002,
        )

    def open(self, disk: MemoryFileSystem) -> MessageStore:
        return MessageStore.open(self.config, file_system=disk, clock=self.clock)

    async def live(self, disk: MemoryFileSystem, rounds: int) -> None:
        """Send single messages and batches, wait for each answer, and close at the end."""
        store = self.open(disk)
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            for round_ in range(rounds):
                self.clock.advance(0.4)
                sizes = [40, 700, 90] if round_ % 3 else [60] * 9
                sent = self.sender.append(store, [self.sender.message(size, "orders", round_ % 2) for size in sizes])
                await store.wait_stored(sent[-1].end)
                self.answered += sent
                if round_ % 3 == 1:
                    await asyncio.sleep(0.004)
        services.cancel()
        await asyncio.gather(services, return_exceptions=True)
        store.close()


def reopened(harness: Harness, death: Death, possible: list[Sent]) -> None:
    """Check that the next process has all answered messages under every key, and nothing else."""
    store = harness.open(death.disk(harness.clock))
    try:
        compare(store, possible, possible[: death.answered])
        for sent in possible[: death.answered]:
            (found,) = store.query(sent.topic, sent.keys[0])
            assert found.physical_offset == sent.physical_offset
    except Exception as error:
        error.add_note(f"killed at {death.where}, seed {SEED}")
        raise
    finally:
        store.close()


def openings(harness: Harness, death: Death) -> Watch:
    """Collect the disk states that a kill can leave while a process opens the disk of `death`."""
    disk = death.disk(harness.clock)
    watch = Watch(disk, lambda: death.answered)
    with watch.watching():
        store = harness.open(disk)
    store.close()
    return watch


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_kill_at_every_line(flush: FlushMode) -> None:
    """No answered message is lost and every key finds its message, even after repeated kills."""
    dice = random.Random(SEED)
    began = time.monotonic()
    harness = Harness(flush)
    disk = MemoryFileSystem(clock=harness.clock)
    watch = Watch(disk, lambda: len(harness.answered))
    with watch.watching():
        for rounds in ROUNDS:
            asyncio.run(harness.live(disk, rounds))
    deaths = watch.deaths
    possible = harness.sender.sent
    tried = deaths if TRIED is None else dice.sample(deaths, min(TRIED, len(deaths)))
    for death in tried:
        reopened(harness, death, possible)
    again = [later for death in dice.sample(deaths, TRIED_AGAIN) for later in openings(harness, death).deaths]
    for death in again if IS_LONG else dice.sample(again, min(TRIED or 0, len(again))):
        reopened(harness, death, possible)
    twice = [later for death in dice.sample(again, TRIED_TWICE) for later in openings(harness, death).deaths]
    for death in twice if IS_LONG else dice.sample(twice, min(TRIED or 0, len(twice))):
        reopened(harness, death, possible)
    print(
        f"{flush}: {watch.lines} lines left {len(deaths)} different disks, {len(tried)} tried; killed while opening: "
        f"{len(again)}, and again: {len(twice)}; {time.monotonic() - began:.0f} s"
    )
    assert len(deaths) > 100
    assert again
    assert twice
