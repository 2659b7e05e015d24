"""Files on the operating system's disk: descriptors, syncs, searches and permissions."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem, DiskUsage, File, find_bytes
from aerobee_store.log.log_scan import LogEnd, LogScan
from aerobee_store.log.mapped_file import MappedFile

pytestmark = pytest.mark.on_disk


def open_files(directory: Path) -> int:
    """Return the number of this process's descriptors for files in a directory.

    Other tests in this process may have left descriptors open, which close at any time.
    """
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed in the meantime
            found += Path(os.readlink(f"/proc/self/fd/{name}")).parent == directory
    return found


def test_no_more_descriptors_than_allowed(tmp_path: Path) -> None:
    """More files than may be open are written and read in turn without loss, and a removed file is forgotten."""
    disk = DiskFileSystem(open_files_max=3)
    before = open_files(tmp_path)
    files = [disk.create(tmp_path / str(number), 100, evictable=True) for number in range(10)]
    for turn in range(5):
        for number, file in enumerate(files):
            file.write([bytes([number, turn])], turn * 2)
            assert open_files(tmp_path) <= before + 3
    files.pop(4).close()
    for file in files:
        assert file.read(10, 0) == b"".join(bytes([int(file.path.name), turn]) for turn in range(5))
        assert open_files(tmp_path) <= before + 3
    for file in files:
        file.close()
    assert open_files(tmp_path) == before


def test_the_limit_of_the_process_is_enough_for_many_files(tmp_path: Path) -> None:
    """No file is closed while descriptors are available."""
    disk = DiskFileSystem()
    before = open_files(tmp_path)
    files = [disk.create(tmp_path / str(number), 100, evictable=True) for number in range(100)]
    assert open_files(tmp_path) == before + 100
    for file in files:
        file.close()


def test_the_store_has_reserved_descriptors(tmp_path: Path) -> None:
    """With the soft limit used up, files, directories and mappings still open; the limit stays the same."""
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


def test_many_files_are_synced_together(tmp_path: Path) -> None:
    """Many files are synced together with their names, unless one is on another file system; a few are not."""
    disk = DiskFileSystem()
    lock = disk.lock(tmp_path / "lock", b"lock")
    files = [disk.create(tmp_path / str(number), 100, evictable=True) for number in range(256)]
    try:
        for file in files:
            file.unsynced_levels = 1
            file.write([b"x"], 0)
        assert not lock.sync_together(files[:255])
        if not lock.sync_together(files):
            pytest.skip("this file system does not tell for sure what could not be written")
        assert all(file.unsynced_levels == 0 for file in files)
        elsewhere = Path("/dev/shm")
        if elsewhere.is_dir() and elsewhere.stat().st_dev != tmp_path.stat().st_dev:
            with (
                tempfile.TemporaryDirectory(dir=elsewhere) as directory,
                disk_file(disk, Path(directory) / "a") as file,
            ):
                assert not lock.sync_together([*files, file])
    finally:
        for file in files:
            file.close()
        lock.release()


def test_a_lock_on_a_file_system_with_unreported_errors() -> None:
    """Files are synced one by one on a file system that may not report write errors."""
    directory = Path("/dev/shm")
    if not directory.is_dir():
        pytest.skip("no /dev/shm")
    disk = DiskFileSystem()
    with tempfile.TemporaryDirectory(dir=directory) as name:
        lock = disk.lock(Path(name) / "lock", b"lock")
        files = [disk.create(Path(name) / str(number), 100, evictable=True) for number in range(256)]
        assert not lock.sync_together(files)
        for file in files:
            file.unsynced_levels = 1
            file.sync()
            file.close()
            assert file.unsynced_levels == 0
        lock.release()


def test_a_directory_that_is_made_without_a_sync(tmp_path: Path) -> None:
    """It returns the number of directories created; an existing directory is no error."""
    disk = DiskFileSystem()
    assert disk.make_directory(tmp_path / "a" / "b", durable=False) == 2
    assert disk.make_directory(tmp_path / "a" / "c") == 1
    assert disk.make_directory(tmp_path / "a" / "c", durable=False) == 0
    file = disk.create(tmp_path / "a" / "b" / "file", 10, evictable=True)
    file.unsynced_levels = 3
    (tmp_path / "a" / "b" / "file").unlink()
    file.sync()  # the file is gone, so there is nothing to sync


@pytest.mark.parametrize("evictable", [True, False])
def test_a_sync_covers_new_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evictable: bool) -> None:
    """The first sync of a file also syncs as many directories above it as may not be durable, later ones none."""
    disk = DiskFileSystem()
    synced: list[Path] = []

    def sync_directory(path: Path) -> None:
        assert file.unsynced_levels == 2, "it counts as durable only at the end: another thread may look meanwhile"
        synced.append(path)

    monkeypatch.setattr(disk, "sync_directory", sync_directory)
    file = disk.create(tmp_path / "file", 100, evictable=evictable)
    file.unsynced_levels = 2
    file.sync()
    file.sync()
    file.close()
    assert synced == [tmp_path, tmp_path.parent]


class StrictMap(mmap.mmap):
    """A mapping whose search reads one byte past the given range, like that of CPython 3.11.2."""

    def find(self, sub: object, start: int = 0, end: int | None = None) -> int:
        assert end is not None
        assert end < len(self), "the search would read behind the mapping, which kills the process"
        return super().find(sub, start, end)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, 1, 2000, 4092, 4093])
def test_a_search_excludes_the_last_byte_of_a_mapping(place: int) -> None:
    """A match that includes the last byte is found, and nothing outside the range is."""
    memory = memoryview(StrictMap(-1, 4096))
    memory[place : place + 3] = b"abc"
    assert find_bytes(memory, b"abc", 0, 4096) == place
    assert find_bytes(memory, b"abc", place, 4096) == place
    assert find_bytes(memory, b"abc", place + 1, 4096) == -1
    assert find_bytes(memory, b"abc", 0, place + 2) == -1
    assert find_bytes(memory, b"xyz", 0, 4096) == -1


_AT_THE_END_OF_MEMORY = """
import ctypes, mmap
from aerobee_store.disk.file_system import find_bytes

