"""The port where RocketMQ replicas request the topics of a master."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting.codes import Request
from aerobee_broker.replication.master_broker import FAST_PORT_DISTANCE
from tests.support.remoting_client import RemotingClient, json_body, send
from tests.support.replicating import master


async def _attributes(client: RemotingClient) -> Any:
    answered = await client.call(Request.GET_ALL_TOPIC_CONFIG)
    return json_body(answered)["topicConfigTable"]["T"]["attributes"]


async def test_attributes_are_changes_for_replicas_of_rocketmq(tmp_path: Path) -> None:
    """An attribute without `+` before its name makes RocketMQ 5.3.3 copy no topic. Other clients get plain names."""
    async with master(tmp_path) as running:
        assert (await send(running.client, "T")).code == 0
        plain = await _attributes(running.client)
        assert plain["message.type"]
        bound = running.broker.remoting
        assert bound is not None
        try:
            fast = await RemotingClient.connect(Address(bound.host, bound.port - FAST_PORT_DISTANCE))
        except OSError:
            pytest.skip("another process has the port")
        assert await _attributes(fast) == {f"+{name}": text for name, text in plain.items()}
        await fast.close()
