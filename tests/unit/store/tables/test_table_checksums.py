"""A changed configuration file is noticed; crashes and RocketMQ's own files raise no alarm."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerobee_store.stats import StoreStats
from aerobee_store.tables.java_json import dumps
from aerobee_store.tables.json_table import JsonTable, UnreadableTableError
from aerobee_store.tables.table_checksums import Content, TableChecksums
from aerobee_store.testing import MemoryFileSystem

DIRECTORY = Path("/store/config")
PATH = DIRECTORY / "topics.json"
COPY, CHECKSUMS = DIRECTORY / "topics.json.bak", DIRECTORY / "topics.json.crc"
VALUES = [{"counter": number, "timestamp": 1_700_000_000_000 + 7919 * number} for number in range(6)]


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect the messages that the tables log."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("aerobee_store.tables.json_table")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


def new_disk(files: dict[Path, bytes] | None = None) -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_directory(DIRECTORY)
    for path, data in (files or {}).items():
        disk.write_new(path, data)
    disk.sync_directory(DIRECTORY)
    return disk


def saved(*values: object) -> MemoryFileSystem:
    """Return a disk on which the values were saved one after another."""
    disk = new_disk()
    table = JsonTable(disk, PATH)
    for value in values:
        table.save(value)
    return disk


def replaced(disk: MemoryFileSystem, path: Path, data: bytes) -> MemoryFileSystem:
    """Return a disk with one file replaced; the others stay the same."""
    files = disk.contents()
    files[path] = data
    return new_disk(files)


def load(disk: MemoryFileSystem) -> tuple[object, list[str], int]:
    """Return the value that a start reads, its log messages, and its count of changed tables."""
    stats = StoreStats()
    with listening() as heard:
        value = JsonTable(disk, PATH, stats=stats).load()
    return value, heard, stats.tables_changed


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_saved_file_is_read_without_a_warning(count: int) -> None:
    """The file equals RocketMQ's, and reading it logs nothing."""
    disk = saved(*VALUES[:count])
    assert disk.contents()[PATH] == dumps(VALUES[count - 1])
    assert load(disk) == (VALUES[count - 1], [], 0)


def test_a_store_of_rocketmq_has_no_checksums() -> None:
    """Missing checksums are not reported; the first save creates them."""
    disk = new_disk({PATH: dumps(VALUES[0]), COPY: b"{}"})
    assert load(disk) == (VALUES[0], [], 0)
    assert CHECKSUMS not in disk.contents()
    JsonTable(disk, PATH).save(VALUES[1])
    assert load(disk) == (VALUES[1], [], 0)
    assert load(replaced(disk, PATH, dumps(VALUES[2])))[1] != []


def test_an_edit_is_accepted_and_logged_once() -> None:
    """The edited content is used; one line names the file, and the next save ends the report."""
    disk = replaced(saved(*VALUES[:2]), PATH, json.dumps(VALUES[5]).encode())
    value, heard, failures = load(disk)
    assert (value, failures) == (VALUES[5], 1)
    (line,) = heard
    assert "topics.json" in line
    assert "edited" in line
    table = JsonTable(disk, PATH)
    with listening():
        table.load()
    for saved_value in VALUES[3:5]:
        table.save(saved_value)
        assert load(disk) == (saved_value, [], 0)
    kept = disk.contents()
    assert json.loads(kept[DIRECTORY / "topics.json.changed"]) == VALUES[5]
    assert json.loads(kept[DIRECTORY / "topics.json.changed.bak"]) == VALUES[0]


def test_a_second_reader_does_not_report_an_edit_again() -> None:
    """A second reader of a file does not report it again."""
    disk = replaced(saved(*VALUES[:2]), PATH, dumps(VALUES[5]))
    with listening() as heard:
        assert JsonTable(disk, PATH).load(report=False) == VALUES[5]
    assert heard == []


def test_a_flip_of_each_bit_of_the_file() -> None:
    """After any bit flip, the copy or the file is used, and the damage is logged."""
    disk = saved(*VALUES[:2])
    data = disk.contents()[PATH]
    taken = 0
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        value, heard, failures = load(replaced(disk, PATH, bytes(damaged)))
        assert heard, f"bit {bit} flipped, {value} is believed"
        assert (value == VALUES[0]) == (failures == 0)
        taken += failures
    assert taken > 100, "most flips leave valid JSON"


def test_a_flip_of_each_bit_of_a_table_that_nobody_edits() -> None:
    """It is damage: the start stops rather than believe it or the copy, and says what to do if it was edited."""
    disk = saved(*VALUES[:2])
    data = disk.contents()[PATH]
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(UnreadableTableError, match=r"if it was edited, remove topics\.json\.crc"):
            load_own(replaced(disk, PATH, bytes(damaged)))


def test_damaged_checksums_of_a_table_that_nobody_edits() -> None:
    """They are no reason to stop: the content is used."""
    disk = saved(*VALUES[:2])
    for position in range(2 * 512):
        damaged = bytearray(disk.contents()[CHECKSUMS])
        damaged[position] ^= 4
        assert load_own(replaced(disk, CHECKSUMS, bytes(damaged))) == VALUES[1]
    assert load_own(new_disk({PATH: dumps(VALUES[3])})) == VALUES[3]