SIZE, PRIVATE_ANONYMOUS_THERE = 1 << 16, 0x100022  # the last one only if nothing else is there

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
whole = mmap.mmap(-1, SIZE + mmap.PAGESIZE)
end = ctypes.addressof(ctypes.c_char.from_buffer(whole)) + SIZE
whole.resize(SIZE)
assert libc.mmap(end, mmap.PAGESIZE, 0, PRIVATE_ANONYMOUS_THERE, -1, 0) == end  # no access: reading there kills
memory = memoryview(whole)
for wanted in (b"\\0\\0\\1", b"\\0\\1", b"\\xda\\xa3\\x20\\xa7", b"x" * 200):
    assert find_bytes(memory, wanted, 0, len(memory)) == -1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers are those of Linux")
def test_a_search_up_to_the_end_stays_within_the_mapping() -> None:
    """With an unreadable page after the mapping, a plain search on CPython 3.11.2 kills the process."""
    command = [sys.executable, "-c", _AT_THE_END_OF_MEMORY]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_log_with_data_up_to_the_end_of_its_segment_is_searched(tmp_path: Path) -> None:
    """Recovery scans a segment with garbage up to its last byte, as after a power cut."""
    disk = DiskFileSystem()
    file = disk.create(tmp_path / f"{0:020d}", 4096)
    file.write([b"\x01" * 4096], 0)
    segment = MappedFile(disk, tmp_path / f"{0:020d}", 0, 4096, file)
    strict = memoryview(StrictMap(-1, 4096))
    strict[:] = segment.view
    segment._view = strict
    found = list(LogScan([segment], record_size_max=4096).walk(0, zeros_end=None))
    assert [type(each) for each in found] == [LogEnd]
    segment._view = None
    segment.close()


def test_files_of_a_store_are_accessible_to_their_owner_only(tmp_path: Path) -> None:
    """Only the owner can access the store's files, whatever the umask allows."""
    before = os.umask(0)
    try:
        with MessageStore.open(StoreConfig.tiny(tmp_path / "new" / "store")) as store:
            store.append([Message("orders", 0, b"private", {"KEYS": "k"})])
            store.flush()
            store.delete_topic("orders")
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(made) > 8
    assert {path for path in made if path.stat().st_mode & 0o077} == set()


def test_usage_counts_reserved_blocks_neither_as_used_nor_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As df and RocketMQ do: of 1000 blocks 200 are used and 500 reserved for root, so 40 % are used."""
    fields = (4096, 4096, 1000, 800, 300, 0, 0, 0, 0, 255)  # block sizes, blocks, free, available, files, flags, names
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    usage = DiskFileSystem().usage(tmp_path)
    assert usage == DiskUsage(total=500 * 4096, available=300 * 4096)
    assert usage.ratio == 0.4
