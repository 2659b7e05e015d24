"""A disk that fills up stops messages while there is still space for everything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreFullError
from aerobee_store.disk.file_system import DiskFileSystem, DiskUsage
from aerobee_store.records.record_template import RecordTemplate, TemplateMessage

pytestmark = pytest.mark.on_disk


class ShrinkingDisk(DiskFileSystem):
    """A disk whose free space the test sets."""

    available = 1 << 40

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(total=1 << 40, available=self.available)


def test_messages_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    """Below the headroom an append raises StoreFullError and changes nothing; with more space the store continues."""
    disk = ShrinkingDisk()
    config = replace(StoreConfig.tiny(tmp_path / "store"), disk_headroom=1 << 20)
    message = Message("orders", 0, b"x" * 2000)
    with MessageStore.open(config, file_system=disk) as store:
        store.append([message])
        disk.available = (1 << 20) - 1
        with pytest.raises(StoreFullError, match="free some"):
            store.append([message] * 20)  # more than the segment's reserved space
        store.flush()
        assert (store.state, store.queue_range("orders", 0)) == ("open", (0, 1))
        disk.available = 1 << 30
        appended = store.append([message] * 20)
        assert [item.queue_offset for item in appended] == list(range(1, 21))
    with MessageStore.open(config) as store:
        assert store.queue_range("orders", 0) == (0, 21)


def test_internal_records_may_use_half_of_the_headroom(tmp_path: Path) -> None:
    """Internal records are accepted when other messages are not, down to half of the headroom."""
    disk = ShrinkingDisk()
    config = replace(StoreConfig.tiny(tmp_path / "store"), disk_headroom=1 << 20)
    message = Message("orders", 0, b"x" * 2000)
    template = RecordTemplate(message, [], store_host=config.store_host, property_crc=True)
    messages = [message] * 10  # more than a segment, so a new one is needed
    templated = [TemplateMessage(template, b"x" * 2000, 0, 0)] * 10
    with MessageStore.open(config, file_system=disk) as store:
        disk.available = (1 << 19) + (64 << 10)
        with pytest.raises(StoreFullError):
            store.append(messages)
        with pytest.raises(StoreFullError):
            store.append(templated)
        assert len(store.append(messages, internal=True)) == 10
        assert len(store.append(templated, internal=True)) == 10
        disk.available = 1 << 19
        with pytest.raises(StoreFullError):
            store.append(messages, internal=True)
        disk.available = 1 << 30
