"""Events of corrected offsets are limited, whether the store takes them or not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.remoting.offset_events import TOPIC, OffsetEvents
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig
from aerobee_store import MessageStore
from aerobee_store.testing import ManualClock
from tests.support.saved_tables import saved

PER_SECOND_MAX = 100


class Pulls:
    """Pulls that correct offsets, and the store of their events."""

    def __init__(self, directory: Path) -> None:
        config = BrokerConfig.tiny(directory)
        self.clock = ManualClock()
        self.store = MessageStore.open(config.store, clock=self.clock)
        settings = Settings(config)
        tables = Tables.load(settings, self.clock, self.store.file_system, self.store.in_disk_thread)
        saved(tables.topics).create_internal(TopicConfig(name=TOPIC, read_queue_count=1, write_queue_count=1))
        self._events = OffsetEvents(settings, self.store, tables, self.clock)

    async def correct(self, count: int) -> None:
        for number in range(count):
            await self._events.moved("group", "topic", 0, number, 0)

    @property
    def stored(self) -> int:
        return self.store.stats.messages_appended


@pytest.fixture
def pulls(tmp_path: Path) -> Iterator[Pulls]:
    found = Pulls(tmp_path)
    yield found
    found.store.close()


async def test_a_second_has_a_limited_number_of_events(pulls: Pulls, caplog: pytest.LogCaptureFixture) -> None:
    """Further ones are neither stored nor logged, except for one line; the next second has as many again."""
    with caplog.at_level(logging.WARNING):
        await pulls.correct(PER_SECOND_MAX + 50)
    assert pulls.stored == PER_SECOND_MAX
    assert len(caplog.records) == PER_SECOND_MAX + 1
    pulls.clock.advance(1.0)
    await pulls.correct(1)
    assert pulls.stored == PER_SECOND_MAX + 1


async def test_a_store_that_takes_no_event_is_asked_once_a_second(
    pulls: Pulls, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the correction and the cause, and no further corrections of that second."""
    pulls.store.close()
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await pulls.correct(50)
        assert [record.getMessage().split(" topic=")[0].split(" cause=")[0] for record in caplog.records] == [
            "offset corrected",
            "event of a corrected offset not stored",
        ]
        pulls.clock.advance(1.0)
