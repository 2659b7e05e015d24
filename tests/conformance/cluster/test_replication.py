"""Items 99 to 115: replication between our brokers, and with peers that implement only the protocol."""

from __future__ import annotations

import asyncio
import re
import struct
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from aerobee_broker.config import Address, BrokerConfig, Settings
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, RemotingServer
from aerobee_broker.remoting_wire.fields import answer
from aerobee_broker.remoting_wire.frame import FRAME_SIZE_MAX, Command
from aerobee_broker.replication.frames import MasterReader, Unit, encode_report
from aerobee_broker.replication.metadata import Metadata
from aerobee_broker.tables.table_files import Tables
from aerobee_store import MessageStore
from aerobee_store.records import record
from aerobee_store.records.record import Message
from aerobee_store.tables import java_json
from aerobee_store.testing.travelling_clock import TravellingClock
from aerobee_store.timer.checkpoint import TimerCheckpoint, TimerCheckpointFile
from aerobee_store.timer.log import TimerLog
from tests.conformance.cluster.test_name_servers import name_server
from tests.support import golden_remoting
from tests.support.ports import two_ports
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, records, send
from tests.support.replicating import Master, eventually, log_bytes, master, replica, store_config

_REPORT = struct.Struct(">q")


class _Peer:
    """One side of a connection to a master."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.frames = MasterReader("plain")

    @classmethod
    async def connect(cls, address: Address) -> _Peer:
        return cls(*await asyncio.open_connection(address.host, address.port))

    def report(self, offset: int) -> None:
        self._writer.write(encode_report(offset, "plain"))

    async def units(self) -> list[Unit]:
        """The units received; empty once the master has closed."""
        async with asyncio.timeout(60):
            while data := await self._reader.read(1 << 16):
                if found := self.frames.feed(data):
                    return found
        return []

    async def log(self, end: int) -> list[Unit]:
        """The units up to this offset."""
        found: list[Unit] = []
        while not found or found[-1].offset + len(found[-1].body) < end:
            units = await self.units()
            assert units, "the master closed the connection"
            found += [unit for unit in units if unit.body]
        return found

    def close(self) -> None:
        self._writer.close()


async def _fill(found: Master, count: int, body: bytes = b"x" * 300) -> int:
    """Send messages; returns the log's end afterwards."""
    for number in range(count):
        assert (await send(found.client, "T", body, queue_id=number % 4)).code == Answer.SUCCESS
    return int((await found.status())["masterCommitLogMaxOffset"])


async def test_c099_a_new_replica_gets_the_log_from_its_beginning(tmp_path: Path) -> None:
    """Units have at most 32 KiB, stay within one file and end with a record; blanks are sent, too."""
    async with master(tmp_path / "a") as found:
        end = await _fill(found, 120)
        peer = await _Peer.connect(found.ha)
        peer.report(0)
        units = await peer.log(end)
        peer.close()
    assert units[0].offset == 0
    for unit in units:
        assert len(unit.body) <= 32 << 10
        assert unit.offset // 16384 == (unit.offset + len(unit.body) - 1) // 16384
    log = b"".join(unit.body for unit in units)
    assert log_bytes(tmp_path / "a").startswith(log)
    assert len(log) > 2 * 16384


async def test_a_record_larger_than_a_unit_is_sent_whole(tmp_path: Path) -> None:
    """A RocketMQ replica appends each unit, so its log never ends inside a record."""
    async with master(tmp_path / "a", segment_size=1 << 20) as found:
        end = await _fill(found, 3, b"x" * 8000)
        end = await _fill(found, 30, b"y" * 3000)
        peer = await _Peer.connect(found.ha)
        peer.report(0)
        for unit in await peer.log(end):
            at = 0
            while at < len(unit.body):
                header = record.peek(unit.body, at, physical_offset=unit.offset + at)
                assert isinstance(header, record.RecordHeader)
                at += header.size
        peer.close()


