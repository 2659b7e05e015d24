"""Master and replica over real connections with short times: heartbeats, timeouts, and epoch checks."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from aerobee_broker.config import Address
from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.errors import ListenError
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.replication import master as master_module
from aerobee_broker.replication.acknowledgements import Acknowledgements, Replica
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.follower import DivergedError, Follower, MasterGoneError
from aerobee_broker.replication.frames import (
    Epoch,
    MasterReader,
    Protocol,
    ReplicaReader,
    ReplicationFormatError,
    Unit,
    encode_report,
    encode_unit,
)
from aerobee_broker.replication.master import ReplicationMaster
from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem
from tests.support import golden_remoting


@asynccontextmanager
async def _running(directory: Path, **settings: Any) -> AsyncIterator[MessageStore]:
    with MessageStore.open(replace(StoreConfig.tiny(directory), **settings)) as store:
        task = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        try:
            yield store
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _epochs(directory: Path, *numbers: tuple[int, int]) -> Epochs:
    epochs = Epochs(DiskFileSystem(), directory)
    for number, start in numbers:
        epochs.begin(number, start)
    return epochs


@asynccontextmanager
async def _master(
    store: MessageStore,
    epochs: Epochs,
    *,
    heartbeat: float = 60,
    silence: float = 60,
    rocketmq_acks: bool = False,
    ledger: Ledger | None = None,
) -> AsyncIterator[tuple[Address, Acknowledgements]]:
    config = ReplicationConfig(role="master", listen="127.0.0.1:0", acks="1", rocketmq_acks=rocketmq_acks)
    found = Acknowledgements(config, store)
    served = ReplicationMaster(
        config, store, epochs, found, heartbeat_seconds=heartbeat, silence_seconds=silence, ledger=ledger
    )
    try:
        yield await served.listen(), found
    finally:
        await served.stop()


async def _append(store: MessageStore, count: int) -> int:
    appended = store.append([Message("T", 0, b"x" * 100) for _ in range(count)])
    await store.wait_stored(appended[-1].end)
    return appended[-1].end


async def test_heartbeats_and_silence(tmp_path: Path) -> None:
    """An idle master sends heartbeats, and closes the connection of a silent replica."""
    async with _running(tmp_path / "a") as store:
        epochs = _epochs(tmp_path, (1, 0))
        async with _master(store, epochs, heartbeat=0.01) as (address, _):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(encode_report(0, "plain"))
            frames, units = MasterReader("plain"), list[Unit]()
            async with asyncio.timeout(60):
                while len(units) < 3:
                    units += frames.feed(await reader.read(1 << 16))
            assert set(units) == {Unit(0, b"")}
            writer.close()
        async with _master(store, epochs, silence=0.1) as (address, found):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(encode_report(0, "plain"))
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
            while found.connections:  # noqa: ASYNC110 - another task ends the connection
                await asyncio.sleep(0.01)


async def test_what_a_replica_does_not_read_is_charged_and_dropped_with_it(tmp_path: Path) -> None:
    """The bytes that wait for it are in the ledger. Silence ends its connection, and they are not kept any longer."""
    ledger, loop = Ledger(), asyncio.get_running_loop()
    async with _running(tmp_path / "a", segment_size=1 << 20) as store:
        end = 0
        while end < 12 << 20:
            end = store.append([Message("T", 0, bytes(2_000)) for _ in range(500)])[-1].end
            await store.wait_stored(end)
        async with _master(store, _epochs(tmp_path, (1, 0)), silence=1, ledger=ledger) as (address, found):
            with socket.socket() as unread:
                unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                unread.setblocking(False)
                await loop.sock_connect(unread, (address.host, address.port))
                await loop.sock_sendall(unread, encode_report(0, "plain"))
                async with asyncio.timeout(60):
                    while ledger.held_of_kind["unsent"] < 1 << 20:  # noqa: ASYNC110 - the ledger has no event
                        await asyncio.sleep(0.001)
                    [replica] = found.connections
                    while found.connections:  # noqa: ASYNC110 - another task ends the connection
                        await asyncio.sleep(0.01)
                    assert ledger.held == 0
                    assert await _read_all(unread) < replica.sent - (1 << 19)


def _connection_count(ledger: Ledger) -> int:
    return ledger.held_of_kind["received"] // 8192  # of each


@asynccontextmanager
async def _silent(address: Address) -> AsyncIterator[asyncio.StreamReader]:
    """A connection that says nothing."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    yield reader
    writer.close()


