"""The tools on stores that RocketMQ wrote: they show the content, name the exact damage, and change nothing."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from aerobee_store import MessageStore
from aerobee_store.tools.backup import backup
from aerobee_store.tools.dump import dump
from aerobee_store.tools.findings import Finding
from aerobee_store.tools.inspect import inspect
from aerobee_store.tools.rebuild import rebuild
from aerobee_store.tools.repair import repair
from aerobee_store.tools.verify import verify
from tests.golden.test_golden_rebuild import given
from tests.golden.test_golden_store import config_of
from tests.support import golden
from tests.support.golden import GoldenCase

# The finding kinds of each damaged case; the others are clean.
_BEHIND = {"unit-missing", "index-behind"}
_AHEAD = {"unit-ahead", "index-ahead", "checkpoint"}
_LOST = {"unit-missing", "index-missing"}
DAMAGED = {
    "cq-ahead-clean": _AHEAD,
    "cq-ahead-crash": _AHEAD,
    "cq-behind-clean": _BEHIND,
    "crash-mid": {"log-damaged"},
    "crash-mid-unseen": {"log-damaged"},
    # The checkpoint has the time of the torn record.
    "crash-tail": {"log-torn", "checkpoint"} | _BEHIND,
    "crash-tail-zeros": {"log-torn", "checkpoint"} | _BEHIND,
    "v43-crash": {"log-torn", "checkpoint"} | _BEHIND,
    "deleted-head-no-cq": _LOST,
    "no-cq-clean": _LOST,
    "no-cq-crash": _LOST,
}


@pytest.fixture(params=golden.names())
def case(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenCase:
    return golden.load(request.param, tmp_path)


def snapshot(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_dump_gives_the_manifest(case: GoldenCase) -> None:
    """Dump gives every surviving record with the manifest's fields, and reports each damaged range once."""
    before = snapshot(case.store)
    findings: list[Finding] = []
    records = list(dump(case.store, on_finding=findings.append))
    assert records == [fields for fields in case.manifest["messages"] if fields["physicalOffset"] not in case.damaged]
    lost_tail = (case.manifest.get("damage") or {}).get("kind") == "lostTail"  # zeros: nothing to report
    assert [finding.physical_offset for finding in findings] == ([] if lost_tail else sorted(case.damaged))
    assert snapshot(case.store) == before


def test_verify_names_exactly_the_damage(case: GoldenCase) -> None:
    """An undamaged store has no findings; a damaged one has those that its damage explains."""
    before = snapshot(case.store)
    report = verify(case.store)
    assert {finding.kind for finding in report.findings} == DAMAGED.get(case.name, set())
    assert report.ok == (case.name not in DAMAGED)
    assert report.state == ("crashed" if case.abort else "stopped")
    assert report.segment_size == case.segment_size
    assert report.records == len(case.intact)
    assert report.bytes == sum(message.size for message in case.intact)
    assert report.log_begin == case.manifest["recovery"]["lossless"]["minPhysicalOffset"]
    assert report.log_end == case.manifest["recovery"]["lossless"]["maxPhysicalOffset"]
    assert snapshot(case.store) == before


def test_verify_tells_who_is_concerned(case: GoldenCase) -> None:
    """Places and counts of the findings match the damage."""
    report = verify(case.store)
    intact = {message.physical_offset: message for message in case.intact}
    by_offset = {message.physical_offset: message for message in case.messages}
    log_end = case.manifest["recovery"]["lossless"]["maxPhysicalOffset"]
    units = {
        (topic, int(queue_id), number): unit
        for topic, queues in case.manifest["queues"].items()
        for queue_id, content in queues.items()
        for number, unit in enumerate(content["units"], content["firstUnit"])
    }
    for finding in report.findings:
        if finding.kind == "log-damaged":
            assert finding.physical_offset is not None
            lost = by_offset[finding.physical_offset]
            assert (finding.size, finding.topic, finding.queue_id, finding.queue_offset) == (
                lost.size,
                lost.topic,
                lost.queue_id,
                lost.queue_offset,
            )
    missing = sum(finding.count for finding in report.findings if finding.kind == "unit-missing")
    in_queues = [message for message in intact.values() if not message.sys_flag & 0x84]
    assert missing == sum((each.topic, each.queue_id, each.queue_offset) not in units for each in in_queues)
    ahead = sum(finding.count for finding in report.findings if finding.kind == "unit-ahead")
    assert ahead == sum(unit[0] >= log_end and unit[1] != 0x7FFFFFFF for unit in units.values())