@pytest.mark.parametrize("offset", [5, -1, 1 << 60, 1 << 32])
async def test_c104_requests_that_cannot_be_served(tmp_path: Path, offset: int) -> None:
    """Offsets inside a record, beyond the end or negative: the connection is closed, and nothing is sent."""
    async with master(tmp_path / "a") as found:
        await _fill(found, 3)
        peer = await _Peer.connect(found.ha)
        peer.report(offset)
        assert await peer.units() == []
        peer.close()
        assert (await found.status())["haConnectionInfo"] == []


async def test_c103_a_forged_report_does_not_count(tmp_path: Path) -> None:
    """A report beyond the bytes sent closes the connection, and the next send still finds no replica."""
    async with master(tmp_path / "a", acks="1", rocketmq_acks=True) as found:
        peer = await _Peer.connect(found.ha)
        peer.report(0)
        await eventually(lambda: _in_sync(found, 1))
        sending = asyncio.ensure_future(send(found.client, "T"))
        (unit, *_) = await peer.units()
        peer.report(1 << 60)
        assert await peer.units() == []
        peer.close()
        assert (await sending).code in (Answer.SLAVE_NOT_AVAILABLE, Answer.FLUSH_SLAVE_TIMEOUT)
        assert (await send(found.client, "T")).code == Answer.SLAVE_NOT_AVAILABLE
        assert unit.offset == 0


