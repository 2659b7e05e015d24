"""The mode of groups, POP or PULL, and the queues that the broker assigns to consumers of RocketMQ 5.

400  QUERY_ASSIGNMENT               the queues of one consumer: with PULL its share; with POP all of them, as queue -1,
                               or with popShareQueueNum its share and those of as many consumers after it
401  SET_MESSAGE_REQUEST_MODE       the mode of a group for a topic, kept in config/messageRequestMode.json
402  GET_ALL_MESSAGE_REQUEST_MODE   that file, for replicas
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.errors import TableFormatError
from aerobee_broker.remoting.clients import RemotingClients
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, body_object, integer_member, member
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.json_fields import JsonFields
from aerobee_broker.tables.table_files import Tables
from aerobee_store import MessageStore
from aerobee_store.records.topic_names import RETRY_PREFIX
from aerobee_store.tables.java_json import Bean
from aerobee_store.tables.json_table import JsonTable

_MODES: Final = ("PULL", "POP")
_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")
_COUNT_MAX: Final = 10_000
_ALL_QUEUES: Final = -1


class RequestModes:
    """The table of modes, and the requests about it. Event loop only, except `open`."""

    def __init__(self, settings: Settings, store: MessageStore, tables: Tables, clients: RemotingClients) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables
        self._clients = clients
        path = store.config.directory / "config" / "messageRequestMode.json"
        self._table = JsonTable(store.file_system, path, stats=store.stats)
        self._modes: dict[tuple[str, str], tuple[str, int]] = {}  # by topic and group: mode, popShareQueueNum
        self._changing = asyncio.Lock()

    def open(self) -> None:
        """Read the file. Blocking. Raises TableFormatError, UnreadableTableError and OSError."""
        self._store.file_system.make_directory(self._table.path.parent)
        value = self._table.load()
        if value is None:
            return
        name = "messageRequestMode.json"
        for topic, groups in JsonFields(name, value).mapping("messageRequestModeMap").items():
            if not isinstance(groups, dict):
                raise TableFormatError(f"{name}.{topic}", "expected an object")
            for group, item in groups.items():
                fields = JsonFields(f"{name}.{topic}.{group}", item)
                share = fields.integer("popShareQueueNum", 0, minimum=-1)
                self._modes[topic, group] = fields.text("mode", "PULL"), share

    async def set(self, request: Command, _: Connection) -> Command:
        body = body_object(request)
        topic, group, mode = member(body, "topic"), member(body, "consumerGroup"), member(body, "mode")
        if mode not in _MODES:
            raise RemotingError(Answer.INVALID_PARAMETER, f"mode is {mode[:40]!r}; give PULL or POP")
        if topic.startswith(RETRY_PREFIX):
            raise RemotingError(Answer.NO_PERMISSION, f"{topic!r}: retry topics are always pulled")
        self._tables.topics.require(topic)
        share = integer_member(body, "popShareQueueNum")
        async with self._changing:
            if (topic, group) not in self._modes and len(self._modes) >= _COUNT_MAX:
                raise RemotingError(Answer.SYSTEM_ERROR, f"{_COUNT_MAX} modes are set already, the limit")
            modes = {**self._modes, (topic, group): (mode, share)}
            await self._store.in_disk_thread(self._table.save, _to_json(modes))
            self._modes = modes
        return answer()

    async def all(self, _request: Command, _: Connection) -> Command:
        return answer(body=_to_json(self._modes))

    async def assignment(self, request: Command, _: Connection) -> Command:
        """The queues of one consumer of the group. Unknown groups get no assignment."""
        body = body_object(request)
        topic, group, client_id = member(body, "topic"), member(body, "consumerGroup"), member(body, "clientId")
        strategy = member(body, "strategyName") or "AVG"
        if strategy not in _STRATEGIES:
            raise RemotingError(Answer.INVALID_PARAMETER, f"strategyName is {strategy[:40]!r}; give AVG, AVG_BY_CIRCLE")
        mode, share = self._modes.get((topic, group), ("PULL", 0))
        found = self._tables.topics.get(topic)
        if found is None:
            return answer(body={"messageQueueAssignments": []})
        consumers = self._clients.consumers(group)
        ids = sorted(consumers.members) if consumers is not None else []
        if mode == "POP":
            queues = _shares_of(ids, client_id, found.read_queue_count, strategy, share)
        elif member(body, "messageModel") == "BROADCASTING":
            queues = list(range(found.read_queue_count))
        else:
            queues = _share_of(ids, client_id, found.read_queue_count, strategy)
        name = self._settings.current.name
        entries: list[object] = [
            Bean(messageQueue=Bean(brokerName=name, queueId=queue_id, topic=topic), mode=mode) for queue_id in queues
        ]
        return answer(body={"messageQueueAssignments": entries})


def _to_json(modes: Mapping[tuple[str, str], tuple[str, int]]) -> Bean:
    table: dict[str, object] = {}
    for (topic, group), (mode, share) in modes.items():
        groups = table.setdefault(topic, {})
        assert isinstance(groups, dict), "made here"
        groups[group] = Bean(consumerGroup=group, mode=mode, popShareQueueNum=share, topic=topic)
    return Bean(messageRequestModeMap=table)


def _shares_of(ids: list[str], client_id: str, count: int, strategy: str, share: int) -> list[int]:
    """The queues from which a consumer receives, as RocketMQ divides them: all, or some that few others share."""
    if share <= 0 or share >= len(ids) - 1 or client_id not in ids:
        return [_ALL_QUEUES]
    place = ids.index(client_id)
    if len(ids) > count:
        return [place % count]  # every consumer has one
    sharing = [ids[(place + more) % len(ids)] for more in range(share + 1)]
    return [queue_id for one in sharing for queue_id in _share_of(ids, one, count, strategy)]


def _share_of(ids: list[str], client_id: str, count: int, strategy: str) -> list[int]:
    """The queues of one consumer, by the sorted ids of all consumers, as RocketMQ's clients divide them."""
    if client_id not in ids:
        return []
    place, consumers = ids.index(client_id), len(ids)
    if strategy == "AVG_BY_CIRCLE":
        return list(range(place, count, consumers))
    each, more = divmod(count, consumers)
    begin = place * each + min(place, more)
    return list(range(begin, begin + each + (place < more)))