@asynccontextmanager
async def _replica(address: Address) -> AsyncIterator[asyncio.StreamReader]:
    """A replica whose log is empty, once it has the first byte or is refused."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(encode_report(0, "plain"))
    await reader.read(1)
    yield reader
    writer.close()


@asynccontextmanager
async def _serving(directory: Path, ledger: Ledger) -> AsyncIterator[tuple[Address, Acknowledgements]]:
    """A master with three messages, for a minute."""
    async with _running(directory / "a") as store, asyncio.timeout(60):
        await _append(store, 3)
        async with _master(store, _epochs(directory, (1, 0)), ledger=ledger) as served:
            yield served


async def test_of_too_many_connections_without_a_report_the_oldest_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas that have reported stay, and another one can connect."""
    monkeypatch.setattr(master_module, "CONNECTIONS_MAX", 3)
    ledger = Ledger()
    async with _serving(tmp_path, ledger) as (address, found), AsyncExitStack() as stack:
        replica = await stack.enter_async_context(_replica(address))
        silent = [await stack.enter_async_context(_silent(address)) for _ in range(3)]
        while _connection_count(ledger) < 4:  # noqa: ASYNC110 - the ledger has no event
            await asyncio.sleep(0.001)
        last = await stack.enter_async_context(_replica(address))
        assert await silent[0].read() == b""
        assert _connection_count(ledger) == 4
        assert len(found.connections) == 2
        assert not any(each.at_eof() for each in (replica, *silent[1:], last))


async def test_more_replicas_than_the_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master_module, "CONNECTIONS_MAX", 2)
    async with _serving(tmp_path, Ledger()) as (address, found), AsyncExitStack() as stack:
        first, second, refused = [await stack.enter_async_context(_replica(address)) for _ in range(3)]
        assert await refused.read() == b""
        assert "2 replicas are connected, which is the limit" in caplog.text
        assert len(found.connections) == 2
        assert not first.at_eof()
        assert not second.at_eof()


async def test_connections_that_have_ended_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of replicas nor those without a report."""
    monkeypatch.setattr(master_module, "CONNECTIONS_MAX", 2)
    ledger = Ledger()
    async with _serving(tmp_path, ledger) as (address, found), AsyncExitStack() as stack:
        for connect in (_silent, _silent, _silent, _replica, _replica, _replica):
            async with connect(address):
                while _connection_count(ledger) < 1:  # noqa: ASYNC110 - the ledger has no event
                    await asyncio.sleep(0.001)
            while _connection_count(ledger):  # noqa: ASYNC110 - the ledger has no event
                await asyncio.sleep(0.001)
        first, second, refused = [await stack.enter_async_context(_replica(address)) for _ in range(3)]
        assert await refused.read() == b""
        assert (len(found.connections), first.at_eof(), second.at_eof()) == (2, False, False)


async def test_a_master_that_stops_leaves_nothing_behind(tmp_path: Path) -> None:
    """Every connection is closed, and the store no longer knows of it."""
    ledger = Ledger()
    async with _running(tmp_path / "a") as store, asyncio.timeout(60), AsyncExitStack() as stack:
        await _append(store, 3)
        listeners = [*store.flush_listeners]
        async with _master(store, _epochs(tmp_path, (1, 0)), ledger=ledger) as (address, found):
            replica = await stack.enter_async_context(_replica(address))
            silent = await stack.enter_async_context(_silent(address))
            while _connection_count(ledger) < 2:  # noqa: ASYNC110 - the ledger has no event
                await asyncio.sleep(0.001)
        assert (len(found.connections), _connection_count(ledger), ledger.held) == (0, 0, 0)
        assert store.flush_listeners == listeners
        await replica.read()
        assert await silent.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address.host, address.port)


async def test_a_port_that_is_in_use_is_named(tmp_path: Path) -> None:
    async with _running(tmp_path / "a") as store:
        epochs = _epochs(tmp_path, (1, 0))
        async with _master(store, epochs) as (address, found):
            config = ReplicationConfig(role="master", listen=str(address), acks="1")
            with pytest.raises(ListenError, match=rf"replication\.listen.*{address.port}.*in use"):
                await ReplicationMaster(config, store, epochs, found).listen()


async def _read_all(connection: socket.socket) -> int:
    """The number of bytes that come before the end, or before the connection breaks."""
    size = 0
    with suppress(ConnectionResetError):
        while data := await asyncio.get_running_loop().sock_recv(connection, 1 << 18):
            size += len(data)
    return size


async def test_a_replica_leaves_a_silent_master(tmp_path: Path) -> None:
    """The replica ends the connection, so that it can connect anew."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    async with _running(tmp_path / "b") as copy:
        follower = Follower(copy, _epochs(tmp_path), "plain", 1, silence_seconds=0.05)
        with pytest.raises(MasterGoneError, match="silent"):
            await follower.run(address)
    server.close()


