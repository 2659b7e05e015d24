"""A broker killed with SIGKILL at random moments, under load and during startup, repeatedly on one store.

AEROBEE_CRASH_CYCLES sets the number of kills (20). AEROBEE_CRASH_SEED repeats a run's choices, but not its timing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

import pytest

from aerobee_client import connect
from aerobee_proto import v2
from tests.support import seeds
from tests.support.broker_load import GROUPS, TOPIC, Load
from tests.support.killable_broker import FLUSH_MODES, WRITE_MODES, KillableBroker

pytestmark = [
    pytest.mark.crash,
    pytest.mark.on_disk,
    pytest.mark.timeout(0),
]  # the run time grows with the cycles; each wait is limited

CYCLES = int(os.environ.get("AEROBEE_CRASH_CYCLES", "20"))
SEED = seeds.seed("AEROBEE_CRASH_SEED")

# Small files, so that a run fills many of them, and frequent snapshots of the journal.
_CONFIG = """\
[store]
segment_size = 2097152
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
pool_buffer_count = 2
commit_log_paths = [{paths}]
[delivery]
invisible_seconds_min = 0.1
snapshot_event_count = 300
"""


async def test_kill_at_any_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answered messages are stored once, in order, unchanged. Acknowledged ones never return, all others do.

    Each start picks a flush and a write mode at random: without a power cut they all promise the same. The log is in
    two directories, and its segments are allocated in advance.
    """
    began = time.monotonic()
    dice = random.Random(SEED)
    load = Load(SEED)
    broker = KillableBroker(tmp_path, _CONFIG)
    killed_starts = 0
    with capsys.disabled():
        print(f"\nkill: cycles={CYCLES} seed={SEED}", flush=True)
    try:
        start_seconds = await _first_start(broker)
        for cycle in range(CYCLES):
            since_ms = time.time_ns() // 1_000_000 - 1000

            async def moment_of_death() -> None:
                await asyncio.sleep(dice.uniform(0.05, 1.0))
                await broker.kill()

            await load.run(broker.endpoint, moment_of_death)
            while dice.random() < 0.35:  # killed during recovery, perhaps several times
                await broker.launch(dice.choice(FLUSH_MODES), dice.choice(WRITE_MODES))
                await asyncio.sleep(start_seconds * dice.uniform(0.4, 1.1))
                await broker.kill()
                killed_starts += 1
            started = time.monotonic()
            await broker.launch(dice.choice(FLUSH_MODES), dice.choice(WRITE_MODES))
            await broker.ready()
            start_seconds = time.monotonic() - started
            await load.check_stored(broker.endpoint, since_ms)
            assert not load.violations, _report(load, f"in cycle {cycle}")
        await load.check_stored(broker.endpoint, 0)
        await load.check_keys(broker.endpoint, 200)
        await load.drain(broker.endpoint, 60 + CYCLES)
        await _nothing_is_left(broker.endpoint, load)
        assert await broker.stop() == 0, broker.log.read_text()[-4000:]
    finally:
        await broker.end()
    assert not load.violations, _report(load, "at the end")
    await _verify(broker.store)
    log = broker.log.read_text()
    assert "Traceback" not in log, log[-4000:]
    assert len(load.stored) > 10 * CYCLES, "there was hardly any load"
    with capsys.disabled():
        seconds = time.monotonic() - began
        print(f"kill: cycles={CYCLES} killed_starts={killed_starts} seconds={seconds:.0f} {load.summary()}", flush=True)


async def _first_start(broker: KillableBroker) -> float:
    """Create topic and groups; return the duration of a start."""
    started = time.monotonic()
    await broker.launch("sync", "gathered")
    await broker.ready()
    seconds = time.monotonic() - started
    async with connect(broker.endpoint) as client:
        types = (v2.MessageType.NORMAL, v2.MessageType.FIFO)
        await client.admin.create_topic(TOPIC, queue_count=4, message_types=types)
        for group in GROUPS:
            await client.admin.create_group(group, max_attempts=1000)
    return seconds


async def _nothing_is_left(endpoint: str, load: Load) -> None:
    """Check that the broker reports every message as consumed."""
    async with connect(endpoint) as client:
        for group in GROUPS:
            for queue in (await client.admin.describe_group(group)).queues:
                if queue.lag:
                    load.violated("forgotten", f"group {group}: the broker says {queue}")


async def _verify(store: Path) -> None:
    """Check that `aerobee store verify` finds nothing after the kills."""
    command = [sys.executable, "-m", "aerobee_broker", "store", "verify", str(store), "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-4000:]
    report = json.loads(output)
    assert report["ok"], report
    assert report["records"] > 0


def _report(load: Load, when: str) -> str:
    lines = "\n".join(load.violations)
    return f"violations {when} (AEROBEE_CRASH_SEED={SEED}):\n{lines}\n{load.summary()}"