@pytest.mark.parametrize("full", [False, True])
def test_inspect_sees_the_store(case: GoldenCase, full: bool) -> None:
    """Log, queues on disk and index files are those of the manifest."""
    before = snapshot(case.store)
    report = inspect(case.store, full=full)
    lossless = case.manifest["recovery"]["lossless"]
    assert (report.log_begin, report.log_end) == (lossless["minPhysicalOffset"], lossless["maxPhysicalOffset"])
    assert report.segment_size == case.segment_size
    assert [segment.start for segment in report.segments] == case.manifest["log"]["segments"]
    if full:
        assert report.records == len(case.intact)
    if case.name not in DAMAGED or case.name.startswith("crash-mid"):
        queues: dict[str, dict[str, list[int]]] = {}
        for queue in report.queues:
            queues.setdefault(queue.topic, {})[str(queue.queue_id)] = [queue.min_offset, queue.max_offset]
        assert queues == lossless["queues"]
    headers = [
        (index.path, index.first_store_time, index.last_store_time, index.begin_offset, index.end_offset)
        for index in report.index_files
    ]
    assert headers == [
        (
            f"index/{header['name']}",
            header["beginTimestamp"],
            header["endTimestamp"],
            header["beginPhysicalOffset"],
            header["endPhysicalOffset"],
        )
        for header in case.manifest["index"]["files"]
    ]
    counts = int(case.config["maxHashSlotNum"]), int(case.config["maxIndexNum"])
    assert all((index.slots, index.capacity) == counts for index in report.index_files)
    assert report.checkpoint is not None
    assert report.checkpoint.log_time == case.manifest["checkpoint"]["physicMsgTimestamp"]
    assert snapshot(case.store) == before


def test_no_tool_changes_a_store_unless_told(case: GoldenCase, tmp_path: Path) -> None:
    """In any state, no tool changes a byte, name or time, not even temporarily; a backup has the same bytes."""
    before = everything(case.store)
    for full in (False, True):
        inspect(case.store, full=full)
    verify(case.store)
    list(dump(case.store, bodies=True))
    repair(case.store, sizes=given(case))
    rebuild(case.store, sizes=given(case))
    backup(case.store, tmp_path / "copy")
    assert everything(case.store) == before
    copied, original = snapshot(tmp_path / "copy"), snapshot(case.store)
    assert {path: copied[path] for path in original.keys() & copied.keys()} == {
        path: original[path] for path in original.keys() & copied.keys()
    }
    assert {path for path in original if path.startswith("commitlog/")} <= copied.keys()


def everything(directory: Path) -> dict[str, tuple[str, int]]:
    """Return the files like `snapshot`, and the directories, whose times change when an entry is added or removed."""
    folders = [directory, *(path for path in directory.rglob("*") if path.is_dir())]
    return {**snapshot(directory), **{f"{path}/": ("", path.stat().st_mtime_ns) for path in folders}}


def test_what_recovery_made_is_clean(case: GoldenCase) -> None:
    """After our store has opened and closed a case, verify reports only permanent losses."""
    with MessageStore.open(config_of(case)):
        assert verify(case.store).state == "live"
    report = verify(case.store)
    assert {finding.kind for finding in report.findings} <= {"log-damaged", "quarantine", "checkpoint"}
    assert report.ok == (not case.name.startswith("crash-mid"))
    assert report.records == len(case.intact)


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    """In a store with record checksums no bit of a record, unit or index entry can change unnoticed."""
    case = golden.load("propcrc", tmp_path)
    slots = int(case.config["maxHashSlotNum"])
    places: list[tuple[Path, int]] = []
    for message in case.messages:
        start = message.physical_offset - message.physical_offset % case.segment_size
        places += [
            (case.store / "commitlog" / f"{start:020d}", message.physical_offset - start + position)
            for position in range(message.size)
        ]
    log_count = len(places)
    size = int(case.config["mappedFileSizeConsumeQueue"])
    for topic, queues in case.manifest["queues"].items():
        for queue_id, content in queues.items():
            for position in range(20 * len(content["units"])):
                path = case.store / "consumequeue" / topic / queue_id / f"{position - position % size:020d}"
                places.append((path, position % size))
    unit_count = len(places)
    for header in case.manifest["index"]["files"]:
        path = case.store / "index" / header["name"]
        entries = 40 + 4 * slots + 20
        places += [(path, position) for position in range(40, 40 + 4 * slots)]
        places += [(path, position) for position in range(entries, entries + 20 * (header["indexCount"] - 1))]
    seed = 20240601
    chance = random.Random(seed)
    for first, last in ((0, log_count), (log_count, unit_count), (unit_count, len(places))):
        for _ in range(40):
            path, position = places[chance.randrange(first, last)]
            before = path.read_bytes()
            content = bytearray(before)
            content[position] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
            assert not verify(case.store).ok, f"{path} byte {position}, seed {seed}"
            path.write_bytes(before)
    assert verify(case.store).findings == []
