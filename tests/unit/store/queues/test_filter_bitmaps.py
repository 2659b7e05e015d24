"""Filter bitmaps in extended units: their bytes, damage, recovery, and what skips a message."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from aerobee_store import Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.queues.consume_queue import UNIT_SIZE
from aerobee_store.queues.consume_queue_ext import ConsumeQueueExt, ExtensionUnit
from aerobee_store.queues.filter_bitmaps import FilterBits
from aerobee_store.records.record import Draft
from aerobee_store.records.record_template import RecordTemplate, TemplateMessage
from aerobee_store.testing import ManualClock, MemoryFileSystem
from aerobee_store.tools.rebuild import rebuild
from aerobee_store.tools.verify import verify
from tests.support.stored_messages import DIRECTORY

LOWEST = -(1 << 63)
PLACE = Path("/queue")
FILE_SIZE = 256
CONFIG = replace(
    StoreConfig.tiny(DIRECTORY),
    queue_extensions=True,
    queue_extension_file_size=FILE_SIZE,
    queue_file_size=5 * UNIT_SIZE,
)
EXTENSION = DIRECTORY / "consumequeue_ext" / "orders" / "0"
BITMAP = bytes([5, 0, 0x80])
RED = FilterBits(mask=1 << 0 | 1 << 9, size=2, begin=0)


class Reds:
    """Bitmaps of two bytes with one subscription: messages with color=red."""

    def are_computed(self, topic: str) -> bool:
        return topic == "orders"

    def of_message(self, topic: str, properties: Mapping[str, str]) -> bytes:
        assert topic == "orders"
        return (RED.mask if properties.get("color") == "red" else 1 << 1).to_bytes(2, "little")

    def of_records(self, topic: str, batch: RecordBatch) -> Sequence[bytes]:
        return [self.of_message(topic, batch.record(row).properties) for row in range(len(batch))]

    def bits(self, topic: str, group: str, expression: str, condition: object) -> FilterBits | None:
        raise AssertionError("the store does not ask")


def message(number: int, topic: str = "orders", **properties: str) -> Message:
    return Message(topic, 0, b"%d" % number, {"color": "red" if number % 3 == 0 else "blue", **properties})


def open_store(disk: MemoryFileSystem, config: StoreConfig = CONFIG, *, whole_log: bool = False) -> MessageStore:
    store = MessageStore.open(config, file_system=disk, clock=ManualClock(), whole_log=whole_log)
    store.filter_bitmaps = Reds()
    return store


def extension_with_one_unit() -> tuple[MemoryFileSystem, ConsumeQueueExt, int]:
    disk = MemoryFileSystem()
    extension = ConsumeQueueExt(disk, PLACE, FILE_SIZE, is_fed=True)
    (address,) = extension.put([7], [8], [BITMAP], [4711])
    return disk, extension, address


def test_bytes_of_a_unit_with_a_bitmap() -> None:
    """RocketMQ's unit, and a checksum behind its bitmap that only the size counts."""
    disk, extension, address = extension_with_one_unit()
    unit = struct.pack(">hqqh", 27, 7, 8, 3) + BITMAP
    checksum = crc32(struct.pack(">q", 4711) + unit)
    assert disk.contents()[PLACE / f"{0:020d}"][:27] == unit + checksum.to_bytes(4, "big")
    assert extension.get(address) == ExtensionUnit(27, 7, 8, BITMAP)
    assert list(extension.bitmaps([(address, 4711)])) == [BITMAP]


