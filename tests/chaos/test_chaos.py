"""Producers and consumers of every kind on a broker that is killed, stopped, paused, cut off, and whose clock jumps.

AEROBEE_CHAOS_SECONDS is the duration (4; an hour in `make test-chaos`), AEROBEE_CHAOS_SEED repeats a run's choices,
though not its timing, and AEROBEE_CHAOS_HISTORY names a file for the history.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.chaos.history import (
    Acknowledged,
    Attempted,
    ConsumeAttempted,
    Delivered,
    Event,
    Findings,
    Kind,
    Outcome,
    Place,
    RecallAttempted,
    check,
)
from tests.chaos.nemesis import BrokerClock, Nemesis
from tests.chaos.workers import GROUPS, Workers, create
from tests.support import seeds
from tests.support.killable_broker import KillableBroker
from tests.support.port_forwarder import forwarded_port

pytestmark = [
    pytest.mark.crash,
    pytest.mark.on_disk,
    pytest.mark.timeout(0),
]  # the duration is configurable; every wait has its own timeout

SECONDS = float(os.environ.get("AEROBEE_CHAOS_SECONDS", "4"))
SEED = seeds.seed("AEROBEE_CHAOS_SEED")
HISTORY = os.environ.get("AEROBEE_CHAOS_HISTORY", "")
_IS_LONG = SECONDS > 30

# Small files, so that a run fills them; frequent snapshots of the journal; transaction checks without delay.
_CONFIG = """\
[store]
segment_size = 4194304
body_size_max = 262144
queue_file_size = 20000
index_slot_count = 2000
index_entry_count = 8000
derived_flush_interval_seconds = 0.1
flush_interval_seconds = 0.1
disk_headroom = 0
disk_clean_ratio = 1.0
disk_force_clean_ratio = 1.0
disk_full_ratio = 1.0
commit_log_paths = [{paths}]
[delivery]
invisible_seconds_min = 0.1
snapshot_event_count = 300
client_return_seconds = 10
[transactions]
timeout_seconds = 1
check_interval_seconds = 1
check_max = 100000
[listen]
drain_seconds = 1
"""


class Left:
    """Messages not consumed yet, from a growing history."""

    def __init__(self, history: list[Event]) -> None:
        self._history = history
        self._next = 0
        self._sent: dict[str, Attempted] = {}
        self._undelivered: set[tuple[str, str]] = set()  # group, message id of acknowledged messages
        self._seen: set[tuple[str, str]] = set()  # delivered, or perhaps recalled
        self._unconsumed: set[tuple[str, str, Place]] = set()  # delivered; a message may be at two positions
        self._consumed: set[tuple[str, str, Place]] = set()

    def count(self) -> int:
        """Acknowledged messages not delivered, plus delivered ones not consumed, counted at each position."""
        for event in self._history[self._next :]:
            match event:
                case Attempted():
                    self._sent[event.message_id] = event
                case Acknowledged():
                    sent = self._sent[event.message_id]
                    if sent.kind is not Kind.TRANSACTIONAL or sent.outcome is Outcome.COMMIT:
                        wanted = {(group, event.message_id) for topic, group, _ in GROUPS if topic == sent.topic}
                        self._undelivered |= wanted - self._seen
                case RecallAttempted():
                    self._see({(group, event.message_id) for _, group, _ in GROUPS})
                case Delivered():
                    self._see({(event.group, event.message_id)})
                    self._unconsumed |= {(event.group, event.message_id, event.place)} - self._consumed
                case ConsumeAttempted():
                    self._unconsumed.discard((event.group, event.message_id, event.place))
                    self._consumed.add((event.group, event.message_id, event.place))
                case _:
                    pass
        self._next = len(self._history)
        return len(self._undelivered) + len(self._unconsumed)

    def _see(self, keys: set[tuple[str, str]]) -> None:
        self._undelivered -= keys
        self._seen |= keys


async def test_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No message is lost, early or out of order, no half message is visible; each duplicate has an explanation."""
    began = time.monotonic()
    clock: BrokerClock | None = None
    without = ""
    try:
        clock = BrokerClock(tmp_path)
    except RuntimeError as error:
        without = f" ({error})"
    with capsys.disabled():
        print(f"\nchaos: AEROBEE_CHAOS_SECONDS={SECONDS:g} AEROBEE_CHAOS_SEED={SEED}{without}", flush=True)
    broker = KillableBroker(tmp_path, _CONFIG, clock.environment if clock is not None else {})
    try:
        await broker.launch("sync", "gathered")
        await broker.ready()
        await create(broker.endpoint)
        with forwarded_port(broker.endpoint) as port:
            workers = Workers(SEED, port.endpoint, pace=0.1)
            nemesis = Nemesis(
                SEED,
                broker,
                port,
                clock,
                workers.note,
                workers.progress,
                pause_seconds_max=5.0 if _IS_LONG else 1.0,
                jump_seconds_max=20.0 if _IS_LONG else 3.0,
            )
            workers.start()
            try:
                await nemesis.run(SECONDS)
                workers.check_alive()
                await workers.drain(120.0, Left(workers.history).count)
            finally:
                await workers.stop()
        assert await broker.stop() == 0, broker.log.read_text()[-4000:]
    finally:
        await broker.end()
        BrokerClock.forget(broker.pid)
    findings = check(workers.history)
    with capsys.disabled():
        print(f"chaos: seconds={time.monotonic() - began:.0f}\n{findings.table()}", flush=True)
    if HISTORY:
        await asyncio.to_thread(Path(HISTORY).write_text, "\n".join(map(repr, workers.history)))
    assert not findings.lines, _report(findings)
    log = broker.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 2000 :][:6000]
    assert findings.counts["acknowledged"] > 3 * min(SECONDS, 60), "there was hardly any load"
    assert findings.duplicates.total() > 0 or not _IS_LONG, "nobody was disturbed"


def test_what_is_left_of_a_message_in_two_places() -> None:
    """Its producer sent it twice, so it is stored twice, and a group must consume both copies."""
    history: list[Event] = [Attempted(0, "a", "chaos-delay"), Attempted(0, "a", "chaos-delay"), Acknowledged(0, "a")]
    left = Left(history)
    assert left.count()
    for offset in (0, 1):
        history.append(Delivered(0, "patient", "a", "chaos-delay", (0, offset), 1, offset))
        assert left.count()
        history.append(ConsumeAttempted(0, "patient", "a", (0, offset)))
        assert left.count() == 0


def _report(findings: Findings) -> str:
    lines = "\n".join(findings.lines)
    return f"AEROBEE_CHAOS_SEED={SEED}:\n{lines}\n{findings.table()}"
