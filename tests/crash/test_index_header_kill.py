"""A broker killed while it stored an index file's header lost the keys of stored messages.

`struct.pack_into` zeroes its target before it fills it. A kill in between left a header that declared its file empty.
Recovery removed the file and read the log only from the segment of the checkpoint's offset. The entries between the
file's first record and that segment were never added again.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import MessageStore, StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.queues.index_file import HEADER, HEADER_SIZE, IndexFile, file_size
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, Sender, compare

pytestmark = [pytest.mark.crash, pytest.mark.on_disk]

SLOTS, ENTRIES = 50, 4000
CONFIG = replace(StoreConfig.tiny(DIRECTORY), index_slot_count=SLOTS, index_entry_count=130)

# Adds entries in a loop, as dispatch does for a few messages, until it is killed.
_WRITER = """
import sys
from pathlib import Path
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.queues.index_file import IndexFile
index = IndexFile(DiskFileSystem().open(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), new=False)
number = 0
while True:
    if index.is_full:
        index.next_entry = 3
    index.put([number, number + 1, 7], [1000 + number] * 3, [1_700_000_000_000 + number] * 3)
    number += 1
"""


def test_the_header_never_says_that_a_used_file_is_empty(tmp_path: Path) -> None:
    """A second process polls the header while the first writes it, and never sees a zero entry count.

    A kill leaves the bytes that the second process sees.
    """
    path = tmp_path / "20260101000000000"
    index = IndexFile(DiskFileSystem().create(path, file_size(SLOTS, ENTRIES)), SLOTS, ENTRIES, new=True)
    index.put([1, 2], [1000, 1000], [1_700_000_000_000] * 2)
    view = index.file.map()
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(SLOTS), str(ENTRIES)])
    try:
        deadline = time.monotonic() + 30
        while view[:HEADER_SIZE] == index._view[:HEADER_SIZE] and HEADER.unpack_from(view)[5] == 3:
            assert time.monotonic() < deadline, "the writer does not begin"
        looks: set[bytes] = set()
        count = 0
        while count < 200_000 or (len(looks) <= 10 and time.monotonic() < deadline):
            looks.add(bytes(view[36:40]))  # four aligned bytes: one load
            count += 1
    finally:
        writer.kill()
        writer.wait()
    print(f"{len(looks)} different headers were seen")
    assert len(looks) > 10, "the writer was hardly ever seen at work"
    assert bytes(4) not in looks
    index.close()


@pytest.mark.parametrize("kept", range(0, HEADER_SIZE, 8))
def test_no_key_is_lost_with_a_header_that_is_half_zeros(kept: int) -> None:
    """Such a kill makes the last index file look empty; recovery rebuilds all its entries from the log."""
    clock = ManualClock()
    disk = MemoryFileSystem(clock=clock)
    sender = Sender()
    store = MessageStore.open(CONFIG, file_system=disk, clock=clock)
    for number in range(80):
        clock.advance(0.3)
        sender.append(store, [sender.message(700, "orders", number % 2)])
        if number == 75:
            store.flush()  # the checkpoint's offset is in the last segment, well after the start of the last index file
    store.flush()
    names = sorted(path for path in disk.contents() if path.parent.name == "index")
    begin_offset = HEADER.unpack_from(disk.contents()[names[-1]])[2]
    checkpoint = store.checkpoint.derived_offset
    assert checkpoint is not None
    assert begin_offset // CONFIG.segment_size < checkpoint // CONFIG.segment_size, "nothing could be missing"
    killed = disk.kill()
    killed.damage(names[-1], kept, bytes(HEADER_SIZE - kept))
    with MessageStore.open(CONFIG, file_system=killed, clock=clock) as recovered:
        compare(recovered, sender.sent, sender.sent)
    store.close()
