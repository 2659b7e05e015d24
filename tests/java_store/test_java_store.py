"""Apache RocketMQ's released store opens what we wrote, and we what it wrote: every message, and back again.

`make test-java-store` runs it; AEROBEE_ROCKETMQ names other releases, separated by blanks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from aerobee_store import Message, MessageStore, StoreLockedError
from aerobee_store.config import UNIT_SIZE
from aerobee_store.disk.file_system import DiskFileSystem, DiskUsage
from aerobee_store.disk.store_directory import ID_FILE
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.log.log_claims import ATTRIBUTE
from aerobee_store.testing import ManualClock
from aerobee_store.tools.verify import verify
from tests.java_store import contents
from tests.java_store.conftest import MARKS, Open
from tests.java_store.contents import SIZES, Stored, append, config, rounds
from tests.java_store.java_program import JavaStore, RefusedError, Release
from tests.support.stored_messages import read_all

pytestmark = MARKS


def write(directory: Path, release: Release, *, count: int = 60, property_crc: bool = True) -> list[Stored]:
    """Rounds of messages, each append in milliseconds of its own; the store is closed in an orderly way."""
    # A minute ago: what is delayed by two hours is not due, or release 4.9 would deliver it at its start.
    clock = ManualClock(time.time_ns() // 1_000_000 - 60_000)
    stored: list[Stored] = []
    with MessageStore.open(config(directory, property_crc=property_crc), clock=clock) as store:
        for appends in islice(rounds(release.major), count):
            for messages in appends:
                clock.advance(0.01)
                stored += append(store, [messages])
    # Release 4.9 believes a queue's files to end with the messages of the time at which they were modified.
    for each in stored:
        if each.queued:
            file = each.queue_offset * UNIT_SIZE // SIZES[1] * SIZES[1]
            path = directory / "consumequeue" / each.topic / str(each.queue_id) / f"{file:020d}"
            os.utime(path, ns=(each.store_timestamp * 1_000_000,) * 2)
    return stored


def write_and_be_killed(directory: Path, release: Release, count: int, *, property_crc: bool = True) -> list[Stored]:
    """A process of ours, killed while it writes; what it had said to be durable."""
    command = [sys.executable, "-m", "tests.java_store.contents", str(directory), str(release.major), str(property_crc)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        lines = list(islice(process.stdout, count))
        process.kill()
        lines += [line for line in process.stdout if line.endswith("\n")]
    assert len(lines) >= count, "the writer ended by itself"
    return [Stored(**json.loads(line)) for line in lines]


def record_bytes(directory: Path, stored: Stored) -> str:
    segment = SIZES[0]
    path = directory / "commitlog" / f"{stored.physical_offset - stored.physical_offset % segment:020d}"
    begin = stored.physical_offset % segment
    return path.read_bytes()[begin : begin + stored.size].hex()


def by_queue(stored: Iterable[Stored]) -> dict[tuple[str, int], dict[int, Stored]]:
    queues: dict[tuple[str, int], dict[int, Stored]] = {}
    for each in stored:
        if each.queued:
            queues.setdefault((each.topic, each.queue_id), {})[each.queue_offset] = each
    return queues


def check_java_reads(store: JavaStore, directory: Path, stored: Sequence[Stored], *, may_be_more: bool = False) -> None:
    """RocketMQ gives every message of every queue, decoded as it was sent, in the very bytes that we wrote."""
    for (topic, queue_id), wanted in by_queue(stored).items():
        where = f"{topic}/{queue_id}"
        (_, low, high), *messages = store.ask("read", topic, queue_id)
        found = {int(message[1]): message for message in messages}
        assert len(found) == len(messages) == int(high) - int(low), where
        assert int(low) == min(wanted), where
        if may_be_more:
            assert found.keys() >= wanted.keys(), where
        else:
            assert found.keys() == wanted.keys(), where
        for offset, each in wanted.items():
            _, _, place, tag, keys, properties, body, record = found[offset]
            assert int(place) == each.physical_offset, where
            assert tag == each.properties.get("TAGS", "null"), where
            assert keys == each.properties.get("KEYS", "null"), where
            assert body == each.body, where
            assert record == record_bytes(directory, each), where
            assert java_properties(properties) == each.properties, where


def java_properties(text: str) -> dict[str, str]:
    """Without what we did not send: the checksum, and what RocketMQ's reader adds for itself."""
    pairs = bytes.fromhex(text).decode().split("\2")
    found = dict(pair.split("\1", 1) for pair in pairs if pair)
    return {name: value for name, value in found.items() if name not in ("__CRC32#",)}


