"""The topics of the broker, kept in RocketMQ's topics.json.

A topic's identity is (namespace, name). The store knows one string for it, RocketMQ's own form: the bare name without a
namespace, else `<namespace>%<name>`, and for the topics that belong to a group `%RETRY%<namespace>%<group>`.
`a%b` in no namespace is therefore the same topic as `b` in namespace `a`, as in RocketMQ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from typing import ClassVar, Final

from aerobee_broker.config.topics import QUEUE_COUNT_MAX
from aerobee_broker.errors import (
    ClosedError,
    IllegalNamespaceError,
    IllegalTopicError,
    QueueNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from aerobee_broker.limits.table_space import Kind, TableSpace, topic_size
from aerobee_broker.tables.attributes import TOPIC_ATTRIBUTES, check_attributes, check_fields
from aerobee_broker.tables.data_version import NamedTable
from aerobee_broker.tables.json_fields import JsonFields
from aerobee_store.clock import Clock
from aerobee_store.records.decimals import decimal
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC
from aerobee_store.records.message_rules import NAME_SIZE_MAX, name_fault
from aerobee_store.records.topic_names import DEAD_LETTER_PREFIX, LIGHT_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX
from aerobee_store.tables.java_json import Bean

INTERNAL_TOPIC_NAME_SIZE_MAX: Final = 255  # %RETRY% and %DLQ% before the longest group name
QUEUE_COUNT_DEFAULT: Final = 8
POP_RETRY_QUEUE_ID: Final = 0  # the only queue of a retry topic of POP consumers
TEMPLATE_TOPIC: Final = "TBW102"
"""Clients use the route of this topic for a topic that their first send will create."""
SYSTEM_TOPICS: Final = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
MESSAGE_TYPE: Final = "message.type"
_QUEUE_TYPE: Final = "queue.type"
_LITE_EXPIRATION: Final = "lite.topic.expiration"  # RocketMQ's attribute: minutes after the last message, -1 for never
_NAMESPACE = re.compile(r"[|a-zA-Z0-9_-]+")


class Permission(IntFlag):
    """The permissions of a topic; the bits of RocketMQ's `perm`."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8
    READ_WRITE = 6


class TopicMessageType(StrEnum):
    """The type of messages that a topic takes; RocketMQ's attribute `message.type`."""

    UNSPECIFIED = "UNSPECIFIED"
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    LITE = "LITE"
    PRIORITY = "PRIORITY"


# Names


def stored_name(namespace: str, name: str) -> str:
    """The stored name of the topic or group `name` in `namespace`.

    System topics belong to no namespace. Raises IllegalNamespaceError for characters that would make the name
    ambiguous, and for a name that is too long.
    """
    if not namespace or is_system_topic(name):
        return name
    if len(namespace) > NAME_SIZE_MAX or _NAMESPACE.fullmatch(namespace) is None:
        raise IllegalNamespaceError(
            f"namespace {namespace[:80]!r} has more than {NAME_SIZE_MAX} characters, or characters other than "
            f"letters, digits, '_', '-' and '|'; choose another"
        )
    prefix, rest = _split_prefix(name)
    return f"{prefix}{namespace}%{rest}"


def split_stored_name(stored: str) -> tuple[str, str]:
    """The (namespace, name) of a stored name: the inverse of `stored_name`."""
    prefix, rest = _split_prefix(stored)
    namespace, separator, name = rest.partition("%")
    if not separator or not namespace or not name:
        return "", stored
    return namespace, prefix + name


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def retry_topic(group: str) -> str:
    """The topic for messages that `group` (a stored name) must receive again."""
    return RETRY_PREFIX + group


def pop_retry_topics(topic: str, group: str) -> tuple[str, str]:
    """RocketMQ's topics for messages of a topic that POP consumers of `group` must receive again, by its two naming
    versions (stored names)."""
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def split_pop_retry_topic(stored: str, group: str) -> tuple[str, int] | None:
    """The topic and the naming version, 1 or 2, of a retry topic of this group's POP consumers; None for any other."""
    head = RETRY_PREFIX + group
    mark, topic = stored[len(head) : len(head) + 1], stored[len(head) + 1 :]
    return (topic, 1 + "_+".index(mark)) if stored.startswith(head) and topic and mark in ("_", "+") else None


