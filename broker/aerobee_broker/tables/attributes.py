"""The attributes of topics and groups: RocketMQ's names, the values that it takes, and those that have an effect here.

An attribute that had no effect would promise what the broker does not do, so it is refused. Attributes that are in a
table already, because a store of RocketMQ has them, are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aerobee_broker.errors import IllegalAttributeError
from aerobee_broker.limits.table_space import fields_size
from aerobee_store.records.decimals import integer

_INT64_MAX: Final = (1 << 63) - 1
_SHOWN: Final = 80  # characters of a wrong name or value
_FIELDS_SIZE_MAX: Final = 64 << 10  # bytes of memory; 1,024 delays of a retry policy take 40 KiB


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute. `values`: the texts that it takes, a range of integers, or None for any text."""

    values: frozenset[str] | range | None
    changeable: bool = True
    only: frozenset[str] | None = None  # the values that have an effect, or are RocketMQ's default; None: all
    instead: str = ""  # of the other values

    def check(self, name: str, value: str) -> None:
        """Raise IllegalAttributeError unless the attribute may have this value."""
        match self.values:
            case range() as allowed:
                if integer(value) not in allowed:
                    raise IllegalAttributeError(
                        f"attribute {name} is {value[:_SHOWN]!r}; use an integer from {allowed[0]} to {allowed[-1]}"
                    )
            case frozenset() as texts if value not in texts:
                raise IllegalAttributeError(
                    f"attribute {name} is {value[:_SHOWN]!r}; use one of {', '.join(sorted(texts))}"
                )
        if self.only is not None and value not in self.only:
            raise IllegalAttributeError(f"attribute {name} cannot be {value[:_SHOWN]!r} here; {self.instead}")


_SWITCH: Final = frozenset({"true", "false"})
TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(frozenset({"SimpleCQ", "BatchCQ"}), changeable=False),
    "cleanup.policy": Attribute(
        frozenset({"DELETE", "COMPACTION"}),
        changeable=False,
        only=frozenset({"DELETE"}),
        instead="topics are not compacted: keep the last message of each key in a table of your own",
    ),
    "message.type": Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY"})
    ),
    "reserve.time": Attribute(
        range(-1, _INT64_MAX),
        only=frozenset({"-1"}),
        instead="all topics share one log: set store.retention_hours for all of them",
    ),
    "lite.topic.expiration": Attribute(range(-1, 43_201)),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(
        range(101), only=frozenset({"100"}), instead="the highest priority is always delivered first"
    ),
    "lite.bind.topic": Attribute(None),
    "lite.sub.model": Attribute(
        frozenset({"Shared", "Exclusive"}),
        only=frozenset({"Shared"}),
        instead="the clients of a group share a lite topic: give each client a group of its own",
    ),
    "lite.sub.reset.offset.exclusive": Attribute(
        _SWITCH, only=frozenset({"false"}), instead="a client says itself where a new subscription begins"
    ),
    "lite.sub.reset.offset.unsubscribe": Attribute(
        _SWITCH, only=frozenset({"false"}), instead="reset the group with: aerobee group reset-offsets"
    ),
    "lite.sub.client.quota": Attribute(
        range(-1, _INT64_MAX),
        only=frozenset({"2000"}),
        instead="all groups have one limit: set delivery.lite_subscriptions_max",
    ),
    "lite.sub.client.max.event.cnt": Attribute(
        range(10, _INT64_MAX), only=frozenset({"400"}), instead="a client's lite topics need no queue of events"
    ),
    "lite.sub.wildcard": Attribute(
        None, only=frozenset(), instead="subscribe to each lite topic by its name, or read the parent topic"
    ),
}


def check_attributes(
    known: Mapping[str, Attribute], before: Mapping[str, str] | None, after: Mapping[str, str]
) -> None:
    """Raise IllegalAttributeError for a change that RocketMQ refuses, or that would have no effect.

    `before` is None for a new topic or group. What is in the table already and does not change is not checked.
    """
    old = before or {}
    for name in sorted(old.keys() | after.keys()):
        value = after.get(name)
        if old.get(name) == value:
            continue
        attribute = known.get(name)
        if attribute is None:
            if value is None:
                continue  # an attribute that was taken once may go
            raise IllegalAttributeError(
                f"attribute {name[:_SHOWN]!r} is unknown; the known ones are {', '.join(sorted(known))}"
            )
        if before is not None and not attribute.changeable:
            raise IllegalAttributeError(
                f"attribute {name} cannot be changed; delete the topic, and create it with the value that you want"
            )
        if value is not None:
            attribute.check(name, value)


def check_fields(what: str, *values: object) -> None:
    """Raise IllegalAttributeError for a topic or group (`what`) with such large values: they stay in memory, and every
    change of them is saved."""
    if fields_size(values, _FIELDS_SIZE_MAX) > _FIELDS_SIZE_MAX:
        raise IllegalAttributeError(
            f"the attributes and other fields of {what} take more than {_FIELDS_SIZE_MAX} bytes of memory; use shorter "
            f"values, and leave out unknown fields"
        )


def without_effect(known: Mapping[str, Attribute], attributes: Mapping[str, str]) -> list[str]:
    """Why attributes of a table have no effect: a store of RocketMQ may have such."""
    reasons = []
    for name, value in attributes.items():
        try:
            check_attributes(known, None, {name: value})
        except IllegalAttributeError as error:
            reasons.append(str(error))
    return reasons


@dataclass(frozen=True, slots=True)
class AttributeChanges:
    """RocketMQ's form of changes: `+name` with a value, or `-name`. A bare name, as in a table, sets its value."""

    _values: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, changes: Iterable[tuple[str, str]]) -> AttributeChanges:
        """Raises IllegalAttributeError for a name that comes twice, or no name."""
        values: dict[str, str | None] = {}
        for signed, value in changes:
            name = signed[1:] if signed[:1] in ("+", "-") else signed
            if not name or "+" in name:
                raise IllegalAttributeError(f"attributes has {signed[:_SHOWN]!r}; write +name=value or -name")
            if name in values:
                raise IllegalAttributeError(f"attribute {name[:_SHOWN]!r} is changed twice; choose one")
            values[name] = None if signed.startswith("-") else value
        return cls(values)

    @classmethod
    def parse(cls, text: str) -> AttributeChanges:
        """`+name=value,-name`. Raises IllegalAttributeError."""
        changes = []
        for part in text.split(",") if text else ():
            signed, equals, value = part.partition("=")
            if signed[:1] not in ("+", "-") or (signed[:1] == "+") != bool(equals and value):
                raise IllegalAttributeError(f"attributes has {part[:_SHOWN]!r}; write +name=value or -name")
            changes.append((signed, value))
        return cls.of(changes)

    def applied(self, existing: Mapping[str, str] | None) -> dict[str, str]:
        """The attributes after the changes. Raises IllegalAttributeError for the removal of one that is not there."""
        after = dict(existing or {})
        for name, value in self._values.items():
            if value is not None:
                after[name] = value
            elif after.pop(name, None) is None:
                raise IllegalAttributeError(f"attribute {name[:_SHOWN]!r} is not set, so it cannot be removed")
        return after
