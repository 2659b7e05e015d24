"""The space that files of a disk in memory take."""

from __future__ import annotations

from pathlib import Path

from aerobee_store.testing import BLOCK_SIZE, MemoryFileSystem


def _with_a_file() -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_directory(Path("/a/b"))
    disk.write_new(Path("/a/b/one"), b"x" * (BLOCK_SIZE + 1))
    assert disk.used == 2 * BLOCK_SIZE
    return disk


def test_a_file_takes_space_until_its_last_name_is_gone() -> None:
    disk = _with_a_file()
    disk.link(Path("/a/b/one"), Path("/a/two"))
    disk.unlink(Path("/a/b/one"))
    assert disk.used == 2 * BLOCK_SIZE
    disk.unlink(Path("/a/two"))
    assert disk.used == 0


def test_a_replaced_file_takes_none() -> None:
    disk = _with_a_file()
    disk.write_new(Path("/two"), b"x")
    disk.rename(Path("/two"), Path("/a/b/one"))
    assert disk.used == BLOCK_SIZE


def test_zeros_take_none_after_a_power_cut() -> None:
    disk = MemoryFileSystem()
    disk.write_new(Path("/one"), bytes(BLOCK_SIZE) + b"x" + bytes(BLOCK_SIZE))
    disk.sync_directory(Path("/"))
    assert disk.used == 3 * BLOCK_SIZE
    assert disk.crash(0).used == BLOCK_SIZE
