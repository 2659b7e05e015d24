"""The permissions that each call needs: a walk over every gRPC method and every remoting code."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from aerobee_broker.clients.accounts import Account, Names, Right
from aerobee_broker.clients.permissions import GRPC, REMOTING, ask, check_permission
from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import ForbiddenError
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_proto import v2
from aerobee_proto.pool import POOL
from aerobee_store.tables import java_json

MESSAGING, ADMIN, OURS = "apache.rocketmq.v2.MessagingService", "apache.rocketmq.v2.Admin", "aerobee.v1.AdminService"
RECORDS = "aerobee.v1.RecordService"

# Permissions for topic `t` and group `g`, each account without some of them.
ACCOUNTS = {
    "publish": Account("publish", b"", publish=Names(("t",))),
    "consume": Account("consume", b"", consume=Names(("t",)), groups=Names(("g",))),
    "consume as nobody": Account("consume as nobody", b"", consume=Names(("t",))),
    "group of nothing": Account("group of nothing", b"", groups=Names(("g",))),
    "nothing": Account("nothing", b""),
    "viewer": Account("viewer", b"", view=True),
}
EVERYBODY = set(ACCOUNTS)
GROUP_VIEWS = [
    *((ADMIN, name) for name in ("DescribeGroupAccumulation", "QueryTimeSpan", "ListConsumerConnection")),
    *((OURS, name) for name in ("DescribeGroup", "ListDeadLetters")),
]
TOPIC_VIEWS = [
    (ADMIN, "DescribeTopicStatus"),
    *((OURS, name) for name in ("DescribeTopic", "BrowseMessages", "TailMessages", "DescribeMessage")),
]
VIEWS = [
    *((ADMIN, name) for name in ("GetProxyRuntimeStats", "ListSubscription", "DescribeSubscription")),
    *((OURS, name) for name in ("ListTopics", "ListGroups", "GetBrokerStatus", "GetStoreStatus", "ListTraffic")),
    *((OURS, name) for name in ("ListConnections", "ListDeadLetterQueues", "GetConfiguration")),
    *((OURS, name) for name in ("ListTopicStatus", "ListGroupStatus", "GetHistory", "GetProblems")),
    *((OURS, name) for name in ("ListDelayedMessages", "ListTransactions", "ListSegments", "ListBrokers")),
]
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
    **{key: {"publish", "consume", "consume as nobody", "viewer"} for key in TOPIC_VIEWS},
    **{key: {"consume", "group of nothing", "viewer"} for key in GROUP_VIEWS},
    (OURS, "WhoAmI"): EVERYBODY,
    **{key: {"viewer"} for key in VIEWS},
    (ADMIN, "GetTopicRoute"): {"publish", "consume", "consume as nobody"},
    (RECORDS, "AppendRecords"): {"publish"},
    (RECORDS, "StreamAppendRecords"): {"publish"},
    (RECORDS, "ReadRecords"): {"consume"},
    (RECORDS, "QueryRecords"): {"consume", "consume as nobody"},
    (RECORDS, "QueueOffsets"): {"consume", "consume as nobody"},
}
METHODS = [
    (service, method.name)
    for service in (MESSAGING, ADMIN, OURS, RECORDS)
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
    if service == OURS:
        for field, value in (("topic", topic), ("group", group)):
            if field in descriptor.fields_by_name and field not in resources:
                setattr(request, field, value)
        if "name" in descriptor.fields_by_name:
            request.name = group if "Group" in method else topic
    if "messages" in resources:
        request.messages.add().topic.name = topic
    if "topics" in resources and service == RECORDS:
        request.topics.add().topic.name = topic
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
    producer, consumer, nothing = v2.TelemetryCommand(), v2.TelemetryCommand(), v2.TelemetryCommand()
    producer.settings.publishing.topics.add(name="t")
    consumer.settings.subscription.group.name = "g"
    consumer.settings.subscription.subscriptions.add().topic.name = "t"
    for command, good in ((producer, "publish"), (consumer, "consume")):
        for name, account in ACCOUNTS.items():
            if name == good:
                check_permission(MESSAGING, "Telemetry", command, Client("c"), account)
            else:
                with pytest.raises(ForbiddenError):
                    check_permission(MESSAGING, "Telemetry", command, Client("c"), account)
    nothing.settings.publishing.SetInParent()
    check_permission(MESSAGING, "Telemetry", nothing, Client("c"), ACCOUNTS["nothing"])


# --- Both tables --------------------------------------------------------------------------------------------

NOTHING = Account("nothing", b"")
OTHER = Account(
    "other",
    b"",
    publish=Names(("other",)),
    consume=Names(("other",)),
    groups=Names(("other",)),
    producer_groups=Names(("other",)),
)
ALL = Account(
    "all",
    b"",
    publish=Names(("t",)),
    consume=Names(("t",)),
    groups=Names(("g",)),
    producer_groups=Names(("p",)),
)
OPERATOR = Account("operator", b"", admin=True)
PEER = Account("peer", b"", cluster=True)
FOR_CLUSTER = {
    *(Request.REGISTER_BROKER, Request.UNREGISTER_BROKER, Request.QUERY_DATA_VERSION, Request.BROKER_HEARTBEAT),
    *(Request.GET_BROKER_MEMBER_GROUP, Request.WIPE_WRITE_PERMISSION_OF_BROKER, Request.ADD_WRITE_PERMISSION_OF_BROKER),
    *(Request.DELETE_TOPIC_IN_NAME_SERVER, Request.PUT_KV_CONFIG, Request.DELETE_KV_CONFIG),
    *(Request.GET_NAME_SERVER_CONFIG, Request.UPDATE_NAME_SERVER_CONFIG, Request.GET_ALL_TOPIC_CONFIG),
    *(Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG, Request.GET_ALL_CONSUMER_OFFSET, Request.GET_ALL_DELAY_OFFSET),
    *(Request.GET_ALL_MESSAGE_REQUEST_MODE, Request.GET_TIMER_CHECK_POINT, Request.GET_BROKER_RUNTIME_INFO),
    *(Request.EXCHANGE_BROKER_HA_INFO, Request.GET_BROKER_HA_STATUS, Request.GET_BROKER_EPOCH_CACHE),
    Request.NOTIFY_BROKER_ROLE_CHANGED,
}
FOR_CLIENTS = {
    *(Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.SEND_REPLY_MESSAGE),
    *(Request.SEND_REPLY_MESSAGE_V2, Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE, Request.POP_MESSAGE),
    *(Request.PEEK_MESSAGE, Request.NOTIFICATION, Request.ACK_MESSAGE, Request.BATCH_ACK_MESSAGE),
    *(Request.CHANGE_MESSAGE_INVISIBLE_TIME, Request.QUERY_ASSIGNMENT, Request.QUERY_CONSUMER_OFFSET),
    *(Request.UPDATE_CONSUMER_OFFSET, Request.GET_MAX_OFFSET, Request.GET_MIN_OFFSET),
    *(Request.SEARCH_OFFSET_BY_TIMESTAMP, Request.GET_EARLIEST_MESSAGE_STORE_TIME, Request.GET_ROUTE_INFO_BY_TOPIC),
    *(Request.QUERY_MESSAGE, Request.VIEW_MESSAGE_BY_ID, Request.HEART_BEAT, Request.UNREGISTER_CLIENT),
    *(Request.CHECK_CLIENT_CONFIG, Request.CONSUMER_SEND_MESSAGE_BACK, Request.END_TRANSACTION),
    *(Request.GET_CONSUMER_LIST_BY_GROUP, Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ),
}
FROM_BROKERS = {  # to clients, or to name servers of a controller: nothing here answers them
    *(Request.CHECK_TRANSACTION_STATE, Request.NOTIFY_CONSUMER_IDS_CHANGED, Request.RESET_CONSUMER_CLIENT_OFFSET),
    Request.GET_CONSUMER_STATUS_FROM_CLIENT,
    *(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, Request.REGISTER_TOPIC_IN_NAME_SERVER),
}


class _Known:
    """One message, and one client id of the account `all`."""

    def property_or_topic(self, physical_offset: int, name: str) -> str | None:
        return "t" if physical_offset == 7 else None

    def owner_of(self, client_id: str) -> str | None:
        return "all" if client_id == "c" else None


def a_command(code: int, *, offset: int = 7) -> Command:
    """A request of this code for topic `t`, groups `g` and `p`, client `c` and the message at the offset."""
    topic, group = {"topic": "t"}, {"groupName": "g"}
    body = {
        **{"clientID": "c", "clientId": "c", "consumerGroup": "g", "group": "g", "topic": "t"},
        "subscriptionData": topic,
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [{**group, "subscriptionDataSet": [topic]}],
        "acks": [{"c": "g", "t": "t"}, {"consumerGroup": "g", "topic": "t"}],
    }
    fields = {
        **{"topic": "t", "b": "t", "consumerGroup": "g", "group": "g", "clientID": "c"},
        **{"offset": str(offset), "commitLogOffset": str(offset), "producerGroup": "p"},
    }
    if code == Request.UNREGISTER_CLIENT:
        fields = {"clientID": "c", "consumerGroup": "g", "producerGroup": "p"}
    return Command(code, fields=fields, body=java_json.dumps(body, pretty=False))


def may(account: Account, request: Command) -> bool:
    try:
        ask(account, REMOTING.get(request.code), str(request.code), request, _Known())
    except ForbiddenError:
        return False
    return True


@pytest.mark.parametrize("code", sorted(Request))
def test_every_remoting_code_needs_what_its_row_says(code: Request) -> None:
    """Nothing is allowed without rights or with those for another topic; a code without a row is refused to all."""
    request = a_command(code)
    assert not may(NOTHING, request)
    assert not may(OTHER, request)
    assert may(ALL, request) == (code in FOR_CLIENTS)
    assert may(OPERATOR, request) == (code not in FROM_BROKERS)
    of_peers = {Request.GET_ROUTE_INFO_BY_TOPIC, Request.VIEW_MESSAGE_BY_ID}
    of_peers |= {Request.GET_MAX_OFFSET, Request.GET_MIN_OFFSET, Request.SEARCH_OFFSET_BY_TIMESTAMP}
    of_peers |= {Request.GET_EARLIEST_MESSAGE_STORE_TIME}
    assert may(PEER, request) == (code in FOR_CLUSTER | of_peers)


@pytest.mark.parametrize(
    ("code", "account"),
    [
        (code, account)
        for code in sorted(FOR_CLIENTS)
        for account in ("publish", "consume", "groups", "producer_groups")
    ],
)
def test_no_right_stands_for_another(code: Request, account: str) -> None:
    """An account that has one kind of right for all names may do only what its row needs of that kind."""
    row = REMOTING[code]
    settings = {"publish": Names(()), "consume": Names(()), "groups": Names(()), "producer_groups": Names(())}
    one = Account("all", b"", **{**settings, account: Names(("*",))})  # type: ignore[arg-type]
    kinds = {
        Right.PUBLISH: {"publish"},
        Right.CONSUME: {"consume"},
        Right.USE: {"publish", "consume"},
        Right.GROUP: {"groups"},
        Right.PRODUCER_GROUP: {"producer_groups"},
        Right.CLIENT_ID: {"publish", "consume", "groups", "producer_groups"},
        Right.READ_MESSAGE: {"consume"},
        Right.DECIDE_MESSAGE: {"publish"},
    }
    request = a_command(code)
    needed = [need.right for need in row if need.names is not None and need.names(request, _Known())]
    assert may(one, request) == all(account in kinds[right] for right in needed)


def _lacking(code: Request) -> set[str]:
    """The settings of an account, and its client id, each of which a request must have. They are written down here, so
    that a row that lacks one is noticed."""
    match code:
        case Request.HEART_BEAT:
            return {"producer_groups", "groups", "consume", "client"}
        case Request.UNREGISTER_CLIENT:
            return {"producer_groups", "groups", "client"}
        case Request.LOCK_BATCH_MQ | Request.UNLOCK_BATCH_MQ:
            return {"groups", "client"}
        case Request.END_TRANSACTION:
            return {"producer_groups", "publish"}
        case Request.GET_CONSUMER_LIST_BY_GROUP:
            return {"groups"}
        case Request.QUERY_MESSAGE | Request.VIEW_MESSAGE_BY_ID:
            return {"consume"}
        case Request.SEND_MESSAGE | Request.SEND_MESSAGE_V2 | Request.SEND_BATCH_MESSAGE:
            return {"publish"}
        case Request.SEND_REPLY_MESSAGE | Request.SEND_REPLY_MESSAGE_V2:
            return {"publish"}
        case Request.GET_MAX_OFFSET | Request.GET_MIN_OFFSET | Request.SEARCH_OFFSET_BY_TIMESTAMP:
            return set()  # one of two rights is enough
        case Request.GET_EARLIEST_MESSAGE_STORE_TIME | Request.GET_ROUTE_INFO_BY_TOPIC:
            return set()
        case _:
            return {"groups", "consume"}


@pytest.mark.parametrize("code", sorted(FOR_CLIENTS))
def test_an_account_that_lacks_one_right_is_refused(code: Request) -> None:
    """It has all the others, for all names."""
    everything = {name: Names(("*",)) for name in ("publish", "consume", "groups", "producer_groups")}
    request = a_command(code)
    for lacking in everything:
        account = Account("all", b"", **{**everything, lacking: Names(())})  # type: ignore[arg-type]
        assert may(account, request) == (lacking not in _lacking(code)), lacking
    another = Account("another", b"", **everything)  # type: ignore[arg-type]
    assert may(another, request) == ("client" not in _lacking(code))


def test_every_handler_has_a_row() -> None:
    """All services of gRPC, and all codes that a broker, a replica or a name server may answer."""
    services = (MESSAGING, ADMIN, OURS, RECORDS)
    methods = {(service, method.name) for service in services for method in POOL.FindServiceByName(service).methods}
    assert GRPC.keys() == methods
    assert REMOTING.keys() == set(Request) - FROM_BROKERS


def test_a_call_without_a_row_is_refused_to_administrators_too() -> None:
    """A new call that nobody has thought about is not open."""
    for account in (OPERATOR, ALL, PEER):
        with pytest.raises(ForbiddenError, match="no row in the table of permissions"):
            check_permission(MESSAGING, "NewMethod", v2.QueryRouteRequest(), Client("c"), account)
        with pytest.raises(ForbiddenError, match="no row in the table of permissions"):
            ask(account, REMOTING.get(12345), "request 12345", Command(12345), _Known())


@pytest.mark.parametrize(
    "code", [Request.VIEW_MESSAGE_BY_ID, Request.END_TRANSACTION, Request.CONSUMER_SEND_MESSAGE_BACK]
)
def test_a_refusal_does_not_tell_where_the_log_has_messages(code: Request) -> None:
    """Another account gets the same answer for an offset with a message and for one without."""
    account = Account("other", b"", groups=Names(("g",)), producer_groups=Names(("p",)))
    texts = set()
    for offset in (7, 8, 1 << 40):
        with pytest.raises(ForbiddenError) as refused:
            ask(account, REMOTING[code], str(code), a_command(code, offset=offset), _Known())
        texts.add(str(refused.value))
    assert len(texts) == 1


def test_a_client_id_of_another_account_is_refused() -> None:
    """With every right on topics and groups, the client id still belongs to its account."""
    everything = Names(("*",))
    thief = Account("thief", b"", False, everything, everything, everything, None, everything)
    for code in (Request.HEART_BEAT, Request.UNREGISTER_CLIENT, Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ):
        with pytest.raises(ForbiddenError, match="client id 'c' belongs to another account"):
            ask(thief, REMOTING[code], str(code), a_command(code), _Known())