def check_java_finds(store: JavaStore, stored: Sequence[Stored]) -> None:
    """Every key finds exactly the messages that have it."""
    wanted: dict[tuple[str, str], list[int]] = {}
    for each in stored:
        for key in each.index_keys:
            wanted.setdefault((each.topic, key), []).append(each.physical_offset)
    for (topic, key), offsets in wanted.items():
        found = [int(line[1]) for line in store.ask("query", topic, key)]
        # At a start release 4.9 indexes the last message of the log once more.
        assert list(dict.fromkeys(found)) == offsets[-64:], f"{topic}#{key}"


def check_java_dates(store: JavaStore, stored: Sequence[Stored]) -> None:
    """The time of each message gives its queue offset; each has a time of its own."""
    for (topic, queue_id), messages in by_queue(stored).items():
        if topic == contents.SCHEDULE:
            continue  # RocketMQ looks there for the time of delivery
        for offset, each in messages.items():
            found = store.ask("time", topic, queue_id, each.store_timestamp)
            assert found == [["offset", str(offset)]], f"{topic}/{queue_id}"


def check_we_read(store: MessageStore, stored: Sequence[Stored], *, may_be_more: bool = False) -> list[Stored]:
    """We give every message of every queue; returns all that is there, in the order of the log."""
    queues = by_queue(stored)
    there: list[Stored] = []
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            found = {offset: Stored.of_record(each) for offset, each in read_all(store, topic, queue_id).items()}
            low, high = store.queue_range(topic, queue_id)
            assert sorted(found) == list(range(low, high)), f"{topic}/{queue_id}"
            wanted = queues.pop((topic, queue_id), {})
            assert {offset: found.get(offset) for offset in wanted} == wanted
            assert may_be_more or found.keys() == wanted.keys()
            there += found.values()
    assert not queues, "queues that were lost"
    there.sort(key=lambda each: each.physical_offset)
    for topic, key in {(each.topic, key) for each in there for key in each.index_keys}:
        hits = {record.physical_offset for record in store.query(topic, key, max_count=100_000)}
        assert hits >= {each.physical_offset for each in there if each.topic == topic and key in each.index_keys}
    return there


def check_verified(directory: Path, *, besides: tuple[str, str] = ("", "")) -> None:
    """The tool has nothing to say, or nothing but findings of one kind in one topic."""
    report = verify(directory, index_slot_count=SIZES[2], index_entry_count=SIZES[3])
    assert [each for each in report.findings if (each.kind, each.topic) != besides] == []


def late_delays(release: Release) -> tuple[str, str]:
    """Release 4.9 knows the delays only after its recovery: units that this makes say nothing of the time."""
    return ("unit-wrong", contents.SCHEDULE) if release.major < 5 else ("", "")


def put(store: JavaStore, topic: str, queue_id: int, body: bytes, properties: dict[str, str]) -> Stored:
    text = "".join(f"{name}\1{value}\2" for name, value in properties.items())
    ((_, status, offset, place),) = store.ask("put", topic, queue_id, text.encode().hex(), body.hex())
    assert status == "PUT_OK"
    return Stored(topic, queue_id, int(offset), int(place), 0, 0, 0, properties, body.hex())


def put_as_broker(store: JavaStore, release: Release, message: Message) -> Stored:
    """Release 4's store itself puts a delayed message into the schedule topic; release 5 leaves that to the broker."""
    topic, queue_id = message.topic, message.queue_id
    properties, body = dict(message.properties), bytes(message.body)
    if topic == contents.SCHEDULE and release.major < 5:
        sent = {name: value for name, value in properties.items() if not name.startswith("REAL_")}
        stored = put(store, properties["REAL_TOPIC"], int(properties["REAL_QID"]), body, sent)
        return replace(stored, topic=topic, queue_id=queue_id, properties=properties)
    return put(store, topic, queue_id, body, properties)


