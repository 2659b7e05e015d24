"""Queues and index rebuilt from the log alone equal those that RocketMQ wrote."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from aerobee_store import MessageStore
from aerobee_store.queues.consume_queue import UNIT_DTYPE
from aerobee_store.tools.actions import GivenSizes
from aerobee_store.tools.rebuild import rebuild
from aerobee_store.tools.verify import verify
from tests.golden.test_golden_store import config_of
from tests.support import golden
from tests.support.golden import GoldenCase

# v43 counts slots differently; every release since 4.9 writes files like the others.
COMPLETE = ["plain", "propcrc", "propcrc-unclosed", "wide", "kinds", "batch-cq"]


def snapshot(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def contents(directory: Path, *names: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for name in names
        for path in sorted((directory / name).rglob("*"))
        if path.is_file()
    }


def index_of(case: GoldenCase) -> list[bytes]:
    return [path.read_bytes() for path in sorted((case.store / "index").iterdir())]


def given(case: GoldenCase) -> GivenSizes:
    config = config_of(case)
    return GivenSizes(
        queue_file_size=config.queue_file_size,
        batch_queue_file_size=config.batch_queue_file_size,
        index_slot_count=config.index_slot_count,
        index_entry_count=config.index_entry_count,
    )


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("name", COMPLETE)
def test_the_files_are_rocketmqs(name: str, lost: bool, tmp_path: Path) -> None:
    """The files are equal byte for byte, whether the old ones exist or not; log and other files are not touched."""
    case = golden.load(name, tmp_path)
    queues = contents(case.store, "consumequeue", "batchconsumequeue")
    index = index_of(case)
    rest = {path: data for path, data in snapshot(case.store).items() if path.startswith(("commitlog", "config"))}
    if lost:
        for directory in ("consumequeue", "index"):
            shutil.rmtree(case.store / directory)
    report = rebuild(case.store, apply=True, sizes=given(case) if lost else None)
    assert report.applied
    assert report.records == len(case.messages)
    assert contents(case.store, "consumequeue", "batchconsumequeue") == queues
    assert index_of(case) == index
    assert {path: data for path, data in snapshot(case.store).items() if path in rest} == rest
    assert {path.name for path in case.store.iterdir()}.isdisjoint({"rebuild.new", "rebuild.old", "abort"})
    if not lost:
        assert all("0 of them changed" in each.detail for each in report.actions if each.kind == "write-queue")
    assert verify(case.store).ok


@pytest.mark.parametrize("name", golden.names())
def test_without_apply_nothing_changes(name: str, tmp_path: Path) -> None:
    """The planned report equals the real one except for `applied`, and no content, name or time changes."""
    case = golden.load(name, tmp_path)
    before = snapshot(case.store)
    names = sorted(str(path) for path in case.store.rglob("*"))
    planned = rebuild(case.store, sizes=given(case)).to_json()
    assert snapshot(case.store) == before
    assert sorted(str(path) for path in case.store.rglob("*")) == names
    done = rebuild(case.store, sizes=given(case), apply=True).to_json()
    assert done == planned | {"applied": True}


@pytest.mark.parametrize("name", golden.names())
def test_what_was_rebuilt_opens_as_what_can_be_kept(name: str, tmp_path: Path) -> None:
    """Whatever was damaged, every surviving message is in its queue and found by its keys."""
    case = golden.load(name, tmp_path)
    rebuild(case.store, sizes=given(case), apply=True)
    expected = case.manifest["recovery"]["lossless"]
    missing = set(expected["missing"])
    with MessageStore.open(config_of(case)) as store:
        assert store.recovery.units_corrected == 0
        ranges = {
            topic: {str(queue_id): list(store.queue_range(topic, queue_id)) for queue_id in queue_ids}
            for topic, queue_ids in store.queues().items()
        }
        # A queue that lost all its messages is not rebuilt.
        wanted = {
            topic: {key: limits for key, limits in queues.items() if limits[1]}
            for topic, queues in expected["queues"].items()
        }
        assert ranges == {topic: queues for topic, queues in wanted.items() if queues}
        for key, offsets in case.manifest["index"]["keys"].items():
            topic, _, name = key.partition("#")
            found = [record.physical_offset for record in store.query(topic, name, max_count=1000)]
            assert found == sorted(set(offsets) - missing)


@pytest.mark.parametrize("name", ["deleted-head", "pre-blank", "deleted-head-no-cq"])
def test_units_of_deleted_messages_are_fillers(name: str, tmp_path: Path) -> None:
    """Units without a record in the log become fillers; all other units stay at RocketMQ's positions."""
    case = golden.load(name, tmp_path)
    minimum = case.manifest["recovery"]["lossless"]["minPhysicalOffset"]
    before = contents(case.store, "consumequeue")
    rebuild(case.store, sizes=given(case), apply=True)
    after = contents(case.store, "consumequeue")
    for path in before.keys() & after.keys():
        old, new = np.frombuffer(before[path], UNIT_DTYPE), np.frombuffer(after[path], UNIT_DTYPE)
        alive = (old["physical_offset"] >= minimum) & (old["size"] != 0x7FFFFFFF) & (old["size"] > 0)
        assert (new[alive] == old[alive]).all()
        if alive.any():
            gone = (new["size"] != 0) & ~alive
            assert (new["size"][gone] == 0x7FFFFFFF).all()