def dead_letter_topic(group: str) -> str:
    """The topic for messages that `group` (a stored name) could not consume."""
    return DEAD_LETTER_PREFIX + group


def light_topic_name(parent: str, lite_topic: str) -> str:
    """RocketMQ's name for the light queue of a lite topic; `parent` is the stored name of its parent topic."""
    return f"{LIGHT_PREFIX}${parent}${lite_topic}"


def split_light_topic_name(stored: str) -> tuple[str, str] | None:
    """The (parent, lite topic) of a light queue's name; None for any other name."""
    empty, prefix, rest = stored.partition(f"{LIGHT_PREFIX}$")
    parent, separator, lite_topic = rest.partition("$")
    return (parent, lite_topic) if prefix and not empty and separator and parent and lite_topic else None


def is_system_topic(name: str) -> bool:
    """Whether the topic belongs to the broker: users can neither create it nor send to it.

    A stored name with a namespace is never a system topic.
    """
    return name in SYSTEM_TOPICS or (name.startswith(SYSTEM_TOPIC_PREFIX) and "%" not in name)


def is_in_table(name: str) -> bool:
    """Whether the table of topics has the topics of this name: they are neither the broker's nor light queues."""
    return not is_system_topic(name) and not name.startswith(LIGHT_PREFIX)


def check_topic_name(name: str) -> None:
    """Raise IllegalTopicError unless a request may name this topic.

    1..127 characters of `a-z A-Z 0-9 _ - % |`, and no system topic. Retry and dead-letter topics may be read.
    """
    check_form(name, NAME_SIZE_MAX)
    if is_system_topic(name):
        raise IllegalTopicError(f"topic {name!r} is a system topic; choose another name")


def check_new_topic_name(stored: str) -> None:
    """Raise IllegalTopicError unless a user may create a topic with this stored name."""
    check_form(stored, NAME_SIZE_MAX)
    name = split_stored_name(stored)[1]
    check_topic_name(name)
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX, LIGHT_PREFIX):
        if name.startswith(prefix):
            raise IllegalTopicError(f"topic {name!r} begins with the reserved prefix {prefix}; choose another name")


def check_form(name: str, size_max: int = INTERNAL_TOPIC_NAME_SIZE_MAX) -> None:
    """Raise IllegalTopicError for a name with forbidden characters, or one that is too long."""
    # RocketMQ joins group and topic with a character that neither may have.
    letters = name.replace("+", "_", 1) if name.startswith(RETRY_PREFIX) else name
    if fault := name_fault(letters, size_max):
        raise IllegalTopicError(f"topic {name[:NAME_SIZE_MAX]!r} {fault}")


