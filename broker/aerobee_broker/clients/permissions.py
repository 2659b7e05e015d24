"""The permissions that calls require: one function per method. All other methods are for administrators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from aerobee_broker.clients.accounts import Account
from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_proto import v2

Permit = Callable[[Any, Client, Account], None]


def check_permission(service: str, method: str, request: Any, client: Client, account: Account) -> None:
    """Raise ForbiddenError if the account may not call this; IllegalTopicError, IllegalGroupError for such names.

    `service` is the full name and `method` the name, as in the .proto files.
    """
    if account.admin:
        return
    permit = _PERMITS.get((service, method))
    if permit is None:
        account.require_admin(method)
    else:
        permit(request, client, account)


def check_settings(settings: v2.Settings, client: Client, account: Account) -> None:
    """Check the topics and the group in a client's settings. Raises like check_permission."""
    for topic in settings.publishing.topics:
        if topic.name:
            account.require_publish(topic_name(topic, client))
    if settings.WhichOneof("pub_sub") == "subscription":
        account.require_group(group_name(settings.subscription.group, client))
        for entry in settings.subscription.subscriptions:
            account.require_consume(topic_name(entry.topic, client))


def _send(request: Any, client: Client, account: Account) -> None:
    if not isinstance(request, v2.SendMessageRequest):  # read as columns: all messages have one topic
        _publish(request, client, account)
        return
    for topic in _distinct(message.topic for message in request.messages):
        account.require_publish(topic_name(topic, client))


def _publish(request: Any, client: Client, account: Account) -> None:
    account.require_publish(topic_name(request.topic, client))


def _use(request: Any, client: Client, account: Account) -> None:
    account.require_use(topic_name(request.topic, client))


def _consume(request: Any, client: Client, account: Account) -> None:
    account.require_consume(topic_name(request.topic, client))


def _query(request: v2.ListMessageRequest, client: Client, account: Account) -> None:
    # Before any look-up: the answer must not reveal which groups exist.
    if request.WhichOneof("search_key") == "subscription":
        account.require_group(group_name(v2.Resource(name=request.subscription), client))
    _consume(request, client, account)


def _read(request: Any, client: Client, account: Account) -> None:
    _own_group(request, client, account)
    _consume(request, client, account)


def _consume_all(request: Any, client: Client, account: Account) -> None:
    for asked in request.topics:
        account.require_consume(topic_name(asked.topic, client))


def _consume_as_group(request: Any, client: Client, account: Account) -> None:
    account.require_group(group_name(request.group, client))
    account.require_consume(topic_name(request.topic, client))


def _queue(request: Any, client: Client, account: Account) -> None:
    account.require_consume(topic_name(request.message_queue.topic, client))


def _queue_as_group(request: Any, client: Client, account: Account) -> None:
    account.require_group(group_name(request.group, client))
    _queue(request, client, account)


def _own_group(request: Any, client: Client, account: Account) -> None:
    if request.group.name:  # producers and readers may have none, or an empty one
        account.require_group(group_name(request.group, client))


def _distinct(topics: Iterable[v2.Resource]) -> list[v2.Resource]:
    """The distinct topics of a batch: normally one, because a batch with several topics is refused."""
    return list({(topic.resource_namespace, topic.name): topic for topic in topics}.values())


_MESSAGING: Final[dict[str, Permit]] = {
    "QueryRoute": _use,
    "Heartbeat": _own_group,
    "NotifyClientTermination": _own_group,
    "SendMessage": _send,
    "RecallMessage": _publish,
    "EndTransaction": _publish,
    "QueryAssignment": _consume_as_group,
    "ReceiveMessage": _queue_as_group,
    "AckMessage": _consume_as_group,
    "ChangeInvisibleDuration": _consume_as_group,
    "ForwardMessageToDeadLetterQueue": _consume_as_group,
    "PullMessage": _queue_as_group,
    "QueryOffset": _queue,
    "GetOffset": _queue_as_group,
    "UpdateOffset": _queue_as_group,
    "SyncLiteSubscription": _consume_as_group,
}
_RECORDS: Final[dict[str, Permit]] = {
    "AppendRecords": _publish,
    "StreamAppendRecords": _publish,
    "ReadRecords": _read,
    "QueryRecords": _consume,
    "QueueOffsets": _consume_all,
}
_PERMITS: Final[dict[tuple[str, str], Permit]] = {
    **{("aerobee.v1.RecordService", method): permit for method, permit in _RECORDS.items()},
    **{("apache.rocketmq.v2.MessagingService", method): permit for method, permit in _MESSAGING.items()},
    ("apache.rocketmq.v2.Admin", "QueryMessage"): _query,
    ("apache.rocketmq.v2.Admin", "DescribeTopicStatus"): _use,
    ("apache.rocketmq.v2.Admin", "GetTopicRoute"): _use,
}
