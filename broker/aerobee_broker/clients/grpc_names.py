"""The stored names of topics and groups in the requests of gRPC methods, for the table of permissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_proto import v2


def topic(request: Any, client: Client) -> Sequence[str]:
    return (topic_name(request.topic, client),)


def topics(request: Any, client: Client) -> Sequence[str]:
    """The topics in entries of `topics`."""
    return [topic_name(entry.topic, client) for entry in request.topics]


def topics_of_messages(request: Any, client: Client) -> Sequence[str]:
    """The distinct topics of a batch: normally one, because a batch with several topics is refused."""
    if not isinstance(request, v2.SendMessageRequest):  # read without it: all messages have one topic
        return topic(request, client)
    found = {(message.topic.resource_namespace, message.topic.name): message.topic for message in request.messages}
    return [topic_name(resource, client) for resource in found.values()]


def topic_of_queue(request: Any, client: Client) -> Sequence[str]:
    return (topic_name(request.message_queue.topic, client),)


def group(request: Any, client: Client) -> Sequence[str]:
    return (group_name(request.group, client),)


def group_if_any(request: Any, client: Client) -> Sequence[str]:
    """Producers and readers may have no group, or an empty one."""
    return (group_name(request.group, client),) if request.group.name else ()


def stored_name(request: Any, _: Client) -> Sequence[str]:
    """The topic or group that an operator names."""
    return (request.name,)


def stored_topic(request: Any, _: Client) -> Sequence[str]:
    """The topic in a request of an operator."""
    return (request.topic,)


def stored_group(request: Any, _: Client) -> Sequence[str]:
    """The group in a request of an operator."""
    return (request.group,)


def subscription(request: v2.ListMessageRequest, client: Client) -> Sequence[str]:
    """The group whose messages are listed."""
    if request.WhichOneof("search_key") != "subscription":
        return ()
    return (group_name(v2.Resource(name=request.subscription), client),)


# --- Settings in a Telemetry stream --------------------------------------------------------------------------


def published_topics(command: v2.TelemetryCommand, client: Client) -> Sequence[str]:
    return [topic_name(topic, client) for topic in command.settings.publishing.topics if topic.name]


def subscribed_group(command: v2.TelemetryCommand, client: Client) -> Sequence[str]:
    settings = command.settings
    if settings.WhichOneof("pub_sub") != "subscription":
        return ()
    return (group_name(settings.subscription.group, client),)


def subscribed_topics(command: v2.TelemetryCommand, client: Client) -> Sequence[str]:
    settings = command.settings
    if settings.WhichOneof("pub_sub") != "subscription":
        return ()
    return [topic_name(entry.topic, client) for entry in settings.subscription.subscriptions]
