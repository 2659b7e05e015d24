"""Remoting clients: producers, consumers and their subscriptions, notifications of changes, and the locks of ordered
consumers.

A client is known by its id in each group that its heartbeats name, while its connection lives and heartbeats arrive.
With accounts a client id belongs to the account of its first heartbeat, until heartbeats have been missing for so long
that the client is removed. Its connection may end in between: nobody else can take the replies to its requests.
Locks are in memory and expire: after a restart consumers lock again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.recent import Recent
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, body_object, integer_member, member, objects, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import retry_topic
from aerobee_store.clock import Clock
from aerobee_store.records.topic_names import RETRY_PREFIX
from aerobee_store.tables.java_json import Bean

LOCK_SECONDS: Final = 60.0  # RocketMQ's; clients renew their locks every 20 s
_GROUPS_PER_HEARTBEAT_MAX: Final = 1000
_SUBSCRIPTIONS_MAX: Final = 10_000  # of one group
_CLIENT_ID_SIZE_MAX: Final = 1024
_CLIENTS_PER_GROUP_MAX: Final = 10_000
_GROUPS_PER_CONNECTION_MAX: Final = 2_000  # registrations: a client in a group; an application has some dozens
_REGISTRATIONS_MAX: Final = 50_000  # of all connections, some 500 bytes each
_GROUPS_AT_ONCE: Final = 64  # groups of a heartbeat that are registered in one step of the loop; ...
_GROUPS_SECONDS: Final = 0.002  # ... so many take this long
_MEMBER_SIZE: Final = 700  # bytes of memory of a registration, without its subscriptions
_JSON_MEMORY: Final = 3  # times the bytes of JSON that objects made of it take
_LOCKS_MAX: Final = 100_000
_IDS_PER_ACCOUNT_MAX: Final = 10_000  # beyond it the account loses the id with the longest silence


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to a topic, from its last heartbeat."""

    topic: str
    expression: str
    expression_type: str
    version: int
    body: Bean = field(default_factory=Bean, compare=False)
    """The subscription as received, for queries."""


@dataclass(slots=True)
class Member:
    """One client of a group."""

    client_id: str
    connection: Connection
    language: str
    version: int
    seen_at: float  # on the monotonic clock
    access_key: str = ""  # of its account; empty without accounts


@dataclass(slots=True)
class Consumers:
    """The consumers of one group."""

    consume_type: str
    message_model: str
    consume_from: str
    members: dict[str, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)