async def test_reports_have_the_durable_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging sync delays the report, and so the sender's answer. The replica still receives the log.

    That holds for the heartbeats, too.
    """
    async with _running(tmp_path / "a") as store, _running(tmp_path / "b", flush_interval_seconds=600.0) as copy:
        end = await _append(store, 3)
        held, synced = asyncio.Event(), asyncio.Event()
        wait_stored = copy.wait_stored

        async def wait(end: int, *, durable: bool | None = None, replicas: bool = True) -> None:
            assert durable
            if end:  # the first report is of the empty log
                synced.set()
                await held.wait()
            await wait_stored(end, durable=durable, replicas=replicas)

        copy.wait_stored = wait  # type: ignore[method-assign]
        (tmp_path / "e").mkdir()
        async with _master(store, _epochs(tmp_path, (1, 0))) as (address, found):
            reports: list[int] = []
            reported = Acknowledgements.reported

            def report(found: Acknowledgements, replica: Replica, offset: int) -> None:
                reports.append(offset)
                reported(found, replica, offset)

            monkeypatch.setattr(Acknowledgements, "reported", report)
            follower = Follower(copy, _epochs(tmp_path / "e"), "epochs", 1, heartbeat_seconds=0.01)
            following = asyncio.create_task(follower.run(address))
            async with asyncio.timeout(60):
                await synced.wait()
                beats = len(reports)
                while len(reports) < beats + 3:  # noqa: ASYNC110 - heartbeats report, too
                    await asyncio.sleep(0.01)
            assert copy.positions[0] == end > copy.positions[2]
            assert set(reports) == {0}
            held.set()
            async with asyncio.timeout(60):
                while found.confirmed() < end:  # noqa: ASYNC110 - another task does it
                    await asyncio.sleep(0.01)
            assert copy.positions[2] >= end
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def test_a_connection_that_is_reset_during_a_sync(tmp_path: Path) -> None:
    """The replica may connect anew. uvloop's closed transports raise an error of their own, which ended the replica."""

    async def main() -> None:
        async with _running(tmp_path / "a") as store, _running(tmp_path / "b") as copy:
            end = await _append(store, 3)
            log = bytes(store.flushed_bytes(0, end))
            synced, gone = asyncio.Event(), asyncio.Event()
            wait_stored = copy.wait_stored

            async def wait(end: int, *, durable: bool | None = None, replicas: bool = True) -> None:
                await wait_stored(end, durable=durable, replicas=replicas)
                if end:
                    synced.set()
                    await gone.wait()
                    await asyncio.sleep(0.05)  # the replica's transport learns it

            async def send_and_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read(8)
                writer.write(encode_unit(Unit(0, log), "plain"))
                await synced.wait()
                connection = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                gone.set()

            copy.wait_stored = wait  # type: ignore[method-assign]
            async with await asyncio.start_server(send_and_reset, "127.0.0.1", 0) as server:
                address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
                with pytest.raises(ConnectionResetError):
                    await Follower(copy, _epochs(tmp_path), "plain", 1).run(address)
            assert copy.positions[0] == end

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_only_durable_bytes_are_sent(tmp_path: Path) -> None:
    """A replica never gets bytes that the master could lose in a power cut."""
    with MessageStore.open(StoreConfig.tiny(tmp_path / "a")) as store:
        store.append([Message("T", 0, b"x")])
        store.flush()
        durable = store.positions[2]
        store.append([Message("T", 0, b"y")])
        store.commit()
        async with _master(store, _epochs(tmp_path, (1, 0)), heartbeat=0.01) as (address, _):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(encode_report(0, "plain"))
            frames, units = MasterReader("plain"), list[Unit]()
            while not units or units[-1].body:
                units += frames.feed(await reader.read(1 << 16))
            assert units[-1] == Unit(durable, b"")
            writer.close()