def load_own(disk: MemoryFileSystem) -> object:
    with listening():
        return JsonTable(disk, PATH, old_content_helps=False, may_be_edited=False).load()


def test_a_truncation_at_each_byte() -> None:
    """After any truncation the copy is used and the damage is logged; without a copy the start fails."""
    for count, copied in ((2, True), (1, False)):
        disk = saved(*VALUES[:count])
        data = disk.contents()[PATH]
        for size in range(len(data)):
            cut = replaced(disk, PATH, data[:size])
            if copied:
                value, heard, _ = load(cut)
                assert value == VALUES[0]
                assert heard
            else:
                with pytest.raises(UnreadableTableError):
                    load(cut)


def test_damage_of_both_the_file_and_its_copy() -> None:
    """The copy is checked against its checksum too."""
    disk = replaced(saved(*VALUES[:2]), PATH, b"{")
    assert load(disk)[2] == 0
    value, heard, failures = load(replaced(disk, COPY, dumps(VALUES[4])))
    assert (value, failures, len(heard)) == (VALUES[4], 1, 2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_damage_of_the_checksums(count: int) -> None:
    """Damaged checksums never change the content; where it can no longer be checked, this is logged."""
    disk = saved(*VALUES[:count])
    data = disk.contents()[CHECKSUMS]
    told = 0
    for position in [*range(24), *range(500, 540), len(data) - 1]:
        damaged = bytearray(data)
        damaged[position] ^= 4
        for content in (bytes(damaged), data[:position]):
            broken = replaced(disk, CHECKSUMS, content)
            value, heard, failures = load(broken)
            assert value == VALUES[count - 1]
            assert len(heard) == failures <= 1
            assert not heard or "topics.json.crc is damaged" in heard[0]
            told += failures
            with listening() as heard:
                table = JsonTable(broken, PATH)
                table.load()
            table.save(VALUES[5])
            assert load(broken) == (VALUES[5], [], 0)
    assert told > 30


@pytest.mark.parametrize(
    "disk",
    [
        new_disk(),
        new_disk({PATH: dumps(VALUES[0])}),
        saved(VALUES[0]),
        saved(*VALUES[:2]),
        replaced(saved(*VALUES[:2]), CHECKSUMS, b"short"),
        replaced(saved(*VALUES[:2]), PATH, b"{}"),
    ],
    ids=["nothing", "of RocketMQ", "saved once", "saved twice", "damaged checksums", "edited"],
)
def test_a_power_cut_is_never_reported_as_damage(disk: MemoryFileSystem) -> None:
    """After a power cut before any operation of a save, nothing is logged that was not logged before."""
    before, said, _ = load(disk.kill())
    disk = disk.kill()
    table = JsonTable(disk, PATH)
    crashed: list[tuple[object, object, MemoryFileSystem]] = []
    present, wanted = before, before
    disk.before_operation = lambda operation: crashed.extend(
        (present, wanted, disk.crash(operation.number * 16 + seed)) for seed in range(16)
    )
    with listening():
        table.load()
    for wanted in VALUES[2:]:
        table.save(wanted)
        present = wanted
    disk.before_operation = None
    assert len(crashed) > 16 * 4 * 5
    for old, new, left in crashed:
        value, heard, _ = load(left)
        assert value in (old, new)
        assert heard == [] or (said and (value == before or "is damaged" in heard[0]))


def test_a_save_costs_one_write_and_one_sync_more() -> None:
    """A save costs one small write and one sync more than the table itself; the checksum file is created once."""
    disk = saved(*VALUES[:2])
    operations: list[tuple[str, str]] = []
    disk.before_operation = lambda operation: operations.append((operation.name, operation.path.name))
    table = JsonTable(disk, PATH)
    table.load()
    table.save(VALUES[2])
    assert [name for name, path in operations if path == CHECKSUMS.name] == ["read", "open", "write", "sync"]
    assert [name for name, path in operations if path == DIRECTORY.name] == ["sync_directory"]


def test_checksums_that_are_removed_while_the_table_is_in_use() -> None:
    """The next save creates them again."""
    disk = saved(VALUES[0])
    table = JsonTable(disk, PATH)
    table.load()
    disk.unlink(CHECKSUMS)
    table.save(VALUES[1])
    assert load(disk) == (VALUES[1], [], 0)
    assert load(replaced(disk, PATH, dumps(VALUES[2])))[1] != []


def test_a_table_with_its_own_checksum_has_no_second_one() -> None:
    """No second checksum is written."""
    disk = new_disk()
    JsonTable(disk, PATH, checksum_inside=True).save(VALUES[0])
    assert list(disk.contents()) == [PATH]


def test_layout_of_the_checksum_file() -> None:
    """Magic, size, CRC-32 of the content, CRC-32 of these fields; the second slot is in the next sector."""
    disk = saved(*VALUES[:2])
    data = disk.contents()[CHECKSUMS]
    assert len(data) == 1024
    assert {data[:4], data[512:516]} == {b"AETC"}
    contents = {Content.decode(data[begin : begin + 20]) for begin in (0, 512)}
    assert contents == {Content.of(dumps(value)) for value in VALUES[:2]}
    checksums = TableChecksums(disk, PATH)
    checksums.load()
    assert checksums.problem_of(Content.of(dumps(VALUES[0]))) is None
    assert "CRC-32" in (checksums.problem_of(Content(7, 7)) or "")
