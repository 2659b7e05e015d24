"""The consumer groups of the broker, kept in RocketMQ's subscriptionGroup.json.

Groups have the same stored names as topics: `<namespace>%<name>`, or the bare name without a namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from aerobee_broker.config.topics import QUEUE_COUNT_MAX
from aerobee_broker.errors import ClosedError, GroupExistsError, GroupNotFoundError, IllegalGroupError, TableFormatError
from aerobee_broker.limits.table_space import Kind, TableSpace, group_size
from aerobee_broker.tables.attributes import GROUP_ATTRIBUTES, check_attributes, check_fields
from aerobee_broker.tables.data_version import NamedTable
from aerobee_broker.tables.json_fields import INT64_MAX, JsonFields
from aerobee_broker.tables.topics import split_stored_name
from aerobee_store.clock import Clock
from aerobee_store.records.message_rules import name_fault
from aerobee_store.records.topic_names import RETRY_PREFIX
from aerobee_store.tables.java_json import Bean

GROUP_NAME_SIZE_MAX: Final = 120  # characters; %RETRY% before it must stay a legal topic
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
RETRY_MAX_TIMES_DEFAULT: Final = 16
RETRY_MAX_TIMES_LIMIT: Final = 10_000  # a sanity limit: with RocketMQ's last delay of 2 h, more than two years
_EXPONENT_MAX: Final = 32  # as in RocketMQ; every reasonable policy has reached its longest delay long before

# Fields of RocketMQ's groups that this broker does not use, with RocketMQ's values for a new group.
_UNUSED_FIELDS: Final[Mapping[str, object]] = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeFromMinEnable": True,
    "consumeTimeoutMinute": 15,
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


def attempt_max(retry_max_times: int) -> int:
    """After so many deliveries a message is dead: its next stop are the dead letters, over every protocol.

    The first delivery and its retries; RocketMQ's files and clients use -1 for no retries, too.
    """
    return max(retry_max_times, 0) + 1


def is_system_group(name: str) -> bool:
    """Whether the group belongs to the broker."""
    return name.startswith(SYSTEM_GROUP_PREFIX) and "%" not in name


def check_group_name(name: str) -> None:
    """Raise IllegalGroupError unless a request may name this group.

    1..120 characters of `a-z A-Z 0-9 _ - % |`, and none of the broker's own groups.
    """
    if fault := name_fault(name, GROUP_NAME_SIZE_MAX):
        raise IllegalGroupError(f"consumer group {name[:GROUP_NAME_SIZE_MAX]!r} {fault}")
    if is_system_group(split_stored_name(name)[1]):
        raise IllegalGroupError(
            f"consumer group {name!r} begins with the reserved prefix {SYSTEM_GROUP_PREFIX}; choose another name"
        )


@dataclass(frozen=True, slots=True)
class CustomizedRetry:
    """A delay for each attempt, in milliseconds; the last one repeats."""

    next_ms: tuple[int, ...] = (
        *(1_000, 5_000, 10_000, 30_000),
        *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
    )

    def delay_ms(self, attempt: int) -> int:
        """How long to wait after delivery attempt `attempt` (1 is the first) has failed."""
        return self.next_ms[min(max(attempt, 1), len(self.next_ms)) - 1]


@dataclass(frozen=True, slots=True)
class ExponentialRetry:
    """A delay that grows by `multiplier` from `initial_ms` up to `max_ms`, in milliseconds."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2

    def delay_ms(self, attempt: int) -> int:
        """How long to wait after delivery attempt `attempt` (1 is the first) has failed."""
        exponent = min(max(attempt - 1, 0), _EXPONENT_MAX)
        factor: int = self.multiplier**exponent
        return min(self.initial_ms * factor, self.max_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One consumer group. `name` is the stored name."""

    name: str
    retry_max_times: int = RETRY_MAX_TIMES_DEFAULT  # redeliveries after the first delivery, then dead letters
    consume_orderly: bool = False  # FIFO: a message of a message group waits for the previous one
    consume_enabled: bool = True
    retry_policy: CustomizedRetry | ExponentialRetry = field(default_factory=CustomizedRetry)
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)  # unused fields, written back unchanged

    @property
    def lite_parent(self) -> str:
        """The only topic whose lite topics the group may consume; empty: of every topic."""
        return self.attributes.get("lite.bind.topic", "")

    @property
    def retry_queue_count(self) -> int:
        """The queues of a new retry topic of the group; 0: its messages are not delivered again over remoting."""
        count = self.extra.get("retryQueueNums", 1)
        return min(max(count, 0), QUEUE_COUNT_MAX) if isinstance(count, int) else 1

    @property
    def fields(self) -> tuple[object, ...]:
        """All that may have any size."""
        policy = self.retry_policy
        return self.attributes, self.extra, policy.next_ms if isinstance(policy, CustomizedRetry) else ()

    @classmethod
    def from_json(cls, name: str, value: object) -> GroupConfig:
        """Read one entry of subscriptionGroupTable; `name` is its key. Raises TableFormatError."""
        fields = JsonFields(f"subscriptionGroup.json.subscriptionGroupTable.{name}", value)
        # repeated in the file; RocketMQ looks groups up by key, so the key takes precedence
        fields.text("groupName", name)
        raw_policy = fields.mapping("groupRetryPolicy")
        policy = _policy_from_json(fields.full_name("groupRetryPolicy"), raw_policy)
        extra = dict(fields.rest())
        if raw_policy and raw_policy != _policy_to_json(policy, {}):
            extra["groupRetryPolicy"] = raw_policy  # has more fields than we know, or the same in a longer form
        return cls(
            name=name,
            retry_max_times=fields.integer("retryMaxTimes", RETRY_MAX_TIMES_DEFAULT, minimum=-1),
            consume_orderly=fields.boolean("consumeMessageOrderly", False),
            consume_enabled=fields.boolean("consumeEnable", True),
            retry_policy=policy,
            attributes=fields.texts("attributes"),
            extra=extra,
        )

    def check_may_consume(self) -> None:
        """ClosedError if an operator has stopped the group."""
        if not self.consume_enabled:
            raise ClosedError(
                f"consumer group {self.name!r} may not consume; allow it with: aerobee group update {self.name}"
            )

    def to_json(self) -> Bean:
        raw_policy = self.extra.get("groupRetryPolicy", {})
        assert isinstance(raw_policy, dict), "from_json keeps nothing else under this name"
        return Bean(
            {**_UNUSED_FIELDS, **self.extra},
            attributes=dict(self.attributes),
            consumeEnable=self.consume_enabled,
            consumeMessageOrderly=self.consume_orderly,
            groupName=self.name,
            groupRetryPolicy=_policy_to_json(self.retry_policy, raw_policy),
            retryMaxTimes=self.retry_max_times,
        )


def _policy_from_json(name: str, value: dict[str, object]) -> CustomizedRetry | ExponentialRetry:
    fields = JsonFields(name, value)
    kind = fields.text("type", "CUSTOMIZED")
    if kind == "CUSTOMIZED":
        customized = JsonFields(f"{name}.customizedRetryPolicy", fields.mapping("customizedRetryPolicy"))
        delays = customized.integers("next")
        return CustomizedRetry(delays) if delays else CustomizedRetry()
    if kind == "EXPONENTIAL":
        exponential = JsonFields(f"{name}.exponentialRetryPolicy", fields.mapping("exponentialRetryPolicy"))
        default = ExponentialRetry()
        return ExponentialRetry(
            exponential.integer("initial", default.initial_ms, maximum=INT64_MAX),
            exponential.integer("max", default.max_ms, maximum=INT64_MAX),
            exponential.integer("multiplier", default.multiplier, minimum=1),
        )
    raise TableFormatError(f"{name}.type", f"expected CUSTOMIZED or EXPONENTIAL, found {kind!r:.60}")


def _policy_to_json(policy: CustomizedRetry | ExponentialRetry, raw: dict[str, object]) -> Bean:
    """The policy in RocketMQ's form, with additional fields of `raw`, the policy that was read."""
    if raw and _policy_from_json("groupRetryPolicy", raw) == policy:
        return Bean(raw)
    written = Bean(raw)
    if isinstance(policy, ExponentialRetry):
        written["type"] = "EXPONENTIAL"
        written["exponentialRetryPolicy"] = Bean(
            initial=policy.initial_ms, max=policy.max_ms, multiplier=policy.multiplier
        )
        return written
    written["type"] = "CUSTOMIZED"
    written.pop("customizedRetryPolicy", None)
    if policy != CustomizedRetry():  # RocketMQ omits its own list of delays
        written["customizedRetryPolicy"] = Bean(next=list(policy.next_ms))
    return written


class GroupTable(NamedTable[GroupConfig]):
    """All consumer groups, by stored name."""

    _FILE_NAME = "subscriptionGroup.json"
    _ITEMS_FIELD = "subscriptionGroupTable"
    _OTHER_FIELDS: ClassVar[Mapping[str, object]] = {"forbiddenTable": {}}
    _KIND: ClassVar[Kind] = "groups"

    @staticmethod
    def _item_from_json(name: str, value: object) -> GroupConfig:
        return GroupConfig.from_json(name, value)

    def __init__(self, clock: Clock, space: TableSpace | None = None) -> None:
        super().__init__(clock, space)
        self.size_listener: Callable[[str], None] | None = None
        """Called with the name of a group that was added, changed or removed."""

    def _size_of(self, item: GroupConfig) -> int:
        return group_size(item.name, item.retry_queue_count, item.fields)

    def _set_latest(self, name: str, item: GroupConfig | None) -> None:
        super()._set_latest(name, item)
        if self.size_listener is not None:
            self.size_listener(name)

    def counted_queues(self, prefix: str, name: str) -> int | None:
        """How many queues of its topic with this prefix the size of a group has; None if there is no such group."""
        group = self._latest.get(name)
        if group is None:
            return None
        return max(1, group.retry_queue_count) if prefix == RETRY_PREFIX else 1

    def require(self, name: str) -> GroupConfig:
        """Return the group with this stored name, or raise GroupNotFoundError."""
        group = self._items.get(name)
        if group is None:
            raise GroupNotFoundError(name)
        return group

    def create(self, group: GroupConfig) -> None:
        """Add a group for a user. IllegalGroupError, IllegalAttributeError, GroupExistsError, TableSpaceError."""
        check_group_name(group.name)
        _check_retries(group)
        check_attributes(GROUP_ATTRIBUTES, None, group.attributes)
        check_fields(f"consumer group {group.name!r}", *group.fields)
        if group.name in self._latest:
            raise GroupExistsError(group.name)
        self._require_space(group)
        self._put(group)

    def update(self, group: GroupConfig) -> None:
        """Replace the group of this name; the same again changes nothing. GroupNotFoundError, and those of `create`."""
        latest = self._latest.get(group.name)
        if latest is None:
            raise GroupNotFoundError(group.name)
        if latest == group:
            return
        _check_retries(group)
        check_attributes(GROUP_ATTRIBUTES, latest.attributes, group.attributes)
        if group.fields != latest.fields:
            check_fields(f"consumer group {group.name!r}", *group.fields)
        self._require_space(group)
        self._put(group)

    def delete(self, name: str) -> None:
        """Remove a group. Raises GroupNotFoundError, and IllegalGroupError for a group that the broker itself needs."""
        if name not in self._latest:
            raise GroupNotFoundError(name)
        if is_system_group(name):
            raise IllegalGroupError(f"consumer group {name!r} belongs to the broker and cannot be deleted")
        self._remove(name)


def _check_retries(group: GroupConfig) -> None:
    if not 0 <= group.retry_max_times <= RETRY_MAX_TIMES_LIMIT:
        raise IllegalGroupError(
            f"consumer group {group.name!r} would have {group.retry_max_times} retries; "
            f"choose a number from 0 to {RETRY_MAX_TIMES_LIMIT}"
        )
    count = group.extra.get("retryQueueNums", 1)
    if not isinstance(count, int) or count > QUEUE_COUNT_MAX:
        raise IllegalGroupError(
            f"consumer group {group.name!r} would have {count!r:.40} retry queues (retryQueueNums); choose a number "
            f"up to {QUEUE_COUNT_MAX}"
        )
    policy = group.retry_policy
    if isinstance(policy, ExponentialRetry):
        if not (0 <= policy.initial_ms <= policy.max_ms and policy.multiplier >= 1):
            raise IllegalGroupError(
                f"consumer group {group.name!r} has an invalid retry policy: {policy}; "
                "choose 0 <= initial <= max and a multiplier of at least 1"
            )
    elif not policy.next_ms or min(policy.next_ms) < 0:
        raise IllegalGroupError(
            f"consumer group {group.name!r} has the retry delays {policy.next_ms}; give at least one, none negative"
        )
