"""Which replicas are in sync, which offset is confirmed, and when waiting senders are answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.replication.acknowledgements import Acknowledgements, Replica
from aerobee_store.errors import (
    ConfigError,
    ReplicaMissingError,
    ReplicaTimeoutError,
    StoreFullError,
    TooFewReplicasError,
)
from aerobee_store.running_flags import RunningState

_END = 1000


@dataclass
class _Store:
    """A store whose durable log ends at _END."""

    running: RunningState
    positions: tuple[int, int, int, int] = (_END, _END, _END, _END)
    flushes: int = 0

    def request_flush(self) -> None:
        self.flushes += 1


def _of(running: RunningState | None = None, **settings: object) -> Acknowledgements:
    config = ReplicationConfig(**{"lag_bytes_max": 500, **settings})  # type: ignore[arg-type]
    return Acknowledgements(config, _Store(running or RunningState()))


def _replica(found: Acknowledgements, name: str, acked: int, *, counts: bool = True) -> Replica:
    replica = Replica(("id", name), f"127.0.0.1:{name}", counts)
    found.connected(replica)
    found.reported(replica, acked)
    return replica


@pytest.mark.parametrize(("acks", "confirmed"), [("none", 1000), ("1", 900), ("2", 700), ("3", -1), ("all", 700)])
def test_the_confirmed_offset(acks: str, confirmed: int) -> None:
    """One of three replicas is too far behind to be in sync."""
    found = _of(acks=acks)
    for name, acked in (("1", 900), ("2", 700), ("3", 400)):
        _replica(found, name, acked)
    assert found.confirmed() == confirmed
    assert found.near() == [900, 700]


async def test_two_connections_of_one_replica_count_once() -> None:
    """Connections with the same id are one replica with one disk."""
    found = _of(acks="2")
    first, _ = _replica(found, "1", 900), _replica(found, "1", 800)
    with pytest.raises(ReplicaMissingError, match="1 replicas are in sync"):
        await found.wait(700)
    found.gone(first)
    assert found.acked() == {("id", "1"): 800}


async def test_a_replica_of_rocketmq_does_not_count_unasked() -> None:
    """A replica of RocketMQ may confirm bytes that are not on its disk, so it does not count."""
    found = _of(acks="1")
    _replica(found, "1", 900, counts=False)
    with pytest.raises(ReplicaMissingError):
        await found.wait(100)


async def test_waiters_are_answered_in_the_order_of_their_offsets() -> None:
    """Senders are answered in order of their offsets. At the timeout they get an error; the message stays stored."""
    found = _of(acks="1", ack_timeout_seconds=0.01)
    replica = _replica(found, "1", 600)
    await found.wait(600)
    with pytest.raises(ReplicaTimeoutError, match="too few replicas"):
        await found.wait(700)
    found = _of(acks="1", ack_timeout_seconds=600)
    replica = _replica(found, "1", 600)
    waiters = {end: asyncio.ensure_future(found.wait(end)) for end in (900, 700, 800)}
    while found.waiting_count < 3:  # noqa: ASYNC110 - until the tasks wait
        await asyncio.sleep(0)
    found.reported(replica, 850)
    await asyncio.gather(waiters[700], waiters[800])
    assert not waiters[900].done()
    found.reported(replica, 900)
    await waiters[900]
    assert not found.waiting_count


async def test_a_sync_is_requested_for_what_is_not_durable() -> None:
    """A sync requested for durable bytes would wait for the batch of the next sends, and split it."""
    store = _Store(RunningState())
    found = Acknowledgements(ReplicationConfig(acks="1", ack_timeout_seconds=0.01), store)
    _replica(found, "1", 600)
    with pytest.raises(ReplicaTimeoutError):
        await found.wait(_END)
    requested = store.flushes
    assert not requested
    with pytest.raises(ReplicaTimeoutError):
        await found.wait(_END + 1)
    assert store.flushes == 1


def test_messages_are_refused_with_too_few_in_sync() -> None:
    """Messages of users are refused, internal records are not."""
    running = RunningState()
    found = _of(running, min_in_sync=2)
    with pytest.raises(TooFewReplicasError, match="1 of 2 brokers are in sync"):
        running.check_writable(internal=False)
    assert issubclass(TooFewReplicasError, StoreFullError)  # producers then try another broker
    running.check_writable(internal=True)
    replica = _replica(found, "1", 600)
    running.check_writable(internal=False)
    found.reported(replica, 400)
    with pytest.raises(TooFewReplicasError):
        running.check_writable(internal=False)
    found.reported(replica, 700)
    found.gone(replica)
    with pytest.raises(TooFewReplicasError):
        running.check_writable(internal=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": "some"},
        {"acks": "-1"},
        {"acks": "1001"},
        {"role": "master"},
        {"min_in_sync": 0},
        {"ack_timeout_seconds": 0.0},
        {"broker_id": 0},
    ],
)
def test_settings_that_cannot_work(settings: dict[str, object]) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigError, match=r"replication\."):
        ReplicationConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("acks", "reports", "in_sync"),
    [
        ("none", (1000, 999, 700), [True, False, False]),
        ("1", (900, 700, 400), [True, False, False]),
        ("2", (900, 700, 400), [True, True, False]),
        ("all", (900, 700, 400), [True, True, False]),
    ],
)
def test_a_replica_without_answered_messages_is_not_in_sync(
    acks: str, reports: tuple[int, ...], in_sync: list[bool]
) -> None:
    """A replica may be near enough to be waited for, and still lack messages that others confirmed."""
    found = _of(acks=acks)
    found.confirmed_before = 0  # nothing was answered before these replicas connected
    replicas = [_replica(found, str(number), acked) for number, acked in enumerate(reports)]
    assert [found.is_in_sync(replica) for replica in replicas] == in_sync
    assert found.in_sync_count == sum(in_sync)


def test_a_replica_that_returns_is_in_sync_once_it_has_what_was_answered_meanwhile() -> None:
    """What was answered without a replica stays answered when the confirmed offset falls back to its report."""
    found = _of(acks="all")
    assert found.confirmed() == _END  # no replica: the master answers alone
    replica = _replica(found, "1", 900)
    assert (found.confirmed(), found.is_in_sync(replica)) == (900, False)
    found.reported(replica, _END)
    assert found.is_in_sync(replica)