async def test_c105_a_send_waits_for_the_acknowledgement(tmp_path: Path) -> None:
    """11 without a replica, 12 after the timeout, 0 once the replica has confirmed; the message is stored each time."""
    async with master(tmp_path / "a", acks="1", rocketmq_acks=True, ack_timeout_seconds=0.2) as found:
        first = await send(found.client, "T")
        assert first.code == Answer.SLAVE_NOT_AVAILABLE
        assert first.fields["queueOffset"] == "0"
        peer = await _Peer.connect(found.ha)
        peer.report(0)
        await peer.log(int((await found.status())["masterCommitLogMaxOffset"]))
        second = await send(found.client, "T")
        assert (second.code, second.fields["queueOffset"]) == (Answer.FLUSH_SLAVE_TIMEOUT, "1")
        peer.close()
    async with master(tmp_path / "a", acks="1", rocketmq_acks=True, ack_timeout_seconds=60.0) as found:
        peer = await _Peer.connect(found.ha)
        end = int((await found.status())["masterCommitLogMaxOffset"])
        peer.report(end)
        await eventually(lambda: _in_sync(found, 1))
        sending = asyncio.ensure_future(send(found.client, "T"))
        while not sending.done():
            reading = asyncio.ensure_future(peer.units())
            await asyncio.wait([sending, reading], return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not reading.done():
                reading.cancel()
                break
            units = reading.result()
            peer.report(units[-1].offset + len(units[-1].body))
        assert (await sending).code == Answer.SUCCESS
        assert (await sending).fields["queueOffset"] == "2"
        peer.close()


async def test_c107_nothing_acknowledged_is_missing_on_the_replica(tmp_path: Path) -> None:
    """The replica is stopped repeatedly during sends; every message answered with 0 is in its log."""
    answered: set[bytes] = set()
    async with master(tmp_path / "a", acks="1") as found:
        for turn in range(3):
            async with replica(tmp_path / "b", found.broker.remoting):
                first = f"{turn} first".encode()

                async def confirmed(body: bytes = first) -> bool:
                    return (await send(found.client, "T", body)).code == Answer.SUCCESS

                await eventually(confirmed)
                answered.add(first)
                sends = {
                    (body := f"{turn}-{number}".encode()): asyncio.ensure_future(send(found.client, "T", body))
                    for number in range(40)
                }
                await asyncio.wait(sends.values(), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(sends.values())
            answered |= {body for body, sent in sends.items() if sent.result().code == Answer.SUCCESS}
    assert answered
    copied = log_bytes(tmp_path / "b")
    assert log_bytes(tmp_path / "a").startswith(copied)
    assert {body for body in answered if body not in _bodies(tmp_path / "b")} == set()


async def test_a_replica_of_ours_has_the_same_log_and_tables(tmp_path: Path) -> None:
    """This holds across files and after an interruption; consumers read from it, and it refuses sends."""
    async with master(tmp_path / "a") as found:
        async with replica(tmp_path / "b", found.broker.remoting) as copy:
            await copy.follows_to(await _fill(found, 80))
        end = await _fill(found, 80)
        group = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 3}
        await found.client.call(Request.PULL_MESSAGE, pull_fields("T"))  # creates the group
        assert (await found.client.call(Request.UPDATE_CONSUMER_OFFSET, group)).code == 0
        mode = {"topic": "T", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0}
        assert (await found.client.call(Request.SET_MESSAGE_REQUEST_MODE, body=mode)).code == 0
        async with replica(tmp_path / "b", found.broker.remoting) as copy:
            await copy.follows_to(end)

            async def has_modes() -> bool:
                return (tmp_path / "b" / "config" / "messageRequestMode.json").exists()

            await eventually(has_modes)

            async def copied() -> bool:
                answer = await copy.client.call(Request.QUERY_CONSUMER_OFFSET, group)
                return answer.fields.get("offset") == "3"

            await eventually(copied)
            pulled = await copy.client.call(Request.PULL_MESSAGE, pull_fields("T", group="CG"))
            same = await found.client.call(Request.PULL_MESSAGE, pull_fields("T", group="CG"))
            assert (pulled.code, pulled.body) == (0, same.body)
            assert records(pulled.body)[0].topic == "T"
            for code in (Request.GET_ALL_TOPIC_CONFIG, Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG):
                own, masters = json_body(await copy.client.call(code)), json_body(await found.client.call(code))
                assert all(masters[name] == value for name, value in own.items())
            status = await found.status()
            assert [(item["replicaId"], item["inSync"]) for item in status["haConnectionInfo"]] == [("1", True)]
    assert log_bytes(tmp_path / "a").startswith(log_bytes(tmp_path / "b"))
    assert len(log_bytes(tmp_path / "b")) >= end - 16


async def test_c016_the_vip_port(tmp_path: Path) -> None:
    """At the port minus two, RocketMQ's replicas ask for topics and the timer's state. Sends work there, too."""
    fast_port, port = two_ports()
    async with master(tmp_path, remoting_port=port) as found:
        fast = await RemotingClient.connect(Address("127.0.0.1", fast_port))
        assert (await fast.call(Request.EXCHANGE_BROKER_HA_INFO)).fields["masterHaAddress"] == str(found.ha)
        assert (await send(fast, "T")).code == 0
        assert "T" in json_body(await fast.call(Request.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]
        assert len((await fast.call(Request.GET_TIMER_CHECK_POINT)).body) == 56
        metrics = json_body(await fast.call(Request.GET_TIMER_METRICS))
        assert metrics["timingCount"] == {}
        await fast.close()


async def test_c112_metadata_of_a_replica(tmp_path: Path) -> None:
    """The tables are equal. What tells of deliveries arrives once the log has them. Then nothing changes.

    What a master told that was replaced meanwhile does not count: the next one's log may lack these deliveries.
    """
    codes = (
        Request.GET_ALL_TOPIC_CONFIG,
        Request.GET_ALL_CONSUMER_OFFSET,
        Request.GET_ALL_DELAY_OFFSET,
        Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
        Request.GET_ALL_MESSAGE_REQUEST_MODE,
        Request.GET_TIMER_CHECK_POINT,
    )
    golden = {code: golden_remoting.answer_to(golden_remoting.requests(code, "slave-sync")[0]) for code in codes}
    bodies: dict[int, bytes] = {code: found.body for code, found in golden.items() if found is not None}
    assert bodies.keys() == set(codes)
    topics: Any = java_json.loads(bodies[Request.GET_ALL_TOPIC_CONFIG], object_keys=True)
    checkpoint = TimerCheckpoint.decode(bodies[Request.GET_TIMER_CHECK_POINT])
    assert checkpoint is not None
    asked: list[int] = []

    class JavaMaster:
        frame_size_max = FRAME_SIZE_MAX

        def __init__(self, end: int) -> None:
            self._end = end

        async def ask(self, request: Command, _: float) -> Command:
            asked.append(request.code)
            if request.code == Request.GET_BROKER_RUNTIME_INFO:
                return answer(body={"table": {"commitLogMinOffset": "0", "commitLogMaxOffset": str(self._end)}})
            answered = answer()
            answered.body = bodies[request.code]
            return answered

    replaced, java = (cast(Connection, JavaMaster(end)) for end in (100, 1000))
    clock = TravellingClock()
    with MessageStore.open(store_config(tmp_path)) as store:
        tables = Tables.load(Settings(BrokerConfig.tiny(tmp_path)), clock, store.file_system, store.in_disk_thread)
        metadata = Metadata(store, tables, clock)
        file = TimerCheckpointFile(store.file_system, tmp_path / "config" / "timercheck")
        await metadata.copy(replaced, 0)
        assert {topic.name for topic in tables.topics} == set(topics["topicConfigTable"])
        copied = metadata.copied
        await metadata.copy(replaced, 0)
        assert (metadata.copied, file.load()) == (copied, None), "the log here is empty"
        delays = tmp_path / "config" / "delayOffset.json"
        assert not delays.exists(), "likewise"
        store.append([Message("T", 0, b"x" * 200)])
        store.flush()
        await metadata.copy(java, 0)
        assert (metadata.copied, file.load()) == (copied, None), "the log here has what the replaced master had"
        assert not delays.exists(), "likewise"
        store.append([Message("T", 0, b"x" * 800)])
        store.flush()
        await metadata.copy(java, 0)
        found = file.load()
        assert found is not None
        assert (found.read_time_ms, found.queue_offset) == (checkpoint.read_time_ms, checkpoint.queue_offset)
        assert not TimerLog(store.file_system, tmp_path / "timerlog", 4096).covers(0, found.log_position)
        assert java_json.loads(delays.read_bytes()) == java_json.loads(bodies[Request.GET_ALL_DELAY_OFFSET])
        await metadata.copy(java, 0)
        assert metadata.copied == copied + 2, "the same again is no change"
    assert set(codes) <= set(asked)


async def test_c114_a_replica_refuses_sends(tmp_path: Path) -> None:
    """The code makes producers try another broker; offsets are committed only on the master."""
    async with master(tmp_path / "a") as found, replica(tmp_path / "b", found.broker.remoting) as copy:
        refused = await send(copy.client, "T")
        assert (refused.code, refused.remark[:15] if refused.remark else "") == (Answer.SYSTEM_BUSY, "[REJECTREQUEST]")
        commit = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 3}
        assert (await copy.client.call(Request.UPDATE_CONSUMER_OFFSET, commit)).code == Answer.SYSTEM_BUSY
        unknown = await copy.client.call(Request.UPDATE_AND_CREATE_TOPIC)
        assert unknown.code == Answer.REQUEST_CODE_NOT_SUPPORTED


async def test_a_promoted_replica_goes_on(tmp_path: Path) -> None:
    """It has every message and appends at the next offsets in a new epoch; configured as a replica again, it is one."""
    async with master(tmp_path / "a") as found:
        end = await _fill(found, 30)
        async with replica(tmp_path / "b", found.broker.remoting) as copy:
            await copy.follows_to(end)
            listening = await copy.promote()
            client = await RemotingClient.connect(listening.remoting)
            epochs = json_body(await client.call(Request.GET_BROKER_EPOCH_CACHE))["epochList"]
            assert [epoch["epoch"] for epoch in epochs] == [1, 2]
            assert epochs[1]["startOffset"] >= end
            before = json_body(await client.call(Request.GET_BROKER_HA_STATUS))
            assert before["master"]
            sent = await send(client, "T", queue_id=0)
            assert (sent.code, sent.fields["queueOffset"]) == (0, "8")
            await client.close()
    async with replica(tmp_path / "b", found.broker.remoting) as again:
        assert not again.promoted.done()
        assert not (await again.status())["master"]


async def test_c108_the_golden_master(tmp_path: Path) -> None:
    """The bytes that a RocketMQ master sent become our log; every report covers only durable bytes."""
    stream = golden_remoting.streams()["default-5.3.3"].master_to_slave
    units = [unit for unit in MasterReader("plain").feed(stream) if unit.body]
    end = units[-1].offset + len(units[-1].body)
    async with (
        _scripted(stream) as script,
        replica(tmp_path / "b", script.remoting, segment_size=1 << 20, master_ha=str(script.ha)) as copy,
    ):
        await copy.follows_to(end)
        await script.reported(end)
    assert log_bytes(tmp_path / "b") == b"".join(unit.body for unit in units).rstrip(b"\0")
    assert script.reports == sorted(script.reports)
    with MessageStore.open(store_config(tmp_path / "b", 1 << 20)) as store:
        assert store.recovery.units_added == 0


@pytest.mark.parametrize("bad", ["offset", "garbage", "zeros", "checksum", "size"])
async def test_c109_transfers_that_do_not_continue_the_log(tmp_path: Path, bad: str) -> None:
    """Nothing is appended, the connection ends, and the replica reconnects; then it accepts the right bytes."""
    units = MasterReader("plain").feed(golden_remoting.streams()["default-4.9.7"].master_to_slave)
    first, second, *_ = [unit for unit in units if unit.body]
    body = bytearray(second.body)
    header = record.peek(second.body, physical_offset=second.offset)
    assert isinstance(header, record.RecordHeader)
    body[header.body_start] ^= 1
    wrong = {
        "offset": _unit(second.offset + 1, second.body),
        "garbage": _unit(second.offset, bytes(range(1, 101))),
        "zeros": _unit(second.offset, bytes(2000)),
        "checksum": _unit(second.offset, bytes(body)),
        "size": struct.pack(">qi", second.offset, 4 << 20),
    }[bad]
    async with (
        _scripted(_unit(first.offset, first.body) + wrong) as script,
        replica(tmp_path / "b", script.remoting, segment_size=1 << 20, master_ha=str(script.ha)) as copy,
    ):
        await copy.follows_to(len(first.body))
        await script.closed(2)  # the replica reconnected, and left
        assert (await copy.status())["masterCommitLogMaxOffset"] == len(first.body)
        script.stream = _unit(second.offset, second.body)
        await copy.follows_to(second.offset + len(second.body))
    assert log_bytes(tmp_path / "b") == first.body + second.body


async def test_c115_a_replica_that_has_diverged(tmp_path: Path) -> None:
    """Its last record differs from the master's there; nothing is deleted, and the reason is reported."""
    async with master(tmp_path / "a") as found:
        async with replica(tmp_path / "b", found.broker.remoting) as copy:
            await copy.follows_to(await _fill(found, 20))
            client = await RemotingClient.connect((await copy.promote()).remoting)
            await send(client, "T", b"only here")
            await client.close()
        (tmp_path / "b" / "replicationRole").unlink()  # an operator does this to make it follow the old master
        await _fill(found, 5)
        async with replica(tmp_path / "b", found.broker.remoting) as copy:

            async def refused() -> bool:
                return "differs from the master's" in (await copy.status())["haClientRuntimeInfo"]["lastError"]

            await eventually(refused)
    assert b"only here" in log_bytes(tmp_path / "b")


async def test_c113_the_master_starts_later(tmp_path: Path) -> None:
    """Until the master is up, the replica retries and reports why it does not follow."""
    async with master(tmp_path / "a") as first:
        address = first.broker.remoting
    async with replica(tmp_path / "b", address) as copy:

        async def said() -> bool:
            return bool((await copy.status())["haClientRuntimeInfo"]["lastError"])

        await eventually(said)


async def test_a_replica_finds_its_master_by_name_servers(tmp_path: Path) -> None:
    """Routes list both; after the promotion they list the replica as the master."""
    async with name_server(tmp_path / "ns") as names:
        servers = (str(names),)
        asking = await RemotingClient.connect(names)

        async def addresses() -> Any:
            answered = await asking.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "T"})
            return json_body(answered)["brokerDatas"][0]["brokerAddrs"] if answered.code == 0 else {}

        async with AsyncExitStack() as first:
            found = await first.enter_async_context(master(tmp_path / "a", namesrv=servers))
            end = await _fill(found, 5)
            async with replica(tmp_path / "b", None, namesrv=servers) as copy:
                await copy.follows_to(end)
                both = {"0": str(found.broker.remoting), "1": str(copy.remoting)}

                async def routed() -> bool:
                    return bool(await addresses() == both)

                async def has_topics() -> bool:
                    answered = await copy.client.call(Request.GET_ALL_TOPIC_CONFIG)
                    return "T" in json_body(answered)["topicConfigTable"]

                await eventually(routed)
                await eventually(has_topics)
                text = await asyncio.to_thread(_metrics_of, found)
                assert re.search(r'^aerobee_replica_lag_bytes{replica="1"} 0(\.0)?$', text, re.MULTILINE)
                assert re.search(r"^aerobee_replicas_in_sync(\{\})? 1(\.0)?$", text, re.MULTILINE)
                await copy.has_tables()  # while there is a master
                await first.aclose()
                listening = await copy.promote()

                async def moved() -> bool:
                    return bool(await addresses() == {"0": str(listening.remoting)})

                await eventually(moved)
        await asking.close()


