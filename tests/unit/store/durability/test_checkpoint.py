"""The checkpoint file: its content, and what RocketMQ and crashes leave of it."""

from __future__ import annotations

import struct

import pytest

from aerobee_store import StoreDirectoryError
from aerobee_store.durability.checkpoint import CHECKPOINT_SIZE, Checkpoint
from aerobee_store.testing import MemoryFileSystem
from tests.support.stored_messages import DIRECTORY

PATH = DIRECTORY / "checkpoint"


def disk_with(data: bytes | None) -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_directory(DIRECTORY)
    if data is not None:
        disk.write_new(PATH, data)
        disk.sync_directory(DIRECTORY)
    return disk


def loaded(disk: MemoryFileSystem) -> Checkpoint:
    checkpoint = Checkpoint(disk, PATH)
    checkpoint.load()
    return checkpoint


def test_saved_fields_are_loaded() -> None:
    """All fields survive, in a file of 4096 bytes that begins with RocketMQ's five numbers."""
    disk = disk_with(None)
    checkpoint = loaded(disk)
    assert (checkpoint.physic_timestamp, checkpoint.derived_offset) == (0, None)
    checkpoint.physic_timestamp, checkpoint.logics_timestamp, checkpoint.index_timestamp = 10_000, 9000, 8000
    checkpoint.master_flushed_offset, checkpoint.confirm_offset, checkpoint.derived_offset = 77, 88, 4321
    checkpoint.save(checkpoint.encoded())
    content = disk.contents()[PATH]
    assert len(content) == CHECKPOINT_SIZE
    assert struct.unpack(">5q", content[:40]) == (10_000, 9000, 8000, 77, 88)
    again = loaded(disk)
    assert again.encoded() == checkpoint.encoded()
    assert (again.derived_offset, again.confirm_offset) == (4321, 88)
    assert again.min_timestamp == 6000, "3 seconds before the older of log and queues"


def test_the_file_of_rocketmq_has_no_offset() -> None:
    """RocketMQ's zeros are not read as an offset, and its writes over our checkpoint invalidate our fields."""
    disk = disk_with(struct.pack(">5q", 1, 2, 3, 0, 0).ljust(4096, b"\0"))
    assert loaded(disk).derived_offset is None
    ours = loaded(disk)
    ours.derived_offset = 5
    ours.save(ours.encoded())
    assert loaded(disk).derived_offset == 5
    disk.damage(PATH, 0, struct.pack(">5q", 9, 9, 9, 0, 0))
    assert loaded(disk).derived_offset is None
    assert loaded(disk).physic_timestamp == 9


@pytest.mark.parametrize("size", [0, 1, 39, 40, 51, 52, 4096])
def test_a_short_file_gives_no_values(size: int) -> None:
    """A file shorter than 40 bytes gives no values."""
    disk = disk_with(struct.pack(">5q", 5, 5, 5, 0, 0).ljust(4096, b"\0")[:size])
    assert loaded(disk).physic_timestamp == (5 if size >= 40 else 0)


def test_a_directory_in_place_of_the_file() -> None:
    """A directory with the checkpoint's name is an error that names it."""
    disk = disk_with(None)
    disk.make_directory(PATH)
    with pytest.raises(StoreDirectoryError, match="a directory has the name of the checkpoint"):
        loaded(disk)


def test_a_power_cut_leaves_the_old_or_the_new_one() -> None:
    """The checkpoint lies in one sector. Saving unchanged content does not touch the disk."""
    disk = disk_with(None)
    checkpoint = loaded(disk)
    checkpoint.derived_offset = 1
    checkpoint.save(checkpoint.encoded())
    checkpoint.derived_offset = 2
    seen: set[int | None] = set()
    disk.before_operation = lambda operation: seen.update(
        loaded(disk.crash(100 * operation.number + seed)).derived_offset for seed in range(9)
    )
    checkpoint.save(checkpoint.encoded())
    disk.before_operation = None
    assert seen == {1, 2}
    before = disk.operations
    checkpoint.save(checkpoint.encoded())
    assert disk.operations == before


def test_a_checkpoint_left_short_by_a_crash_is_rewritten() -> None:
    """A crash left the name without the content; the next save writes 4096 bytes, which RocketMQ maps."""
    disk = MemoryFileSystem()
    disk.make_directory(DIRECTORY)
    disk.write_new(PATH, b"")
    checkpoint = Checkpoint(disk, PATH)
    checkpoint.load()
    checkpoint.physic_timestamp = 7
    checkpoint.save(checkpoint.encoded())
    assert len(disk.read_bytes(PATH)) == 4096
    again = Checkpoint(disk, PATH)
    again.load()
    assert again.physic_timestamp == 7


def test_a_lower_offset_is_for_the_next_process() -> None:
    """This one still knows up to where the log was synced."""
    disk = disk_with(None)
    checkpoint = loaded(disk)
    checkpoint.derived_offset = 4321
    checkpoint.save_lower(1234)
    assert loaded(disk).derived_offset == 1234
    assert checkpoint.derived_offset == 4321
    checkpoint.save(checkpoint.encoded())
    assert loaded(disk).derived_offset == 4321
