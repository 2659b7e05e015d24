"""Whether a topic takes a message of a client: every entrance asks here, and the questions have one order.

    name        clients may send to it: it is no topic of the broker itself
    topic       it exists, or may be created now; a retry topic also needs its group
    type        the topic takes messages of this type (clients of RocketMQ 4 know no types, and are not asked)
    lite        lite messages need light queues
    batches     a topic of inner batches takes nothing else, neither now nor when a delay or a transaction ends
    writing     the topic is not closed
    queue       a queue that the client names exists

Before these come the caller's permissions (`clients.permissions`) and the rules of the message itself
(`aerobee_store.records.message_rules`), after them the store: space on the disk, the dispatch, the lease. What the
broker stores for itself passes none of these questions.
"""

from __future__ import annotations

from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.errors import InvalidRequestError, QueueNotFoundError, SystemTopicError
from aerobee_broker.messages.message_mapping import LITE
from aerobee_broker.tables.predefined_topics import predefined_topics
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType, check_form, is_system_topic
from aerobee_proto import v2
from aerobee_store.records.properties import jump_hash
from aerobee_store.records.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX

_T = v2.MessageType
ACCEPTED_TYPES: Final[dict[TopicMessageType, tuple[v2.MessageType.ValueType, ...]]] = {
    TopicMessageType.UNSPECIFIED: (_T.NORMAL,),  # a type of a later RocketMQ; clients reject an unspecified one
    TopicMessageType.NORMAL: (_T.NORMAL,),
    TopicMessageType.FIFO: (_T.FIFO,),
    TopicMessageType.DELAY: (_T.DELAY,),
    TopicMessageType.TRANSACTION: (_T.TRANSACTION,),
    TopicMessageType.MIXED: (_T.NORMAL, _T.FIFO, _T.DELAY, _T.TRANSACTION),
    TopicMessageType.LITE: (_T.LITE,),
    TopicMessageType.PRIORITY: (_T.PRIORITY,),
}


class Destination:
    """A topic to which clients may send, until a topic changes."""

    __slots__ = ("_kinds", "_light_queues", "_next_queue", "_verdicts", "config", "queue_count", "topic")

    def __init__(self, topic: TopicConfig, *, light_queues: bool = False) -> None:
        self.config = topic
        self.topic = topic.name
        """Its stored name."""
        self.queue_count = topic.write_queue_count
        takes_all = topic.name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        self._kinds = frozenset(_T.values() if takes_all else ACCEPTED_TYPES[topic.message_type])
        self._light_queues = light_queues
        self._verdicts: dict[v2.MessageType.ValueType, bool] = {}
        self._next_queue = 0

    def takes(self, kind: v2.MessageType.ValueType) -> bool:
        """Whether `check` passes. For the fast paths."""
        if kind not in self._verdicts:
            try:
                self.check(kind)
            except InvalidRequestError:
                self._verdicts[kind] = False
            else:
                self._verdicts[kind] = True
        return self._verdicts[kind]

    def check(self, kind: v2.MessageType.ValueType | None, *, has_batches: bool = False) -> None:
        """InvalidRequestError unless the topic takes messages of this type; None: of any type.

        `has_batches`: inner batches, which only some topics take.
        """
        if kind is not None and kind not in self._kinds:
            names = ", ".join(map(v2.MessageType.Name, ACCEPTED_TYPES[self.config.message_type]))
            raise InvalidRequestError(
                v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {self.topic!r} takes {names} messages, but this one is {v2.MessageType.Name(kind)}; "
                "send it to a topic of its type",
            )
        if kind == LITE and not self._light_queues:
            raise InvalidRequestError(
                v2.Code.NOT_IMPLEMENTED, "lite topics need light queues; set store.light_queues = true"
            )
        if self.config.takes_batches and not has_batches:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"topic {self.topic!r} is a batch topic (queue.type=BatchCQ) and takes inner batches only; send to "
                "another topic, or append batches with AppendRecords",
            )
        self.config.check_writable()

    def check_queue(self, queue_id: int, *, as_of_old_route: bool = False) -> None:
        """QueueNotFoundError unless clients may send to this queue.

        `as_of_old_route`: also to one that the topic has only for reading any more, as in RocketMQ.
        """
        count = self.config.write_queue_count
        if as_of_old_route:
            count = max(count, self.config.read_queue_count)
        if not 0 <= queue_id < count:
            raise QueueNotFoundError(self.topic, "write", count, queue_id)

    def queue_for(self, message_group: str) -> int:
        """The queue of a message group; without one, the queue whose turn it is."""
        return jump_hash(message_group, self.queue_count) if message_group else self.take_queue()

    def take_queue(self) -> int:
        """The queue for messages without a message group: round-robin per request, as in RocketMQ."""
        queue_id = self._next_queue
        self._next_queue = (queue_id + 1) % max(1, self.queue_count)
        return queue_id


class Admission:
    """The destinations of messages. One for all entrances, so that they share the turns of the queues."""

    def __init__(self, settings: Settings, tables: Tables) -> None:
        self._settings = settings
        self._tables = tables
        self._light_queues = settings.current.store.light_queues
        self._known: dict[str, Destination] = {}
        self._revision = -1

    def known(self, stored_name: str) -> Destination | None:
        """The destination, if it was asked for since the topics last changed."""
        revision = self._tables.topics.saved_revision
        if self._revision != revision:
            self._known.clear()
            self._revision = revision
        return self._known.get(stored_name)

    @property
    def revision(self) -> int:
        """Changes when a topic does, so that earlier destinations may be outdated."""
        return self._tables.topics.saved_revision

    async def destination(self, stored_name: str, *, queue_count: int | None = None) -> Destination:
        """The topic of this name, which may be created: with at most `queue_count` queues.

        Raises SystemTopicError, IllegalTopicError, TopicNotFoundError, GroupNotFoundError, OSError.
        """
        if (found := self.known(stored_name)) is not None:
            return found
        self._check_name(stored_name)
        if stored_name.startswith(RETRY_PREFIX):
            await self._tables.internal_topic(stored_name)
        else:
            await self._tables.topic_in_use(stored_name, queue_count=queue_count)
        return self.existing(stored_name)

    def existing(self, stored_name: str) -> Destination:
        """The same for a topic that is not created. TopicNotFoundError."""
        if (found := self.known(stored_name)) is not None:
            return found
        self._check_name(stored_name)
        found = Destination(self._tables.topics.require(stored_name), light_queues=self._light_queues)
        if not stored_name.startswith(RETRY_PREFIX):  # its group is looked for each time
            self._known[stored_name] = found
        return found

    def _check_name(self, stored_name: str) -> None:
        if stored_name in predefined_topics(self._settings.current):
            return
        if is_system_topic(stored_name):
            raise SystemTopicError(f"topic {stored_name!r} is a system topic; send to another topic")
        if stored_name not in self._tables.topics:
            check_form(stored_name)
        if stored_name.startswith(RETRY_PREFIX):
            self._tables.groups.require(stored_name.removeprefix(RETRY_PREFIX))
