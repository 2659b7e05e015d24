"""How far a replica is behind, told of a master that has no epochs and does not say where its log ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.replication import replica as replica_module
from aerobee_broker.replication.follower import Follower
from aerobee_broker.replication.requests import ReplicationRequests
from tests.support.remoting_client import send
from tests.support.replicating import eventually, master, replica


async def _refuse(*_: Any) -> None:
    raise RemotingError(Answer.REQUEST_CODE_NOT_SUPPORTED, "no epochs")


async def test_a_replica_knows_its_lag_without_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no byte of the log arrives, the master's end is asked for beside it."""
    arriving = asyncio.Event()
    arriving.set()
    some = Follower._some

    async def read(self: Follower, reader: asyncio.StreamReader) -> bytes:
        data = await some(self, reader)
        await arriving.wait()
        return data

    monkeypatch.setattr(Follower, "_some", read)
    monkeypatch.setattr(ReplicationRequests, "epochs", _refuse)
    monkeypatch.setattr(replica_module, "METADATA_SECONDS", 0.05)
    async with master(tmp_path / "a") as found, replica(tmp_path / "b", found.broker.remoting) as following:

        async def lag() -> tuple[int | None, int]:
            info = (await following.status())["haClientRuntimeInfo"]
            end = (await found.status())["masterCommitLogMaxOffset"]
            return info.get("lag"), end - info["maxOffset"]

        async def caught_up() -> bool:
            return await lag() == (0, 0)

        async def behind() -> bool:
            told, real = await lag()
            return told == real > 5000

        await send(found.client, "TBW102", b"first")
        await eventually(caught_up)
        arriving.clear()
        for _ in range(5):
            await send(found.client, "TBW102", bytes(1000))
        await eventually(behind)
        arriving.set()
        await eventually(caught_up)
        answered = await found.client.call(Request.GET_BROKER_EPOCH_CACHE)
        assert answered.code == Answer.REQUEST_CODE_NOT_SUPPORTED
