"""Converts the Resource in a request to its stored name."""

from __future__ import annotations

from aerobee_broker.clients.clients import Client
from aerobee_broker.tables.consumer_groups import check_group_name
from aerobee_broker.tables.topics import check_topic_name, stored_name
from aerobee_proto import v2


def topic_name(resource: v2.Resource, client: Client) -> str:
    """The stored name of a topic. Some clients send the namespace only in a header. IllegalTopicError."""
    check_topic_name(resource.name)
    return stored_name(resource.resource_namespace or client.namespace, resource.name)


def group_name(resource: v2.Resource, client: Client) -> str:
    """The stored name of a consumer group. IllegalGroupError."""
    check_group_name(resource.name)
    return stored_name(resource.resource_namespace or client.namespace, resource.name)


def subscribed_topics(client: Client) -> list[str]:
    """The stored names of the topics in a consumer's subscriptions; empty without settings."""
    settings = client.settings
    if settings is None:
        return []
    return [topic_name(entry.topic, client) for entry in settings.subscription.subscriptions]
