"""Copies a master's tables: topics, groups, offsets, delay offsets, request modes, deleted dead letters, the timer's
checkpoint.

These are not in the log. Tables with the same version or content are skipped. The others are replaced at once and saved
in RocketMQ's files, as at the master, so a replica always has topics. They may have any size, so another thread reads
and compares them.

The timer's checkpoint and the offsets of the delay levels show which delayed messages the master has delivered. They
are saved only when this log has reached the end that the master's log had after reading them. These deliveries are then
in this log as well, so a promoted replica loses none. It repeats none either, because the log of an Aerobee master has
marks of deliveries.

Deletions of topics are not in the log either. An Aerobee master tells with its topics where in the log each was
deleted, also one that exists again. As soon as the log here has reached that place, the messages before it are deleted.
A master of RocketMQ does not tell, and begins a topic of the same name at queue offset 0 again, which a deleted topic
here does not; there the queues stay until their records expire.

A log that begins late, because the master has removed its first segments, does not tell where queues end whose messages
are all gone. The master is asked, so that they continue there: a reader may have the offset.

A master may die before a new topic of it was copied, although messages of the topic were answered and are in this log.
A promoted replica creates such topics again (`restore_topics`), but none that only has messages from before the master
answered without the topic. `config/deletedAtMaster.json` keeps where its log ended then, so that a deleted topic is
told from a new one after a restart, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from aerobee_broker.errors import BrokerError
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.fields import DELETED_DEAD_LETTERS, DELETED_TOPICS, DELETIONS_AFTER, FRAME_SIZE
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.replication.master_log import QueueEnds, content_of, extent_of, queue_ends
from aerobee_broker.tables.consumer_groups import GroupTable
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.deleted_letters import DeletedLetters
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import QUEUE_COUNT_DEFAULT, TopicConfig, TopicMessageType, TopicTable, is_in_table
from aerobee_store import MessageStore
from aerobee_store.clock import Clock
from aerobee_store.errors import SyncTimeoutError
from aerobee_store.queues.topic_removal import DeletedTopic, deletions_from_json
from aerobee_store.records.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from aerobee_store.tables.json_table import JsonTable
from aerobee_store.timer.checkpoint import TimerCheckpoint, TimerCheckpointFile

_log = logging.getLogger(__name__)
TABLES_FILE: Final = "replicationTables"
"""A file in the store of a replica that has copied all tables of its master at least once."""
_ANSWER_SECONDS: Final = 10.0
_TABLE_SECONDS: Final = 60.0  # for the answer with a table, of which a busy master makes ten megabytes in a second
_LOOK_SECONDS: Final = 0.05
_T = TypeVar("_T")
_NO_LOG: Final = 1 << 62  # the master's timer log is not copied; the wheel is rebuilt from the topic
_NO_MODES: Final[dict[str, object]] = {"messageRequestModeMap": {}}


class _Table(Protocol):
    """A table that a master's answer can replace."""

    def content(self) -> Callable[[], object]: ...


@dataclass(frozen=True, slots=True)
class _Awaited(Generic[_T]):
    """What a master said that counts here once this log has all that the master's had then. Another master's log may be
    a different one."""

    master: Connection
    content: _T
    end: int


