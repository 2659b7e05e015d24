"""Whether a log that ends before the master's begins is known to be an older copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.errors import BrokerError
from aerobee_broker.replication.follower import DivergedError
from aerobee_broker.replication.frames import Epoch
from aerobee_broker.replication.master_log import MasterEpochs, check_origin
from aerobee_store import Message, MessageStore, StoreConfig

_FIRST, _SECOND, _OTHER = Epoch(1, 0), Epoch(2, 1 << 20), Epoch(2, 100)
_END = 1 << 30
_ENDS = {"T": {0: 3, 1: 0}, "Unknown here": {0: 7}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(StoreConfig.tiny(tmp_path)) as found:
        found.append([Message("T", 0, b"x" * 100) for _ in range(3)])
        found.flush()
        yield found


@pytest.mark.parametrize(
    ("own", "master", "was_replica"),
    [
        ((_FIRST,), MasterEpochs((_FIRST, _SECOND), _END), False),
        ((_FIRST,), MasterEpochs((_FIRST,), _END), True),
        ((), MasterEpochs((_FIRST,), _END), True),
        ((), None, True),
    ],
    ids=["an old master's", "a replica's", "that of a replica of RocketMQ", "RocketMQ's replica"],
)
def test_an_older_copy(
    store: MessageStore, own: tuple[Epoch, ...], master: MasterEpochs | None, was_replica: bool
) -> None:
    """The last epoch here is also there, or the store was a replica's before."""
    check_origin(store, own, master, _ENDS, was_replica=was_replica)


@pytest.mark.parametrize(
    ("own", "master", "was_replica", "cause"),
    [
        ((_FIRST, _SECOND), MasterEpochs((_FIRST,), _END), True, "another master has taken over"),
        ((_FIRST,), MasterEpochs((), _END), True, "another master has taken over"),
        ((_FIRST,), MasterEpochs((Epoch(3, 0),), _END), True, "no epoch in common"),
        ((), None, False, "cannot be compared"),
        ((_FIRST,), None, True, "cannot be compared"),
        ((), MasterEpochs((_FIRST,), _END), False, "cannot be compared"),
    ],
    ids=["a newer one", "no epochs there", "other epochs", "a master's", "epochs here only", "epochs there only"],
)
def test_a_log_of_unknown_origin(
    store: MessageStore, own: tuple[Epoch, ...], master: MasterEpochs | None, was_replica: bool, cause: str
) -> None:
    """It may have messages that no other log has: it stays, and the error says what to do."""
    with pytest.raises(BrokerError, match=cause):
        check_origin(store, own, master, _ENDS, was_replica=was_replica)


def test_a_log_that_differs(store: MessageStore) -> None:
    """The master began its epoch before the end of this log."""
    with pytest.raises(DivergedError) as raised:
        check_origin(store, (_FIRST,), MasterEpochs((_FIRST, _OTHER), _END), _ENDS, was_replica=True)
    assert (raised.value.offset, raised.value.master_epoch) == (100, 2)


def test_a_queue_that_ends_later_here(store: MessageStore) -> None:
    """The master's log would have that message."""
    with pytest.raises(BrokerError, match="queue 0 of topic T ends at 3 here and at 2 at the master"):
        check_origin(store, (), None, {"T": {0: 2}}, was_replica=True)


def test_segments_that_may_not_be_removed(store: MessageStore, tmp_path: Path) -> None:
    """A new copy cannot replace them."""
    store.config = replace(store.config, read_only_commit_log_paths=(tmp_path / "old",))
    with pytest.raises(BrokerError, match="read_only_commit_log_paths"):
        check_origin(store, (_FIRST,), MasterEpochs((_FIRST,), _END), _ENDS, was_replica=True)
