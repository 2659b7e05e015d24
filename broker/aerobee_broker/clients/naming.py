"""Converts the Resource in a request to its stored name."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from aerobee_broker.clients.registry import Client
from aerobee_broker.tables.consumer_groups import check_group_name
from aerobee_broker.tables.topics import check_topic_name, stored_name
from aerobee_proto import v2

_CHECKED_MAX: Final = 1024  # legal names that are kept, of topics and of groups; every request names some


def topic_name(resource: v2.Resource, client: Client) -> str:
    """The stored name of a topic. Some clients send the namespace only in a header. IllegalTopicError."""
    return stored_topic_name(resource.resource_namespace or client.namespace, resource.name)


def group_name(resource: v2.Resource, client: Client) -> str:
    """The stored name of a consumer group. IllegalGroupError."""
    return _group_name(resource.resource_namespace or client.namespace, resource.name)


@lru_cache(_CHECKED_MAX)
def stored_topic_name(namespace: str, name: str) -> str:
    """The stored name of a topic that a request may name. IllegalTopicError."""
    check_topic_name(name)
    return stored_name(namespace, name)


@lru_cache(_CHECKED_MAX)
def _group_name(namespace: str, name: str) -> str:
    check_group_name(name)
    return stored_name(namespace, name)


def subscribed_topics(client: Client) -> list[str]:
    """The stored names of the topics in a consumer's subscriptions; empty without settings."""
    settings = client.settings
    if settings is None:
        return []
    return [topic_name(entry.topic, client) for entry in settings.subscription.subscriptions]
