"""The lease of a master whose clock is set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Answer
from aerobee_client import connect
from tests.chaos.nemesis import BrokerClock
from tests.support.etcd import running_etcd
from tests.support.lease_group import Member, running
from tests.support.programs import without

_SECONDS = 120.0
_LEASE_SECONDS = 30  # longer than any pause on a busy machine: only a clock change could end it
pytestmark = pytest.mark.timeout(300)


async def test_a_changed_wall_clock_changes_no_master(tmp_path: Path) -> None:
    """The master's wall clock jumps an hour ahead and back; the lease is measured with the monotonic clock."""
    with running_etcd(tmp_path) as etcd:
        first, second = (Member(tmp_path, number, etcd, lease_seconds=_LEASE_SECONDS) for number in (1, 2))
        try:
            clock = BrokerClock(tmp_path)
        except RuntimeError as error:
            without(str(error))
        first.environment = os.environ | clock.environment
        async with running(first, second):
            epoch = (await first.becomes_master(in_sync=2))["leaseEpoch"]
            for ahead in (3600.0, -3600.0):
                clock.set(ahead)
                answered = [await first.send(b"x", _SECONDS) for _ in range(20)]
                assert answered == [Answer.SUCCESS] * 20
                found = await first.status()
                assert (found["leaseEpoch"], found["leaseMaster"]) == (epoch, 1)
                assert 0 < found["leaseSecondsLeft"] <= _LEASE_SECONDS
            assert "lease lost" not in first.log
            async with connect(str(first.grpc)) as client:
                shown = (await client.admin.broker_status()).replication
            assert (shown.epoch, shown.lease.epoch, shown.lease.holder) == (epoch, epoch, 1)
            assert list(shown.lease.in_sync) == [1, 2]
            assert 0 < shown.lease.left.ToMilliseconds() <= 1000 * _LEASE_SECONDS
            assert [(each.id, each.in_sync, each.counts) for each in shown.replicas] == [("2", True, True)]
