"""A real store on a real disk whose system calls fail, or whose process is killed in one.

`strace` attaches to a running process. It makes the n-th call of a kind fail with EIO or ENOSPC, or kills the process
on entering the call, for every possible n. Calls are counted per thread.

A store's writes through a mapping (the index, and the log with `write_mode = "mapped"`) are not system calls and cannot
be injected here; test_kill_points.py and test_store_crash_points.py cover them.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from aerobee_store import MessageStore
from aerobee_store.testing import ManualClock
from aerobee_store.tools.verify import verify
from tests.support import seeds
from tests.support.programs import program, without
from tests.support.stored_messages import read_all
from tests.support.struck_store import TOPIC, body, config

IS_LONG = "AEROBEE_CRASH_CYCLES" in os.environ
SEED = seeds.seed("AEROBEE_CRASH_SEED")
SAMPLE: Final = 30  # points of each workload in the short run

pytestmark = [pytest.mark.crash, pytest.mark.on_disk, pytest.mark.timeout(3600 if IS_LONG else 120)]

CALLS: Final = (
    "pwrite64",
    "pwritev",
    "pwritev2",
    "write",
    "fdatasync",
    "fsync",
    "rename",
    "unlink",
    "openat",
    "ftruncate",
    "fallocate",
)
STRIKES: Final = {"EIO": "error=EIO", "ENOSPC": "error=ENOSPC", "kill": "signal=KILL"}
_SYNCS: Final = ("fdatasync", "fsync")
_CALL = re.compile(r"(\d+) +(\w+)\(")


@dataclass
class Told:
    """The progress that a child process reported."""

    sent: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    stored_after_error: set[int] = field(default_factory=set)
    expiring: int = 0
    errors: list[str] = field(default_factory=list)
    refused: int = 0
    surprises: list[str] = field(default_factory=list)
    removals_failed: int = 0
    warned: list[str] = field(default_factory=list)
    done: bool = False

    @classmethod
    def of(cls, lines: list[str]) -> Told:
        told = cls()
        for line in lines:
            word, _, rest = line.partition(" ")
            if word in ("sent", "stored"):
                first, last = map(int, rest.split())
                numbers = set(range(first, last))
                if word == "sent":
                    told.sent |= numbers
                else:
                    told.stored |= numbers
                    if told.errors:
                        told.stored_after_error |= numbers
            elif word == "expiring":
                told.expiring = int(rest)
            elif word == "failed":
                told.errors.append(rest)
            elif word == "refused":
                told.refused += 1
            elif word == "surprise":
                told.surprises.append(rest)
            elif word == "removals-failed":
                told.removals_failed = int(rest)
            elif word == "warned":
                told.warned.append(rest)
            told.done |= word == "done"
        return told


class Struck:
    """The parent of the processes in which faults are injected."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._link, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.struck_store", str(theirs.fileno()), str(directory / "warm")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            text=True,
        )
        theirs.close()
        self._number = 0

    def run(self, workload: str, strike: str | None) -> tuple[Path, Told, str, int]:
        """Run a workload in a child on a new directory; return directory, reports, strace's log and exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._number += 1
        store = self.directory / f"store-{self._number}"
        trace = self.directory / "trace"
        self._process.stdin.write(f"{workload} {store}\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline().split()[1])
        command = ["strace", "-f", "-y", "-o", str(trace), "-e", f"trace={','.join(CALLS)}", "-p", str(child)]
        if strike is not None:
            command += ["-e", f"inject={strike}"]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        try:
            attached = tracer.stderr.readline()
            if "attached" not in attached:
                os.kill(child, signal.SIGKILL)
                self._process.stdout.readline()
                without(f"strace cannot take hold of a process here: {attached.strip()}")
            os.kill(child, signal.SIGUSR1)
            status = int(self._process.stdout.readline().split()[1])
        finally:
            tracer.wait(30)
            tracer.stderr.close()
        return store, Told.of(self._heard()), trace.read_text(), status

    def _heard(self) -> list[str]:
        """Return all lines that the ended child sent."""
        self._link.setblocking(False)
        data = b""
        while True:
            try:
                data += self._link.recv(1 << 16)
            except BlockingIOError:
                return data.decode().splitlines()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._link.close()


@pytest.fixture
def struck(tmp_path: Path) -> Iterator[Struck]:
    program("strace")
    process = Struck(tmp_path)
    try:
        yield process
    finally:
        process.end()


def calls_of(trace: str) -> Counter[str]:
    """Return the largest number of calls of each kind that any one thread made."""
    by_thread: Counter[tuple[str, str]] = Counter()
    for line in trace.splitlines():
        match = _CALL.match(line)
        if match:
            by_thread[match[1], match[2]] += 1
    most: Counter[str] = Counter()
    for (_, call), count in by_thread.items():
        most[call] = max(most[call], count)
    return most


def check(store: Path, told: Told, what: str) -> str:
    """Compare the store found by the next process with the child's reports; return how the work ended."""
    assert not told.surprises, f"{what}: no error of the store: {told.surprises}"
    assert not told.stored_after_error, f"{what}: acknowledged after {told.errors}"
    if not (store / "lock").exists():
        assert not told.stored
        return "before the first"
    opened = MessageStore.open(config(store), clock=ManualClock(1_700_001_000_000))
    with opened:
        found: dict[int, int] = {}
        for queue_id in opened.queues().get(TOPIC, []):
            for record in read_all(opened, TOPIC, queue_id).values():
                number = int(bytes(record.body[:8]))
                assert bytes(record.body) == body(number), f"{what}: message {number} is another"
                assert number in told.sent, f"{what}: message {number} was never sent"
                assert number not in found, f"{what}: message {number} is there twice"
                found[number] = record.physical_offset
        lost = {number for number in told.stored - found.keys() if number >= told.expiring}
        assert not lost, f"{what}: acknowledged and gone: {sorted(lost)}"
        for number, physical_offset in found.items():
            places = [record.physical_offset for record in opened.query(TOPIC, f"n{number}")]
            assert places == [physical_offset], f"{what}: the key of message {number} finds {places}"
        assert not opened.recovery.damaged, f"{what}: {opened.recovery.damaged}"
    slots, entries = config(store).index_slot_count, config(store).index_entry_count
    report = verify(store, index_slot_count=slots, index_entry_count=entries)
    assert report.ok, f"{what}: {report.findings}"
    return "failed" if told.errors else "refused" if told.refused else "went on" if told.done else "killed"


