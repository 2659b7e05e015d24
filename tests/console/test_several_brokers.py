"""The console of a broker that is not alone: its replicas, its lease, and clients of the older protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Request
from aerobee_client import connect
from aerobee_proto import v2
from tests.console.support import rows_of, text_of, visiting
from tests.support.kubernetes import running_stand_in
from tests.support.lease_group import LeaseService, running
from tests.support.remoting_client import heartbeat_body, remoting_broker
from tests.support.replicating import eventually, master, replica

pytestmark = pytest.mark.timeout(300)


async def test_the_replicas_of_a_master(tmp_path: Path) -> None:
    """Each with its number, how far it is behind and whether sends wait for it, as the call says; none is said, too."""
    async with (
        master(tmp_path / "master", acks="1") as leader,
        connect(leader.broker.endpoint) as client,
        visiting(leader.broker.endpoint) as visitor,
    ):
        assert "No replica is connected." in text_of(await visitor.get("/store"))
        async with replica(tmp_path / "replica", leader.broker.remoting):

            async def follows() -> bool:
                replicas = (await client.admin.broker_status()).replication.replicas
                return [each.in_sync for each in replicas] == [True]

            await eventually(follows)
            [said] = (await client.admin.broker_status()).replication.replicas
            answer = await visitor.get("/store")
            [row] = [row for row in rows_of(answer) if row and row[0] == str(said.id)]
            assert row[1] == said.address
            assert "in sync" in row[3]
            assert ("sends wait for it" in row[3]) is said.counts
            status = await client.admin.broker_status()
            assert f"master, epoch {status.replication.epoch}" in text_of(answer)


async def test_a_client_of_rocketmq_4(tmp_path: Path) -> None:
    """It is in the list and has a page; sent away from there, it is gone."""
    async with (
        remoting_broker(tmp_path / "store") as (broker, remoting),
        connect(broker.endpoint) as client,
        visiting(broker.endpoint) as visitor,
    ):
        await client.admin.create_topic("orders", message_types=[v2.MessageType.NORMAL])
        await client.admin.create_group("billing")
        await remoting.call(Request.HEART_BEAT, body=heartbeat_body("host@1", "billing", "orders"))
        assert "host@1" in text_of(await visitor.get("/clients"))
        page = await visitor.get("/clients/host@1")
        assert page.status_code == 200
        assert "billing" in text_of(page)
        await visitor.post("/clients/host@1/disconnect")
        await remoting.closed()
        assert "host@1" not in text_of(await visitor.get("/clients"))


async def test_the_lease_of_a_master(tmp_path: Path) -> None:
    """Two brokers with a lease: who holds it, how long it lasts, and who is in sync, as the call says."""
    with running_stand_in(tmp_path) as server:
        service = LeaseService(server.url.removeprefix("https://"), server)
        first, second = service.member(tmp_path, 1), service.member(tmp_path, 2)
        async with running(first, second):
            await first.becomes_master(in_sync=2)
            async with connect(str(first.grpc)) as client, visiting(str(first.grpc)) as visitor:
                text = text_of(await visitor.get("/store"))
                status = (await client.admin.broker_status()).replication
                assert (status.lease.holder, sorted(status.lease.in_sync)) == (1, [1, 2])
                assert "lease of broker 1, " in text
                assert f"left; in sync: {', '.join(map(str, status.lease.in_sync))}" in text
                assert f"master, epoch {status.epoch}" in text
