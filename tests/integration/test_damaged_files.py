"""Every kind of file of a store, damaged in every way: docs/damaged-files.md has what a start does then.

A start recovers all answered messages, or reports what is lost, or refuses with the file and the next step. It never
loses anything in silence.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from aerobee_broker.config import Address
from aerobee_broker.delivery.journal.event_log import JOURNAL_GROUP, JOURNAL_TOPIC
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_client import Client, ClientError, Credentials, Message, connect
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from aerobee_store import StoreError
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.log.log_claims import ATTRIBUTE
from aerobee_store.queues.consume_queue import UNIT
from aerobee_store.records import inner_batch
from aerobee_store.records.record import Draft
from aerobee_store.tables.json_table import JsonTable
from aerobee_store.timer.log import UNIT_SIZE
from aerobee_store.tools.verify import verify
from tests.support.accounts_file import write_accounts
from tests.support.remoting_client import RemotingClient, json_body, send_fields, signed

IS_LONG: Final = "AEROBEE_CRASH_CYCLES" in os.environ
PAGE: Final = Path(__file__).parents[2] / "docs" / "damaged-files.md"
pytestmark = pytest.mark.timeout(3600 if IS_LONG else 300)

_QUEUE_FILE_SIZE: Final = 1000
_SETTINGS: Final = {
    "store.segment_size": 65_536,
    "store.body_size_max": 16_384,
    "store.queue_file_size": _QUEUE_FILE_SIZE,
    "store.batch_queue_file_size": 460,
    "store.queue_extensions": True,
    "store.queue_extension_file_size": 1024,
    "store.index_slot_count": 50,
    "store.index_entry_count": 100,
    "store.segments_ahead": 0,
    "store.disk_headroom": 0,
    "store.disk_clean_ratio": 1.0,
    "store.disk_force_clean_ratio": 1.0,
    "store.disk_full_ratio": 1.0,
    "delivery.filter_bitmaps": True,
    "timer.slot_count": 1000,
    "timer.roll_window_slots": 400,
    "timer.log_file_size": 2 * UNIT_SIZE + 20,  # two units each
}
_OWNER: Final = Credentials("owner", "owner-secret")
_ACCOUNTS: Final = "accounts.toml"
_LOG: Final = "log"
_COUNT: Final = 60
_FINISHED: Final = 5
_ATTEMPTS: Final = 4
_BATCHES: Final = "batches"
_NEXT_STEP: Final = re.compile(
    r"restore|repair|rebuild|remove|move |check|correct|set |choose|stop |start |copy|not a file of this store"
)
_SAID: Final = re.compile(r" (WARNING|ERROR|CRITICAL) ")


# --- The store ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """A store, and what was answered: the bodies by topic, and those that a group has not finished."""

    directory: Path
    bodies: dict[str, set[bytes]]
    unfinished: set[bytes]


async def _fill(broker: BrokerProcess) -> tuple[dict[str, set[bytes]], set[bytes]]:
    orders = [b"%d " % number + b"x" * 2000 for number in range(_COUNT)]
    delayed = [b"delayed %d" % number for number in range(6)]
    batched = [b"batched %d" % number for number in range(30)]
    async with connect(broker.endpoint, credentials=_OWNER) as client:
        admin, producer = client.admin, client.producer()
        for name in ("orders", "gone"):
            await admin.create_topic(name, queue_count=1)
        await admin.create_topic("delayed", message_types=[v2.MessageType.DELAY], queue_count=1)
        await admin.create_topic(_BATCHES, queue_count=1, attributes={"queue.type": "BatchCQ"})
        await admin.create_group("billing")
        await producer.send_many(
            [Message(topic="orders", body=each, keys=(f"k{number}",), tag="t") for number, each in enumerate(orders)]
        )
        await producer.send(Message(topic="gone", body=b"gone"))
        await admin.delete_topic("gone")
        for number, each in enumerate(delayed):
            due = broker.now_ms() + (100 + 300 * number) * 1000
            await producer.send(Message(topic="delayed", body=each, delivery_timestamp=due))
        for first in range(0, len(batched), 3):
            body = inner_batch.body_of([(each, b"") for each in batched[first : first + 3]])
            message = inner_batch.message_of(_BATCHES, 0, body, 3)
            await client.records.append(
                _BATCHES, 0, Draft(message, store_host=("0.0.0.0", 0), property_crc=True).encode_unplaced()
            )
        await admin.update_configuration({"store.retention_hours": "100"})
        consumer = client.simple_consumer("billing", "orders")
        received = await consumer.receive(2 * _FINISHED)
        await consumer.ack(received[1::2])  # not the first ones: only the delivery journal knows these
        finished = {message.body for message in received[1::2]}
    mode = {"topic": "orders", "consumerGroup": "billing", "mode": "POP", "popShareQueueNum": 0}
    level = send_fields("orders", properties="DELAY\x011\x02WAIT\x01true\x02")
    for answer in (
        await _ask(broker.endpoint, Request.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode()),
        await _ask(broker.endpoint, Request.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
        await _ask(broker.endpoint, Request.SEND_MESSAGE_V2, level, b"level"),
    ):
        assert answer.code == Answer.SUCCESS, answer.remark
    everything = {"orders": {*orders, b"level"}, "delayed": set(delayed), _BATCHES: set(batched)}
    return everything, everything["orders"] - finished


async def _delete_letter(broker: BrokerProcess) -> None:
    async with connect(broker.endpoint, credentials=_OWNER) as client, asyncio.timeout(60):
        while not [each async for each in client.admin.dead_letters("later")]:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)
        assert await client.admin.delete_dead_letters("later", [0]) == 1


async def _ask(endpoint: str, code: Request, fields: dict[str, object], body: bytes = b"") -> Command:
    remoting = await RemotingClient.connect(Address.parse(endpoint))
    try:
        return await remoting.call(code, signed(_OWNER.access_key, fields, body), body)
    finally:
        await remoting.close()


def _broker(directory: Path, log: Path) -> BrokerProcess:
    return BrokerProcess(
        directory / "store",
        log,
        ["--listen-remoting", "127.0.0.1:0", "--accounts", str(directory / _ACCOUNTS)],
        settings={**_SETTINGS, "store.commit_log_paths": [str(directory / "store" / _LOG)]},
        moving_time=True,
    )


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    """The same contents twice: of a broker that was stopped, and of one that was killed."""
    found = {}
    for name in ("stopped", "killed"):
        directory = tmp_path_factory.mktemp(name)
        text = f'[accounts.owner]\nadmin = true\nsecret_key = "{_OWNER.secret_key}"\n'
        accounts = write_accounts(directory / _ACCOUNTS, text)
        broker = _broker(directory, directory / "broker.log")
        try:
            broker.start()
            bodies, unfinished = asyncio.run(_fill(broker))
            broker.advance(60)
            broker.restart()  # tables that were saved twice have a copy, and logs of changes begin
            asyncio.run(_change(broker))
            broker.advance(30)  # what was received has become a dead letter
            asyncio.run(_delete_letter(broker))
            broker.advance(60)
            broker.stop() if name == "stopped" else broker.kill()
        finally:
            broker.close()
        (directory / "store").rename(directory / "kept")
        shutil.copy2(accounts, directory / "kept-accounts")
        found[name] = Written(directory, bodies, unfinished)
    return found


async def _change(broker: BrokerProcess) -> None:
    """A change of every table that has a log of changes."""
    async with connect(broker.endpoint, credentials=_OWNER) as client:
        await client.admin.create_topic("later", queue_count=1)
        await client.admin.create_group("later", max_attempts=1)
        assert await client.simple_consumer("later", "orders").receive(1, invisible_seconds=20)
        await client.producer().send(Message(topic="later", body=b"later"))
        await client.admin.update_configuration({"store.retention_hours": "101"})
    answer = await _ask(broker.endpoint, Request.WIPE_WRITE_PERMISSION_OF_BROKER, {"brokerName": "aerobee"})
    assert answer.code == Answer.SUCCESS, answer.remark


# --- Damage -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WholeFile:
    """What is damaged: a file."""

    path: Path

    def read(self) -> bytes:
        return self.path.read_bytes()

    def write(self, data: bytes) -> None:
        os.truncate(self.path, len(data))
        with self.path.open("r+b") as file:
            file.write(data)

    def remove(self) -> None:
        self.path.unlink()


@dataclass(frozen=True, slots=True)
class PartOfFile:
    """Some bytes of a file."""

    path: Path
    begin: int
    size: int

    def read(self) -> bytes:
        return self.path.read_bytes()[self.begin : self.begin + self.size]

    def write(self, data: bytes) -> None:
        assert len(data) == self.size
        with self.path.open("r+b") as file:
            file.seek(self.begin)
            file.write(data)


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a directory."""

    path: Path
    name: str

    def read(self) -> bytes:
        return os.getxattr(self.path, self.name)

    def write(self, data: bytes) -> None:
        os.setxattr(self.path, self.name, data)

    def remove(self) -> None:
        os.removexattr(self.path, self.name)