def _metrics_of(found: Master) -> str:
    with urllib.request.urlopen(f"http://{found.broker.metrics}/metrics", timeout=60) as answered:
        text: str = answered.read().decode()
    return text


class _Script:
    """A master with scripted output, and the reports it received."""

    def __init__(self, stream: bytes) -> None:
        self.stream = stream
        self.first = MasterReader("plain").feed(stream)[0].body
        self.reports: list[int] = []
        self.remoting = self.ha = Address("127.0.0.1", 0)
        self._closed = 0
        self._changed = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection of a replica: send everything after its first report."""
        try:
            first = True
            while data := await reader.read(1 << 16):
                async with self._changed:
                    self.reports += [offset for (offset,) in _REPORT.iter_unpack(data[: len(data) // 8 * 8])]
                    self._changed.notify_all()
                if first:
                    writer.write(self.stream)
                    first = False
        except ConnectionError:
            pass
        finally:
            writer.close()
            async with self._changed:
                self._closed += 1
                self._changed.notify_all()

    async def answer(self, request: Command, _: Connection) -> Command:
        """Answer like a RocketMQ master without a record at 0."""
        if request.code == Request.GET_BROKER_RUNTIME_INFO:
            return answer(body={"table": {"commitLogMinOffset": "0"}})
        if request.code == Request.VIEW_MESSAGE_BY_ID and self.reports:
            return answer(body=self.first)  # the replica compares its last record
        return answer(code=1, remark="no such thing")

    async def reported(self, offset: int) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: offset in self.reports)

    async def closed(self, count: int) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: self._closed >= count)


@asynccontextmanager
async def _scripted(stream: bytes) -> AsyncIterator[_Script]:
    script = _Script(stream)
    remoting = RemotingServer(script.answer)
    script.remoting = await remoting.listen("test", Address("127.0.0.1", 0))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.ha = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield script
    finally:
        server.close()
        await remoting.stop(0)


def _unit(offset: int, body: bytes) -> bytes:
    return struct.pack(">qi", offset, len(body)) + body


def _bodies(directory: Path) -> set[bytes]:
    with MessageStore.open(store_config(directory)) as store:
        return {
            found.body
            for queue_id in store.queue_ids("T")
            for offset in range(*store.queue_range("T", queue_id))
            for found in store.read("T", queue_id, offset, max_count=1).records
        }


async def _in_sync(found: Master, count: int) -> bool:
    return bool((await found.status())["inSyncSlaveNums"] == count)