@pytest.mark.parametrize("property_crc", [True, False])
def test_java_reads_what_we_closed(release: Release, java: Open, tmp_path: Path, property_crc: bool) -> None:
    """Every message in its bytes, every key, every time; and we open again what RocketMQ has closed."""
    directory = tmp_path / "store"
    stored = write(directory, release, property_crc=property_crc)
    assert len(list((directory / "commitlog").iterdir())) > 3
    assert len(list((directory / "consumequeue" / "orders" / "0").iterdir())) > 1
    before = log_bytes(directory)
    with java(directory, **crc_settings(release, property_crc)) as store:
        assert (store.min_offset, store.max_offset) == (0, stored[-1].physical_offset + stored[-1].size)
        check_java_reads(store, directory, stored)
        check_java_finds(store, stored)
        check_java_dates(store, stored)
    assert log_bytes(directory) == before, "RocketMQ changed the log"
    check_verified(directory)
    with MessageStore.open(config(directory)) as ours:
        assert ours.recovery.clean
        check_we_read(ours, stored)


def test_the_log_of_a_running_rocketmq_is_refused(release: Release, java: Open, tmp_path: Path) -> None:
    """RocketMQ locks its storePathRootDir only. Its log elsewhere is refused while it runs, whoever names it, and
    RocketMQ goes on as if nothing had happened."""
    directory, log = tmp_path / "store", tmp_path / "disk" / "commitlog"
    stored = write(directory, release)
    log.parent.mkdir()
    (directory / "commitlog").rename(log)
    (directory / ID_FILE).unlink()  # as if RocketMQ had written it all: nothing says whose log it is
    os.removexattr(log, ATTRIBUTE)
    with java(directory, storePathCommitLog=log) as store:
        with pytest.raises(StoreLockedError, match="another process has this store open"):
            MessageStore.open(replace(config(directory), commit_log_paths=(log,)))
        for attempt in (
            replace(config(tmp_path / "copy"), commit_log_paths=(log,)),
            replace(
                config(tmp_path / "copy2"), commit_log_paths=(tmp_path / "own",), read_only_commit_log_paths=(log,)
            ),
            config(log.parent),  # its default log
        ):
            # what a copy of RocketMQ's storePathRootDir has, so that the store is not new
            (attempt.directory / "config").mkdir(parents=True)
            before = log_bytes_of(log)
            with pytest.raises(StoreLockedError, match="perhaps a running RocketMQ broker"):
                MessageStore.open(attempt)
            assert log_bytes_of(log) == before
        assert store.max_offset == stored[-1].physical_offset + stored[-1].size
        check_java_reads(store, log.parent, stored)
    (log.parent / "config").rmdir()  # made above: the log is not that of a store beside it
    with MessageStore.open(replace(config(directory), commit_log_paths=(log,))) as ours:
        check_we_read(ours, stored)
    with java(directory, storePathCommitLog=log) as store:  # the claim of the directory is nothing to it
        check_java_reads(store, log.parent, stored)


def log_bytes_of(log: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.iterdir()}


class FillingDisks(DiskFileSystem):
    """Some directories lie on disks that others have filled."""

    full: frozenset[Path] = frozenset()

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(total=1 << 40, available=0 if path in self.full else 1 << 39)


