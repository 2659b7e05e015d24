"""The table of deleted dead letters: how large it becomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_broker.errors import TooManyRequestsError
from aerobee_broker.tables import deleted_letters
from aerobee_broker.tables.deleted_letters import DeletedLetters
from aerobee_store import MessageStore, StoreConfig


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    (tmp_path / "config").mkdir()
    with MessageStore.open(StoreConfig.tiny(tmp_path)) as opened:
        yield opened


async def test_all_groups_have_one_bound(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has one, and groups are many: 300 bytes of requests took 120 of memory for good, and more and more
    time of the event loop. What closes gaps is never refused."""
    monkeypatch.setattr(deleted_letters, "ALL_RANGES_MAX", 6)
    letters = DeletedLetters(store)
    await letters.add("a", [(0, 1), (2, 3), (4, 5)], 0)
    await letters.add("b", [(0, 1), (2, 3), (4, 5)], 0)
    for group in ("a", "c"):
        with pytest.raises(
            TooManyRequestsError, match=r"all groups would have 7 gaps .* limit is 6; delete all before"
        ):
            await letters.add(group, [(8, 9)], 0)
    assert not letters.has("c", 8)
    await letters.add("a", [(0, 9)], 0)
    assert letters.has("a", 8)
    await letters.add("c", [(8, 9)], 0)
    assert DeletedLetters(store).has("c", 8)


async def test_a_table_that_is_too_large_can_be_made_smaller(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a master of an earlier release may be."""
    letters = DeletedLetters(store)
    await letters.replace({"a": [(0, 1), (2, 3), (4, 5)]})
    monkeypatch.setattr(deleted_letters, "ALL_RANGES_MAX", 1)
    await letters.add("a", [(1, 2)], 0)
    with pytest.raises(TooManyRequestsError):
        await letters.add("a", [(8, 9)], 0)
