"""Lite topics: sub-streams of a parent topic to which every client subscribes individually.

The messages of a lite topic are in a light queue of the store, in which a group has a position as in any queue; so
delivery, acknowledgement and the journal treat them alike. Only the queues read by a receive differ: those to which its
client has subscribed. Subscriptions are kept here, in memory: they end with the client, and official clients repeat
them every 30 seconds.

A client may subscribe to a thousand lite topics, few of which have messages. They are not polled in turn: each client
has a list of the lite topics that may have messages (`pending`), which arrivals, expiries and nacks extend.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from enum import Enum
from itertools import islice
from typing import Final

from msgspec import Struct

from aerobee_broker.config import Settings
from aerobee_broker.delivery.journal.history import History
from aerobee_broker.delivery.receive.long_polling import LongPolling
from aerobee_broker.delivery.state.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.state.queue_key import QueueKey
from aerobee_broker.delivery.state.subscriptions import Queue, Subscriptions
from aerobee_broker.errors import LiteQuotaError
from aerobee_broker.tables.topics import TopicConfig, light_topic_name, split_light_topic_name
from aerobee_store import MessageStore
from aerobee_store.records.topic_names import LIGHT_PREFIX

LITE_QUEUE_ID: Final = 0
_LOOKED_PER_STEP_MAX: Final = 64  # lite topics that a receive examines before other tasks run

Begin = Callable[[MessageStore, str], int]
"""The start of a subscription: the store and the name of a light queue -> queue offset."""


class Action(Enum):
    """The kind of change of a client's subscriptions."""

    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"


class Change(Struct, frozen=True):
    """`names` are lite topics. A `version` below an earlier one is outdated. `begin` applies to new subscriptions."""

    action: Action
    names: frozenset[str]
    version: int | None = None
    begin: Begin | None = None


class LiteConsumer:
    """The subscriptions of one client of a group in a parent topic."""

    __slots__ = ("client_id", "group", "parent", "pending", "place", "subscribed", "version", "waits_as")

    def __init__(self, parent: str, group: str, client_id: str) -> None:
        self.parent = parent
        self.group = group
        self.client_id = client_id
        self.subscribed: dict[str, None] = {}  # names of light queues
        self.pending: OrderedDict[str, None] = OrderedDict()  # those that may have messages
        self.version: int | None = None
        # Each client has a waiting queue of its own. Its name contains a space, so no group has it, and no topic has
        # the name of the place: arrivals in the parent topic do not wake these receives.
        self.place = light_topic_name(parent, "")
        self.waits_as = f"{group} lite {client_id}"


