"""The permission of every call: one table for gRPC methods, one for remoting codes, and the function that asks them.

A row names what a call needs, and where the names are in its request. A call without a row is refused, also to
administrators. The rights:

    PUBLISH          send to the topic
    CONSUME          receive from the topic
    USE              one of the two
    GROUP            be a consumer of the group
    PRODUCER_GROUP   be a producer of the group: it gets the checks of the group's transactions
    CLIENT_ID        use the client id, which belongs to the account that has registered it
    READ_MESSAGE     receive from the topic of a stored message. The refusal does not tell whether there is a message
    DECIDE_MESSAGE   send to the topic of a half message; the same
    ADMIN            be an administrator
    CLUSTER          be a broker or a name server of this cluster, or an administrator
    VIEW             look at everything: a viewer, or an administrator
    VIEW_TOPIC       look at the topic: a viewer, or one who may use it
    VIEW_GROUP       look at the group: a viewer, or one who may be a consumer of it

A row without needs is open to every account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from aerobee_broker.clients import grpc_names as of_grpc
from aerobee_broker.clients import remoting_names as of_remoting
from aerobee_broker.clients.accounts import Account, Accounts, Right
from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import ForbiddenError
from aerobee_broker.remoting_wire.codes import Request


class Need(Struct, frozen=True):
    """A right, and the names in a request for which it is needed; None: it is not about names."""

    right: Right
    names: Callable[[Any, Any], Sequence[str]] | None = None


Row = tuple[Need, ...]


def check_permission(service: str, method: str, request: Any, client: Client, account: Account) -> None:
    """Raise ForbiddenError if the account may not call this gRPC method.

    IllegalTopicError and IllegalGroupError for such names. `service` is the full name and `method` the name, as in the
    .proto files.
    """
    ask(account, GRPC.get((service, method)), method, request, client)


def check_again(accounts: Accounts | None, service: str, method: str, request: Any, client: Client) -> None:
    """The check of what comes later in a stream, which outlives the check of its call: with the account and rights of
    now. Raises like `Accounts.now` and `check_permission`."""
    if accounts is not None and client.account is not None:
        client.account = accounts.now(client.account)
        check_permission(service, method, request, client, client.account)


def ask(account: Account, row: Row | None, what: str, request: Any, known: Any) -> None:
    """Raise ForbiddenError if the account lacks a right that this row of a table needs.

    `what` names the call; `known` is what the names of the row need besides the request.
    """
    if row is None:
        raise ForbiddenError(f"{what} has no row in the table of permissions, so it is refused to every account")
    if account.admin:
        return
    for need in row:
        if need.names is None:
            account.require(need.right, what)
        else:
            for name in need.names(request, known):
                if need.right is not Right.CLIENT_ID:
                    account.require(need.right, name)
                elif known.owner_of(name) not in (None, account.access_key):
                    raise ForbiddenError(
                        f"client id {name[:80]!r} belongs to another account; choose another id, or wait until its "
                        f"owner has been silent for limits.client_expiry_seconds"
                    )


def _rows(row: Row, calls: Iterable[Any]) -> dict[Any, Row]:
    return dict.fromkeys(calls, row)


_ADMIN: Final[Row] = (Need(Right.ADMIN),)
_CLUSTER: Final[Row] = (Need(Right.CLUSTER),)
_VIEW: Final[Row] = (Need(Right.VIEW),)

# --- gRPC ---------------------------------------------------------------------------------------------------

_PUBLISH: Final[Row] = (Need(Right.PUBLISH, of_grpc.topic),)
_USE: Final[Row] = (Need(Right.USE, of_grpc.topic),)
_CONSUME: Final[Row] = (Need(Right.CONSUME, of_grpc.topic),)
_AS_GROUP: Final[Row] = (Need(Right.GROUP, of_grpc.group), *_CONSUME)
_AS_OWN_GROUP: Final[Row] = (Need(Right.GROUP, of_grpc.group_if_any),)
_VIEW_TOPIC: Final[Row] = (Need(Right.VIEW_TOPIC, of_grpc.stored_topic),)
_VIEW_GROUP: Final[Row] = (Need(Right.VIEW_GROUP, of_grpc.group),)
_QUEUE: Final[Row] = (Need(Right.CONSUME, of_grpc.topic_of_queue),)
_QUEUE_AS_GROUP: Final[Row] = (Need(Right.GROUP, of_grpc.group), *_QUEUE)

_MESSAGING: Final[dict[str, Row]] = {
    "QueryRoute": _USE,
    "Heartbeat": _AS_OWN_GROUP,
    "NotifyClientTermination": _AS_OWN_GROUP,
    "SendMessage": (Need(Right.PUBLISH, of_grpc.topics_of_messages),),
    "RecallMessage": _PUBLISH,
    "EndTransaction": _PUBLISH,
    "QueryAssignment": _AS_GROUP,
    "ReceiveMessage": _QUEUE_AS_GROUP,
    "AckMessage": _AS_GROUP,
    "ChangeInvisibleDuration": _AS_GROUP,
    "ForwardMessageToDeadLetterQueue": _AS_GROUP,
    "PullMessage": _QUEUE_AS_GROUP,
    "QueryOffset": _QUEUE,
    "GetOffset": _QUEUE_AS_GROUP,
    "UpdateOffset": _QUEUE_AS_GROUP,
    "SyncLiteSubscription": _AS_GROUP,
    "Telemetry": (  # each command of the stream
        Need(Right.PUBLISH, of_grpc.published_topics),
        Need(Right.GROUP, of_grpc.subscribed_group),
        Need(Right.CONSUME, of_grpc.subscribed_topics),
    ),
}
_ADMINISTRATION: Final[dict[str, Row]] = {
    # The group comes first: the answer must not tell which groups exist.
    "QueryMessage": (Need(Right.GROUP, of_grpc.subscription), *_CONSUME),
    "DescribeTopicStatus": (Need(Right.VIEW_TOPIC, of_grpc.topic),),
    "GetTopicRoute": _USE,
    "DescribeGroupAccumulation": _VIEW_GROUP,
    "QueryTimeSpan": _VIEW_GROUP,
    "ListConsumerConnection": _VIEW_GROUP,
    **_rows(_VIEW, ("GetProxyRuntimeStats", "ListSubscription", "DescribeSubscription")),
    **_rows(
        _ADMIN,
        (
            *("ChangeLogLevel", "PrintThreadStackTrace", "DeleteSubscription", "GetConsumerRunningInfo"),
            *("ResetGroupOffset", "VerifyMessage", "AdminSendMessage"),
        ),
    ),
}
_OURS: Final[dict[str, Row]] = {
    "WhoAmI": (),
    **_rows(_VIEW_TOPIC, ("BrowseMessages", "TailMessages", "DescribeMessage")),
    "ListDeadLetters": (Need(Right.VIEW_GROUP, of_grpc.stored_group),),
    "DescribeTopic": (Need(Right.VIEW_TOPIC, of_grpc.stored_name),),
    "DescribeGroup": (Need(Right.VIEW_GROUP, of_grpc.stored_name),),
    **_rows(
        _VIEW,
        (
            *("ListTopics", "ListGroups", "GetBrokerStatus", "GetStoreStatus", "ListTraffic", "ListConnections"),
            *("ListDeadLetterQueues", "GetConfiguration", "ListTopicStatus", "ListGroupStatus"),
            *("GetHistory", "GetProblems", "ListDelayedMessages", "ListTransactions", "ListSegments"),
            "ListBrokers",
        ),
    ),
    **_rows(
        _ADMIN,
        (
            *("CreateTopic", "UpdateTopic", "DeleteTopic", "CreateGroup", "UpdateGroup", "DeleteGroup"),
            *("ResetOffsets", "ReconnectClient", "ResendDeadLetters"),
            *("UpdateConfiguration", "ListAccounts", "RecallDelayedMessages", "DecideTransactions"),
            *("PurgeTopic", "DeleteDeadLetters", "DisconnectClient", "ListOperations"),
        ),
    ),
}
_RECORDS: Final[dict[str, Row]] = {
    "AppendRecords": _PUBLISH,
    "StreamAppendRecords": _PUBLISH,
    "ReadRecords": (*_AS_OWN_GROUP, *_CONSUME),
    "QueryRecords": _CONSUME,
    "QueueOffsets": (Need(Right.CONSUME, of_grpc.topics),),
}
GRPC: Final[dict[tuple[str, str], Row]] = {
    (service, method): row
    for service, rows in (
        ("apache.rocketmq.v2.MessagingService", _MESSAGING),
        ("apache.rocketmq.v2.Admin", _ADMINISTRATION),
        ("aerobee.v1.AdminService", _OURS),
        ("aerobee.v1.RecordService", _RECORDS),
    )
    for method, row in rows.items()
}

# --- Remoting -----------------------------------------------------------------------------------------------

_REMOTING_CONSUME: Final[Row] = (
    Need(Right.GROUP, of_remoting.field("consumerGroup")),
    Need(Right.CONSUME, of_remoting.field("topic")),
)
_REMOTING_LOCK: Final[Row] = (
    Need(Right.GROUP, of_remoting.body_member("consumerGroup")),
    Need(Right.CLIENT_ID, of_remoting.body_member("clientId")),
)


def _send_to(name: str) -> Row:
    return (
        Need(Right.PUBLISH, of_remoting.topic_to_publish(name)),
        Need(Right.GROUP, of_remoting.group_of_retry_topic(name)),
    )


REMOTING: Final[dict[int, Row]] = {
    # Clients
    **_rows(_send_to("topic"), (Request.SEND_MESSAGE, Request.SEND_REPLY_MESSAGE)),
    **_rows(_send_to("b"), (Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.SEND_REPLY_MESSAGE_V2)),
    **_rows(
        _REMOTING_CONSUME,
        (
            *(Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE, Request.POP_MESSAGE, Request.PEEK_MESSAGE),
            *(Request.NOTIFICATION, Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLE_TIME),
            *(Request.QUERY_CONSUMER_OFFSET, Request.UPDATE_CONSUMER_OFFSET),
        ),
    ),
    Request.BATCH_ACK_MESSAGE: (
        Need(Right.GROUP, of_remoting.groups_of_batch),
        Need(Right.CONSUME, of_remoting.topics_of_batch),
    ),
    Request.QUERY_ASSIGNMENT: (
        Need(Right.GROUP, of_remoting.body_member("consumerGroup")),
        Need(Right.CONSUME, of_remoting.body_member("topic")),
    ),
    **_rows(
        (Need(Right.USE, of_remoting.field("topic")),),
        (
            *(Request.GET_MAX_OFFSET, Request.GET_MIN_OFFSET),
            *(Request.SEARCH_OFFSET_BY_TIMESTAMP, Request.GET_EARLIEST_MESSAGE_STORE_TIME),
        ),
    ),
    Request.GET_ROUTE_INFO_BY_TOPIC: (Need(Right.USE, of_remoting.topic_of_route),),
    Request.QUERY_MESSAGE: (Need(Right.CONSUME, of_remoting.field("topic")),),
    Request.VIEW_MESSAGE_BY_ID: (Need(Right.READ_MESSAGE, of_remoting.topic_of_message),),
    Request.CONSUMER_SEND_MESSAGE_BACK: (
        Need(Right.GROUP, of_remoting.field("group")),
        Need(Right.READ_MESSAGE, of_remoting.topic_of_message),
    ),
    Request.END_TRANSACTION: (
        Need(Right.PRODUCER_GROUP, of_remoting.producer_group),
        Need(Right.DECIDE_MESSAGE, of_remoting.topic_of_half_message),
    ),
    Request.HEART_BEAT: (
        Need(Right.CLIENT_ID, of_remoting.client_of_heartbeat),
        Need(Right.PRODUCER_GROUP, of_remoting.producers_of_heartbeat),
        Need(Right.GROUP, of_remoting.consumers_of_heartbeat),
        Need(Right.CONSUME, of_remoting.subscriptions_of_heartbeat),
    ),
    Request.UNREGISTER_CLIENT: (
        Need(Right.CLIENT_ID, of_remoting.field("clientID")),
        Need(Right.PRODUCER_GROUP, of_remoting.producer_group),
        Need(Right.GROUP, of_remoting.field_if_any("consumerGroup")),
    ),
    Request.CHECK_CLIENT_CONFIG: (
        Need(Right.GROUP, of_remoting.body_member("group")),
        Need(Right.CONSUME, of_remoting.topic_of_check),
    ),
    Request.GET_CONSUMER_LIST_BY_GROUP: (Need(Right.GROUP, of_remoting.field("consumerGroup")),),
    **_rows(_REMOTING_LOCK, (Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ)),
    # Operators
    **_rows(
        _ADMIN,
        (
            *(Request.UPDATE_AND_CREATE_TOPIC, Request.UPDATE_AND_CREATE_TOPIC_LIST, Request.DELETE_TOPIC_IN_BROKER),
            *(Request.GET_TOPIC_CONFIG, Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Request.GET_TOPIC_STATS_INFO),
            *(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST),
            *(Request.DELETE_SUBSCRIPTION_GROUP, Request.GET_SUBSCRIPTION_GROUP_CONFIG),
            *(Request.INVOKE_BROKER_TO_RESET_OFFSET, Request.SET_MESSAGE_REQUEST_MODE),
            *(Request.GET_BROKER_CONFIG, Request.UPDATE_BROKER_CONFIG, Request.GET_TIMER_METRICS),
            *(Request.CLEAN_EXPIRED_CONSUME_QUEUE, Request.CLEAN_UNUSED_TOPIC, Request.DELETE_EXPIRED_COMMIT_LOG),
            *(Request.GET_CONSUME_STATS, Request.GET_BROKER_CONSUME_STATS, Request.QUERY_TOPIC_CONSUME_BY_WHO),
            *(Request.QUERY_CONSUME_QUEUE, Request.VIEW_BROKER_STATS_DATA, Request.QUERY_CONSUME_TIME_SPAN),
            *(Request.QUERY_TOPICS_BY_CONSUMER, Request.QUERY_SUBSCRIPTION_BY_CONSUMER),
            Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            *(Request.GET_CONSUMER_CONNECTION_LIST, Request.GET_PRODUCER_CONNECTION_LIST),
            *(Request.GET_ALL_PRODUCER_INFO, Request.GET_CONSUMER_RUNNING_INFO, Request.CONSUME_MESSAGE_DIRECTLY),
            # The routes of the name server, as far as clients do not need them
            *(Request.GET_BROKER_CLUSTER_INFO, Request.GET_ALL_TOPIC_LIST_FROM_NAME_SERVER),
            *(Request.GET_TOPICS_BY_CLUSTER, Request.GET_SYSTEM_TOPIC_LIST_FROM_NAME_SERVER),
            *(Request.GET_UNIT_TOPIC_LIST, Request.GET_HAS_UNIT_SUB_TOPIC_LIST),
            Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            *(Request.GET_KV_CONFIG, Request.GET_KV_LIST_BY_NAMESPACE),
        ),
    ),
    # Brokers and name servers among themselves, and changes of what others route by
    **_rows(
        _CLUSTER,
        (
            *(Request.REGISTER_BROKER, Request.UNREGISTER_BROKER, Request.QUERY_DATA_VERSION, Request.BROKER_HEARTBEAT),
            Request.GET_BROKER_MEMBER_GROUP,
            *(Request.WIPE_WRITE_PERMISSION_OF_BROKER, Request.ADD_WRITE_PERMISSION_OF_BROKER),
            *(Request.DELETE_TOPIC_IN_NAME_SERVER, Request.PUT_KV_CONFIG, Request.DELETE_KV_CONFIG),
            *(Request.GET_NAME_SERVER_CONFIG, Request.UPDATE_NAME_SERVER_CONFIG),
            *(Request.GET_ALL_TOPIC_CONFIG, Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG),
            *(Request.GET_ALL_CONSUMER_OFFSET, Request.GET_ALL_DELAY_OFFSET, Request.GET_ALL_MESSAGE_REQUEST_MODE),
            *(Request.GET_TIMER_CHECK_POINT, Request.GET_BROKER_RUNTIME_INFO),
            *(Request.EXCHANGE_BROKER_HA_INFO, Request.GET_BROKER_HA_STATUS, Request.GET_BROKER_EPOCH_CACHE),
            Request.NOTIFY_BROKER_ROLE_CHANGED,
        ),
    ),
}
"""By code. A request that a broker sends to clients has no row: nobody may send it to a broker."""