@pytest.mark.parametrize(
    ("masters", "own", "error"),
    [
        ([(1, 0)], [(1, 0), (2, 0)], ReplicationFormatError),  # the master is older
        ([(1, 0), (3, 0)], [(1, 0), (2, 0)], DivergedError),  # both wrote after the common epoch
        ([(2, 0)], [(1, 0)], DivergedError),  # no common epoch
    ],
)
async def test_a_replica_compares_epochs_before_the_first_byte(
    tmp_path: Path, masters: list[tuple[int, int]], own: list[tuple[int, int]], error: type[Exception]
) -> None:
    """A replica refuses an older master and one whose log differs from its own."""
    for name in ("a", "b"):
        (tmp_path / f"e{name}").mkdir()
    async with _running(tmp_path / "a") as store, _running(tmp_path / "b") as copy:
        await _append(store, 3)
        end = await _append(copy, 2)
        async with _master(store, _epochs(tmp_path / "ea", *masters)) as (address, _):
            with pytest.raises(error):
                await Follower(copy, _epochs(tmp_path / "eb", *own), "epochs", 1).run(address)
        assert copy.positions[0] == end


async def test_a_replica_learns_the_epochs_with_the_bytes(tmp_path: Path) -> None:
    """No unit spans two epochs, and an epoch is recorded before its first byte is stored."""
    for name in ("a", "b"):
        (tmp_path / f"e{name}").mkdir()
    async with _running(tmp_path / "a") as store, _running(tmp_path / "b") as copy:
        first = await _append(store, 3)
        epochs = _epochs(tmp_path / "ea", (1, 0), (2, first))
        end = await _append(store, 3)
        own = _epochs(tmp_path / "eb")
        async with _master(store, epochs) as (address, found):
            following = asyncio.create_task(Follower(copy, own, "epochs", 7).run(address))
            async with asyncio.timeout(60):
                while found.acked().get(("id", "7")) != end:  # noqa: ASYNC110 - another task does it
                    await asyncio.sleep(0.01)
            assert own.all == (Epoch(1, 0), Epoch(2, first))
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_the_golden_replica(tmp_path: Path) -> None:
    """The recorded reports of a RocketMQ replica are replayed, and the units sent to it make up the log."""
    stream = golden_remoting.streams()["default-5.3.3"]
    bodies = [unit for unit in MasterReader("plain").feed(stream.master_to_slave) if unit.body]
    log, base = b"".join(unit.body for unit in bodies), bodies[0].offset
    reports = ReplicaReader().feed(stream.slave_to_master)
    with MessageStore.open(replace(StoreConfig.tiny(tmp_path / "a"), segment_size=1 << 20)) as store:
        if base:
            store.follower.begin_at(base)
        store.follower.receive(base, log)
        store.flush()
        async with _master(store, _epochs(tmp_path, (1, base)), heartbeat=0.01) as (address, found):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            frames, received = MasterReader("plain"), b""
            writer.write(encode_report(reports[0], "plain"))
            for report in reports[1:]:
                while base + len(received) < report:
                    units = frames.feed(await reader.read(1 << 16))
                    received += b"".join(unit.body for unit in units)
                writer.write(encode_report(report, "plain"))
            assert received == log
            async with asyncio.timeout(60):
                while not found.connections or found.connections[0].acked < reports[-1]:  # noqa: ASYNC110 - elsewhere
                    await asyncio.sleep(0.01)
            writer.close()


@pytest.mark.parametrize("protocol", ["plain", "epochs"])
async def test_a_learner_counts_for_nothing(tmp_path: Path, protocol: Protocol) -> None:
    """It gets the log, and no message counts as replicated: it could not become the master."""
    async with _running(tmp_path / "a") as store, _running(tmp_path / "b") as copy:
        end = await _append(store, 3)
        epochs = _epochs(tmp_path, (1, 0))
        async with _master(store, epochs, rocketmq_acks=True) as (address, found):
            follower = Follower(copy, _epochs(tmp_path / "b"), protocol, 2, is_learner=True, heartbeat_seconds=0.01)
            following = asyncio.create_task(follower.run(address))
            async with asyncio.timeout(60):
                while copy.positions[2] < end or not found.connections:  # noqa: ASYNC110 - other tasks
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)  # a report of what it has would come now
            assert found.confirmed() < end
            assert found.in_sync_count == 0
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
