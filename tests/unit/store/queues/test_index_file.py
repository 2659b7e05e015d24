"""The hash index: entries, chains, consecutive files, truncation and relinking."""

from __future__ import annotations

import errno
import struct

import pytest

from aerobee_store import StoreDirectoryError
from aerobee_store.queues import index_file
from aerobee_store.queues.index_file import HEADER_SIZE, IndexService, file_size
from aerobee_store.testing import MemoryFileSystem, Operation
from tests.support.stored_messages import DIRECTORY

SLOTS, ENTRIES = 10, 60
NOW = 1_700_000_000_000
INDEX = DIRECTORY / "index"
MAX = (1 << 63) - 1


def service(disk: MemoryFileSystem) -> IndexService:
    index = IndexService(disk, INDEX, SLOTS, ENTRIES)
    index.load()
    return index


def put(index: IndexService, first: int, count: int, *, at_once: bool = True) -> None:
    """Put entries n = first...: hash n % 7, physical offset 100 n, one second apart."""
    numbers = range(first, first + count)
    if at_once:
        index.put([n % 7 for n in numbers], [n * 100 for n in numbers], [NOW + n * 1000 for n in numbers], NOW)
    else:
        for n in numbers:
            index.put([n % 7], [n * 100], [NOW + n * 1000], NOW)


