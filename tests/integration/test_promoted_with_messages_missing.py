"""The promotion of a replica that lacks answered messages, with broker processes."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Answer
from tests.support.broker_process import BrokerProcess, running
from tests.support.replicating import eventually

pytestmark = pytest.mark.timeout(300)
_ROLE = ("--role", "replica", "--master")


def _metrics(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


async def test_a_replica_that_has_not_heard_of_its_master_is_promoted_by_force_only(tmp_path: Path) -> None:
    """After a restart beside a dead master nothing is known, which is not "0 bytes behind"."""
    a = BrokerProcess(tmp_path, "a", "--role", "master")
    b = BrokerProcess(tmp_path, "b", *_ROLE, a.remoting)
    async with running(a, b):
        await a.start()
        assert await a.send(b"kept") == Answer.SUCCESS
        await b.start()  # only now, so that the first copy of the tables has the topic
        await b.follows(a)
        await a.kill()
        await b.kill()
        await b.start()
        shown = (await b.command("replication")).stdout
        assert "bytes behind unknown" in shown
        assert "0 bytes behind" not in shown
        assert "aerobee_replica_behind_bytes{} NaN" in await asyncio.to_thread(_metrics, b)
        refused = await b.command("promote")
        assert refused.returncode != 0
        assert "not known which messages it lacks" in refused.stderr
        assert not (await b.status())["master"]
        await b.promote("--force")
        assert await b.bodies() == [b"kept"]


async def test_a_replica_known_to_lack_answered_messages_is_promoted_by_force_only(tmp_path: Path) -> None:
    """A replica with segments of another size stops at the master's first blank, and names how much it lacks."""
    a = BrokerProcess(tmp_path, "a", "--role", "master", config="[store]\nsegment_size = 1048576\n")
    b = BrokerProcess(tmp_path, "b", *_ROLE, a.remoting)
    async with running(a, b):
        await a.start()
        await b.start()
        for number in range(30):
            assert await a.send(bytes(100_000) + str(number).encode()) == Answer.SUCCESS
        end = (await a.status())["masterCommitLogMaxOffset"]

        async def lacks() -> bool:
            info = (await b.status())["haClientRuntimeInfo"]
            return not info["tablesMissing"] and 0 < info["maxOffset"] == end - info.get("lacking", 0)

        await eventually(lacks)
        assert (await a.status())["inSyncSlaveNums"] == 0
        kept = (await b.status())["haClientRuntimeInfo"]["maxOffset"]
        await a.kill()
        refused = await b.command("promote")
        assert refused.returncode != 0
        assert f"lacks {end - kept} bytes" in refused.stderr
        assert "--force" in refused.stderr
        assert not (await b.status())["master"]
        await b.promote("--force")
        assert await b.send(b"goes on") == Answer.SUCCESS