Target = WholeFile | PartOfFile | Attribute


def _gone(target: WholeFile | Attribute) -> None:
    target.remove()


def _empty(target: WholeFile | Attribute) -> None:
    target.write(b"")


def _cut(target: WholeFile | Attribute) -> None:
    data = target.read()
    target.write(data[: len(data) // 2])


def _zeros(target: Target) -> None:
    target.write(bytes(len(target.read())))


def _flipped(target: Target) -> None:
    """A bit of a delayed message; else of the middle one of the bytes that are not zero, or of the first byte."""
    data = bytearray(target.read())
    if data:
        used = [place for place, byte in enumerate(data) if byte]
        middle = used[len(used) // 2] if used else 0
        message = data.find(b"delayed 3")  # which record of a log is the middle one depends on how fast calls come
        data[middle if message < 0 else message] ^= 4
        target.write(bytes(data))


def _directory(target: WholeFile) -> None:
    target.remove()
    target.path.mkdir()


DAMAGES: Final[dict[str, Callable[[Any], None]]] = {
    "gone": _gone,
    "empty": _empty,
    "cut": _cut,
    "zeros": _zeros,
    "a flipped bit": _flipped,
    "a directory": _directory,
}
_APPLICABLE: Final[dict[type[Target], set[str]]] = {
    WholeFile: {*DAMAGES},
    PartOfFile: {"zeros", "a flipped bit"},
    Attribute: DAMAGES.keys() - {"a directory"},
}
_SNAPSHOT: Final = "commitlog, the snapshot of the delivery journal"
_CLAIM: Final = "commitlog, the claim of the directory"
KINDS: Final = {  # the pattern, and which of the files
    "commitlog, first segment": (f"{_LOG}/*", 0),
    "commitlog, middle segment": (f"{_LOG}/*", 1),
    "commitlog, last segment": (f"{_LOG}/*", -1),
    _SNAPSHOT: (f"{_LOG}/*", 0),
    _CLAIM: (_LOG, 0),
    "commitlog.paths": ("commitlog.paths", 0),
    "consumequeue, first file": ("consumequeue/orders/0/*", 0),
    "consumequeue, last file": ("consumequeue/orders/0/*", -1),
    "consumequeue of the delivery journal": ("consumequeue/rmq_sys_AEROBEE_DELIVERY/0/*", 0),
    "consumequeue of the timer": ("consumequeue/rmq_sys_wheel_timer/0/*", 0),
    "consumequeue_ext": ("consumequeue_ext/orders/0/*", 0),
    "batchconsumequeue, first file": ("batchconsumequeue/batches/0/*", 0),
    "batchconsumequeue, last file": ("batchconsumequeue/batches/0/*", -1),
    "index, first file": ("index/*", 0),
    "index, last file": ("index/*", -1),
    "timerwheel": ("timerwheel", 0),
    "timerlog, first file": ("timerlog/*", 0),
    "timerlog, last file": ("timerlog/*", -1),
    "config/timercheck": ("config/timercheck", 0),
    "config/topics.json": ("config/topics.json", 0),
    "config/topics.json.bak": ("config/topics.json.bak", 0),
    "config/topics.json.crc": ("config/topics.json.crc", 0),
    "config/topics.json.log": ("config/topics.json.log", 0),
    "config/subscriptionGroup.json": ("config/subscriptionGroup.json", 0),
    "config/consumerOffset.json": ("config/consumerOffset.json", 0),
    "config/consumerOffset.json.crc": ("config/consumerOffset.json.crc", 0),
    "config/delayOffset.json": ("config/delayOffset.json", 0),
    "config/messageRequestMode.json": ("config/messageRequestMode.json", 0),
    "config/kvConfig.json": ("config/kvConfig.json", 0),
    "config/aerobeeSettings.json": ("config/aerobeeSettings.json", 0),
    "config/deletedTopics.json": ("config/deletedTopics.json", 0),
    "config/aerobeeDeletedDeadLetters.json": ("config/aerobeeDeletedDeadLetters.json", 0),
    "config/wipedBrokers.json": ("config/wipedBrokers.json", 0),
    "config/aerobeeOperations.json": ("config/aerobeeOperations.json", 0),
    "checkpoint": ("checkpoint", 0),
    "abort": ("abort", 0),
    "lock": ("lock", 0),
    "store.id": ("store.id", 0),
    "queueBounds.json": ("queueBounds.json", 0),
    "the file of accounts": (f"../{_ACCOUNTS}", 0),
}


def _restore_accounts(directory: Path) -> None:
    path = directory / _ACCOUNTS
    if path.is_dir():
        path.rmdir()
    shutil.copy2(directory / "kept-accounts", path)


def _target(store: Path, kind: str) -> Target | None:
    pattern, number = KINDS[kind]
    if kind == _CLAIM:
        return Attribute(store / pattern, ATTRIBUTE)
    found = sorted(path for path in store.glob(pattern) if path.is_file())
    if kind == _SNAPSHOT:
        return _snapshot(store, found)
    return WholeFile(found[number]) if found else None


def _snapshot(store: Path, segments: Sequence[Path]) -> PartOfFile:
    """The record with which a replay of the journal begins."""
    offsets = JsonTable(DiskFileSystem(), store / "config" / "consumerOffset.json").load(report=False)
    assert isinstance(offsets, dict)
    [number] = offsets["offsetTable"][f"{JOURNAL_TOPIC}@{JOURNAL_GROUP}"].values()
    file_number, place = divmod(number * UNIT.size, _QUEUE_FILE_SIZE)
    queue_file = sorted((store / "consumequeue" / JOURNAL_TOPIC / "0").iterdir())[file_number]
    offset, size, _ = UNIT.unpack_from(queue_file.read_bytes(), place)
    [segment] = [path for path in segments if 0 <= offset - int(path.name) < path.stat().st_size]
    return PartOfFile(segment, offset - int(segment.name), size)


# --- What a start does --------------------------------------------------------------------------------------


async def _lacking(broker: BrokerProcess, written: Written, received: set[bytes]) -> list[str]:
    """What was answered and cannot be had. `received` by the group, in earlier attempts too."""
    lacking = []
    async with connect(broker.endpoint, retry_seconds=5, credentials=_OWNER) as client:
        topics = {topic.name for topic in await client.admin.list_topics()}
        for topic, bodies in written.bodies.items():
            if missing := bodies - (await _stored(client, topic) if topic in topics else set()):
                lacking.append(f"{len(missing)} messages of {topic}")
        if not [each async for each in client.admin.query("orders", key=f"k{_COUNT - 1}")]:
            lacking.append("a message by its key")
        lacking += await _changed_tables(client, broker.endpoint)
        consumer = client.simple_consumer("billing", "orders")
        while batch := await consumer.receive(32, invisible_seconds=36_000, wait_seconds=0.2):
            received |= {message.body for message in batch}
        if missing := written.unfinished - received:
            lacking.append(f"{len(missing)} messages for a group")
        if again := received - written.unfinished:
            lacking.append(f"the progress of a group: {len(again)} messages came again")
    return lacking


async def _changed_tables(client: Client, endpoint: str) -> list[str]:
    """The tables that lack their last change."""
    admin = client.admin
    lacking = []
    if "later" not in {topic.name for topic in await admin.list_topics()}:
        lacking.append("a topic")
    if "later" not in {group.name for group in await admin.list_groups()}:
        lacking.append("a group")
    if "101" not in {setting.value for setting in await admin.configuration("store.retention_hours")}:
        lacking.append("a setting")
    value = await _ask(endpoint, Request.GET_KV_CONFIG, {"namespace": "n", "key": "k"})
    if value.code != Answer.SUCCESS:
        lacking.append("a value of the name server")
    if b"POP" not in (await _ask(endpoint, Request.GET_ALL_MESSAGE_REQUEST_MODE, {})).body:
        lacking.append("a request mode")
    route = await _ask(endpoint, Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "orders"})
    if {queues["perm"] for queues in json_body(route)["queueDatas"]} != {4}:
        lacking.append("a wiped write permission")
    if [each async for each in admin.dead_letters("later")]:
        lacking.append("the deletion of a dead letter")
    if "DeleteDeadLetters" not in [each.method async for each in admin.operations()]:
        lacking.append("who changed what")
    return lacking


async def _stored(client: Client, topic: str) -> set[bytes]:
    found: set[bytes] = set()
    for queue in await client.records.offsets(topic):
        frames = client.records.read(
            topic, queue.queue_id, queue.min_offset, end=queue.max_offset, frame_size_max=1
        )  # one record each: a damaged one is no reason to leave out others
        async for frame in frames:
            with suppress(ClientError):
                found |= {message.body for message in frame.messages(topic, "")}
    return found


def _findings(store: Path) -> list[str]:
    """What `aerobee store verify` says of the store."""
    try:
        report = verify(store, index_slot_count=50, index_entry_count=100)
    except (StoreError, OSError) as error:
        return [str(error)]
    return [str(each) for each in report.findings]


def outcome(written: Written, kind: str, damage: str, directory: Path) -> str:
    """What becomes of the store with this damage. AssertionError for a loss in silence, or an unhelpful refusal."""
    # Always in the same place: the store has written down where its log is.
    store = written.directory / "store"
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(written.directory / "kept", store, symlinks=True)
    _restore_accounts(written.directory)
    target = _target(store, kind)
    if target is None or damage not in _APPLICABLE[type(target)]:
        return ""
    path = target.path
    before = _findings(store)
    DAMAGES[damage](target)
    found = [each for each in _findings(store) if each not in before]
    broker = _broker(written.directory, directory / "broker.log")
    try:
        broker.start()
        broker.advance(4000)  # delayed messages fall due
        received: set[bytes] = set()
        for _ in range(_ATTEMPTS):  # a slow machine may need time for what has just fallen due
            lacking = asyncio.run(_lacking(broker, written, received))
            if not lacking:
                break
            time.sleep(0.3)
    except (RuntimeError, ClientError):  # it did not start, or ended soon, when it saved its tables
        if not _ended(broker):
            raise
        _check_refusal(path, store, [line for line in broker.log_text().splitlines() if line.startswith("aerobee: ")])
        return "refused"
    finally:
        broker.close()
    heard = [line for line in broker.log_text().splitlines() if _SAID.search(line)]
    if not lacking:
        return "recovered"
    text = f"{path.relative_to(store)}, {damage}: {'; '.join(lacking)}"
    assert found or heard, f"lost in silence: {text}"
    return f"reported: {'; '.join(re.sub(r'[0-9]+ ', '', each) for each in lacking)}"


def _ended(broker: BrokerProcess) -> bool:
    """Whether the broker ends by itself, soon."""
    until = time.monotonic() + 10
    while broker.running and time.monotonic() < until:
        time.sleep(0.05)
    return not broker.running


def _check_refusal(path: Path, store: Path, lines: Sequence[str]) -> None:
    """The refusal names the file, or its directory, and the next step."""
    assert lines, "the broker ended without its reason"
    names = [path.name, *([str(path.parent.relative_to(store))] if path.is_relative_to(store) else [])]
    assert any(name in lines[-1] for name in names), lines[-1]
    assert _NEXT_STEP.search(lines[-1]), f"the next step is missing: {lines[-1]}"


# --- The page -----------------------------------------------------------------------------------------------

_HEAD: Final = """# Damaged files

What a start does with each kind of file in a store's directory, and with the file of accounts, for each kind of
damage, after an orderly stop and after `kill -9`. The store has messages, a delivery journal, delayed messages, a batch
topic, extended queue units, a log in a directory of its own, and changes of every table. After the start everything
that was answered is looked for.

- *recovered*: everything is there.
- *refused*: the broker ends with a message that names the file and the next step. Most often that is to move the file
  away, after which its column "gone" applies.
- *reported*: what follows is lacking, and the log of the start or `aerobee store verify` says so.

"-" means that there is no such file after this kind of stop, or that it cannot be damaged in this way. Nothing was lost
in silence. The page is made by

    AEROBEE_CRASH_CYCLES=1 AEROBEE_DAMAGE_PAGE=1 .venv/bin/python -m pytest tests/integration/test_damaged_files.py

`make test` tries one damage of each file and compares it with the page, `make test-crash` all of them. Bits that flip
elsewhere in these files: [durability.md](durability.md#bits-that-flip).
"""


def _row(stop: str, kind: str, found: Mapping[str, str]) -> str:
    return f"| {stop} | {kind} | " + " | ".join(found[damage] or "-" for damage in DAMAGES) + " |"


def _expected(stop: str, kind: str) -> list[str]:
    start = f"| {stop} | {kind} | "
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith(start)]
    return row.removeprefix(start).removesuffix(" |").split(" | ")


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file(stores: Mapping[str, Written], tmp_path: Path, kind: str) -> None:
    """As the page says."""
    number = list(KINDS).index(kind)
    for stop, written in stores.items():
        found = {}
        for place, damage in enumerate(DAMAGES):
            if not IS_LONG and (place + number) % (2 * len(DAMAGES)) != len(DAMAGES) * (stop == "killed"):
                continue
            directory = tmp_path / f"{stop}-{place}"
            directory.mkdir()
            found[damage] = outcome(written, kind, damage, directory)
            shutil.rmtree(directory)
        if "AEROBEE_DAMAGE_PAGE" in os.environ:
            _ROWS.append(_row(stop, kind, found))
        else:
            expected = dict(zip(DAMAGES, _expected(stop, kind), strict=True))
            assert {damage: text or "-" for damage, text in found.items()} == {each: expected[each] for each in found}


_ROWS: Final[list[str]] = []


@pytest.mark.crash
@pytest.mark.skipif("AEROBEE_DAMAGE_PAGE" not in os.environ, reason="writes the page")
def test_the_page_is_written() -> None:
    """From the outcomes of the test before, in this process."""
    head = ["| Stop | File | " + " | ".join(DAMAGES) + " |", "| --- | --- |" + " --- |" * len(DAMAGES)]
    PAGE.write_text(_HEAD + "\n" + "\n".join([*head, *sorted(_ROWS, key=lambda row: row.split(" | ")[0])]) + "\n")