def found(index: IndexService, key_hash: int, begin: int = 0, end: int = MAX) -> list[int]:
    return [offset // 100 for offset in index.find(key_hash, begin, end) if offset is not None]


def expected(key_hash: int, count: int) -> list[int]:
    return [n for n in range(count) if n % 7 == key_hash][::-1]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("count", [1, 40, 59, 60, 150])
def test_every_entry_is_found_newest_first(count: int, at_once: bool) -> None:
    """Entries put one by one or as columns are found across files."""
    disk = MemoryFileSystem()
    index = service(disk)
    put(index, 0, count, at_once=at_once)
    for key_hash in range(7):
        assert found(index, key_hash) == expected(key_hash, count)
    assert index.last_offset == (count - 1) * 100
    assert index.last_timestamp == NOW + (count - 1) * 1000
    assert len(index.files) == -(-count // (ENTRIES - 1))


def test_keys_that_share_a_slot_are_distinguished() -> None:
    """A search returns only entries of its hash, whatever else is on the chain."""
    index = service(MemoryFileSystem())
    index.put([3, 3 + SLOTS, 3, 3 + 2 * SLOTS], [0, 100, 200, 300], [NOW] * 4, NOW)
    assert (found(index, 3), found(index, 3 + SLOTS), found(index, 3 + 3 * SLOTS)) == ([2, 0], [1], [])


def test_a_search_reads_a_bounded_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys built to share a slot cost a search no more than the bound, over all files; the newest are found."""
    index = service(MemoryFileSystem())
    count = 3 * ENTRIES
    index.put([3] * count, [100 * n for n in range(count)], [NOW] * count, NOW)
    assert found(index, 3) == list(range(count))[::-1]
    for bound in (1, ENTRIES - 1, ENTRIES + 5):
        monkeypatch.setattr(index_file, "LOOKED_MAX", bound)
        assert found(index, 3) == list(range(count - bound, count))[::-1]
    monkeypatch.setattr(index_file, "LOOKED_MAX", 2)
    index.put([3 + SLOTS, 3 + SLOTS], [100 * count, 100 * count], [NOW, NOW], NOW)
    assert found(index, 3) == [], "entries of other keys count, too"


def test_a_long_search_continues_in_a_changed_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long chain is searched in bounded steps, between which files are added and removed."""
    monkeypatch.setattr(index_file, "LOOKED_PER_STEP", 10)
    index = service(MemoryFileSystem())
    per_file = ENTRIES - 1
    count = 3 * per_file
    index.put([3 + SLOTS] * count, [100 * n for n in range(count)], [NOW] * count, NOW)
    steps = list(index.find(3, 0, MAX))
    assert steps == [None] * (3 * (per_file // 10)), "entries of other keys make steps, too"
    search = index.find(3 + SLOTS, 0, MAX)
    assert [next(search) for _ in range(11)] == [*(100 * n for n in range(count - 1, count - 11, -1)), None]
    for file in index.release_expired(100 * per_file):  # the oldest file
        file.close()
    index.put([3 + SLOTS] * ENTRIES, [100 * n for n in range(count, count + ENTRIES)], [NOW] * ENTRIES, NOW)
    rest = [offset // 100 for offset in search if offset is not None]
    assert rest == list(range(per_file, count - 10))[::-1], "what was there when it began, and still is"
    search = index.find(3 + SLOTS, 0, MAX)
    next(search)
    for file in index.files:
        file.close()
    assert list(search) == []


def test_truncating_restores_earlier_slots_and_entries() -> None:
    """A slot whose entries were all dropped is empty; otherwise it would lead into the chains of later entries."""
    whole, never = MemoryFileSystem(), MemoryFileSystem()
    index = service(whole)
    index.put([1, 2, 3, 4], [0, 100, 200, 300], [NOW] * 4, NOW)
    index.truncate(200)
    service(never).put([1, 2], [0, 100], [NOW] * 2, NOW)
    (path,) = (path for path in whole.contents() if path.is_relative_to(INDEX))
    (other,) = (path for path in never.contents() if path.is_relative_to(INDEX))
    assert whole.contents()[path][HEADER_SIZE:] == never.contents()[other][HEADER_SIZE:]


def test_single_and_bulk_entries_give_the_same_bytes() -> None:
    """The numpy path and the loop write equal files."""
    disks = MemoryFileSystem(), MemoryFileSystem()
    for disk, at_once in zip(disks, (True, False), strict=True):
        put(service(disk), 0, 150, at_once=at_once)
    assert disks[0].contents() == disks[1].contents()


def test_slots_of_one_and_of_several_entries_get_the_same_bytes() -> None:
    """Entries that share a slot, within one call or with earlier ones, give the same bytes."""
    disks = MemoryFileSystem(), MemoryFileSystem()
    hashes = [n * n * 7919 % 1511 for n in range(600)]
    for disk, step in zip(disks, (1, 200), strict=True):
        index = IndexService(disk, INDEX, 400, 1000)
        for first in range(0, 600, step):
            numbers = range(first, first + step)
            index.put(hashes[first : first + step], [n * 100 for n in numbers], [NOW + n for n in numbers], NOW)
    assert disks[0].contents() == disks[1].contents()


def test_a_time_range_narrows_a_search_without_losses() -> None:
    """The result has all entries of the range; others are within a few seconds of it, or first in a file."""
    index = service(MemoryFileSystem())
    put(index, 0, 150)
    result = found(index, 3, NOW + 40_000, NOW + 80_000)
    inside = [n for n in expected(3, 150) if 40 <= n <= 80]
    assert set(inside) <= set(result)
    assert set(result) <= {n for n in expected(3, 150) if 38 <= n <= 83} | {0, 59, 118}
    assert found(index, 3, NOW + 10_000_000, MAX) == []


def test_a_new_file_begins_where_the_last_one_ended() -> None:
    """The second file's begin fields before its first entry are the first file's end; names increase."""
    disk = MemoryFileSystem()
    index = service(disk)
    put(index, 0, 60)
    second = index.files[1]
    assert second.begin_offset == second.end_offset == 5900
    assert second.path.name == str(int(index.files[0].path.name) + 1)


@pytest.mark.parametrize("cut", [0, 1, 30, 59, 60, 100, 150])
def test_truncating_drops_entries_and_links_the_rest(cut: int) -> None:
    """Entries at or after the offset are gone from chains and header, and the index continues from there."""
    disk = MemoryFileSystem()
    index = service(disk)
    put(index, 0, 150)
    index.truncate(cut * 100)
    again = service(disk)
    for key_hash in range(7):
        assert found(again, key_hash) == expected(key_hash, cut)
    put(again, cut, 20)
    for key_hash in range(7):
        assert found(again, key_hash) == expected(key_hash, cut + 20)


@pytest.mark.parametrize("what", ["slots", "header", "entries", "empty last file"])
def test_after_a_crash_the_last_file_is_linked_again(what: str) -> None:
    """Slots newer than entries, an old header, lost entries, and a second file without a header are all repaired."""
    disk = MemoryFileSystem()
    index = service(disk)
    put(index, 0, 40)
    if what == "empty last file":
        put(index, 40, 40)
    path = index.files[0].path
    if what == "slots":
        disk.damage(path, HEADER_SIZE, struct.pack(">10i", *[55] * SLOTS))
    elif what == "header":
        old = bytearray(disk.contents()[path][:HEADER_SIZE])
        old[16:40] = struct.pack(">qqii", 0, 2900, 7, 31)
        disk.damage(path, 0, bytes(old))
    elif what == "entries":
        disk.damage(path, HEADER_SIZE + 4 * SLOTS + 20 * 35, bytes(100))
    else:
        disk.damage(index.files[1].path, 0, bytes(HEADER_SIZE))
    again = service(disk)
    again.truncate_unsynced(again.complete_before(3000))
    for key_hash in range(7):
        assert found(again, key_hash) == expected(key_hash, 30)
    assert again.last_offset == 2900
    put(again, 30, 60)
    for key_hash in range(7):
        assert found(again, key_hash) == expected(key_hash, 90)


def test_damaged_chains_end() -> None:
    """A link to its own entry, to a later one, or out of the file ends the search, without a loop or a bad read."""
    disk = MemoryFileSystem()
    index = service(disk)
    put(index, 0, 40)
    path = index.files[0].path
    for previous in (39, 40, 1 << 30, -5):
        disk.damage(path, HEADER_SIZE + 4 * SLOTS + 20 * 39 + 16, struct.pack(">i", previous))
        assert len(found(service(disk), 38 % 7)) <= 40


def test_files_that_are_not_an_index() -> None:
    """Foreign names and wrong counts are errors that name the setting; an empty file is left by a crash."""
    disk = MemoryFileSystem()
    put(service(disk), 0, 3)
    disk.create(INDEX / "20990101000000000", 0)
    assert len(service(disk).files) == 1
    with pytest.raises(StoreDirectoryError, match=r"store\.index_slot_count"):
        IndexService(disk, INDEX, SLOTS + 1, ENTRIES).load()
    disk.create(INDEX / "readme", 5)
    with pytest.raises(StoreDirectoryError, match="move it away"):
        service(disk)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_failed_creation_of_a_file_is_retried(failures: int, caplog: pytest.LogCaptureFixture) -> None:
    """Creation is retried twice; then the caller gets the error."""
    disk = MemoryFileSystem()
    index = service(disk)
    left = failures

    def fail(operation: Operation) -> None:
        nonlocal left
        if operation.name == "create" and left:
            left -= 1
            raise OSError(errno.EMFILE, "as the test wants it", str(operation.path))

    disk.before_operation = fail
    if failures == 3:
        with pytest.raises(OSError, match="as the test wants it"):
            put(index, 0, 5)
    else:
        put(index, 0, 5)
        assert found(index, 3) == [3]
    assert sum("trying again" in record.message for record in caplog.records) == min(failures, 2)


def test_a_new_file_becomes_durable_in_the_disk_thread() -> None:
    """Creating files syncs nothing, as the event loop would wait; the sync of a file makes its name durable, too."""
    disk = MemoryFileSystem()
    disk.make_directory(DIRECTORY)
    began = len(disk.log)
    index = service(disk)
    put(index, 0, 3 * ENTRIES)
    assert not [each for each in disk.log[began:] if each.name.startswith("sync")]
    for file in index.take_dirty():
        file.sync()
    synced = disk.crash(seed=1)
    assert len(synced.list(INDEX)) == len(index.files) == 4
    assert all(synced.size(file.path) == file_size(SLOTS, ENTRIES) for file in index.files)


def test_names_of_a_killed_process_become_durable() -> None:
    """A killed process may have left files with names that were never synced; recovery syncs these, too."""
    disk = MemoryFileSystem()
    disk.make_directory(DIRECTORY)
    put(service(disk), 0, 5)
    index = service(disk)
    index.truncate_unsynced(index.complete_before(500))
    for file in index.take_dirty():
        file.sync()
    index = service(disk.crash(seed=1))
    assert found(index, 3) == [3]


def test_sizes() -> None:
    """The size of RocketMQ's default file."""
    assert file_size(5_000_000, 20_000_000) == 420_000_040


def test_space_of_an_existing_file_is_allocated_before_writing() -> None:
    """RocketMQ leaves holes in slots and entries. On a full disk, storing into one would kill the process (SIGBUS)."""
    disk = MemoryFileSystem()
    index = service(disk)
    put(index, 0, 20)
    index.close()
    content = disk.contents()
    (path,) = [path for path in content if path.parent == INDEX]
    sparse = MemoryFileSystem()
    sparse.make_directory(INDEX)
    file = sparse.create(path, len(content[path]))
    file.write([content[path][: HEADER_SIZE + 4]], 0)  # all other blocks are holes
    sparse.damage(path, 0, content[path])
    found_again = service(sparse)
    put(found_again, 20, 20)
    found_again.files[0].file.sync()  # raises HoleWrittenError if a hole was written
    assert found(found_again, 3) == expected(3, 40)
    full = MemoryFileSystem(capacity=4096)
    full.make_directory(INDEX)
    full.create(path, len(content[path]))
    full.damage(path, 0, content[path])
    filler = full.create(DIRECTORY / "filler", 4096)
    filler.reserve(0, 4096)
    with pytest.raises(OSError, match="No space left"):
        put(service(full), 20, 20)
