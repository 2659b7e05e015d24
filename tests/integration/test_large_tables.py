"""Tables whose JSON is longer than a frame of RocketMQ reach a replica, and a promoted one has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.fields import FRAME_SIZE
from aerobee_broker.remoting_wire.frame import FRAME_SIZE_MAX
from aerobee_broker.replication import replica as replica_module
from tests.support.remoting_client import RemotingClient
from tests.support.replicating import Master, master, replica

_GROUPS: Final = 600
_ATTRIBUTE_SIZE: Final = 30_000


async def make_large_table(found: Master) -> None:
    """Groups with long attributes: far less than `limits.table_bytes_max` allows."""
    for first in range(0, _GROUPS, 120):
        groups = [
            {"groupName": f"g{number}", "attributes": {"+lite.bind.topic": "t" * _ATTRIBUTE_SIZE}}
            for number in range(first, first + 120)
        ]
        body = {"groupConfigList": list[object](groups)}
        answered = await found.client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST, {}, body)
        assert answered.code == Answer.SUCCESS, answered.remark
    assert _GROUPS * _ATTRIBUTE_SIZE > FRAME_SIZE_MAX


async def test_a_promoted_replica_has_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All groups, although their table does not fit into a frame of RocketMQ."""
    monkeypatch.setattr(replica_module, "METADATA_SECONDS", 0.1)
    async with master(tmp_path / "a") as found:
        await make_large_table(found)
        async with replica(tmp_path / "b", found.broker.remoting) as following:
            listening = await following.promote()
            client = await RemotingClient.connect(listening.remoting)
            for number in range(_GROUPS):
                fields = {"group": f"g{number}"}
                answered = await client.call(Request.GET_SUBSCRIPTION_GROUP_CONFIG, fields)
                assert answered.code == Answer.SUCCESS, answered.remark
                assert b"t" * _ATTRIBUTE_SIZE in answered.body
            await client.close()


async def test_a_replica_of_rocketmq_and_the_log_are_told_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It reads no longer frames, and would close the connection. The log is not filled with it."""
    async with master(tmp_path) as found:
        await make_large_table(found)
        for _ in range(2):
            refused: Any = await found.client.call(Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG)
            assert refused.code == Answer.SYSTEM_ERROR
            for part in (
                "the table of groups has 18",
                str(FRAME_SIZE_MAX),
                "delete groups that nobody needs",
                "Aerobee",
            ):
                assert part in refused.remark
        (logged,) = (each.getMessage() for each in caplog.records if "table not sent" in each.message)
        assert refused.remark in logged
        fields = {FRAME_SIZE: FRAME_SIZE_MAX + 1}  # a replica of Aerobee whose memory does not allow more
        refused = await found.client.call(Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG, fields)
        assert refused.code == Answer.SYSTEM_ERROR
        assert "raise limits.waiting_bytes_max of master and replica" in refused.remark
        assert (await found.client.call(Request.GET_ALL_TOPIC_CONFIG)).code == Answer.SUCCESS
