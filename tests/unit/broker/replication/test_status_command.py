"""The replication lines that `aerobee status` prints for a master."""

from __future__ import annotations

from aerobee_broker.commands.status import replication_facts
from aerobee_proto import admin_v1


def test_a_broker_without_replication_shows_no_such_lines() -> None:
    """There are no such lines."""
    assert replication_facts(admin_v1.GetBrokerStatusResponse()) == []


def test_a_master_without_replicas() -> None:
    """A master without a lease shows its role, its epoch, and that no replica is connected."""
    found = admin_v1.GetBrokerStatusResponse(replication=admin_v1.BrokerReplication(epoch=3))
    assert replication_facts(found) == [("role", "master, epoch 3"), ("replicas", "none connected")]


def test_a_master_with_a_lease() -> None:
    """The lines have the lease's holder and remaining time, the in-sync set, and each replica's lag."""
    lease = admin_v1.BrokerLease(holder=1, epoch=7, in_sync=[1, 2])
    lease.left.FromMilliseconds(7400)
    replicas = [
        admin_v1.ReplicaStatus(id="2", address="10.0.0.2:52114", in_sync=True, counts=True),
        admin_v1.ReplicaStatus(id="10.0.0.3", address="10.0.0.3:9", lag_bytes=3 << 20),
    ]
    found = admin_v1.GetBrokerStatusResponse(
        replication=admin_v1.BrokerReplication(epoch=7, lease=lease, replicas=replicas)
    )
    facts = dict(replication_facts(found))
    assert facts["lease"].startswith("of broker 1, 7")
    assert facts["brokers in sync"] == "1, 2"
    assert facts["replica 2"].endswith("behind, in sync")
    assert facts["replica 10.0.0.3"] == "at 10.0.0.3:9: 3.0 MiB behind, not in sync, does not count"
    found.replication.lease.error = "etcd at 10.0.0.5:2379: timeout"
    assert dict(replication_facts(found))["lease"].endswith("not renewed: etcd at 10.0.0.5:2379: timeout")
