"""Descriptors that come and go."""

from __future__ import annotations

import os
from pathlib import Path

from aerobee_store.file_system import DiskFileSystem


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
