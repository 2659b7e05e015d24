"""Descriptors that come and go."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aerobee_store.file_system import DiskFileSystem, File


def test_no_more_descriptors_than_allowed(tmp_path: Path) -> None:
    """More files than may be open are written and read in turn, and nothing is lost; a removed one is forgotten."""
    disk = DiskFileSystem(open_files_max=3)
    before = len(os.listdir("/proc/self/fd"))
    files = [disk.create(tmp_path / str(number), 100, evictable=True) for number in range(10)]
    for turn in range(5):
        for number, file in enumerate(files):
            file.write([bytes([number, turn])], turn * 2)
            assert len(os.listdir("/proc/self/fd")) <= before + 3
    files.pop(4).close()
    for file in files:
        assert file.read(10, 0) == b"".join(bytes([int(file.path.name), turn]) for turn in range(5))
        assert len(os.listdir("/proc/self/fd")) <= before + 3
    for file in files:
        file.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_limit_of_the_process_is_enough_for_many_files(tmp_path: Path) -> None:
    """Nothing is closed as long as there is room."""
    disk = DiskFileSystem()
    before = len(os.listdir("/proc/self/fd"))
    files = [disk.create(tmp_path / str(number), 100, evictable=True) for number in range(100)]
    assert len(os.listdir("/proc/self/fd")) == before + 100
    for file in files:
        file.close()


def test_the_store_has_descriptors_that_connections_do_not_get(tmp_path: Path) -> None:
    """When the soft limit is used up, files, directories and mappings still open; the limit is as before then."""
    disk = DiskFileSystem()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    others: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, limits[1]))
    try:
        with suppress(OSError):
            while len(others) < 100:
                others.append(os.open("/dev/null", os.O_RDONLY))
        assert len(others) < 25, "the limit holds for everybody else"
        with disk_file(disk, tmp_path / "a") as file:
            file.write([b"x"], 0)
            memory = file.map()
            assert bytes(memory[:1]) == b"x"
            memory.release()
        disk.write_new(tmp_path / "b", b"table")
        disk.sync_directory(tmp_path)
        assert disk.list(tmp_path) == ["a", "b"]
        assert disk.read_bytes(tmp_path / "b") == b"table"
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (used + 20, limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in others:
            os.close(descriptor)


@contextmanager
def disk_file(disk: DiskFileSystem, path: Path) -> Iterator[File]:
    file = disk.create(path, 4096)
    try:
        yield file
    finally:
        file.close()
