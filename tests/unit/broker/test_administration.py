"""Administration functions that need no network: pages, durations, and lag after retention."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.processors.administration.messages import MessageAdministration
from aerobee_broker.processors.administration.wire import PAGE_COUNT_MAX, page_of
from aerobee_broker.tables.table_files import Tables
from aerobee_store import MessageStore, StoreConfig
from aerobee_store.records.message_fields import LAST_MS
from aerobee_store.records.properties import TIMER_DELIVER_MS
from aerobee_store.testing import ManualClock
from tests.support import golden


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1000])
def test_pages_have_every_name_once(size: int) -> None:
    """Every name is on one page, for any page size and when names are added or removed between pages."""
    names = ["a", "b", "c", "d"]
    found: list[str] = []
    token = ""
    while True:
        page, token = page_of(names, size, token)
        found += page
        if not token:
            break
    assert found == names
    assert page_of(["a", "bb", "d"], 2, "b") == (["bb", "d"], "")
    assert page_of([], size, "") == ([], "")


@pytest.mark.parametrize(("size", "count"), [(0, PAGE_COUNT_MAX), (-1, PAGE_COUNT_MAX), (5000, PAGE_COUNT_MAX), (7, 7)])
def test_pages_have_a_bound(size: int, count: int) -> None:
    """Without a positive size the default applies; a larger size than the maximum gives the maximum."""
    page, token = page_of([f"{number:05}" for number in range(3000)], size, "")
    assert (len(page), token) == (count, f"{count - 1:05}")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(-5, "0 s"), (0, "0 s"), (1500, "1.5 s"), (60_000, "1 min"), (3_661_000, "1 h 1 min"), (90_000_000, "1 d 1 h")],
)
def test_durations_as_text(milliseconds: int, text: str) -> None:
    """The text has the two largest units."""
    assert output.span_text(milliseconds) == text


@pytest.mark.parametrize(("text", "milliseconds"), [("500ms", 500), ("5s", 5000), ("2m", 120_000), ("1d", 86_400_000)])
def test_durations_from_text(text: str, milliseconds: int) -> None:
    """Durations are parsed as users type them."""
    assert options.span(text) == milliseconds


async def test_expired_messages_do_not_count_as_lag(tmp_path: Path) -> None:
    """A group whose offset is below the queue's first message lags by the remaining messages only."""
    case = golden.load("deleted-head", tmp_path)
    clock = ManualClock()
    config = BrokerConfig(
        store=StoreConfig(
            directory=case.store,
            segment_size=case.segment_size,
            queue_file_size=case.config["mappedFileSizeConsumeQueue"],
            index_slot_count=case.config["maxHashSlotNum"],
            index_entry_count=case.config["maxIndexNum"],
        )
    )
    with MessageStore.open(config.store, clock=clock) as store:
        tables = Tables.load(Settings(config), clock, store.file_system, store.in_disk_thread)
        deliveries = Deliveries(store, tables, clock, Settings(config))
        topic, queue_id, low, high = next(
            (topic, queue_id, *store.queue_range(topic, queue_id))
            for topic, queue_ids in store.queues().items()
            for queue_id in queue_ids
            if 0 < store.queue_range(topic, queue_id)[0] < store.queue_range(topic, queue_id)[1]
        )
        tables.offsets.commit(topic, "behind", queue_id, 0, force=True)
        (status,) = list(deliveries.statuses("behind"))
        assert (status.lag, status.ready, status.ready_offset) == (high - low, high - low, low)


@pytest.mark.parametrize(("due_ms", "is_shown"), [(LAST_MS, True), (LAST_MS + 1, False), (10**17, False)])
def test_a_delay_beyond_the_calendar_is_not_shown(due_ms: int, is_shown: bool) -> None:
    """Another program wrote it; protobuf has no such time, and the timeline was an internal error."""
    record = Mock(properties={TIMER_DELIVER_MS: str(due_ms)}, store_timestamp=1)
    assert MessageAdministration._delayed(Mock(), record).HasField("until") == is_shown
