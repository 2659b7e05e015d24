"""SyncLiteSubscription: the lite topics of a parent topic to which a client subscribes."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.lite import LITE_QUEUE_ID, Action, Begin, Change
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.validation import check_lite_topic
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicMessageType
from aerobee_proto import v2
from aerobee_store import MessageStore

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
_Kind = v2.LiteSubscriptionAction
_ACTIONS: Final = {
    _Kind.PARTIAL_ADD: Action.ADD,
    _Kind.PARTIAL_REMOVE: Action.REMOVE,
    _Kind.COMPLETE_ADD: Action.REPLACE,
    _Kind.COMPLETE_REMOVE: Action.REPLACE,
}
_Policy = v2.OffsetOption.Policy


class LiteProcessor:
    """Raises errors that `processors.statuses` maps to status codes."""

    def __init__(self, tables: Tables, deliveries: Deliveries) -> None:
        self._tables = tables
        self._deliveries = deliveries

    async def sync(self, request: v2.SyncLiteSubscriptionRequest, client: Client) -> v2.SyncLiteSubscriptionResponse:
        """All or nothing: an invalid name, or one too many, changes nothing."""
        name = topic_name(request.topic, client)
        group = group_name(request.group, client)
        topic = self._tables.topics.get(name) or await self._tables.topic_in_use(name)
        if topic.message_type is not TopicMessageType.LITE:
            raise InvalidRequestError(
                v2.Code.ILLEGAL_TOPIC,
                f"topic {name!r} has no lite topics because its type is {topic.message_type}; "
                f"create one with: aerobee topic create {name} --type lite",
            )
        action = _ACTIONS.get(request.action)
        if action is None:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, f"action {request.action} is unknown; use add or remove")
        for lite_topic in request.lite_topic_set:
            check_lite_topic(lite_topic)
        config = self._tables.groups.get(group) or await self._tables.group_in_use(group, [name])
        if config.lite_parent not in ("", name):
            raise InvalidRequestError(
                v2.Code.ILLEGAL_CONSUMER_GROUP,
                f"group {group!r} may only consume lite topics of {config.lite_parent!r}, by its attribute "
                f"lite.bind.topic, and not of {name!r}; use another group, or change the attribute",
            )
        partial_add = request.action == _Kind.PARTIAL_ADD and request.HasField("offset_option")
        change = Change(
            action,
            frozenset() if request.action == _Kind.COMPLETE_REMOVE else frozenset(request.lite_topic_set),
            request.version if request.HasField("version") else None,
            begin_of(request.offset_option) if partial_add else None,
        )
        await self._deliveries.lite.subscribe(name, group, client.client_id, change)
        return v2.SyncLiteSubscriptionResponse(status=_OK)


def begin_of(option: v2.OffsetOption) -> Begin | None:
    """The start of a new subscription; None for the group's position or default."""
    match option.WhichOneof("offset_type"):
        case "policy" if option.policy == _Policy.MIN:
            return lambda store, name: _range(store, name)[0]
        case "policy" if option.policy == _Policy.MAX:
            return lambda store, name: _range(store, name)[1]
        case "offset":
            return lambda store, name: _within(store, name, option.offset)
        case "tail_n":
            return lambda store, name: _within(store, name, _range(store, name)[1] - max(option.tail_n, 0))
        case "timestamp":
            time = max(option.timestamp, 0)
            return lambda store, name: _within(store, name, store.offset_by_time(name, LITE_QUEUE_ID, time))
        case _:
            return None


def _range(store: MessageStore, name: str) -> tuple[int, int]:
    return store.queue_range(name, LITE_QUEUE_ID)


def _within(store: MessageStore, name: str, offset: int) -> int:
    low, high = _range(store, name)
    return min(max(offset, low), high)
