"""The memory of what clients create and the store keeps: topics with their queues, groups, and positions of groups.

It is not the ledger's: it belongs to no connection, is never dropped, and comes back with every start. Sizes are
estimates, above what was measured: `tests/integration/test_table_space.py` compares them with a process. A topic counts
all its queues, and a group its retry topic and its dead letters, from the beginning, because neither a message for a
queue that exists nor one that must be delivered again may be refused later. What is left of a group that was deleted,
and the queues of a topic that has fewer now, are counted for as long as they exist. The store's note of a topic that
was deleted stays for ever, and takes less than the topic did: a deletion is never refused.

What a store has when it is opened is always loaded, and at least half of the limit is free then: a store of RocketMQ,
or of an earlier release, may have more than the limit.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Final, Literal, get_args

from aerobee_broker.config import Settings
from aerobee_broker.errors import TableSpaceError
from aerobee_store.errors import LightQueuesFullError
from aerobee_store.queues.topic_removal import Extent

_log = logging.getLogger(__name__)

Kind = Literal["topics", "groups", "offsets", "positions", "light_queues", "deleted_topics"]

_QUEUE_SIZE: Final = 2_400
_TOPIC_SIZE: Final = 1_800
_GROUP_SIZE: Final = 1_800
_OFFSET_SIZE: Final = 150
_OFFSETS_SIZE: Final = 600  # of a group and a topic, besides their queues
_POSITION_SIZE: Final = 1_400
_LIGHT_QUEUE_SIZE: Final = 2_400
_DELETED_TOPIC_SIZE: Final = 420
_DELETED_QUEUE_SIZE: Final = 70
_FIELDS_SIZE: Final = 2_560  # of the fields of a topic or group, included in its size
_WARNING_SECONDS: Final = 60.0


def topic_size(name: str, queue_count: int, fields: object = ()) -> int:
    """Of a topic and all its queues. `fields`: values of any size."""
    return _TOPIC_SIZE + 8 * len(name) + queue_count * (_QUEUE_SIZE + 4 * len(name)) + _more(fields)


def group_size(name: str, retry_queue_count: int = 1, fields: object = ()) -> int:
    """Of a group and the two topics that the broker may make for it, for its retries and its dead letters, which have
    one queue. `fields`: values of any size."""
    topics = topic_size(name, max(1, retry_queue_count)) + topic_size(name, 1)
    return _GROUP_SIZE + 6 * len(name) + topics + _more(fields)


def offsets_size(topic: str, group: str) -> int:
    """Of the offsets of a group in a topic, besides those of each queue."""
    return _OFFSETS_SIZE + 2 * (len(topic) + len(group))


def offset_size(count: int = 1) -> int:
    """Of a group's offsets in so many queues."""
    return _OFFSET_SIZE * count


def position_size(topic: str, group: str) -> int:
    """Of the delivery state of a queue for a group."""
    return _POSITION_SIZE + len(topic) + len(group)


def fields_size(value: object, enough: int = sys.maxsize) -> int:
    """The memory of a value of JSON with all that it contains; only until it is more than `enough`."""
    size, left = 0, [value]
    while left and size <= enough:
        item = left.pop()
        size += sys.getsizeof(item)
        if not item or item.__class__ is str:
            continue  # as most are; the other questions take longer
        if isinstance(item, Mapping):
            left += item.keys()
            left += item.values()
        elif isinstance(item, (list, tuple)):
            left += item
    return size


def _more(fields: object) -> int:
    return max(0, fields_size(fields) - _FIELDS_SIZE)


class TableSpace:
    """Counts the sizes, and refuses what is new when there is no space. Event loop only."""

    def __init__(self, settings: Settings | None = None) -> None:
        """`settings`: None without a limit."""
        self._settings = settings
        self._least = 0  # the limit of this process, if it is above that of the settings
        self._next_warning = 0.0
        self.sizes: Final[dict[Kind, int]] = dict.fromkeys(get_args(Kind), 0)
        self.used: int = 0

    @property
    def max(self) -> int | None:
        """The limit; None without one."""
        if self._settings is None:
            return None
        return max(self._settings.current.limits.table_bytes_max, self._least)

    @property
    def ratio(self) -> float:
        """Used, of the limit."""
        return self.used / self.max if self.max else 0.0

    def add(self, kind: Kind, change: int) -> None:
        """Count so many bytes more, or less, whatever the limit."""
        self.sizes[kind] += change
        self.used += change

    def opened(self) -> None:
        """All that the store has is counted: leave space for more."""
        if self._settings is None:
            return
        limit = self._settings.current.limits.table_bytes_max
        self._least = self.used + limit // 2
        if self.used > limit:
            _log.warning(
                "the store's topics, groups and positions take %d bytes, more than limits.table_bytes_max; until the "
                "next start clients may add %d bytes: raise the setting to more than the sum",
                self.used,
                limit // 2,
            )

    def require(self, size: int, what: str) -> None:
        """Raise TableSpaceError unless there is space for so many bytes more; `what` needs them."""
        limit = self.max
        if size <= 0 or limit is None or self.used + size <= limit:
            return
        text = (
            f"no space for {what}: the topics, groups and positions of this broker, and its notes of deleted topics, "
            f"take {self.used} bytes of memory and may take {limit} (limits.table_bytes_max); delete some, or raise "
            f"the limit"
        )
        now = time.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + _WARNING_SECONDS
            _log.warning("%s", text)
        raise TableSpaceError(text)

    def count_deleted_topics(self, extent: Extent, times: int) -> None:
        """For the store: count what it notes of deleted topics, so many times."""
        size = _DELETED_TOPIC_SIZE * extent.topics + extent.characters + _DELETED_QUEUE_SIZE * extent.queues
        self.add("deleted_topics", times * size)

    def require_light_queues(self, existing: int, new: int) -> None:
        """For the store: raise LightQueuesFullError unless there is space for so many more light queues."""
        self.add("light_queues", existing * _LIGHT_QUEUE_SIZE - self.sizes["light_queues"])
        try:
            self.require(new * _LIGHT_QUEUE_SIZE, f"{new} light queues")
        except TableSpaceError as error:
            raise LightQueuesFullError(str(error)) from None