# One topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic. `name` is the stored name; producers and consumers get the queue counts."""

    name: str
    read_queue_count: int = QUEUE_COUNT_DEFAULT
    write_queue_count: int = QUEUE_COUNT_DEFAULT
    permission: Permission = Permission.READ_WRITE
    attributes: Mapping[str, str] = field(default_factory=dict)
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0  # 1: unit, 2: subscription of a unit
    order: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)  # unknown fields, written back unchanged

    @classmethod
    def of_type(
        cls,
        name: str,
        message_type: TopicMessageType = TopicMessageType.NORMAL,
        *,
        queue_count: int = QUEUE_COUNT_DEFAULT,
    ) -> TopicConfig:
        """A topic for one type of message, with the same number of queues for reading and writing."""
        return cls(
            name=name,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            attributes={MESSAGE_TYPE: message_type.value},
        )

    @property
    def message_type(self) -> TopicMessageType:
        """NORMAL without the attribute; UNSPECIFIED for an unknown type."""
        try:
            return TopicMessageType(self.attributes.get(MESSAGE_TYPE, TopicMessageType.NORMAL))
        except ValueError:
            return TopicMessageType.UNSPECIFIED

    @property
    def takes_batches(self) -> bool:
        """Whether the topic takes only RocketMQ's inner batches."""
        return self.attributes.get(_QUEUE_TYPE) == "BatchCQ"

    @property
    def lite_expiry_minutes(self) -> int | None:
        """Minutes after its last message until a lite topic of this topic expires; None: never."""
        return decimal(self.attributes.get(_LITE_EXPIRATION)) or None

    @property
    def fields(self) -> tuple[object, ...]:
        """All that may have any size."""
        return self.attributes, self.filter_type, self.extra

    @property
    def readable(self) -> bool:
        return Permission.READ in self.permission

    @property
    def writable(self) -> bool:
        return Permission.WRITE in self.permission

    def check_readable(self) -> None:
        """ClosedError unless clients may read the topic."""
        if not self.readable or not self.read_queue_count:
            raise ClosedError(
                f"topic {self.name!r} has no readable queue; allow reading with: aerobee topic update {self.name}"
            )

    def check_read_queue(self, queue_id: int) -> None:
        """ClosedError or QueueNotFoundError unless clients may read this queue."""
        self.check_readable()
        if not 0 <= queue_id < self.read_queue_count:
            raise QueueNotFoundError(self.name, "read", self.read_queue_count, queue_id)

    def check_writable(self) -> None:
        """ClosedError unless clients may send to the topic."""
        if not self.writable or not self.write_queue_count:
            raise ClosedError(
                f"topic {self.name!r} has no writable queue; allow writing with: aerobee topic update {self.name}"
            )

    def check_write_queue(self, queue_id: int) -> None:
        """ClosedError or QueueNotFoundError unless clients may send to this queue."""
        self.check_writable()
        if not 0 <= queue_id < self.write_queue_count:
            raise QueueNotFoundError(self.name, "write", self.write_queue_count, queue_id)

    @classmethod
    def from_json(cls, name: str, value: object) -> TopicConfig:
        """Read one entry of topicConfigTable; `name` is its key. Raises TableFormatError."""
        fields = JsonFields(f"topics.json.topicConfigTable.{name}", value)
        # repeated in the file; RocketMQ looks topics up by key, so the key takes precedence
        fields.text("topicName", name)
        return cls(
            name=name,
            read_queue_count=fields.integer("readQueueNums", 16),
            write_queue_count=fields.integer("writeQueueNums", 16),
            permission=Permission(fields.integer("perm", Permission.READ_WRITE)),
            attributes=fields.texts("attributes"),
            filter_type=fields.text("topicFilterType", "SINGLE_TAG"),
            sys_flag=fields.integer("topicSysFlag", 0),
            order=fields.boolean("order", False),
            extra=fields.rest(),
        )

    def to_json(self) -> Bean:
        return Bean(
            self.extra,
            attributes=dict(self.attributes),
            order=self.order,
            perm=int(self.permission),
            readQueueNums=self.read_queue_count,
            topicFilterType=self.filter_type,
            topicName=self.name,
            topicSysFlag=self.sys_flag,
            writeQueueNums=self.write_queue_count,
        )