@pytest.mark.parametrize("closed", [True, False])
def test_java_steps_over_a_segment_that_ended_early(
    release: Release, java: Open, tmp_path: Path, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk of a segment was full, the blank behind its last record is long; RocketMQ goes on behind it."""
    monkeypatch.setattr("aerobee_store.log.mapped_file._RESERVE_SIZE", 1)
    directory, paths = tmp_path / "store", (tmp_path / "a", tmp_path / "b")
    settings = replace(config(directory), commit_log_paths=paths, disk_headroom=1 << 20)
    disk, clock = FillingDisks(), ManualClock(time.time_ns() // 1_000_000 - 60_000)
    stored: list[Stored] = []
    with MessageStore.open(settings, file_system=disk, clock=clock) as store:
        for number, appends in enumerate(islice(rounds(release.major), 40)):
            if number in (5, 22):
                active = store._log.active
                assert active is not None
                assert active.size - active.wrote > 1000
                disk.full = frozenset({active.path.parent})
            for messages in appends:
                clock.advance(0.01)
                stored += append(store, [messages])
            store._log.files.run.full = frozenset()  # as retention finds it
    (directory / "commitlog").mkdir()
    for path in paths:
        for segment in path.iterdir():
            segment.rename(directory / "commitlog" / segment.name)
    (directory / "commitlog.paths").unlink()
    if not closed:
        (directory / "abort").touch()
    early = [
        (before, after)
        for before, after in pairwise(stored)
        if after.physical_offset - before.physical_offset - before.size > 1000
    ]
    assert len(early) >= 2
    with java(directory, messageIndexSafe=True) as store:
        assert (store.min_offset, store.max_offset) == (0, stored[-1].physical_offset + stored[-1].size)
        check_java_reads(store, directory, stored)
    check_verified(directory, besides=late_delays(release) if not closed else ("", ""))
    with MessageStore.open(config(directory)) as ours:
        assert not ours.recovery.damaged
        check_we_read(ours, stored)


def crc_settings(release: Release, property_crc: bool) -> dict[str, Any]:
    """Release 5 checks the record checksum when it recovers, if told so; release 4 does not know it."""
    if release.major < 5 or not property_crc:
        return {}
    return {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}


def log_bytes(directory: Path) -> dict[str, bytes]:
    """The segments that hold something; prepared ones may come and go."""
    found = {path.name: path.read_bytes() for path in (directory / "commitlog").iterdir()}
    return {name: data for name, data in found.items() if any(data)}


@pytest.mark.parametrize("count", [10, 300, 900])
def test_java_reads_what_we_wrote_when_we_were_killed(release: Release, java: Open, tmp_path: Path, count: int) -> None:
    """RocketMQ recovers our directory, has every durable message, and writes on; then it is ours again."""
    directory = tmp_path / "store"
    stored = write_and_be_killed(directory, release, count)
    assert (directory / "abort").exists()
    settings = crc_settings(release, property_crc=True)
    with java(directory, messageIndexSafe=True, **settings) as store:
        check_java_reads(store, directory, stored, may_be_more=True)
        check_java_finds_at_least(store, stored)
        theirs = [put(store, "orders", 1, b"from Java", {"KEYS": f"j{number}"}) for number in range(20)]
        store.wait_dispatched()
        check_java_finds(store, theirs)
    check_verified(directory, besides=late_delays(release))
    with MessageStore.open(config(directory)) as ours:
        assert ours.recovery.clean
        there = check_we_read(ours, stored, may_be_more=True)
        assert [each.body for each in there[-20:]] == [each.body for each in theirs]


def check_java_finds_at_least(store: JavaStore, stored: Sequence[Stored]) -> None:
    """Keys of single messages find theirs; there may be more, which the dead writer had not told of."""
    for each in stored:
        for key in each.index_keys[:1]:
            found = [int(line[1]) for line in store.ask("query", each.topic, key)]
            assert each.physical_offset in found, f"{each.topic}#{key}"


@pytest.mark.parametrize("crc", [False, True])
def test_we_read_what_java_closed(release: Release, java: Open, tmp_path: Path, crc: bool) -> None:
    """Every message and key; we add some, and RocketMQ reads all of them."""
    if crc and release.major < 5:
        pytest.skip("release 4 has no record checksum")
    directory = tmp_path / "store"
    settings: dict[str, Any] = {"enabledAppendPropCRC": True} if crc else {}
    theirs = []
    with java(directory, **settings) as store:
        for appends in islice(rounds(release.major, seed=7), 30):
            for message in (each for messages in appends for each in messages):
                if not message.sys_flag:
                    theirs.append(put_as_broker(store, release, message))
    check_verified(directory)
    with MessageStore.open(config(directory, property_crc=crc)) as ours:
        assert ours.recovery.clean
        there = check_we_read(ours, [], may_be_more=True)
        assert [same(each) for each in there] == [same(each) for each in theirs]
        mine = [each for appends in islice(rounds(release.major), 5) for each in append(ours, appends)]
    with java(directory, **settings, **({"forceVerifyPropCRC": True} if crc else {})) as store:
        check_java_reads(store, directory, [*there, *mine])
        check_java_finds(store, [*there, *mine])


def same(stored: Stored) -> tuple[object, ...]:
    """What a put of RocketMQ's tells."""
    return (stored.topic, stored.queue_id, stored.queue_offset, stored.physical_offset, stored.body, stored.properties)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_we_read_what_java_wrote_when_it_was_killed(release: Release, java: Open, tmp_path: Path, flush: str) -> None:
    """We recover its directory, have every message that it has answered, write on, and RocketMQ opens it again."""
    directory = tmp_path / "store"
    theirs: list[list[str]] = []
    with java(directory, flushDiskType=flush) as store:
        store.tell("flood", "orders", 2, 300)
        theirs += store.answers(700)
        theirs += store.kill()
    assert (directory / "abort").exists()
    with MessageStore.open(config(directory)) as ours:
        assert not ours.recovery.clean
        there = check_we_read(ours, [], may_be_more=True)
        places = {(each.queue_offset, each.physical_offset) for each in there}
        for _, status, offset, place in theirs:
            assert status == "PUT_OK"
            assert (int(offset), int(place)) in places
        mine = [each for appends in islice(rounds(release.major), 5) for each in append(ours, appends)]
    check_verified(directory)
    with java(directory, flushDiskType=flush) as store:
        check_java_reads(store, directory, [*there, *mine])
        check_java_finds(store, [*there, *mine])


def test_both_by_turns_each_time_killed(release: Release, java: Open, tmp_path: Path) -> None:
    """Killed again and again on either side, no message that was answered is ever lost."""
    directory = tmp_path / "store"
    known: dict[int, Stored] = {}
    for turn in range(3):
        for each in write_and_be_killed(directory, release, 60 + 40 * turn):
            known[each.physical_offset] = each
        with java(directory) as store:
            check_java_reads(store, directory, list(known.values()), may_be_more=True)
            store.tell("flood", "orders", 1, 400)
            answers = store.answers(100 + 70 * turn) + store.kill()
        with MessageStore.open(config(directory)) as ours:
            there = check_we_read(ours, list(known.values()), may_be_more=True)
            assert {int(place) for _, _, _, place in answers} <= {each.physical_offset for each in there}
            known.update({each.physical_offset: each for each in there})
        check_verified(directory, besides=late_delays(release))


def test_java_leaves_our_part_of_the_checkpoint(release: Release, java: Open, tmp_path: Path) -> None:
    """RocketMQ rewrites its own fields alone; what then stands in ours is not believed, though it is still there."""
    directory = tmp_path / "store"
    write(directory, release, count=2)
    path = directory / "checkpoint"
    before = path.read_bytes()
    with java(directory) as store:
        put(store, "orders", 0, b"from Java", {})
        store.wait_dispatched()
    after = path.read_bytes()
    assert after[:40] != before[:40]
    assert after[40:] == before[40:]
    checkpoint = Checkpoint(DiskFileSystem(), path)
    checkpoint.load()
    assert checkpoint.derived_offset is None
    check_verified(directory)


def test_only_one_of_them_opens_a_store(release: Release, java: Open, tmp_path: Path) -> None:
    """The lock on the file `lock` is the same."""
    directory = tmp_path / "store"
    write(directory, release, count=1)
    with java(directory), pytest.raises(StoreLockedError):
        MessageStore.open(config(directory))
    with MessageStore.open(config(directory)), pytest.raises(RefusedError, match="Lock failed"), java(directory):
        pass
