"""Extended units of consume queues: bytes, filters, recovery and retention."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import ConfigError, Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.queues.consume_queue import UNIT, UNIT_SIZE
from aerobee_store.queues.consume_queue_ext import ConsumeQueueExt, ExtensionUnit, is_address
from aerobee_store.records.properties import tags_code
from aerobee_store.records.record import Draft
from aerobee_store.testing import ManualClock, MemoryFileSystem
from aerobee_store.tools.backup import backup
from aerobee_store.tools.rebuild import rebuild
from aerobee_store.tools.repair import repair
from aerobee_store.tools.verify import verify
from tests.support.stored_messages import DIRECTORY

LOWEST = -(1 << 63)
PLACE = Path("/queue")
TAG_A = tags_code("TagA")
FILE_SIZE = 256
PER_FILE = (FILE_SIZE - 4) // 20
CONFIG = replace(
    StoreConfig.tiny(DIRECTORY),
    queue_extensions=True,
    queue_extension_file_size=FILE_SIZE,
    queue_file_size=5 * UNIT_SIZE,
)
QUEUE = DIRECTORY / "consumequeue" / "orders" / "0"
EXTENSION = DIRECTORY / "consumequeue_ext" / "orders" / "0"


@pytest.fixture(name="disk")
def disk_fixture() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture(name="store")
def store_fixture(disk: MemoryFileSystem) -> Iterator[MessageStore]:
    with MessageStore.open(CONFIG, file_system=disk, clock=ManualClock()) as store:
        yield store


def messages(count: int, first: int = 0) -> list[Message]:
    """Return messages tagged "t0" to "t6" in turn; every eighth has no tag."""
    return [
        Message("orders", 0, str(n).encode() + b"." * 300, {} if n % 8 == 7 else {"TAGS": f"t{n % 8}"})
        for n in range(first, first + count)
    ]


def numbers(store: MessageStore, tag: str | None = None, offset: int = 0) -> list[int]:
    tags = None if tag is None else frozenset({tag})
    result = store.read("orders", 0, offset, max_count=1000, tags=tags)
    assert result.lost == 0
    return [int(record.body.partition(b".")[0]) for record in result.records]


def units(disk: MemoryFileSystem) -> list[tuple[int, int, int]]:
    contents = disk.contents()
    files = sorted(path for path in contents if path.parent == QUEUE)
    return [unit for path in files for unit in UNIT.iter_unpack(contents[path]) if unit[1]]


# --- the files


def test_bytes_of_units(disk: MemoryFileSystem) -> None:
    """A unit is size, tags code, store time and an empty bitmap, and is found by its address."""
    extension = ConsumeQueueExt(disk, PLACE, FILE_SIZE, is_fed=True)
    times = [1_700_000_000_000, 1_700_000_000_001]
    assert extension.put([TAG_A, -1], times) == [LOWEST, LOWEST + 20]
    content = disk.contents()[PLACE / f"{0:020d}"]
    assert content[:20] == bytes.fromhex("0014 000000000027a807 0000018bcfe56800 0000")
    assert content[20:40] == struct.pack(">hqqh", 20, -1, times[1], 0)
    assert content[40:] == bytes(FILE_SIZE - 40)
    assert extension.get(LOWEST) == ExtensionUnit(20, TAG_A, times[0], b"")
    assert extension.get(LOWEST + 20) == ExtensionUnit(20, -1, times[1], b"")
    for address in (LOWEST + 1, LOWEST + 40, -(1 << 31), 0, TAG_A):
        assert extension.get(address) is None


def test_units_with_bitmaps_as_rocketmq_writes_them(disk: MemoryFileSystem) -> None:
    """Seven units of 28 bytes fill a file of 200, whose last four bytes begin with the end mark.

    The eighth unit is in the next file.
    """
    bitmap = bytes([5, 0, 0, 0, 0, 0, 0, 0])
    unit = bytes.fromhex("001c 000000000027a807 0000018bcfe56800 0008") + bitmap
    disk.make_directory(PLACE)
    disk.write_new(PLACE / f"{0:020d}", unit * 7 + b"\xff\xff\x00\x00")
    disk.write_new(PLACE / f"{200:020d}", unit + bytes(172))
    extension = ConsumeQueueExt(disk, PLACE, 200, is_fed=True)
    extension.load()
    for address in [*range(LOWEST, LOWEST + 196, 28), LOWEST + 200]:
        assert extension.get(address) == ExtensionUnit(28, TAG_A, 1_700_000_000_000, bitmap)
    assert extension.get(LOWEST + 196) is None, "the tail"
    extension.truncate(LOWEST + 200)
    assert extension.put([7], [8]) == [LOWEST + 228]


def test_units_do_not_cross_files(disk: MemoryFileSystem) -> None:
    """At least 4 bytes at a file's end hold the end mark; addresses continue in the next file."""
    extension = ConsumeQueueExt(disk, PLACE, FILE_SIZE, is_fed=True)
    addresses = extension.put(range(30), range(30)) + extension.put([30], [30])
    expected = [LOWEST + n // PER_FILE * FILE_SIZE + n % PER_FILE * 20 for n in range(31)]
    assert addresses == expected
    assert [extension.get(address) for address in addresses] == [ExtensionUnit(20, n, n, b"") for n in range(31)]
    contents = disk.contents()
    assert contents[PLACE / f"{0:020d}"][PER_FILE * 20 :] == b"\xff\xff" + bytes(FILE_SIZE - PER_FILE * 20 - 2)
    assert extension.files == [0, 256, 512]


@pytest.mark.parametrize(
    "damage",
    [
        struct.pack(">hqqh", 19, 1, 1, 0),
        struct.pack(">hqqh", 20, 1, 1, 1),
        struct.pack(">hqqh", 10, 1, 1, -10),
        struct.pack(">hqqh", 32767, 1, 1, 32747),
        struct.pack(">hqqh", -1, 1, 1, 0),
        bytes(20),
    ],
)
def test_a_damaged_unit_is_not_read(disk: MemoryFileSystem, damage: bytes) -> None:
    """Inconsistent sizes, and sizes beyond the file's end, are detected and never followed."""
    extension = ConsumeQueueExt(disk, PLACE, FILE_SIZE, is_fed=True)
    (first, second) = extension.put([1, 2], [1, 2])
    disk.damage(PLACE / f"{0:020d}", 0, damage)
    assert extension.get(first) is None
    assert extension.get(second) == ExtensionUnit(20, 2, 2, b"")


def test_addresses_and_other_tags_codes() -> None:
    """A 32-bit hash of either sign, or a time, is no address."""
    assert [is_address(code) for code in (LOWEST, -(1 << 31) - 1, -(1 << 31), 0, 1 << 62)] == [True, True, *[False] * 3]


def test_an_invalid_file_size() -> None:
    """The error gives the setting's name."""
    for size in (127, (1 << 30) + 1):
        with pytest.raises(ConfigError, match=r"store\.queue_extension_file_size"):
            replace(CONFIG, queue_extension_file_size=size)


# --- in a store


def test_a_store_with_extended_units_filters_by_them(store: MessageStore, disk: MemoryFileSystem) -> None:
    """Every unit names an extended one with its tags code and store time; filters work the same."""
    for one in messages(20):
        store.append([one])
    store.flush()
    found = units(disk)
    expected = [LOWEST + n // PER_FILE * FILE_SIZE + n % PER_FILE * 20 for n in range(20)]
    assert [unit[2] for unit in found] == expected
    extension = ConsumeQueueExt(disk, EXTENSION, FILE_SIZE, is_fed=False)
    extension.load()
    assert [extension.get(unit[2]) for unit in found] == [
        ExtensionUnit(20, tags_code(one.properties.get("TAGS")), store.clock.now_ms(), b"") for one in messages(20)
    ]
    assert numbers(store) == list(range(20))
    assert numbers(store, "t3") == [3, 11, 19]


def test_records_in_store_layout_get_extended_units(store: MessageStore, disk: MemoryFileSystem) -> None:
    """They get extended units like single messages."""
    data = b"".join(Draft(m, store_host=("127.0.0.1", 1), property_crc=True).encode_unplaced() for m in messages(9))
    store.append_records("orders", 0, RecordBatch.parse(data, base_physical_offset=None, placed=False))
    store.flush()
    assert all(is_address(unit[2]) for unit in units(disk))
    assert numbers(store, "t0") == [0, 8]


def test_extended_units_are_read_without_the_setting(disk: MemoryFileSystem) -> None:
    """With the setting turned off again, the extended units are still used, and new units are plain."""
    with MessageStore.open(CONFIG, file_system=disk) as store:
        store.append(messages(10))
    with MessageStore.open(replace(CONFIG, queue_extensions=False), file_system=disk) as store:
        store.append(messages(10, 10))
        store.flush()
        assert [is_address(unit[2]) for unit in units(disk)] == [True] * 10 + [False] * 10
        assert numbers(store, "t2") == [2, 10, 18]


def test_a_unit_that_cannot_be_found_only_costs_the_short_cut(store: MessageStore, disk: MemoryFileSystem) -> None:
    """The tags themselves are compared, so the same messages are served."""
    store.append(messages(20))
    store.flush()
    disk.damage(EXTENSION / f"{0:020d}", 3 * 20, bytes(100))
    read_before = store.stats.messages_read
    assert numbers(store, "t3") == [3, 11, 19]
    assert store.stats.messages_read == read_before + 3


@pytest.mark.parametrize("closed", [True, False])
def test_recovery_keeps_extended_units_that_are_right(disk: MemoryFileSystem, closed: bool) -> None:
    """After either kind of stop no unit is rewritten, and new units follow the old ones."""
    store = MessageStore.open(CONFIG, file_system=disk)
    store.append(messages(20))
    store.flush()
    if closed:
        store.close()
    disk = disk.kill()
    before = units(disk)
    with MessageStore.open(CONFIG, file_system=disk, whole_log=True) as store:
        assert store.recovery.units_corrected == 0
        store.append(messages(1, 20))
        store.flush()
        assert units(disk)[:20] == before
        assert units(disk)[20][2] == LOWEST + FILE_SIZE + 8 * 20
        assert numbers(store, "t4") == [4, 12, 20]


def test_recovery_adds_extended_units_for_missing_ones(disk: MemoryFileSystem) -> None:
    """A missing queue is rebuilt with the same addresses."""
    with MessageStore.open(CONFIG, file_system=disk) as store:
        store.append(messages(20))
    whole = disk.contents()
    for path in whole:
        if path.parent == QUEUE:
            disk.unlink(path)
    with MessageStore.open(CONFIG, file_system=disk, whole_log=True) as store:
        assert numbers(store, "t3") == [3, 11, 19]
        assert all(is_address(unit[2]) for unit in units(disk))
    found = {path: data for path, data in disk.contents().items() if path.is_relative_to(DIRECTORY / "consumequeue")}
    assert found == {path: data for path, data in whole.items() if path.is_relative_to(DIRECTORY / "consumequeue")}


def test_recovery_puts_plain_codes_where_extended_units_are_wrong(disk: MemoryFileSystem) -> None:
    """For extended units that a crash lost or left wrong, the queue's units get plain tags codes."""
    store = MessageStore.open(CONFIG, file_system=disk)
    store.append(messages(20))
    store.flush()
    disk = disk.kill()
    disk.damage(EXTENSION / f"{0:020d}", 2 * 20, bytes(20))
    disk.damage(EXTENSION / f"{0:020d}", 5 * 20 + 2, struct.pack(">q", 77))
    with MessageStore.open(CONFIG, file_system=disk, whole_log=True) as store:
        assert store.recovery.units_corrected == 2
        assert [n for n, unit in enumerate(units(disk)) if not is_address(unit[2])] == [2, 5]
        assert numbers(store, "t2") == [2, 10, 18]
        assert numbers(store, "t5") == [5, 13]


@pytest.mark.parametrize("at", [7, 11], ids=["physical offset", "size"])
def test_a_unit_is_wrong_whose_extended_unit_is_right(disk: MemoryFileSystem, at: int) -> None:
    """The tags code alone does not make it the unit of its record."""
    store = MessageStore.open(CONFIG, file_system=disk)
    store.append(messages(4))
    store.flush()
    disk = disk.kill()
    before = units(disk)
    path = QUEUE / f"{0:020d}"
    disk.damage(path, 2 * UNIT_SIZE + at, bytes([disk.contents()[path][2 * UNIT_SIZE + at] ^ 1]))
    with MessageStore.open(CONFIG, file_system=disk, whole_log=True) as store:
        assert store.recovery.units_corrected == 1
        assert [unit[:2] for unit in units(disk)] == [unit[:2] for unit in before]
        assert numbers(store) == [0, 1, 2, 3]


def test_addresses_of_lost_extended_units_are_not_reused(disk: MemoryFileSystem) -> None:
    """A used address must not be assigned to another tag, or a filter would skip messages."""
    store = MessageStore.open(CONFIG, file_system=disk)
    store.append(messages(20))
    store.flush()
    disk = disk.kill()
    disk.damage(EXTENSION / f"{FILE_SIZE:020d}", 0, bytes(FILE_SIZE))
    with MessageStore.open(replace(CONFIG, queue_extensions=True), file_system=disk) as store:
        store.append(messages(4, 20))
        store.flush()
        assert min(unit[2] for unit in units(disk)[20:]) == LOWEST + 2 * FILE_SIZE
        for n in range(8):
            assert numbers(store, f"t{n}") == ([] if n == 7 else list(range(n, 24, 8)))


def test_a_removed_extension_begins_after_all_its_addresses(disk: MemoryFileSystem) -> None:
    """Used addresses are not assigned again after the directory was removed, though the queue is not read again."""
    with MessageStore.open(CONFIG, file_system=disk) as store:
        store.append(messages(20))
    for path in disk.contents():
        if path.is_relative_to(EXTENSION):
            disk.unlink(path)
    with MessageStore.open(CONFIG, file_system=disk) as store:
        store.append(messages(4, 20))
        store.flush()
        for n in range(8):
            assert numbers(store, f"t{n}") == ([] if n == 7 else list(range(n, 24, 8)))


def test_units_after_the_log_are_dropped_with_their_extended_units(disk: MemoryFileSystem) -> None:
    """If the log lost its end, queue and extension are cut, and both continue there."""
    store = MessageStore.open(CONFIG, file_system=disk)
    sent = store.append(messages(20))
    store.flush()
    disk = disk.kill()
    segment = sent[15].physical_offset - sent[15].physical_offset % CONFIG.segment_size
    for one in sent[15:]:
        disk.damage(DIRECTORY / "commitlog" / f"{segment:020d}", one.physical_offset - segment, bytes(one.size))
    with MessageStore.open(CONFIG, file_system=disk) as store:
        assert numbers(store) == list(range(15))
        second = disk.contents()[EXTENSION / f"{FILE_SIZE:020d}"]
        assert second[(15 - PER_FILE) * 20 :] == bytes(FILE_SIZE - (15 - PER_FILE) * 20)
        store.append(messages(2, 15))
        store.flush()
        assert units(disk)[15][2] == LOWEST + FILE_SIZE + (15 - PER_FILE) * 20
        assert numbers(store, "t6") == [6, 14]


def test_deleting_a_topic_removes_its_extended_units(store: MessageStore, disk: MemoryFileSystem) -> None:
    """A later topic of the same name begins with new files."""
    store.append(messages(20))
    store.delete_topic("orders")
    assert [path for path in disk.contents() if path.is_relative_to(DIRECTORY / "consumequeue_ext")] == []
    store.append(messages(2, 20))
    store.flush()
    assert numbers(store, "t4", 20) == [20]


async def test_retention_removes_extended_units_of_removed_messages() -> None:
    """A file is removed once no unit of the queue refers to it."""
    clock = ManualClock()
    disk = MemoryFileSystem(clock=clock)
    config = replace(CONFIG, segment_size=4096, retention_hours=1, delete_when_hours=tuple(range(24)))
    with MessageStore.open(config, file_system=disk, clock=clock) as store:
        store.append(messages(60))
        store.flush()
        clock.advance(2 * 3600)
        store.append(messages(10, 60))
        store.flush()
        await store.retention.clean()
        first, end = store.queue_range("orders", 0)
        assert 30 < first < end == 70
        names = sorted(int(path.name) for path in disk.contents() if path.parent == EXTENSION)
        assert names == [n * FILE_SIZE for n in range(first // PER_FILE, 69 // PER_FILE + 1)]
        assert numbers(store, "t4", first) == [n for n in range(first, 70) if n % 8 == 4]


def test_the_tools_check_extended_units(tmp_path: Path) -> None:
    """Verify checks extended units, backup copies them, and rebuild writes plain units."""
    config = replace(CONFIG, directory=tmp_path / "store")
    with MessageStore.open(config) as store:
        store.append(messages(20))
        store.flush()
        backup(tmp_path / "store", tmp_path / "live")
    backup(tmp_path / "store", tmp_path / "stopped")
    for name in ("store", "live", "stopped"):
        report = verify(tmp_path / name)
        assert (report.findings, "consumequeue_ext" in report.not_looked_at) == ([], False)
        assert len(list((tmp_path / name).glob("consumequeue_ext/orders/0/*"))) == 2
    file = tmp_path / "live" / "consumequeue_ext" / "orders" / "0" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[2 * 20 : 3 * 20] = bytes(20)
    data[5 * 20 + 2 : 5 * 20 + 10] = struct.pack(">q", 77)
    file.write_bytes(data)
    found = verify(tmp_path / "live").findings
    assert [(each.kind, each.severity, each.queue_offset) for each in found] == [
        ("unit-extension", "warning", 2),
        ("unit-extension", "error", 5),
    ]
    assert repair(tmp_path / "stopped").sizes.queue_extension_file_size == FILE_SIZE
    rebuild(tmp_path / "stopped", apply=True)
    with MessageStore.open(replace(config, directory=tmp_path / "stopped")) as store:
        assert numbers(store, "t3") == [3, 11, 19]
        store.append(messages(1, 20))
        store.flush()
        assert numbers(store, "t4") == [4, 12, 20]