class TopicTable(NamedTable[TopicConfig]):
    """All topics, by stored name."""

    _FILE_NAME = "topics.json"
    _ITEMS_FIELD = "topicConfigTable"
    _KIND: ClassVar[Kind] = "topics"

    @staticmethod
    def _item_from_json(name: str, value: object) -> TopicConfig:
        return TopicConfig.from_json(name, value)

    def __init__(self, clock: Clock, space: TableSpace | None = None) -> None:
        super().__init__(clock, space)
        self._existing: dict[str, int] = {}  # queues of topics that have fewer now
        self._queue_ids_of: Callable[[str], Collection[int]] = lambda _: ()
        self._counted_by_group: Callable[[str, str], int | None] = lambda _prefix, _group: None

    def count_memory(
        self,
        queues: Mapping[str, Collection[int]],
        queue_ids_of: Callable[[str], Collection[int]],
        counted_by_group: Callable[[str, str], int | None],
    ) -> None:
        """Count the memory of all topics as it is. `queues`: those of the store, by topic; `queue_ids_of`: those of a
        topic. `counted_by_group`: how many queues of its topic with this prefix a group has counted itself, None if it
        does not exist."""
        self._queue_ids_of, self._counted_by_group = queue_ids_of, counted_by_group
        self._existing = {name: len(queue_ids) for name, queue_ids in queues.items() if name in self._latest}
        for name in self._latest:
            self._recount(name)

    def recount_of_group(self, group: str) -> None:
        """Count again the topics that belong to a group, which has changed."""
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            self._recount(prefix + group)

    def _recount(self, name: str) -> None:
        item = self._latest.get(name)
        if item is not None:
            self._set_latest(name, item)

    def _size_of(self, item: TopicConfig) -> int:
        count = max(item.read_queue_count, item.write_queue_count, self._existing.get(item.name, 0))
        size = topic_size(item.name, count, item.fields)
        prefix, group = _split_prefix(item.name)
        if prefix and (counted := self._counted_by_group(prefix, group)) is not None:
            size -= topic_size(item.name, min(count, counted))
        return size

    def _set_latest(self, name: str, item: TopicConfig | None) -> None:
        super()._set_latest(name, item)
        if item is None:
            self._existing.pop(name, None)

    def require(self, name: str) -> TopicConfig:
        """Return the topic with this stored name, or raise TopicNotFoundError."""
        topic = self._items.get(name)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def create(self, topic: TopicConfig) -> None:
        """Add a topic for a user. IllegalTopicError, IllegalAttributeError, TopicExistsError, TableSpaceError."""
        check_new_topic_name(topic.name)
        _check_queue_counts(topic)
        check_attributes(TOPIC_ATTRIBUTES, None, topic.attributes)
        check_fields(f"topic {topic.name!r}", *topic.fields)
        if topic.name in self._latest:
            raise TopicExistsError(topic.name)
        self._require_space(topic)
        self._put(topic)

    def create_internal(self, topic: TopicConfig) -> TopicConfig:
        """Add a topic that the broker needs (system, retry, dead letters) unless it exists; return the topic."""
        existing = self._latest.get(topic.name)
        if existing is not None:
            return existing
        check_form(topic.name)
        self._put(topic)
        return topic

    def update(self, topic: TopicConfig) -> None:
        """Replace the topic of this name; the same again changes nothing. TopicNotFoundError, and those of `create`."""
        latest = self._latest.get(topic.name)
        if latest is None:
            raise TopicNotFoundError(topic.name)
        if latest == topic:
            return
        _check_queue_counts(topic)
        check_attributes(TOPIC_ATTRIBUTES, latest.attributes, topic.attributes)
        if topic.fields != latest.fields:
            check_fields(f"topic {topic.name!r}", *topic.fields)
        if (topic.read_queue_count, topic.write_queue_count) != (latest.read_queue_count, latest.write_queue_count):
            self._existing[topic.name] = len(self._queue_ids_of(topic.name))
        self._require_space(topic)
        self._put(topic)

    def delete(self, name: str) -> None:
        """Remove a topic. Raises TopicNotFoundError, and IllegalTopicError for a topic that the broker itself needs."""
        if name not in self._latest:
            raise TopicNotFoundError(name)
        if is_system_topic(name):
            raise IllegalTopicError(f"topic {name!r} belongs to the broker and cannot be deleted")
        self._remove(name)


def _check_queue_counts(topic: TopicConfig) -> None:
    for what, count in (("read", topic.read_queue_count), ("write", topic.write_queue_count)):
        if not 1 <= count <= QUEUE_COUNT_MAX:
            raise IllegalTopicError(
                f"topic {topic.name!r} would have {count} {what} queues; choose a number from 1 to {QUEUE_COUNT_MAX}"
            )
