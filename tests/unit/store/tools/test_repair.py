"""repair restores derived files and cuts torn data, announces it first, and touches nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_store import MessageStore, StoreConfig, StoreDirectoryError, StoreLockedError
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.queues.consume_queue import UNIT
from aerobee_store.tools.actions import GivenSizes
from aerobee_store.tools.overlay_disk import LockedDisk
from aerobee_store.tools.rebuild import rebuild
from aerobee_store.tools.repair import repair
from aerobee_store.tools.verify import verify
from tests.unit.store.queues.test_batch_consume_queue import TOPIC as BATCH_TOPIC
from tests.unit.store.queues.test_batch_consume_queue import inner
from tests.unit.store.tools.conftest import COUNT, Stored, snapshot

SIZES = GivenSizes(queue_file_size=400, index_slot_count=50, index_entry_count=100)

Damage = Callable[[Stored], None]


def wrong_unit(stored: Stored) -> None:
    stored.patch_unit("A", 0, 3, UNIT.pack(7, 91, 5))


def zeroed_unit(stored: Stored) -> None:
    stored.patch_unit("A", 0, 3, bytes(20))


def stray_units(stored: Stored) -> None:
    stored.patch_unit("B", 1, 35, UNIT.pack(stored.places[2].physical_offset, stored.places[2].size, 0))


def missing_queue_file(stored: Stored) -> None:
    directory = stored.directory / "consumequeue" / "A" / "0"
    (directory / f"{400:020d}").rename(directory / f"{800:020d}")


def missing_queue(stored: Stored) -> None:
    for path in (stored.directory / "consumequeue" / "A" / "1").iterdir():
        path.unlink()


def misnamed_queue_file(stored: Stored) -> None:
    (stored.directory / "consumequeue" / "B" / "0" / "notes.txt").write_text("mine")


def short_queue_file(stored: Stored) -> None:
    with (stored.directory / "consumequeue" / "B" / "0" / f"{400:020d}").open("r+b") as file:
        file.truncate(123)


def broken_chain(stored: Stored) -> None:
    first = min((stored.directory / "index").iterdir())
    stored.patch(first, 40, b"\0\0\0\0" * 50)


def wrong_entry(stored: Stored) -> None:
    first = min((stored.directory / "index").iterdir())
    stored.patch(first, 40 + 200 + 20 * 7 + 4, b"\0\0\0\0\0\0\0\x01")


def misnamed_index_file(stored: Stored) -> None:
    (stored.directory / "index" / "index.bak").write_bytes(b"x")


def no_index(stored: Stored) -> None:
    for path in (stored.directory / "index").iterdir():
        path.unlink()


def broken_checkpoint(stored: Stored) -> None:
    stored.patch(stored.directory / "checkpoint", 0, b"\xff" * 8)


def torn_record(stored: Stored) -> None:
    stored.patch_log(stored.places[-1].physical_offset + 50, b"\xee" * 20)
    (stored.directory / "abort").touch()


def crashed(stored: Stored) -> None:
    (stored.directory / "abort").touch()


DAMAGES: list[tuple[Damage, set[str]]] = [
    (wrong_unit, {"correct-units"}),
    (zeroed_unit, {"add-units"}),
    (stray_units, {"drop-units"}),
    (missing_queue_file, {"add-units"}),
    (missing_queue, {"add-units"}),
    (misnamed_queue_file, {"set-aside"}),
    (short_queue_file, {"set-aside"}),
    (broken_chain, {"write-index"}),
    (wrong_entry, {"write-index"}),
    (misnamed_index_file, {"set-aside"}),
    (no_index, {"write-index"}),
    (broken_checkpoint, {"write-checkpoint"}),
    (torn_record, {"cut-log", "drop-units", "close-in-order"}),
    (crashed, {"close-in-order"}),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_damage_is_repaired(stored: Stored, damage: Damage, expected: set[str]) -> None:
    """The repair is announced without a change, done as announced, and complete; every message is served again."""
    log = snapshot(stored.directory / "commitlog")
    damage(stored)
    before = snapshot(stored.directory)
    announced = repair(stored.directory, sizes=SIZES)
    assert snapshot(stored.directory) == before
    assert not announced.applied
    assert expected <= {action.kind for action in announced.actions}
    done = repair(stored.directory, sizes=SIZES, apply=True)
    assert (done.actions, done.left, done.applied) == (announced.actions, [], True)
    report = verify(stored.directory)
    assert report.errors == 0
    assert report.state == "stopped"
    count = COUNT - (damage is torn_record)
    assert (report.records, report.units) == (count, count)
    if damage is not torn_record:
        assert {path: state[0] for path, state in snapshot(stored.directory / "commitlog").items()} == {
            path: state[0] for path, state in log.items()
        }
    assert repair(stored.directory, sizes=SIZES).actions == []
    with MessageStore.open(stored.config) as store:
        assert (store.recovery.units_added, store.recovery.units_corrected, store.recovery.units_dropped) == (0, 0, 0)
        for message, place in list(zip(stored.messages, stored.places, strict=True))[:count]:
            (found,) = store.read(message.topic, message.queue_id, place.queue_offset, max_count=1).records
            assert found.body == message.body
            assert [each.physical_offset for each in store.query(message.topic, message.properties["UNIQ_KEY"])] == [
                place.physical_offset
            ]


def test_nothing_is_wrong(stored: Stored) -> None:
    """A clean store is not changed, even with apply."""
    before = snapshot(stored.directory)
    assert repair(stored.directory, apply=True).actions == []
    assert snapshot(stored.directory) == before


def test_damage_in_the_log_is_left(stored: Stored) -> None:
    """The damaged bytes stay, and the report names their place."""
    lost = stored.places[40]
    stored.patch_log(lost.physical_offset + 95, b"\xff\xff")
    before = snapshot(stored.directory)
    report = repair(stored.directory, apply=True)
    assert report.actions == []
    assert [(each.kind, each.physical_offset) for each in report.left] == [("log-damaged", lost.physical_offset)]
    assert snapshot(stored.directory) == before
    wrong_unit(stored)
    report = repair(stored.directory, apply=True)
    assert {each.kind for each in report.actions} >= {"correct-units"}
    assert [(each.kind, each.physical_offset) for each in report.left] == [("log-damaged", lost.physical_offset)]
    json.dumps(report.to_json())


@pytest.mark.parametrize("apply", [False, True])
def test_a_store_in_use_is_refused(stored: Stored, apply: bool) -> None:
    """Repair and rebuild are refused while the store is open, and nothing changes."""
    with MessageStore.open(stored.config):
        before = snapshot(stored.directory)
        for tool in (repair, rebuild):
            with pytest.raises(StoreLockedError, match="stop it first"):
                tool(stored.directory, apply=apply)
        assert snapshot(stored.directory) == before


def test_the_lock_is_released(stored: Stored) -> None:
    """During a repair or rebuild the store is locked; afterwards it can be opened."""
    seen: list[bool] = []

    def progress(done: int, total: int) -> None:
        with pytest.raises(BlockingIOError):
            DiskFileSystem().lock(stored.directory / "lock", b"lock")
        seen.append(True)

    crashed(stored)
    repair(stored.directory, apply=True, progress=progress)
    rebuild(stored.directory, apply=True, progress=progress)
    assert seen
    MessageStore.open(stored.config).close()


def test_a_repair_that_is_killed(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill the next start still finds everything in the log."""
    stray_units(stored)
    wrong_entry(stored)

    def killed(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    real = MessageStore.open
    monkeypatch.setattr(LockedDisk, "sync_directory", lambda disk, path: killed() if path.name == "index" else None)
    with pytest.raises(KeyboardInterrupt):
        repair(stored.directory, sizes=SIZES, apply=True)
    monkeypatch.undo()
    with real(stored.config) as store:
        assert not store.recovery.clean
    assert verify(stored.directory).ok


def test_a_deleted_topic_stays_deleted(stored: Stored) -> None:
    """Neither repair nor rebuild restores its messages, and its offsets continue."""
    with MessageStore.open(stored.config) as store:
        assert store.queue_range("A", 0) == (0, 30)
        store.delete_topic("A")
    crashed(stored)
    repair(stored.directory, sizes=SIZES, apply=True)
    rebuild(stored.directory, sizes=SIZES, apply=True)
    with MessageStore.open(stored.config) as store:
        assert "A" not in store.queues()
        assert store.append([stored.messages[0]])[0].queue_offset == 30


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("renames", [None, 0, 1, 2, 3])
def test_the_end_of_a_queue_is_kept_without_messages(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, renames: int | None, again: bool
) -> None:
    """A queue without messages in the log keeps its last file, because its offsets must not restart.

    `renames`: the rebuild is killed after that many renames, and then repeated, or a start follows.
    """
    with MessageStore.open(stored.config) as store:
        ends = {topic: store.queue_range(topic, 0)[1] for topic in "AB"}
        while store.status().segments < 8:
            store.append([stored.messages[1]] * 50)
        store.flush()
    for path in sorted((stored.directory / "commitlog").iterdir())[:6]:
        path.unlink()
    if renames is not None:
        monkeypatch.setattr(DiskFileSystem, "rename", killed_at(DiskFileSystem.rename, renames + 1))
        with pytest.raises(KeyboardInterrupt):
            rebuild(stored.directory, apply=True)
        monkeypatch.undo()
    if renames is None or again:
        report = rebuild(stored.directory, apply=True)
        assert "keep-queue" in {action.kind for action in report.actions}
    with MessageStore.open(stored.config) as store:
        assert store.queue_range("A", 0) == (ends["A"], ends["A"])
        assert store.append([stored.messages[0]])[0].queue_offset == ends["A"]
        assert store.queue_range("B", 0)[1] > ends["B"]


@pytest.mark.parametrize("mend", [repair, rebuild])
def test_a_first_file_that_is_missing(stored: Stored, mend: Callable[..., object]) -> None:
    """The log still has its messages, so they did not expire: the file is restored byte for byte."""
    path = stored.directory / "consumequeue" / "A" / "0" / f"{0:020d}"
    before = path.read_bytes()
    path.unlink()
    (finding,) = verify(stored.directory).findings
    assert (finding.kind, finding.severity, finding.queue_offset, finding.count) == ("unit-missing", "error", 0, 20)
    mend(stored.directory, apply=True)
    assert path.read_bytes() == before
    assert verify(stored.directory).findings == []


@pytest.mark.parametrize("linked", ["consumequeue", "consumequeue/A", "consumequeue/A/1", "index"])
@pytest.mark.parametrize("apply", [False, True])
def test_a_rebuild_refuses_to_replace_files_outside_the_store(
    stored: Stored, tmp_path: Path, linked: str, apply: bool
) -> None:
    """Nothing is changed: the new files would be on the store's own disk, and the old ones would stay behind."""
    place = stored.directory / linked
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = snapshot(stored.directory), snapshot(tmp_path / "elsewhere")
    with pytest.raises(StoreDirectoryError, match=f"{linked}: a link or mount point"):
        rebuild(stored.directory, apply=apply)
    assert (snapshot(stored.directory), snapshot(tmp_path / "elsewhere")) == before
    assert place.is_symlink()
    rebuild(stored.directory, apply=apply, queues=linked == "index", index=linked != "index")  # the other one


@pytest.mark.parametrize("linked", ["commitlog", "consumequeue", "consumequeue/A", "index"])
def test_a_repair_of_files_outside_the_store(stored: Stored, tmp_path: Path, linked: str) -> None:
    """It is repaired in place."""
    place = stored.directory / linked
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    stored.patch_unit("A", 0, 5, b"\1" * 20)
    assert repair(stored.directory, apply=True).left == []
    assert verify(stored.directory).findings == []
    assert place.is_symlink()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_file_of_a_batch_queue_that_is_missing(tmp_path: Path, lost: int) -> None:
    """Any file of three, including the first, is restored byte for byte."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config, is_batch_topic=lambda topic: topic == BATCH_TOPIC) as store:
        for number in range(25):
            store.append([inner(b"a%d" % number, b"b")])
        store.flush()
    path = sorted((config.directory / "batchconsumequeue" / BATCH_TOPIC / "0").iterdir())[lost]
    before = path.read_bytes()
    path.unlink()
    assert not verify(config.directory).ok
    assert repair(config.directory, apply=True).left == []
    assert path.read_bytes() == before
    assert verify(config.directory).findings == []
    with MessageStore.open(config) as store:
        assert store.queue_range(BATCH_TOPIC, 0) == (0, 50)


def killed_at(real: Callable[..., None], count: int) -> Callable[..., None]:
    """Return a disk method that ends the process at call number `count`."""
    left = count

    def killed(disk: DiskFileSystem, *arguments: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        real(disk, *arguments)

    return killed


@pytest.mark.parametrize("step", ["write_new", "unlink", "rename-1", "rename-2", "rename-3", "rename-4"])
def test_a_rebuild_that_is_killed(stored: Stored, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """After any step of moving the new files into place, the next start has every message in its queue and index."""
    name, _, count = step.partition("-")
    monkeypatch.setattr(DiskFileSystem, name, killed_at(getattr(DiskFileSystem, name), int(count or 1)))
    with pytest.raises(KeyboardInterrupt):
        rebuild(stored.directory, apply=True)
    monkeypatch.undo()
    with MessageStore.open(stored.config) as store:
        assert {topic: len(ids) for topic, ids in store.queues().items()} == {"A": 2, "B": 2}
        assert store.queue_range("A", 0) == (0, 30)
    assert verify(stored.directory).ok
    rebuild(stored.directory, apply=True)
    assert {path.name for path in stored.directory.iterdir()}.isdisjoint({"rebuild.new", "rebuild.old"})
    assert verify(stored.directory).findings == []
