"""A process killed while it copies many records at once into the log.

A copy in memory need not store its bytes in their order. A kill in the middle must nevertheless leave a log that only
ends early, without damage.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest

from aerobee_store import MessageStore
from aerobee_store.config import WriteMode
from tests.support import seeds
from tests.support.endless_appends import BODY, TOPIC, config
from tests.support.stored_messages import read_all
from tests.support.warm_program import start_warm

CYCLES = int(os.environ.get("AEROBEE_CRASH_CYCLES", "8"))
SEED = seeds.seed("AEROBEE_CRASH_SEED")

pytestmark = [pytest.mark.crash, pytest.mark.on_disk, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("write_mode", ["gathered", "mapped", "pool"])
async def test_a_kill_leaves_whole_records_up_to_an_end(tmp_path: Path, write_mode: WriteMode) -> None:
    """Of ten kills in mode "mapped", two came within a copy that had stored later records before the first."""
    dice = random.Random(SEED)
    kept = 0
    for cycle in range(CYCLES):
        directory = tmp_path / f"store-{cycle}"
        process = start_warm("tests.support.endless_appends", [str(directory), write_mode], log=tmp_path / "log")
        try:
            assert await process.line() == b"appending\n", (tmp_path / "log").read_text()
            await asyncio.sleep(dice.uniform(0.005, 0.1))
        finally:
            process.kill()
        with MessageStore.open(config(directory, write_mode)) as store:
            assert not store.recovery.damaged, f"cycle {cycle}, seed {SEED}: {store.recovery}"
            found = read_all(store, TOPIC, 0)
            assert list(found) == list(range(len(found)))
            assert all(record.body == BODY for record in found.values())
            kept += len(found)
        shutil.rmtree(directory)
    assert kept, "no process came to its first append"
