"""Shared by the administration modules: the wire form of topics and groups, pages, and who may read bodies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from aerobee_broker.clients.accounts import Right
from aerobee_broker.clients.registry import Client
from aerobee_broker.messages.admission import ACCEPTED_TYPES
from aerobee_broker.processors.telemetry import retry_policy
from aerobee_broker.tables.consumer_groups import GroupConfig, is_system_group
from aerobee_broker.tables.topics import TopicConfig, is_system_topic, split_stored_name
from aerobee_proto import admin_v1, v2
from aerobee_store.records.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX

OK: Final = v2.Status(code=v2.Code.OK, message="OK")
PAGE_COUNT_MAX: Final = 1000
LISTING_SIZE_MAX: Final = 4 << 20  # bytes of what a listing adds up: clients of gRPC take as many by default
TYPE_ATTRIBUTE: Final = "message.type"


def topic_to_wire(topic: TopicConfig) -> admin_v1.Topic:
    attributes = {name: value for name, value in topic.attributes.items() if name != TYPE_ATTRIBUTE}
    return admin_v1.Topic(
        name=topic.name,
        read_queue_count=topic.read_queue_count,
        write_queue_count=topic.write_queue_count,
        permission=(v2.Permission.NONE, v2.Permission.READ, v2.Permission.WRITE, v2.Permission.READ_WRITE)[
            topic.readable + 2 * topic.writable
        ],
        accept_message_types=ACCEPTED_TYPES[topic.message_type],
        attributes=attributes,
        system=is_own_topic(topic.name),
    )


def group_to_wire(group: GroupConfig) -> admin_v1.Group:
    attempts = max(group.retry_max_times, 0) + 1
    return admin_v1.Group(
        name=group.name,
        fifo=group.consume_orderly,
        max_attempts=attempts,
        retry_policy=retry_policy(group.retry_policy, attempts),
        consume_enabled=group.consume_enabled,
        system=is_system_group(group.name),
    )


def common_status(statuses: Sequence[v2.Status], done: str) -> v2.Status:
    """The status of an answer with one for each item: theirs if all have the same code."""
    codes = {status.code for status in statuses}
    if not codes - {v2.Code.OK}:
        return OK
    if len(codes) == 1:
        return statuses[0]
    failed = sum(1 for status in statuses if status.code != v2.Code.OK)
    return v2.Status(code=v2.Code.MULTIPLE_RESULTS, message=f"{failed} of {len(statuses)} were not {done}; see results")


def is_own_topic(topic: str) -> bool:
    """Whether the topic was not created by a user: it belongs to the broker or to a group."""
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def resource(stored_name: str) -> v2.Resource:
    """A topic or group in the protocol's form."""
    namespace, name = split_stored_name(stored_name)
    return v2.Resource(resource_namespace=namespace, name=name)


def timestamp(milliseconds: int) -> v2.Timestamp:
    found = v2.Timestamp()
    found.FromMilliseconds(milliseconds)
    return found


def may_read_bodies(client: Client, topic: str) -> bool:
    """Whether the caller may see the bodies of this topic: as one who may receive from it."""
    return client.account is None or client.account.may(Right.CONSUME, topic)


def clear_body(message: v2.Message) -> None:
    """Take the body out, and what depends on it."""
    message.body = b""
    message.system_properties.body_encoding = v2.Encoding.IDENTITY
    message.system_properties.ClearField("body_digest")


def page_count(requested: int, *, default: int = PAGE_COUNT_MAX, maximum: int = PAGE_COUNT_MAX) -> int:
    """The number of items on a page."""
    return min(requested, maximum) if requested > 0 else default


def page_of(names: Sequence[str], size: int, token: str) -> tuple[Sequence[str], str]:
    """The names after `token`, which is the last name of the previous page, and the token of the next page. `names` are
    sorted."""
    begin = bisect_right(names, token) if token else 0
    end = begin + page_count(size)
    return names[begin:end], names[end - 1] if end < len(names) else ""
