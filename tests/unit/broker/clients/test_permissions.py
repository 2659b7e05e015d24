"""The permissions that each call needs, as a table over every method of the services."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from aerobee_broker.clients.accounts import Account, Names
from aerobee_broker.clients.permissions import check_permission, check_settings
from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import ForbiddenError
from aerobee_proto import v2
from aerobee_proto.pool import POOL

MESSAGING, ADMIN, OURS = "apache.rocketmq.v2.MessagingService", "apache.rocketmq.v2.Admin", "aerobee.v1.AdminService"

# Permissions for topic `t` and group `g`, each account without some of them.
ACCOUNTS = {
    "publish": Account("publish", b"", publish=Names(("t",))),
    "consume": Account("consume", b"", consume=Names(("t",)), groups=Names(("g",))),
    "consume as nobody": Account("consume as nobody", b"", consume=Names(("t",))),
    "group of nothing": Account("group of nothing", b"", groups=Names(("g",))),
    "nothing": Account("nothing", b""),
}
NEEDS: dict[tuple[str, str], set[str]] = {
    (MESSAGING, "QueryRoute"): {"publish", "consume", "consume as nobody"},
    (MESSAGING, "Heartbeat"): {"consume", "group of nothing"},
    (MESSAGING, "NotifyClientTermination"): {"consume", "group of nothing"},
    (MESSAGING, "SendMessage"): {"publish"},
    (MESSAGING, "RecallMessage"): {"publish"},
    (MESSAGING, "EndTransaction"): {"publish"},
    (MESSAGING, "QueryAssignment"): {"consume"},
    (MESSAGING, "ReceiveMessage"): {"consume"},
    (MESSAGING, "PullMessage"): {"consume"},
    (MESSAGING, "AckMessage"): {"consume"},
    (MESSAGING, "ChangeInvisibleDuration"): {"consume"},
    (MESSAGING, "ForwardMessageToDeadLetterQueue"): {"consume"},
    (MESSAGING, "GetOffset"): {"consume"},
    (MESSAGING, "UpdateOffset"): {"consume"},
    (MESSAGING, "SyncLiteSubscription"): {"consume"},
    (MESSAGING, "QueryOffset"): {"consume", "consume as nobody"},
    (ADMIN, "QueryMessage"): {"consume", "consume as nobody"},
    (ADMIN, "DescribeTopicStatus"): {"publish", "consume", "consume as nobody"},
    (ADMIN, "GetTopicRoute"): {"publish", "consume", "consume as nobody"},
}
METHODS = [
    (service, method.name)
    for service in (MESSAGING, ADMIN, OURS)
    for method in POOL.FindServiceByName(service).methods
    if method.name != "Telemetry"
]


def a_request(service: str, method: str, topic: str = "t", group: str = "g") -> Any:
    """A request for that topic and group, as far as it has such fields."""
    descriptor = POOL.FindServiceByName(service).FindMethodByName(method).input_type
    request: Any = GetMessageClass(descriptor)()
    resources = {name for name, field in descriptor.fields_by_name.items() if field.message_type is not None}
    if "topic" in resources and service != OURS:
        request.topic.name = topic
    if "group" in resources and service != OURS:
        request.group.name = group
    if "message_queue" in resources:
        request.message_queue.topic.name = topic
    if "messages" in resources:
        request.messages.add().topic.name = topic
    return request


def permitted(account: Account, service: str, method: str, client: Client | None = None, **names: str) -> bool:
    try:
        check_permission(service, method, a_request(service, method, **names), client or Client("c"), account)
    except ForbiddenError:
        return False
    return True


@pytest.mark.parametrize(("service", "method"), METHODS)
def test_every_call_needs_the_permissions_in_the_table(service: str, method: str) -> None:
    """Methods outside the table need an administrator, who may call every method."""
    allowed = {name for name, account in ACCOUNTS.items() if permitted(account, service, method)}
    assert allowed == NEEDS.get((service, method), set())
    assert permitted(Account("operator", b"", admin=True), service, method)


@pytest.mark.parametrize(("service", "method"), [key for key in NEEDS if key[0] == MESSAGING])
def test_names_include_the_namespace(service: str, method: str) -> None:
    """Permissions are for names with their namespace: the same name in another namespace is refused."""
    here = Account("here", b"", publish=Names(("t",)), consume=Names(("t",)), groups=Names(("g",)))
    there = Account("there", b"", publish=Names(("eu%t",)), consume=Names(("eu%t",)), groups=Names(("eu%g",)))
    in_namespace = Client("c")
    in_namespace.namespace = "eu"
    assert permitted(here, service, method)
    assert not permitted(here, service, method, in_namespace)
    assert permitted(there, service, method, in_namespace)
    assert not permitted(there, service, method)


def test_a_producer_needs_no_group_to_be_alive() -> None:
    """The heartbeat and termination of a producer have no group, or an empty one."""
    for method in ("Heartbeat", "NotifyClientTermination"):
        assert permitted(ACCOUNTS["nothing"], MESSAGING, method, group="")


def test_every_message_of_a_batch_counts() -> None:
    """Every message's topic must be permitted."""
    request = v2.SendMessageRequest(messages=[v2.Message(topic=v2.Resource(name=name)) for name in ("t", "t", "other")])
    with pytest.raises(ForbiddenError, match="'other'"):
        check_permission(MESSAGING, "SendMessage", request, Client("c"), ACCOUNTS["publish"])


def test_settings_need_permissions_for_their_topics_and_group() -> None:
    """Settings need the permissions for their publishing topics, or for their group and its subscriptions."""
    producer = v2.Settings()
    producer.publishing.topics.add(name="t")
    consumer = v2.Settings()
    consumer.subscription.group.name = "g"
    consumer.subscription.subscriptions.add().topic.name = "t"
    for settings, good in ((producer, "publish"), (consumer, "consume")):
        for name, account in ACCOUNTS.items():
            if name == good:
                check_settings(settings, Client("c"), account)
            else:
                with pytest.raises(ForbiddenError):
                    check_settings(settings, Client("c"), account)
    nothing = v2.Settings()
    nothing.publishing.SetInParent()
    check_settings(nothing, Client("c"), ACCOUNTS["nothing"])
