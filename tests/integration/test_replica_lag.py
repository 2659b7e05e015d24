"""How far a replica is behind, told of a master that has no epochs and does not say where its log ends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.replication import replica as replica_module
from aerobee_broker.replication.follower import Follower
from aerobee_broker.replication.requests import ReplicationRequests
from aerobee_store.durability.log_flush import Durability
from aerobee_store.errors import SyncTimeoutError
from aerobee_store.log.commit_log import CommitLog
from tests.support.remoting_client import send
from tests.support.replicating import eventually, log_bytes, master, replica


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


async def test_a_log_that_is_copied_without_epochs_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first record is asked for beside the stream, and has the properties that clients do not see."""
    monkeypatch.setattr(ReplicationRequests, "epochs", _refuse)
    async with master(tmp_path / "a") as found:
        for body in (b"first", b"second"):
            await send(found.client, "TBW102", body)
        async with replica(tmp_path / "b", found.broker.remoting) as following:

            async def caught_up() -> bool:
                end = (await found.status())["masterCommitLogMaxOffset"]
                return bool((await following.status())["haClientRuntimeInfo"]["maxOffset"] == end)

            await eventually(caught_up)
    assert log_bytes(tmp_path / "b") == log_bytes(tmp_path / "a") != b""


async def test_a_master_that_refuses_to_tell_its_epochs_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that starts or is busy has epochs, so it is not taken for a RocketMQ."""
    refusals = [Answer.SERVICE_NOT_AVAILABLE, Answer.SYSTEM_BUSY, Answer.NO_PERMISSION]
    tell = ReplicationRequests.epochs

    async def epochs(self: ReplicationRequests, request: Command, connection: Connection) -> Command:
        if refusals:
            raise RemotingError(refusals.pop(0), "not yet")
        return await tell(self, request, connection)

    monkeypatch.setattr(ReplicationRequests, "epochs", epochs)
    async with master(tmp_path / "a") as found, replica(tmp_path / "b", found.broker.remoting) as following:
        await send(found.client, "TBW102", b"first")

        async def is_counted() -> bool:
            return bool((await found.status())["inSyncSlaveNums"] == 1)

        await eventually(is_counted)
        assert not refusals
        assert (await following.status())["haClientRuntimeInfo"]["lag"] == 0


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, replicas have no space on their disks."""
    append = CommitLog.append_copied
    is_full = False

    def append_copied(self: CommitLog, data: bytes) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, data)

    def fill() -> None:
        nonlocal is_full
        is_full = True

    monkeypatch.setattr(CommitLog, "append_copied", append_copied)
    return fill


async def test_a_replica_whose_disk_is_full(tmp_path: Path, fill: Callable[[], None]) -> None:
    """Its master answers without it. It says how much it lacks and why, and is promoted by force only."""
    async with AsyncExitStack() as followers, AsyncExitStack() as masters:
        found = await masters.enter_async_context(master(tmp_path / "a", acks="none"))
        following = await followers.enter_async_context(replica(tmp_path / "b", found.broker.remoting))
        await following.lacks_nothing()
        assert (await send(found.client, "TBW102", b"first")).code == Answer.SUCCESS
        await following.follows_to((await found.status())["masterCommitLogMaxOffset"])
        fill()
        for _ in range(3):
            assert (await send(found.client, "TBW102", bytes(1000))).code == Answer.SUCCESS

        async def says_why() -> bool:
            info = (await following.status())["haClientRuntimeInfo"]
            lacking = (await found.status())["masterCommitLogMaxOffset"] - info["maxOffset"]
            return "no space left" in info["lastError"] and info.get("lacking") == lacking > 3000

        await eventually(says_why)
        assert not (await found.status())["inSyncSlaveNums"]
        await masters.aclose()
        order: dict[str, object] = {"masterBrokerId": 1}
        refused = await following.client.call(Request.NOTIFY_BROKER_ROLE_CHANGED, order)
        assert refused.code == Answer.SYSTEM_ERROR
        assert "this replica lacks" in (refused.remark or "")
        assert "--force" in (refused.remark or "")
        promoted = await following.client.call(Request.NOTIFY_BROKER_ROLE_CHANGED, {**order, "force": "true"})
        assert promoted.code == Answer.SUCCESS, promoted.remark
        async with asyncio.timeout(60):
            await following.promoted


async def test_a_replica_whose_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on after a sync that has taken too long, and reports nothing that is not on its disk."""
    wait_flushed, sync_timeouts = Durability.wait_flushed, 0

    async def wait_long(self: Durability, end: int) -> None:
        nonlocal sync_timeouts
        task = asyncio.current_task()
        if sync_timeouts < 2 and task is not None and task.get_name() == "replica-connection":
            sync_timeouts += 1
            raise SyncTimeoutError("the disk has not confirmed a sync within 5 s")
        await wait_flushed(self, end)

    monkeypatch.setattr(Durability, "wait_flushed", wait_long)
    async with master(tmp_path / "a") as found, replica(tmp_path / "b", found.broker.remoting) as following:
        for number in range(3):
            assert (await send(found.client, "TBW102", b"%d" % number)).code == Answer.SUCCESS
            await following.follows_to((await found.status())["masterCommitLogMaxOffset"])
        assert sync_timeouts == 2
    assert log_bytes(tmp_path / "a") == log_bytes(tmp_path / "b")


async def test_a_full_replica_lacks_nothing_that_was_answered(tmp_path: Path, fill: Callable[[], None]) -> None:
    """Its master waits for it, so it has not answered with success what the replica could not store."""
    async with (
        master(tmp_path / "a", acks="1", ack_timeout_seconds=0.2) as found,
        replica(tmp_path / "b", found.broker.remoting) as following,
    ):
        await following.lacks_nothing()
        assert (await send(found.client, "TBW102", b"first")).code == Answer.SUCCESS
        fill()
        answered = await send(found.client, "TBW102", bytes(1000))
        assert answered.code in (Answer.FLUSH_SLAVE_TIMEOUT, Answer.SLAVE_NOT_AVAILABLE)

        async def promotes() -> bool:
            info = (await following.status())["haClientRuntimeInfo"]
            if "no space left" not in info["lastError"]:
                return False
            order: dict[str, object] = {"masterBrokerId": 1}
            return (await following.client.call(Request.NOTIFY_BROKER_ROLE_CHANGED, order)).code == Answer.SUCCESS

        await eventually(promotes)
        async with asyncio.timeout(60):
            await following.promoted