class LiteConsumers:
    """All lite subscriptions. Event loop only."""

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        subscriptions: Subscriptions,
        history: History,
        long_polling: LongPolling,
    ) -> None:
        self._store = store
        self._settings = settings
        self._subscriptions = subscriptions
        self._history = history
        self._long_polling = long_polling
        self._consumers: dict[tuple[str, str, str], LiteConsumer] = {}  # parent, group, client id
        self._of_client: dict[str, dict[LiteConsumer, None]] = {}
        self._of_queue: dict[str, dict[LiteConsumer, None]] = {}
        self._last_messages: dict[str, tuple[int, int]] = {}  # light queue -> end, and when its last message was stored
        self.unsubscribed_listeners: list[Callable[[str, str], None]] = []
        """Called with the client id and the lite topic when a subscription is removed because the lite topic was
        deleted."""

    def get(self, parent: str, group: str, client_id: str) -> LiteConsumer | None:
        return self._consumers.get((parent, group, client_id))

    def names(self, parent: str, group: str, client_id: str) -> list[str]:
        """The lite topics to which a client has subscribed, sorted."""
        consumer = self.get(parent, group, client_id)
        return sorted(_lite_topic(name) for name in consumer.subscribed) if consumer is not None else []

    async def subscribe(self, parent: str, group: str, client_id: str, change: Change) -> None:
        """Change a client's subscriptions. The group's positions in new lite topics are durable on return.

        An existing position of the group stays, except with `begin` for a lite topic to which no client of it has
        subscribed. Raises LiteQuotaError, StoreError.
        """
        consumer = self.get(parent, group, client_id) or LiteConsumer(parent, group, client_id)
        if change.version is not None:
            if consumer.version is not None and change.version < consumer.version:
                return
            consumer.version = change.version
        added, removed = _difference(parent, consumer.subscribed.keys(), change)
        if added:
            self._check_quota(consumer, len(added) - len(removed))
        self._history.begin(QueueKey(group, name, LITE_QUEUE_ID) for name in added)
        if change.begin is not None:
            self._history.reset(
                [
                    (queue, change.begin(self._store, name))
                    for name in added
                    if not any(other.group == group for other in self._of_queue.get(name, ()))
                    and (queue := self._subscriptions.queue(name, group, LITE_QUEUE_ID)) is not None
                ]
            )
        self._consumers[parent, group, client_id] = consumer
        self._of_client.setdefault(client_id, {})[consumer] = None
        for name in removed:
            self._take_away(consumer, name)
        for name in added:
            consumer.subscribed[name] = None
            consumer.pending[name] = None
            self._of_queue.setdefault(name, {})[consumer] = None
        if added:
            self._long_polling.wake(consumer.place, consumer.waits_as)
        await self._history.wait_stored()  # also when an earlier call added them, and was refused

    def _check_quota(self, consumer: LiteConsumer, growth: int) -> None:
        """Raise LiteQuotaError if the client may not have that many more lite topics."""
        quota = self._settings.current.delivery.lite_subscriptions_max
        others = [each for each in self._of_client.get(consumer.client_id, ()) if each is not consumer]
        count = sum(len(each.subscribed) for each in (*others, consumer)) + growth
        if count > quota:
            raise LiteQuotaError(
                f"client {consumer.client_id!r} would have {count} lite topics, the limit is {quota} "
                "(delivery.lite_subscriptions_max); use more clients",
            )

    def arrived(self, topic: str, queue_id: int, max_offset: int) -> None:
        """A listener for `MessageStore.arrival_listeners`."""
        if topic.startswith(LIGHT_PREFIX):
            self._note(topic, None)

    def wake(self, queue: Queue) -> None:
        """A message of this light queue may be deliverable to its group."""
        self._note(queue.key.topic, queue.key.group)

    def client_gone(self, client_id: str) -> None:
        """Remove the subscriptions of a client."""
        for consumer in list(self._of_client.get(client_id, ())):
            self._forget(consumer)

    def drop(self, topic: str, group: str) -> None:
        """Remove the subscriptions of a deleted parent topic, lite topic (by the name of its queue) or group; "": all.

        The clients of a lite topic are notified.
        """
        for consumer in list(self._of_queue.get(topic, ())):
            if group in ("", consumer.group):
                self._take_away(consumer, topic)
                for listener in self.unsubscribed_listeners:
                    listener(consumer.client_id, _lite_topic(topic))
        if not topic.startswith(LIGHT_PREFIX):
            for consumer in list(self._consumers.values()):
                if group in ("", consumer.group) and topic in ("", consumer.parent):
                    self._forget(consumer)

    async def expired(self, topics: Iterable[TopicConfig], now_ms: int) -> list[str]:
        """The light queues whose last message is older than the expiration of their parent topic.

        A queue whose last message has expired from the log is older. The log is asked once per message.
        """
        minutes = {topic.name: topic.lite_expiry_minutes for topic in topics if topic.lite_expiry_minutes}
        found: list[str] = []
        last_messages: dict[str, tuple[int, int]] = {}
        names = self._store.queues() if minutes else ()
        for number, name in enumerate(names):
            if number % _LOOKED_PER_STEP_MAX == 0:
                await asyncio.sleep(0)
            split = split_light_topic_name(name)
            if split is None or (limit := minutes.get(split[0])) is None:
                continue
            low, high = self._store.queue_range(name, LITE_QUEUE_ID)
            known = self._last_messages.get(name)
            if low >= high:
                last = None
            elif known is not None and known[0] == high:
                last = known[1]
            else:
                last = self._store.store_timestamp_at(name, LITE_QUEUE_ID, high - 1)
            if last is None or now_ms - last > limit * 60_000:
                found.append(name)
            else:
                last_messages[name] = high, last
        self._last_messages = last_messages
        return found

    def _note(self, name: str, group: str | None) -> None:
        for consumer in self._of_queue.get(name, ()):
            if group is None or consumer.group == group:
                consumer.pending[name] = None
                self._long_polling.wake(consumer.place, consumer.waits_as)

    def _forget(self, consumer: LiteConsumer) -> None:
        for name in list(consumer.subscribed):
            self._take_away(consumer, name)
        del self._consumers[consumer.parent, consumer.group, consumer.client_id]
        own = self._of_client[consumer.client_id]
        del own[consumer]
        if not own:
            del self._of_client[consumer.client_id]

    def _take_away(self, consumer: LiteConsumer, name: str) -> None:
        del consumer.subscribed[name]
        consumer.pending.pop(name, None)
        consumers = self._of_queue[name]
        del consumers[consumer]
        if not consumers:
            del self._of_queue[name]