def test_every_flipped_bit_makes_the_bitmap_invalid() -> None:
    """Also of the address and of the record's physical offset. Nothing is skipped by a damaged unit."""
    disk, extension, address = extension_with_one_unit()
    extension.put([1], [2], [BITMAP], [4712])
    path = PLACE / f"{0:020d}"
    content = disk.contents()[path]
    for bit in range(27 * 8):
        flipped = bytearray(content[:27])
        flipped[bit // 8] ^= 1 << bit % 8
        disk.damage(path, 0, bytes(flipped))
        assert list(extension.bitmaps([(address, 4711)])) == [b""], bit
    disk.damage(path, 0, content[:27])
    for bit in range(64):
        assert list(extension.bitmaps([(address, 4711 ^ (1 << bit if bit < 63 else LOWEST))])) == [b""]
        wrong = address ^ (1 << bit if bit < 63 else LOWEST)
        assert list(extension.bitmaps([(wrong, 4711)])) == [b""]
    assert list(extension.bitmaps([(LOWEST + 27, 4711), (LOWEST + 27, 4712)])) == [b"", BITMAP]


def test_units_with_and_without_bitmaps_do_not_cross_files() -> None:
    """Each is found from any place, in one pass and alone; a bitmap too large for a file is left out."""
    disk = MemoryFileSystem()
    extension = ConsumeQueueExt(disk, PLACE, FILE_SIZE, is_fed=True)
    bitmaps = [bytes([n]) * (n * 7 % 40) for n in range(1, 60)] + [bytes(FILE_SIZE)]
    offsets = [n * 100 for n in range(60)]
    addresses = extension.put(range(60), range(60), bitmaps, offsets)
    expected = [*bitmaps[:-1], b""]
    places = list(zip(addresses, offsets, strict=True))
    assert list(extension.bitmaps(places)) == expected
    assert list(extension.bitmaps(reversed(places))) == expected[::-1]
    for address, bitmap in zip(addresses, expected, strict=True):
        unit = extension.get(address)
        assert unit is not None
        assert unit.bitmap == bitmap
    again = ConsumeQueueExt(disk, PLACE, FILE_SIZE, is_fed=True)
    again.load()
    again.truncate(addresses[30])
    assert list(again.bitmaps(places)) == [*expected[:31], *[b""] * 29]


def test_what_skips_a_message() -> None:
    """Only a bitmap of the right size, of a message that the subscription could be in."""
    bits = FilterBits(mask=0b1001, size=1, begin=100)
    matches = {(100, b"\x09"), (100, b"\x0f"), (99, b"\x00"), (100, b""), (100, b"\x00\x00")}
    skipped = {(100, b"\x00"), (100, b"\x01"), (100, b"\x08"), (1 << 40, b"\xf6")}
    assert all(bits.may_match(*place) for place in matches)
    assert not any(bits.may_match(*place) for place in skipped)


def test_appended_messages_get_bitmaps() -> None:
    """One by one and in store layout, in the log's order; those of other topics and additional queues have none."""
    disk = MemoryFileSystem()
    with open_store(disk) as store:
        store.append([message(n) for n in range(5)])
        store.append([message(n, topic="bills") for n in range(5)])
        drafts = [Draft(message(n), store_host=("127.0.0.1", 1), property_crc=True) for n in range(5, 40)]
        data = b"".join(draft.encode_unplaced() for draft in drafts)
        store.append_records("orders", 0, RecordBatch.parse(data, base_physical_offset=None, placed=False))
        store.append([message(0, topic="bills", INNER_MULTI_DISPATCH="%LMQ%a"), message(40)])
        store.append([message(41, INNER_MULTI_DISPATCH="%LMQ%a")])
        for n in (42, 43):
            template = RecordTemplate(message(n), [], store_host=("127.0.0.1", 1), property_crc=True)
            store.append([TemplateMessage(template, b"body", 0, 0)])
        store.flush()
        expected = [n % 3 == 0 for n in range(44)]
        assert store.may_match("orders", 0, 0, 1000, RED) == expected
        assert store.may_match("orders", 0, 7, 5, RED) == expected[7:12]
        assert store.may_match("bills", 0, 0, 1000, RED) == [True] * 6
        assert store.may_match("%LMQ%a", 0, 0, 1000, RED) == [True] * 2
        assert store.may_match("orders", 0, 44, 1000, RED) == store.may_match("none", 0, 0, 1000, RED) == []
        assert store.stats.messages_read == 0


def test_without_the_setting_there_are_no_bitmaps() -> None:
    disk = MemoryFileSystem()
    with open_store(disk, replace(CONFIG, queue_extensions=False)) as store:
        store.append([message(1)])
        store.flush()
        assert store.may_match("orders", 0, 0, 10, RED) == []


@pytest.mark.parametrize("stop", ["orderly", "kill", "power cut"])
def test_bitmaps_after_a_start(stop: str) -> None:
    """They stay after an orderly stop. Units that recovery adds have none, and new ones have them again."""
    disk = MemoryFileSystem()
    store = open_store(disk)
    store.append([message(n) for n in range(20)])
    store.flush()
    if stop == "orderly":
        store.close()
        after = disk
    else:
        store.append([message(n) for n in range(20, 30)])
        store.commit()
        after = disk.kill() if stop == "kill" else disk.crash(seed=5)
        store.close()
    with open_store(after, whole_log=True) as again:
        count = again.queue_range("orders", 0)[1]
        assert count == {"orderly": 20, "kill": 30}.get(stop, count) >= 20
        marks = again.may_match("orders", 0, 0, 1000, RED)
        assert marks == [n % 3 == 0 for n in range(20)] + [True] * (count - 20)
        again.append([message(n) for n in range(1, 4)])
        again.flush()
        assert again.may_match("orders", 0, count, 10, RED) == [False, False, True]
    assert again.recovery.units_corrected == 0


def test_a_cut_queue_loses_its_bitmaps() -> None:
    """The log lost its last messages: other messages at the same physical offsets do not get their bitmaps."""
    disk = MemoryFileSystem()
    with open_store(disk) as store:
        store.append([message(3 * n) for n in range(4)])
        cut = store.append([message(n) for n in (1, 2, 4, 5)])[0].physical_offset
    (path,) = (path for path in disk.contents() if path.parent == DIRECTORY / "commitlog")
    disk.damage(path, cut, bytes(CONFIG.segment_size - cut))
    disk.write_new(DIRECTORY / "abort", b"")
    with open_store(disk) as again:
        assert again.queue_range("orders", 0) == (0, 4)
        again.append([message(n) for n in (3, 4, 6, 7)])
        again.flush()
        assert again.may_match("orders", 0, 0, 10, RED) == [True, True, True, True, True, False, True, False]


def test_tools(tmp_path: Path) -> None:
    """`verify` accepts units with bitmaps, and reports a damaged one; `rebuild` makes units without."""
    config = replace(CONFIG, directory=tmp_path / "store")
    with MessageStore.open(config) as store:
        store.filter_bitmaps = Reds()
        store.append([message(n) for n in range(30)])
    report = verify(tmp_path / "store")
    assert (report.findings, report.errors) == ([], 0)
    file = tmp_path / "store" / "consumequeue_ext" / "orders" / "0" / f"{0:020d}"
    content = file.read_bytes()
    file.write_bytes(content[:20] + b"\xff" + content[21:])
    report = verify(tmp_path / "store")
    assert [(found.kind, found.severity, found.queue_offset) for found in report.findings] == [
        ("unit-extension", "warning", 0)
    ]
    rebuild(tmp_path / "store", apply=True)
    assert verify(tmp_path / "store").errors == 0
    with MessageStore.open(config) as store:
        assert store.may_match("orders", 0, 0, 100, RED) == [True] * 30
