"""Topics and groups with what they hold and how busy they are: searched, sorted and paged here, in one call.

A page in the order of names looks only at the topics or groups on it. Any other order has to look at all of them; other
tasks run between them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, TypeVar

from msgspec import Struct

from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.processors.administration.clients import OtherClients, agree
from aerobee_broker.processors.administration.wire import (
    OK,
    group_to_wire,
    is_own_topic,
    page_count,
    timestamp,
    topic_to_wire,
)
from aerobee_broker.recent import Recent
from aerobee_broker.statistics.broker_stats import BrokerStats, GroupTraffic, TopicTraffic
from aerobee_broker.tables.consumer_groups import is_system_group
from aerobee_broker.tables.deleted_letters import DeletedLetters
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import dead_letter_topic
from aerobee_broker.watching.backlog import Backlog, backlogs_of
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore, QueueBytes
from aerobee_store.records.decimals import decimal

SEARCH_LENGTH_MAX: Final = 255  # characters: as long as a name can be
_PAGE_COUNT: Final = 100
_QUEUES_MAX: Final = 1 << 16  # whose bytes are remembered
_TopicOrder = admin_v1.TopicOrder
_GroupOrder = admin_v1.GroupOrder
_StatusT = TypeVar("_StatusT", admin_v1.TopicStatus, admin_v1.GroupStatus)
Key = Callable[[str], Awaitable[float]]
"""What topics or groups are sorted by, of one of them."""


class _Traffic(Struct, frozen=True):
    """The recent traffic: a window of this many seconds."""

    seconds: float
    topics: dict[str, TopicTraffic]
    groups: dict[str, GroupTraffic]
    out_of_topics: dict[str, int]

    def rate(self, amount: int) -> float:
        return amount / self.seconds if self.seconds > 0 else 0.0


class Overview:
    """One method per RPC."""

    def __init__(
        self,
        *,
        store: MessageStore,
        tables: Tables,
        clients: ClientRegistry,
        deliveries: Deliveries,
        broker_stats: BrokerStats,
        deleted_letters: DeletedLetters,
        others: OtherClients,
    ) -> None:
        self._store = store
        self._tables = tables
        self._clients = clients
        self._deliveries = deliveries
        self._broker_stats = broker_stats
        self._deleted_letters = deleted_letters
        self._others = others
        # by queue, with its range at that time
        self._sizes: Recent[tuple[str, int], tuple[int, int, QueueBytes]] = Recent(_QUEUES_MAX)

    async def list_topics(
        self, request: admin_v1.ListTopicStatusRequest, _: Client
    ) -> admin_v1.ListTopicStatusResponse:
        names = _search(
            request.search,
            (topic.name for topic in self._tables.topics if request.include_system or not is_own_topic(topic.name)),
        )
        traffic = self._traffic()
        key = self._topic_key(request.order, traffic)

        async def status(name: str) -> admin_v1.TopicStatus | None:
            return self._topic(name, traffic)

        async def value(name: str) -> float:
            assert key is not None, "not asked without one"
            return key(name)

        page, token = await self._page(names, None if key is None else value, status, request)
        return admin_v1.ListTopicStatusResponse(status=OK, topics=page, next_page_token=token, total_count=len(names))

    async def list_groups(
        self, request: admin_v1.ListGroupStatusRequest, _: Client
    ) -> admin_v1.ListGroupStatusResponse:
        groups: Iterable[str] = (
            group.name for group in self._tables.groups if request.include_system or not is_system_group(group.name)
        )
        if request.topic:
            readers = set(self._readers(self._tables.topics.require(request.topic).name))
            groups = (name for name in groups if name in readers)
        names = _search(request.search, groups)
        traffic = self._traffic()
        connected: dict[str, list[Client]] = {}
        for client in self._clients.all():
            if client.group is not None:
                connected.setdefault(client.group, []).append(client)

        turns = Turns()

        async def status(name: str) -> admin_v1.GroupStatus | None:
            if name not in self._tables.groups:
                return None
            topics = await backlogs_of(self._deliveries, self._store, name, turns)
            return self._group(name, topics, traffic, connected.get(name, []))

        page, token = await self._page(names, _group_key(request.order, status), status, request)
        for found in page:
            found.subscriptions_differ = not await agree(connected.get(found.group.name, []))
        return admin_v1.ListGroupStatusResponse(status=OK, groups=page, next_page_token=token, total_count=len(names))

    async def _page(
        self,
        names: list[str],
        key: Key | None,
        status_of: Callable[[str], Awaitable[_StatusT | None]],
        request: admin_v1.ListTopicStatusRequest | admin_v1.ListGroupStatusRequest,
    ) -> tuple[list[_StatusT], str]:
        """The statuses on the page, and the token of the next one: how many come before it. `names` are in order."""
        begin = 0
        if request.page_token:
            begins = decimal(request.page_token)
            if begins is None:
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST, f"page_token {request.page_token[:80]!r} is invalid; start without one"
                )
            begin = begins
        end = begin + page_count(request.page_size, default=_PAGE_COUNT)
        turns = Turns()
        if key is not None:
            keys = {}
            for name in names:
                keys[name] = await key(name)
                await turns.next()
            names.sort(key=keys.__getitem__, reverse=request.descending)  # keeps the order among equal ones
        elif request.descending:
            names.reverse()
        found = []
        for name in names[begin:end]:
            status = await status_of(name)
            if status is not None:  # None: deleted while other tasks ran
                found.append(status)
            await turns.next()
        return found, str(end) if end < len(names) else ""

    def _topic_key(self, order: admin_v1.TopicOrder.ValueType, traffic: _Traffic) -> Callable[[str], float] | None:
        match order:
            case _TopicOrder.TOPIC_ORDER_UNSPECIFIED | _TopicOrder.TOPIC_ORDER_NAME:
                return None
            case _TopicOrder.TOPIC_ORDER_MESSAGES:
                return lambda name: sum(high - low for _, low, high in self._queues(name))
            case _TopicOrder.TOPIC_ORDER_BYTES:
                return lambda name: sum(self._size(name, *queue).size for queue in self._queues(name))
            case _TopicOrder.TOPIC_ORDER_IN_RATE:
                return lambda name: traffic.topics.get(name, TopicTraffic()).messages
            case _TopicOrder.TOPIC_ORDER_OUT_RATE:
                return lambda name: traffic.out_of_topics.get(name, 0)
            case _TopicOrder.TOPIC_ORDER_LAST_STORED:
                return lambda name: self._last_stored(name) or 0
            case _:
                raise _unknown_order(order)

    def _queues(self, topic: str) -> Iterator[tuple[int, int, int]]:
        """The queues with messages: queue id and range."""
        for queue_id in self._store.queue_ids(topic):
            low, high = self._store.queue_range(topic, queue_id)
            if high > low:
                yield queue_id, low, high

    def _size(self, topic: str, queue_id: int, low: int, high: int) -> QueueBytes:
        known = self._sizes.get((topic, queue_id))
        if known is not None and known[:2] == (low, high):
            return known[2]
        size = self._store.queue_bytes(topic, queue_id)
        self._sizes[topic, queue_id] = low, high, size
        return size

    def _last_stored(self, topic: str) -> int | None:
        times = (self._store.store_timestamp_at(topic, queue_id, high - 1) for queue_id, _, high in self._queues(topic))
        return max((stored for stored in times if stored is not None), default=None)

    def _topic(self, name: str, traffic: _Traffic) -> admin_v1.TopicStatus | None:
        topic = self._tables.topics.get(name)
        if topic is None:
            return None
        queues = list(self._queues(name))
        sizes = [self._size(name, *queue) for queue in queues]
        last = self._last_stored(name)
        sent = traffic.topics.get(name, TopicTraffic())
        status = admin_v1.TopicStatus(
            topic=topic_to_wire(topic),
            message_count=sum(high - low for _, low, high in queues),
            bytes=sum(size.size for size in sizes),
            bytes_estimated=any(size.is_estimated for size in sizes),
            messages_in_rate=traffic.rate(sent.messages),
            bytes_in_rate=traffic.rate(sent.bytes),
            messages_out_rate=traffic.rate(traffic.out_of_topics.get(name, 0)),
            group_count=len(self._readers(name)),
        )
        if last is not None:
            status.last_store_timestamp.CopyFrom(timestamp(last))
        return status

    def _group(
        self, name: str, topics: dict[str, Backlog], traffic: _Traffic, connected: list[Client]
    ) -> admin_v1.GroupStatus | None:
        group = self._tables.groups.get(name)
        if group is None:
            return None
        total = Backlog()
        for backlog in topics.values():
            total.add(backlog)
        got = traffic.groups.get(name, GroupTraffic())
        low, high = self._store.queue_range(dead_letter_topic(name), 0)
        status = admin_v1.GroupStatus(
            group=group_to_wire(group),
            lag=total.lag,
            inflight=total.in_flight,
            ready=total.ready,
            retrying=total.retrying,
            messages_out_rate=traffic.rate(got.messages),
            acknowledged_rate=traffic.rate(got.acknowledged),
            client_count=len(connected) + self._others.count(name),
            topic_count=sum(1 for topic in topics if not is_own_topic(topic)),
            dead_letter_count=max(high - low, 0) - self._deleted_letters.count(name, low, high),
        )
        if total.oldest_ms is not None:
            status.oldest_timestamp.CopyFrom(timestamp(total.oldest_ms))
        return status

    def _readers(self, topic: str) -> list[str]:
        return [group for group in self._tables.offsets.groups_of(topic) if not is_system_group(group)]

    def _traffic(self) -> _Traffic:
        seconds, topics, by_pair = self._broker_stats.recent()
        groups: dict[str, GroupTraffic] = {}
        out: dict[str, int] = {}
        for (topic, group), traffic in by_pair.items():
            before = groups.get(group, GroupTraffic())
            groups[group] = before.plus(traffic)
            out[topic] = out.get(topic, 0) + traffic.messages
        return _Traffic(seconds, topics, groups, out)


def _search(text: str, names: Iterable[str]) -> list[str]:
    """The names that contain the text, upper and lower case alike, in order."""
    if len(text) > SEARCH_LENGTH_MAX:
        raise InvalidRequestError(
            v2.Code.BAD_REQUEST, f"search has {len(text)} characters; give at most {SEARCH_LENGTH_MAX}"
        )
    wanted = text.casefold()
    return sorted(name for name in names if wanted in name.casefold())


def _group_key(
    order: admin_v1.GroupOrder.ValueType, status: Callable[[str], Awaitable[admin_v1.GroupStatus | None]]
) -> Key | None:
    if order in (_GroupOrder.GROUP_ORDER_UNSPECIFIED, _GroupOrder.GROUP_ORDER_NAME):
        return None
    value = _GROUP_VALUES.get(order)
    if value is None:
        raise _unknown_order(order)

    async def key(name: str) -> float:
        found = await status(name)
        return float("-inf") if found is None else value(found)

    return key


_GROUP_VALUES: Final[dict[int, Callable[[admin_v1.GroupStatus], float]]] = {
    _GroupOrder.GROUP_ORDER_LAG: lambda group: group.lag,
    # The oldest message has the smallest time, and the largest age.
    _GroupOrder.GROUP_ORDER_AGE: lambda group: (
        -group.oldest_timestamp.ToMilliseconds() if group.HasField("oldest_timestamp") else float("-inf")
    ),
    _GroupOrder.GROUP_ORDER_OUT_RATE: lambda group: group.messages_out_rate,
    _GroupOrder.GROUP_ORDER_CLIENTS: lambda group: group.client_count,
    _GroupOrder.GROUP_ORDER_DEAD_LETTERS: lambda group: group.dead_letter_count,
}


def _unknown_order(order: int) -> InvalidRequestError:
    return InvalidRequestError(v2.Code.BAD_REQUEST, f"order {order} is unknown; admin.proto lists the orders")