def was_removed(trace: str) -> bool:
    """Whether the segment whose sync failed was removed next by the same thread."""
    lines = trace.splitlines()
    struck = next(number for number, line in enumerate(lines) if "(INJECTED)" in line)
    failed = re.match(r"(\d+) +\w+\(\d+<(.*/commitlog/\d+)>", lines[struck])
    if failed is None:
        return False
    thread, path = failed.groups()
    following = [line for line in lines[struck + 1 :] if line.startswith(f"{thread} ")]
    return any("unlink" in line and f'"{path}"' in line for line in following[:3])


@pytest.mark.parametrize("workload", ["blocking", "serving"])
def test_each_system_call_fails_or_is_the_last_before_a_kill(workload: str, struck: Struck) -> None:
    """No acknowledged message is lost, none is acknowledged after a failed sync, and the store reopens."""
    store, told, trace, status = struck.run(workload, None)
    assert (status, told.done, told.errors) == (0, True, []), told
    assert check(store, told, "untouched") == "went on"
    calls = calls_of(trace)
    points = [(call, strike, n) for call in CALLS for strike in STRIKES for n in range(1, calls[call] + 1)]
    dice = random.Random(SEED)
    dice.shuffle(points)
    ends: Counter[tuple[str, str]] = Counter()
    missed = 0
    tried = points if IS_LONG else points[:SAMPLE]
    for call, strike, n in tried:
        what = f"{workload}: {strike} at call {n} of {call} (seed {SEED})"
        store, told, trace, status = struck.run(workload, f"{call}:{STRIKES[strike]}:when={n}")
        hit = "(INJECTED)" in trace if strike != "kill" else "killed by SIGKILL" in trace
        if not hit:
            missed += 1  # a thread made fewer calls than in the first run
            continue
        end = check(store, told, what)
        ends[strike, end] += 1
        if call in _SYNCS and strike != "kill":
            # ENOSPC while a segment is created: the segment is removed, and messages are refused until one is created.
            # ENOSPC while the bounds of the queues are saved: a warning, as the older bounds count.
            was_reported = told.errors or told.removals_failed or told.refused
            is_harmless = was_removed(trace) or any(
                line.startswith("bounds of the queues not saved") for line in told.warned
            )
            assert was_reported or (strike == "ENOSPC" and is_harmless), f"{what}: not reported\n{trace}"
        shutil.rmtree(store, ignore_errors=True)  # a child killed early has not created it
    counts = ", ".join(f"{strike} {end} {count}" for (strike, end), count in sorted(ends.items()))
    kinds = " ".join(f"{call}={calls[call]}" for call in CALLS)
    print(f"{workload}: {len(points)} points ({kinds}), tried {len(tried)}, not reached {missed}: {counts}")
    assert len(tried) - missed >= min(len(points), 5)