class Metadata:
    """The tables of a replica, which follow the master's."""

    def __init__(self, store: MessageStore, tables: Tables, clock: Clock) -> None:
        self._store = store
        self.followed = store
        """The store whose log is copied: the replica's, or a new copy beside it."""
        self._tables = tables
        self._clock = clock
        path = store.config.directory / "config" / "delayOffset.json"
        self._delays = JsonTable(store.file_system, path, stats=store.stats)
        self._delay_offsets: object = None  # as saved
        self._delays_awaited: _Awaited[object] | None = None
        path = store.config.directory / "config" / "messageRequestMode.json"
        self._modes = JsonTable(store.file_system, path, stats=store.stats)
        self._request_modes: object = None
        self._deleted_letters = DeletedLetters(store)
        self._timer = TimerCheckpointFile(store.file_system, store.config.directory / "config" / "timercheck")
        self._checkpoint_awaited: _Awaited[TimerCheckpoint] | None = None
        self._checkpoint_saved = 0  # its read time
        self._ends_awaited: _Awaited[QueueEnds] | None = None
        self._marker = store.config.directory / TABLES_FILE
        self.is_complete = store.file_system.exists(self._marker)  # all tables were copied once
        self.error = ""  # why the last copy failed
        self.copied = 0  # how often a table was replaced
        self._at_master = JsonTable(
            store.file_system, store.config.directory / "config" / "deletedAtMaster.json", stats=store.stats
        )
        self._deleted = _deleted_from(self._at_master.load())  # topic -> where the master's log ended without it
        self._untold = {name for name in store.queues() if name not in tables.topics}  # until a master has answered
        self._deletions: dict[
            str, DeletedTopic
        ] = {}  # of the master, not done here because the log does not reach there
        self._deletions_heard: tuple[Connection, MessageStore, int] | None = None  # up to which place in the log
        self._deletions_followed: tuple[MessageStore, int] = store, -1  # up to which place in the log

    async def copy(self, master: Connection, end: int) -> None:
        """Request all tables, apply and save changes. `end`: where the master's log ended before, or this log if the
        master does not say. Raises BrokerError, TimeoutError and OSError."""
        tables, clock = self._tables, self._clock
        topics = await asyncio.to_thread(TopicTable.from_json, await self._asked_topics(master), clock)
        found = await self._asked(master, Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG)
        groups = await asyncio.to_thread(GroupTable.from_json, found, clock)
        found = await self._asked(master, Request.GET_ALL_CONSUMER_OFFSET)
        offsets = await asyncio.to_thread(OffsetTable.from_json, found, clock)
        await self._note_deleted(topics, end)
        if await self._differ(tables.topics, topics):
            await tables.topics.replace(topics)
        if await self._differ(tables.groups, groups):
            await tables.groups.replace(groups)
        if await self._differ(tables.offsets, offsets):
            tables.offsets.replace(offsets)
        await tables.save_all()
        await self.follow_deletions()
        await self._copy_delay_offsets(master)
        code = Request.GET_ALL_MESSAGE_REQUEST_MODE
        answered = await master.ask(Command(code), _ANSWER_SECONDS)
        modes = _NO_MODES
        if answered.code == Answer.SUCCESS:  # RocketMQ 4 has none
            modes = await asyncio.to_thread(content_of, answered, code)
        if modes not in (self._request_modes, _NO_MODES):
            await self._store.in_disk_thread(self._modes.save, modes)
            self._request_modes = modes
            self.copied += 1

        await self._copy_checkpoint(master)
        self.error = ""
        if not self.is_complete and await self._continue_queues(master):
            await self._store.in_disk_thread(self._store.file_system.write_new, self._marker, b"")
            self.is_complete = True

    async def _note_deleted(self, topics: TopicTable, end: int) -> None:
        """Note, before the table here is without them, which topics the master no longer has."""
        store, dispatched = self._store, self._store.positions[3]
        deleted = {
            name: at if self._is_deleted(name) else end
            for name, at in self._deleted.items()
            if store.queue_ids(name) or dispatched < at
        }
        deleted |= dict.fromkeys(self._untold | {topic.name for topic in self._tables.topics}, end)
        deleted = {name: at for name, at in deleted.items() if name not in topics}
        if deleted != self._deleted:
            await store.in_disk_thread(self._at_master.save, {"topics": deleted})
            self._deleted = deleted
        self._untold = set()

    def _is_deleted(self, topic: str) -> bool:
        """Whether the master no longer had the topic, and nothing has been stored in it since."""
        store, end = self._store, self._deleted.get(topic)
        if end is None:
            return False
        last = (
            store.physical_offset_at(topic, queue_id, store.queue_range(topic, queue_id)[1] - 1)
            for queue_id in store.queue_ids(topic)
        )
        return all(at is None or at < end for at in last)

    async def _continue_queues(self, master: Connection) -> bool:
        """Let queues continue where the master's do, of which a log that begins late has no record. Returns whether
        that is done: not before the log has reached the master's end."""
        store = self._store
        if self._ends_awaited is None or self._ends_awaited.master is not master:
            extent = await extent_of(master)
            if extent is None or not (store.min_physical_offset if store.positions[0] else extent.begin):
                return True
            ends = await queue_ends(master, [topic.name for topic in self._tables.topics])
            extent = await extent_of(master) or extent
            self._ends_awaited = _Awaited(master, ends, extent.end)
        awaited = self._ends_awaited
        if min(store.positions[2:]) < awaited.end:
            self.error = f"where queues end is known once the log here has reached {awaited.end}"
            return False
        await store.continue_queues(awaited.content)
        return True

    def restore_topics(self) -> list[str]:
        """Create the topics that have messages in the log but are in no copied table; return their names.

        Their settings are lost with the master, so the topics accept every type of message that can be combined.
        """
        restored = []
        for name, queue_ids in self._store.queues().items():
            if name in self._tables.topics or not is_in_table(name) or self._is_deleted(name):
                continue
            is_internal = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
            count = max(1 if is_internal else QUEUE_COUNT_DEFAULT, max(queue_ids) + 1)
            self._tables.topics.create_internal(TopicConfig.of_type(name, TopicMessageType.MIXED, queue_count=count))
            restored.append(name)
            _log.warning(
                "topic restored from the log topic=%s queues=%d cause=the master died before its settings were copied; "
                "check them with: aerobee topic describe %s",
                name,
                count,
                name,
            )
        return restored

    async def _asked_topics(self, master: Connection) -> dict[str, object]:
        """The master's topics; notes the deletions that come with them."""
        heard, followed, after = self._deletions_heard, self.followed, 0
        if heard is not None and heard[:2] == (master, followed):
            after = heard[2]
        else:
            self._deletions.clear()  # they may be those of another log
        content = await self._asked(master, Request.GET_ALL_TOPIC_CONFIG, {DELETIONS_AFTER: str(after)})
        try:
            new = await asyncio.to_thread(deletions_from_json, content.pop(DELETED_TOPICS, {}))
            letters = content.pop(DELETED_DEAD_LETTERS, None)  # RocketMQ has none
            if isinstance(letters, dict):
                self.copied += await self._deleted_letters.replace(letters)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BrokerError(f"the master answered with deletions that cannot be read: {error!r}") from error
        self._deletions |= new
        self._deletions_heard = master, followed, max((after, *(each.physical_offset for each in new.values())))
        return content

    async def follow_deletions(self) -> None:
        """Delete what the master is known to have deleted, as far as the log reaches."""
        followed, dispatched = self.followed, self.followed.positions[3]
        try:
            self._deletions = await followed.follow_deletions(self._deletions)
            if self._deletions_heard is not None and self._deletions_heard[1] is followed:
                self._deletions_followed = followed, dispatched
        except SyncTimeoutError as error:
            _log.warning("queues of deleted topics not removed, retried later cause=%s", error)

    async def deletions_followed(self, copy: MessageStore, end: int) -> None:
        """Return once nothing is left in this copy of the log of what its master had deleted before `end`."""
        while self._deletions_followed[0] is not copy or self._deletions_followed[1] < end:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_LOOK_SECONDS)

    async def _copy_delay_offsets(self, master: Connection) -> None:
        """Those of a master that does not say where its log ends count at once."""
        if self._delays_awaited is None or self._delays_awaited.master is not master:
            self._delays_awaited = None
            delays = await self._asked(master, Request.GET_ALL_DELAY_OFFSET)
            if delays == self._delay_offsets:
                return
            extent = await extent_of(master)
            self._delays_awaited = _Awaited(master, delays, 0 if extent is None else extent.end)
        if self._delays_awaited.end <= self._store.positions[2]:
            await self._store.in_disk_thread(self._delays.save, self._delays_awaited.content)
            self._delay_offsets, self._delays_awaited = self._delays_awaited.content, None
            self.copied += 1

    async def _copy_checkpoint(self, master: Connection) -> None:
        """A master without a timer refuses, or answers zeros."""
        if self._checkpoint_awaited is None or self._checkpoint_awaited.master is not master:
            self._checkpoint_awaited = None
            answered = await master.ask(Command(Request.GET_TIMER_CHECK_POINT), _ANSWER_SECONDS)
            if answered.code != Answer.SUCCESS or (found := TimerCheckpoint.decode(answered.body)) is None:
                return
            extent = await extent_of(master)
            if extent is None or found.read_time_ms <= self._checkpoint_saved:
                return
            self._checkpoint_awaited = _Awaited(master, replace(found, log_position=_NO_LOG), extent.end)
        if self._checkpoint_awaited.end <= self._store.positions[2]:
            checkpoint, self._checkpoint_awaited = self._checkpoint_awaited.content, None
            await self._store.in_disk_thread(self._timer.save, checkpoint)
            self._checkpoint_saved = checkpoint.read_time_ms
            self.copied += 1

    async def _differ(self, own: _Table, masters: _Table) -> bool:
        content = own.content()
        differ = await asyncio.to_thread(lambda: content() != masters.content()())
        self.copied += differ
        return differ

    async def _asked(
        self, master: Connection, code: Request, fields: Mapping[str, str] | None = None
    ) -> dict[str, object]:
        asked = Command(code, fields={FRAME_SIZE: str(master.frame_size_max), **(fields or {})})
        try:
            answered = await master.ask(asked, _TABLE_SECONDS)
        except TimeoutError:
            raise BrokerError(f"the master did not answer request {code:d} within {_TABLE_SECONDS:g} seconds") from None
        if answered.code != Answer.SUCCESS:
            raise BrokerError(f"the master answered request {code:d} with code {answered.code}: {answered.remark}")
        return await asyncio.to_thread(content_of, answered, code)


def _deleted_from(content: object) -> dict[str, int]:
    topics = content.get("topics") if isinstance(content, dict) else None
    return {str(name): int(end) for name, end in topics.items()} if isinstance(topics, dict) else {}
