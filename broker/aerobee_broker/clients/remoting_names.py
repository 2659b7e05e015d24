"""The names of topics, groups, clients and messages in remoting requests, for the table of permissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from aerobee_broker.remoting_wire.fields import body_object, integer, member, objects, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.topics import TEMPLATE_TOPIC
from aerobee_store.records import properties as p
from aerobee_store.records.topic_names import RETRY_PREFIX

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The producer group that every client of RocketMQ has for its own requests, consumers too."""


class Stored(Protocol):
    """The store, as far as permissions depend on stored messages."""

    def property_or_topic(self, physical_offset: int, name: str) -> str | None:
        """This property of a stored message, or its topic; None without such a message."""


Names = Callable[[Command, Stored], Sequence[str]]


def field(name: str) -> Names:
    """The value of a field."""
    return lambda request, _: (text(request, name),)


def field_if_any(name: str) -> Names:
    """The value of a field that may be missing."""
    return lambda request, _: (found,) if (found := text(request, name, "")) else ()


def body_member(name: str) -> Names:
    """The value of a member of the body."""
    return lambda request, _: (member(body_object(request), name),)


def topic_to_publish(name: str) -> Names:
    """The topic in a field, unless it is a retry topic: that one belongs to its group."""

    def names(request: Command, _: Stored) -> Sequence[str]:
        found = text(request, name)
        return () if found.startswith(RETRY_PREFIX) else (found,)

    return names


def group_of_retry_topic(name: str) -> Names:
    """The group whose retry topic is in a field."""

    def names(request: Command, _: Stored) -> Sequence[str]:
        found = text(request, name)
        return (found.removeprefix(RETRY_PREFIX),) if found.startswith(RETRY_PREFIX) else ()

    return names


def topic_of_route(request: Command, _: Stored) -> Sequence[str]:
    """A producer whose topic does not exist yet asks for the template of new topics, which belongs to nobody."""
    found = text(request, "topic", "")
    return (found,) if found and found != TEMPLATE_TOPIC else ()


def groups_of_batch(request: Command, _: Stored) -> Sequence[str]:
    return [_either(entry, "c", "consumerGroup") for entry in objects(body_object(request), "acks")]


def topics_of_batch(request: Command, _: Stored) -> Sequence[str]:
    return [_either(entry, "t", "topic") for entry in objects(body_object(request), "acks")]


def client_of_heartbeat(request: Command, _: Stored) -> Sequence[str]:
    return (member(body_object(request), "clientID"),)


def producers_of_heartbeat(request: Command, _: Stored) -> Sequence[str]:
    found = [member(item, "groupName") for item in objects(body_object(request), "producerDataSet")]
    return [group for group in found if group and group != INNER_PRODUCER]


def consumers_of_heartbeat(request: Command, _: Stored) -> Sequence[str]:
    return [member(item, "groupName") for item in objects(body_object(request), "consumerDataSet")]


def subscriptions_of_heartbeat(request: Command, _: Stored) -> Sequence[str]:
    return [
        member(subscription, "topic")
        for item in objects(body_object(request), "consumerDataSet")
        for subscription in objects(item, "subscriptionDataSet")
    ]


def topic_of_check(request: Command, _: Stored) -> Sequence[str]:
    """The topic of the subscription that a consumer wants to have checked."""
    found = body_object(request).get("subscriptionData")
    return (member(found, "topic"),) if isinstance(found, dict) else ()


def topic_of_message(request: Command, stored: Stored) -> Sequence[str]:
    """The topic of the message at an offset; empty if there is none, so that the answer does not tell which it is."""
    return (stored.property_or_topic(integer(request, "offset"), p.RETRY_TOPIC) or "",)


def topic_of_half_message(request: Command, stored: Stored) -> Sequence[str]:
    """The topic for which a half message waits; empty if there is none."""
    return (stored.property_or_topic(integer(request, "commitLogOffset"), p.REAL_TOPIC) or "",)


def producer_group(request: Command, _: Stored) -> Sequence[str]:
    found = text(request, "producerGroup", "")
    return (found,) if found and found != INNER_PRODUCER else ()


def _either(entry: dict[str, object], short: str, long: str) -> str:
    return member(entry, short) or member(entry, long)