class LiteQueueSet:
    """The light queues to which a client has subscribed, for a receive, as a `queue_sets.QueueSet`."""

    def __init__(
        self,
        consumers: LiteConsumers,
        subscriptions: Subscriptions,
        long_polling: LongPolling,
        parent: str,
        group: str,
        client_id: str,
    ) -> None:
        self._consumers = consumers
        self._subscriptions = subscriptions
        self._long_polling = long_polling
        self._nobody = LiteConsumer(parent, group, client_id)
        self._left: int | None = None  # pending queues to examine before waiting; None: all

    @property
    def _consumer(self) -> LiteConsumer:
        """The current subscriptions: some clients subscribe after the first receive."""
        nobody = self._nobody
        return self._consumers.get(nobody.parent, nobody.group, nobody.client_id) or nobody

    def begin(self, topic: TopicConfig) -> bool:
        return False  # subscribing reports it

    def queues(self, attempt: int | None) -> Sequence[Queue]:
        consumer = self._consumer
        found = []
        if self._left is None:
            self._left = len(consumer.pending)
            if attempt is not None:  # its queues are not pending: their messages are in flight
                busy = self._subscriptions.busy(consumer.group)
                found = [queue for queue in busy if queue.topic == consumer.parent and _holds(queue, attempt)]
        names = list(islice(consumer.pending, min(self._left, _LOOKED_PER_STEP_MAX)))
        self._left -= len(names)
        for name in names:
            queue = self._subscriptions.queue(name, consumer.group, LITE_QUEUE_ID)
            if queue is None:
                del consumer.pending[name]
            elif queue not in found:
                found.append(queue)
        return found

    def looked(self, queues: Sequence[Queue]) -> bool:
        consumer = self._consumer
        for queue in queues:
            name = queue.key.topic
            if name in consumer.pending:
                if self._may_have_more(queue):
                    consumer.pending.move_to_end(name)
                else:
                    del consumer.pending[name]
        return bool(self._left)

    def wake_next(self) -> None:
        self._long_polling.wake(self._nobody.place, self._nobody.waits_as)

    async def wait(self, seconds: float, *, again: bool) -> bool:
        self._left = None
        nobody = self._nobody
        return await self._long_polling.wait(nobody.place, nobody.waits_as, nobody.client_id, seconds, again=again)

    def _may_have_more(self, queue: Queue) -> bool:
        delivery = queue.delivery
        if delivery.cursor < self._subscriptions.end_of(queue):
            return True
        order = delivery.order
        if isinstance(order, MessageGroupOrder) and delivery.is_order_known:
            return order.has_open()
        return delivery.waiting_count > 0


def _holds(queue: Queue, nonce: int) -> bool:
    return any(flight.nonce == nonce for flight in queue.delivery.in_flight.values())


def _difference(parent: str, subscribed: Set[str], change: Change) -> tuple[list[str], Set[str]]:
    """The light queues that a change adds, sorted, and those that it removes."""
    named = {light_topic_name(parent, name) for name in change.names}
    match change.action:
        case Action.ADD:
            return sorted(named - subscribed), set()
        case Action.REMOVE:
            return [], named & subscribed
        case Action.REPLACE:
            return sorted(named - subscribed), subscribed - named


def _lite_topic(name: str) -> str:
    split = split_light_topic_name(name)
    assert split is not None, "only names of lite topics are subscribed"
    return split[1]


def lite_topics_of(store: MessageStore, parent: str) -> list[str]:
    """The names of the light queues of a parent topic."""
    return [name for name in store.queues() if (split := split_light_topic_name(name)) and split[0] == parent]