class RemotingClients:
    """All remoting clients. Event loop only."""

    def __init__(self, settings: Settings, tables: Tables, clock: Clock) -> None:
        self._settings = settings
        self._tables = tables
        self._clock = clock
        self._consumers: dict[str, Consumers] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        self._registered: dict[Connection, dict[tuple[str, str], int]] = {}  # groups and clients, with bytes; some gone
        self._registered_count = 0
        self._changed: dict[str, None] = {}  # groups whose consumers are to be notified
        self._is_notifying = False
        self._locks: dict[tuple[str, str, str, int], tuple[str, float]] = {}
        self._owners: dict[str, str] = {}  # client id -> access key
        self._owned: dict[str, Recent[str, float]] = {}  # access key -> client id -> when seen
        self.producer_listeners: list[Callable[[str, Member], None]] = []  # group and client, when it is new

    def __bool__(self) -> bool:
        """Whether any client is registered."""
        return bool(self._consumers or self._producers)

    # --- Requests ---------------------------------------------------------------------------------------------

    async def heartbeat(self, request: Command, connection: Connection) -> Command:
        """Register the client. Groups and retry topics of its consumers exist on return."""
        body = body_object(request)
        client_id = member(body, "clientID")
        if not client_id.strip() or len(client_id) > _CLIENT_ID_SIZE_MAX:
            raise RemotingError(
                Answer.INVALID_PARAMETER, "the clientID of the heartbeat is missing or longer than 1024 characters"
            )
        self._own(client_id, request.access_key)
        producers = objects(body, "producerDataSet", count_max=_GROUPS_PER_HEARTBEAT_MAX)
        consumers = objects(body, "consumerDataSet", count_max=_GROUPS_PER_HEARTBEAT_MAX)
        for number, item in enumerate(producers, 1):
            if not number % _GROUPS_AT_ONCE:
                await connection.next_turn(_GROUPS_SECONDS)
                if not connection.is_open:
                    return answer()  # it disconnected in the meantime, and nobody would notice later
            if group := member(item, "groupName"):
                self._register_producer(group, self._member(client_id, request, connection))
        size = _JSON_MEMORY * len(request.body) // max(1, len(consumers))
        for number, item in enumerate(consumers, 1):
            if not number % _GROUPS_AT_ONCE:
                await connection.next_turn(_GROUPS_SECONDS)
            if group := member(item, "groupName"):
                await self._register_consumer(group, item, self._member(client_id, request, connection), size)
        # Heartbeats without subscriptions are not supported here; clients then send complete ones.
        return answer({"IS_SUPPORT_HEART_BEAT_V2": False, "IS_SUB_CHANGE": False})

    async def unregister(self, request: Command, _: Connection) -> Command:
        client_id = text(request, "clientID")
        self._remove_producer(text(request, "producerGroup", ""), client_id)
        self._remove_consumer(text(request, "consumerGroup", ""), client_id)
        return answer()

    async def consumer_ids(self, request: Command, _: Connection) -> Command:
        """Consumers sort these ids and choose their queues by their own position."""
        group = text(request, "consumerGroup")
        consumers = self._consumers.get(group)
        if consumers is None:
            raise RemotingError(Answer.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return answer(body={"consumerIdList": list[object](consumers.members)})

    async def lock(self, request: Command, _: Connection) -> Command:
        """Which of these queues belong to this client for the next minute."""
        body = body_object(request)
        group, client_id = member(body, "consumerGroup"), member(body, "clientId")
        now = self._clock.monotonic()
        locked: list[object] = []
        for item in objects(body, "mqSet"):
            key = (group, *_queue_of(item))
            owner, until = self._locks.get(key, ("", 0.0))
            if owner != client_id and until > now:
                continue
            if key not in self._locks and len(self._locks) >= _LOCKS_MAX:
                self._drop_expired_locks(now)
                if len(self._locks) >= _LOCKS_MAX:
                    continue
            self._locks[key] = (client_id, now + LOCK_SECONDS)
            locked.append(Bean(brokerName=key[1], queueId=key[3], topic=key[2]))
        return answer(body={"lockOKMQSet": locked})

    async def unlock(self, request: Command, _: Connection) -> Command:
        body = body_object(request)
        group, client_id = member(body, "consumerGroup"), member(body, "clientId")
        for item in objects(body, "mqSet"):
            key = (group, *_queue_of(item))
            if self._locks.get(key, ("", 0.0))[0] == client_id:
                del self._locks[key]
        return answer()

    # --- For others -------------------------------------------------------------------------------------------

    def consumers(self, group: str) -> Consumers | None:
        """The consumers of a group; None if there are none."""
        return self._consumers.get(group)

    def consumer_groups(self) -> Iterable[str]:
        return tuple(self._consumers)

    def producers(self, group: str) -> list[Member]:
        """The producers of a group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> Iterable[str]:
        return tuple(self._producers)

    def find_producer(self, client_id: str) -> Member | None:
        """A producer by its client id, whatever its group."""
        for members in self._producers.values():
            if (found := members.get(client_id)) is not None:
                return found
        return None

    def members(self, client_id: str) -> Iterator[Member]:
        """All that a client registered, as a consumer or a producer."""
        for consumers in self._consumers.values():
            if (found := consumers.members.get(client_id)) is not None:
                yield found
        for members in self._producers.values():
            if (found := members.get(client_id)) is not None:
                yield found

    def owner_of(self, client_id: str) -> str | None:
        """The access key of the account to which a client id belongs; None if it is nobody's."""
        return self._owners.get(client_id)

    def connection_closed(self, connection: Connection) -> None:
        """Remove all clients of this connection."""
        registered = self._registered.pop(connection, ())
        self._registered_count -= len(registered)
        connection.turns.each(registered, lambda key: self._remove_of(connection, *key))

    def _remove_of(self, connection: Connection, group: str, client_id: str) -> None:
        found = self._producers.get(group, {}).get(client_id)
        if found is not None and found.connection is connection:
            self._remove_producer(group, client_id)
        consumers = self._consumers.get(group)
        found = None if consumers is None else consumers.members.get(client_id)
        if found is not None and found.connection is connection:
            self._remove_consumer(group, client_id)

    def expire(self) -> None:
        """Remove clients that were silent for too long."""
        now = self._clock.monotonic()
        limit = now - self._settings.current.limits.client_expiry_seconds
        self._remove(lambda found: found.seen_at < limit)
        self._drop_expired_locks(now)
        for access_key, ids in list(self._owned.items()):
            while ids and next(iter(ids.values())) < limit:
                self._disown(access_key)

    # --- Internals --------------------------------------------------------------------------------------------

    def _member(self, client_id: str, request: Command, connection: Connection) -> Member:
        seen_at = self._clock.monotonic()
        return Member(client_id, connection, request.language, request.version, seen_at, request.access_key)

    def _own(self, client_id: str, access_key: str) -> None:
        """Note the account of a client id; the permission to use the id was checked before."""
        if not access_key:
            return
        owner = self._owners.get(client_id)
        if owner is not None and owner != access_key:  # an administrator takes it
            del self._owned[owner][client_id]
            if not self._owned[owner]:
                del self._owned[owner]
        self._owners[client_id] = access_key
        ids = self._owned.get(access_key)
        if ids is None:
            ids = self._owned[access_key] = Recent(_IDS_PER_ACCOUNT_MAX, lambda oldest, _: self._owners.pop(oldest))
        ids[client_id] = self._clock.monotonic()

    def _disown(self, access_key: str) -> None:
        """Forget the client id of this account that has been silent for the longest time."""
        ids = self._owned[access_key]
        client_id, _ = ids.popitem(last=False)
        del self._owners[client_id]
        if not ids:
            del self._owned[access_key]

    def _register_producer(self, group: str, found: Member) -> None:
        members = self._producers.get(group, {})
        known = members.get(found.client_id)
        if known is None and len(members) >= _CLIENTS_PER_GROUP_MAX:
            raise RemotingError(
                Answer.SYSTEM_BUSY, f"producer group {group!r} has {len(members)} clients, which is the limit"
            )
        self._note(group, found)
        members = self._producers.setdefault(group, {})
        members[found.client_id] = found
        if known is None or known.connection is not found.connection:
            for listener in self.producer_listeners:
                listener(group, found)

    async def _register_consumer(self, group: str, item: dict[str, object], found: Member, size: int) -> None:
        """`size`: bytes of memory that the group's subscriptions take."""
        subscriptions = {}
        for data in objects(item, "subscriptionDataSet", count_max=_SUBSCRIPTIONS_MAX):
            topic = member(data, "topic")
            subscriptions[topic] = Subscription(
                topic,
                member(data, "subString"),
                member(data, "expressionType") or "TAG",
                integer_member(data, "subVersion"),
                Bean(data),
            )
        topics = [topic for topic in subscriptions if not topic.startswith(RETRY_PREFIX)]
        if group in self._tables.groups or self._settings.current.auto_create_groups:
            await self._tables.group_in_use(group, topics)
            await self._tables.internal_topic(retry_topic(group))
        if not found.connection.is_open:
            return  # it disconnected in the meantime, and nobody would notice later
        self._note(group, found, size)
        consumers = self._consumers.get(group)
        if consumers is None:
            consumers = self._consumers[group] = Consumers("", "", "")
        consumers.consume_type = member(item, "consumeType") or "CONSUME_PASSIVELY"
        consumers.message_model = member(item, "messageModel") or "CLUSTERING"
        consumers.consume_from = member(item, "consumeFromWhere") or "CONSUME_FROM_LAST_OFFSET"
        known = consumers.members.get(found.client_id)
        if known is None and len(consumers.members) >= _CLIENTS_PER_GROUP_MAX:
            raise RemotingError(
                Answer.SYSTEM_BUSY, f"consumer group {group!r} has {len(consumers.members)} clients, which is the limit"
            )
        consumers.members[found.client_id] = found
        joined = known is None or known.connection is not found.connection
        changed = consumers.subscriptions.keys() != subscriptions.keys() or any(
            (old := consumers.subscriptions[topic]).expression != new.expression
            or old.expression_type != new.expression_type
            for topic, new in subscriptions.items()
        )
        consumers.subscriptions = subscriptions
        if joined or changed:
            self._notify(group, found.connection.turns)

    def _note(self, group: str, found: Member, size: int = 0) -> None:
        """Note what the end of the connection removes, and charge it. RemotingError if it registers too much."""
        key = group, found.client_id
        registered = self._registered.setdefault(found.connection, {})
        if (known := registered.get(key)) is not None:
            registered[key] = size
            found.connection.holdings.add("registered", size - known)
            return
        if len(registered) >= _GROUPS_PER_CONNECTION_MAX or self._registered_count >= _REGISTRATIONS_MAX:
            raise RemotingError(
                Answer.SYSTEM_BUSY,
                f"this connection has registered {len(registered)} clients in groups, of {_GROUPS_PER_CONNECTION_MAX}, "
                f"all connections {self._registered_count} of {_REGISTRATIONS_MAX}; use fewer groups",
            )
        registered[key] = size
        self._registered_count += 1
        found.connection.holdings.add("registered", size + _MEMBER_SIZE)

    def _notify(self, group: str, turns: InputTurns) -> None:
        """Notify all consumers of the group of a change, so that each chooses its queues again.

        A group may have thousands, of which each one that joins or leaves is a change: what changes while they are
        notified makes one more notification, and a connection gets one for all of its clients.
        """
        self._changed[group] = None
        if not self._is_notifying:
            self._is_notifying = True
            turns.each(self._notifications(), lambda _: None)

    def _notifications(self) -> Iterator[bool]:
        while self._changed:
            group = next(iter(self._changed))
            del self._changed[group]
            consumers = self._consumers.get(group)
            members = () if consumers is None else consumers.members.values()
            for connection in tuple(dict.fromkeys(found.connection for found in members)):
                yield connection.notify(Command(Request.NOTIFY_CONSUMER_IDS_CHANGED, fields={"consumerGroup": group}))
        self._is_notifying = False

    def _remove_producer(self, group: str, client_id: str) -> None:
        members = self._producers.get(group)
        if members is not None and members.pop(client_id, None) is not None and not members:
            del self._producers[group]

    def _remove_consumer(self, group: str, client_id: str) -> None:
        consumers = self._consumers.get(group)
        if consumers is None or consumers.members.pop(client_id, None) is None:
            return
        if consumers.members:
            self._notify(group, next(iter(consumers.members.values())).connection.turns)
        else:
            del self._consumers[group]

    def _remove(self, gone: Callable[[Member], bool]) -> None:
        for group, members in list(self._producers.items()):
            for found in [found for found in members.values() if gone(found)]:
                self._remove_producer(group, found.client_id)
        for group, consumers in list(self._consumers.items()):
            for found in [found for found in consumers.members.values() if gone(found)]:
                self._remove_consumer(group, found.client_id)

    def _drop_expired_locks(self, now: float) -> None:
        for key in [key for key, (_, until) in self._locks.items() if until <= now]:
            del self._locks[key]


def _queue_of(item: dict[str, object]) -> tuple[str, str, int]:
    return member(item, "brokerName"), member(item, "topic"), integer_member(item, "queueId")
