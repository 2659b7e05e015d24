"""Connected clients, their subscriptions, and whether the clients of a group agree; from the clients' own settings.

Subscriptions are not stored: the broker delivers by the filter of each receive. The expression of a group is therefore
known only while one of its clients is connected; its offsets show which topics it reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Protocol

from google.protobuf.message import Message
from msgspec import Struct

from aerobee_broker.clients.naming import group_name, subscribed_topics, topic_name
from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import ClientNotConnectedError, InvalidRequestError
from aerobee_broker.limits.loop_share import Turns, in_turns
from aerobee_broker.messages.key_query import find_by_message_id
from aerobee_broker.messages.message_mapping import to_wire_message
from aerobee_broker.processors.administration.wire import LISTING_SIZE_MAX, OK, page_of, resource, timestamp
from aerobee_broker.tables.consumer_groups import is_system_group
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import split_light_topic_name
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore
from aerobee_store.clock import Clock
from aerobee_store.records.tag_expression import tags_of

_LANGUAGES: Final = {"DOTNET": "DOT_NET", "GO": "GOLANG", "HTTP": "NODE_JS"}  # headers that differ from the enum
_LITE_TYPES: Final = (v2.ClientType.LITE_PUSH_CONSUMER, v2.ClientType.LITE_SIMPLE_CONSUMER)
_FINE: Final = (v2.Code.OK, v2.Code.CODE_UNSPECIFIED)  # some clients omit the status of an answer
_EVERYTHING: Final = v2.FilterExpression(type=v2.FilterType.TAG, expression="*")


class _Subscribed(Struct, frozen=True):
    """One topic of one connected client."""

    client: Client
    topic: str
    expression: v2.FilterExpression

    @property
    def meaning(self) -> tuple[int, str]:
        """A key that is equal for expressions that select the same messages, as far as their text shows."""
        text = self.expression.expression.strip()
        if self.expression.type == v2.FilterType.SQL:
            return v2.FilterType.SQL, text
        try:
            tags = tags_of(text)
        except ValueError:
            return v2.FilterType.TAG, text
        return v2.FilterType.TAG, "*" if not tags or "*" in tags else " || ".join(sorted(tags))


class OtherClients(Protocol):
    """Connected clients that the registry does not know: those of another protocol."""

    def ids(self, client_id: str, group: str, topic: str) -> Iterator[str]: ...

    def connection(self, client_id: str) -> admin_v1.Connection | None: ...

    def count(self, group: str) -> int: ...

    def disconnect(self, client_id: str) -> bool: ...


class ClientAdministration:
    """One method per RPC."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        tables: Tables,
        clients: ClientRegistry,
        deliveries: Deliveries,
        clock: Clock,
        others: OtherClients,
        hang_up: Callable[[str], None],
    ) -> None:
        """`hang_up` ends the connection of this name once its calls are answered."""
        self._others = others
        self._hang_up = hang_up
        self._config = config
        self._store = store
        self._tables = tables
        self._clients = clients
        self._deliveries = deliveries
        self._clock = clock

    # --- Connections ------------------------------------------------------------------------------------------

    async def list_connections(
        self, request: admin_v1.ListConnectionsRequest, _: Client
    ) -> admin_v1.ListConnectionsResponse:
        ids, turns = [], Turns()
        for client in self._clients.all():
            await turns.next()
            if (
                (not request.client_id or client.client_id == request.client_id)
                and (not request.group or client.group == request.group)
                and (not request.topic or request.topic in client.topics or request.topic in subscribed_topics(client))
            ):
                ids.append(client.client_id)
        ids += self._others.ids(request.client_id, request.group, request.topic)
        page, token = page_of(sorted(set(ids)), request.page_size, request.page_token)
        response, size = admin_v1.ListConnectionsResponse(status=OK, next_page_token=token), 0
        for number, client_id in enumerate(page):
            await turns.next()
            connection = self._connection(client_id)
            if connection is not None:
                size += connection.ByteSize()
                if size > LISTING_SIZE_MAX and response.connections:
                    response.next_page_token = page[number - 1]
                    break
                response.connections.append(connection)
        return response

    def _connection(self, client_id: str) -> admin_v1.Connection | None:
        client = self._clients.get(client_id)
        if client is None:
            return self._others.connection(client_id)
        return connection_to_wire(client, self._clients, self._clock)

    async def list_consumer_connections(
        self, request: v2.ListConsumerConnectionRequest, client: Client
    ) -> v2.ListConsumerConnectionResponse:
        """Admin.ListConsumerConnection."""
        group = self._tables.groups.require(group_name(request.group, client)).name
        connected = self._clients.of_group(group)
        if request.HasField("topic"):
            topic = self._tables.topics.require(topic_name(request.topic, client)).name
            connected = [each async for each in in_turns(connected) if topic in subscribed_topics(each)]
        if request.HasField("liteTopic"):
            lite = self._deliveries.lite
            connected = [
                each
                async for each in in_turns(connected)
                if any(
                    request.liteTopic in lite.names(parent, group, each.client_id) for parent in subscribed_topics(each)
                )
            ]
        response, size = v2.ListConsumerConnectionResponse(status=OK), 0
        async for each in in_turns(sorted(connected, key=lambda each: each.client_id)):
            info = _client_info(each)
            size = _counted(size, info, "ListConnections of aerobee.v1.AdminService has pages")
            response.client_info.append(info)
        return response

    async def consumer_running_info(
        self, request: v2.GetConsumerRunningInfoRequest, client: Client
    ) -> v2.GetConsumerRunningInfoResponse:
        """Admin.GetConsumerRunningInfo, as far as the broker knows: clients of this protocol send no more.

        Messages held per queue are known for push consumers, whose messages are invisible while they live. Rates of a
        single client are unknown, so consume_status_table is empty.
        """
        found = self._connected(request.client_id, group_name(request.group, client))
        seen_ms = _last_seen_ms(found, self._clients, self._clock)
        properties = {
            "clientId": found.client_id,
            "clientType": v2.ClientType.Name(found.client_type),
            "language": found.language,
            "version": found.version,
            "remoteAddress": str(Address(*found.peer)),
            "lastHeartbeatTimestamp": str(seen_ms),
        }
        if found.settings is not None:
            properties.update(found.settings.client_properties)
        info = v2.ConsumerRunningInfo(properties=properties)
        topics = []
        for subscribed in _subscriptions(found):
            topics.append(subscribed.topic)
            info.subscriptions[subscribed.topic].CopyFrom(subscribed.expression)
        await self._add_queues(info, found, set(topics))
        return v2.GetConsumerRunningInfoResponse(status=OK, consumer_running_info=info)

    async def _add_queues(self, info: v2.ConsumerRunningInfo, found: Client, topics: set[str]) -> None:
        """Add the queues of these topics, with the messages that the client holds in each."""
        broker = v2.Broker(name=self._config.name)
        assert found.group is not None, "_connected compares it"
        async for status in in_turns(self._deliveries.statuses(found.group)):
            parent, lite_topic = split_light_topic_name(status.topic) or (status.topic, None)
            if parent not in topics or (
                lite_topic is not None
                and lite_topic not in self._deliveries.lite.names(parent, found.group, found.client_id)
            ):
                continue
            item = info.message_queue_table.add(
                message_queue=v2.MessageQueue(topic=resource(status.topic), id=status.queue_id, broker=broker)
            )
            item.process_queue_info.commit_offset = status.commit_offset
            delivery = self._deliveries.queue_delivery(status.topic, found.group, status.queue_id)
            in_flight = {} if delivery is None else delivery.in_flight
            held = sorted(offset for offset, flight in in_flight.items() if flight.client_id == found.client_id)
            if held:
                item.process_queue_info.cached_msg_min_offset = held[0]
                item.process_queue_info.cached_msg_max_offset = held[-1]
                item.process_queue_info.cached_msg_count = len(held)

    # --- Commands ---------------------------------------------------------------------------------------------

    async def reconnect(self, request: admin_v1.ReconnectClientRequest, _: Client) -> admin_v1.ReconnectClientResponse:
        if not self._clients.reconnect(self._connected(request.client_id, None)):
            raise ClientNotConnectedError(request.client_id)
        return admin_v1.ReconnectClientResponse(status=OK)

    async def disconnect(
        self, request: admin_v1.DisconnectClientRequest, _: Client
    ) -> admin_v1.DisconnectClientResponse:
        if not self._others.disconnect(request.client_id):
            client = self._connected(request.client_id, None)
            self._clients.disconnect(client)
            self._hang_up(client.connection)
        return admin_v1.DisconnectClientResponse(status=OK)

    async def print_thread_stack_trace(
        self, request: v2.PrintThreadStackTraceRequest, client: Client
    ) -> v2.PrintThreadStackTraceResponse:
        """Admin.PrintThreadStackTrace: also for a producer, which has no group to name."""
        group = group_name(request.group, client) if request.group.name else None
        answer = await self._clients.print_stacks(self._connected(request.client_id, group))
        if answer.WhichOneof("command") != "thread_stack_trace" or answer.status.code not in _FINE:
            return v2.PrintThreadStackTraceResponse(status=_of_client(answer))
        return v2.PrintThreadStackTraceResponse(
            status=OK, thread_stack_trace=answer.thread_stack_trace.thread_stack_trace
        )

    async def verify_message(self, request: v2.VerifyMessageRequest, client: Client) -> v2.VerifyMessageResponse:
        """Admin.VerifyMessage: the listener of a push consumer receives the message; nothing is acknowledged or
        counted."""
        topic = self._tables.topics.require(topic_name(request.topic, client)).name
        found = self._connected(request.client_id, group_name(request.group, client))
        records = await find_by_message_id(self._store, self._deliveries.loop_share, topic, request.message_id)
        if not records:
            raise InvalidRequestError(
                v2.Code.MESSAGE_NOT_FOUND, f"no message {request.message_id[:200]!r} in topic {topic!r}; check the id"
            )
        answer = await self._clients.verify_message(found, to_wire_message(records[-1], request.topic))
        if answer.WhichOneof("command") == "verify_message_result" and answer.status.code in _FINE:
            return v2.VerifyMessageResponse(status=OK)
        return v2.VerifyMessageResponse(status=_of_client(answer))

    def _connected(self, client_id: str, group: str | None) -> Client:
        found = self._clients.get(client_id)
        if found is None or (group is not None and found.group != group):
            whose = "" if group is None else f" of group {group!r}"
            raise InvalidRequestError(
                v2.Code.NOT_FOUND,
                f"no client {client_id[:200]!r}{whose} is connected; `aerobee client list` lists the connected ones",
            )
        return found

    # --- Subscriptions ----------------------------------------------------------------------------------------

    async def list_subscriptions(
        self, request: v2.ListSubscriptionRequest, client: Client
    ) -> v2.ListSubscriptionResponse:
        """Admin.ListSubscription: by group and topic, in order. Lists all without either."""
        topic, group = self._scope(request, client)
        response, size = v2.ListSubscriptionResponse(status=OK), 0
        async for info, _ in self._infos(topic, group):
            size = _counted(size, info, "name a topic or a group")
            response.subscription_info.append(info)
        return response

    async def describe_subscriptions(
        self, request: v2.DescribeSubscriptionRequest, client: Client
    ) -> v2.DescribeSubscriptionResponse:
        """Admin.DescribeSubscription: the same for connected clients, each with its own expression."""
        topic, group = self._scope(request, client)
        response, size = v2.DescribeSubscriptionResponse(status=OK), 0
        async for info, clients in self._infos(topic, group):
            async for subscribed in in_turns(clients):
                own = v2.SubscriptionInfo()
                own.CopyFrom(info)
                own.expression.CopyFrom(subscribed.expression)
                own.message_model = _message_model(subscribed.client)
                self._set_updated(own, subscribed.client)
                of_client = v2.DescribeSubscriptionResponse.ClientSubscriptionInfo(
                    client_info=_client_info(subscribed.client), subscription_info=own
                )
                size = _counted(size, of_client, "name a topic and a group")
                response.client_subscription_info.append(of_client)
        return response

    async def delete_subscription(
        self, request: v2.DeleteSubscriptionRequest, client: Client
    ) -> v2.DeleteSubscriptionResponse:
        """Admin.DeleteSubscription: removes the group's position in the topic, as if it had never read it.

        Refused while a client subscribes. Expressions are not compared, because none is stored.
        """
        topic = self._tables.topics.require(topic_name(request.topic, client)).name
        group = self._tables.groups.require(group_name(request.group, client)).name
        connected = [each async for each in in_turns(self._clients.of_group(group)) if _may_read(each, topic)]
        if connected:
            raise InvalidRequestError(
                v2.Code.FORBIDDEN,
                f"{len(connected)} connected clients of group {group!r} read topic {topic!r}; stop them first",
            )
        positions = [
            each
            for each in self._tables.offsets.topics_of(group)
            if (split_light_topic_name(each) or (each,))[0] == topic
        ]
        if not positions:
            raise InvalidRequestError(
                v2.Code.NOT_FOUND,
                f"group {group!r} has no subscription to topic {topic!r}; `aerobee subscription list` shows its "
                f"subscriptions",
            )
        # One of them, or thousands of lite topics: together they share the syncs of the log.
        await asyncio.gather(*(self._deliveries.delete_subscription(each, group) for each in positions))
        await self._tables.save_offsets()
        return v2.DeleteSubscriptionResponse(status=OK)

    def _scope(
        self, request: v2.ListSubscriptionRequest | v2.DescribeSubscriptionRequest, client: Client
    ) -> tuple[str | None, str | None]:
        topic = group = None
        if request.HasField("topic"):
            topic = self._tables.topics.require(topic_name(request.topic, client)).name
        if request.HasField("group"):
            group = self._tables.groups.require(group_name(request.group, client)).name
        return topic, group

    async def _infos(
        self, topic: str | None, group: str | None
    ) -> AsyncIterator[tuple[v2.SubscriptionInfo, list[_Subscribed]]]:
        """The subscriptions, each with its clients in order of their ids."""
        by_group: dict[str, list[Client]] = {}
        for each in self._clients.all():
            if each.group is not None and (group is None or each.group == group):
                by_group.setdefault(each.group, []).append(each)
        # Includes clients that connected but have not received yet.
        groups = {*by_group, *(config.name for config in self._tables.groups)} if group is None else {group}
        async for name in in_turns(sorted(groups)):
            if is_system_group(name):
                continue
            connected = sorted(by_group.get(name, ()), key=lambda client: client.client_id)
            topics = {(split_light_topic_name(each) or (each,))[0] for each in self._tables.offsets.topics_of(name)}
            by_topic: dict[str, list[_Subscribed]] = {}
            async for each in in_turns(connected):
                async for subscribed in in_turns(_subscriptions(each)):
                    by_topic.setdefault(subscribed.topic, []).append(subscribed)
            topics.update(by_topic)
            consistent = await agree(connected)
            is_unknown = any(each.settings is None for each in connected)  # such a client may read every topic
            async for found in in_turns(sorted(topics if topic is None else topics & {topic})):
                of_topic = by_topic.get(found, [])
                yield self._info(name, found, of_topic, consistent, online=is_unknown or bool(of_topic)), of_topic

    def _info(
        self, group: str, topic: str, subscribed: list[_Subscribed], consistent: bool, *, online: bool
    ) -> v2.SubscriptionInfo:
        """If clients disagree, the expression is the most recent one."""
        info = v2.SubscriptionInfo(
            group=resource(group),
            topic=resource(topic),
            online=online,
            message_model=v2.MessageModel.CLUSTERING,
            subscription_consistency=consistent,
        )
        if subscribed:
            latest = max(subscribed, key=lambda each: each.client.settings_at)
            info.expression.CopyFrom(latest.expression)
            info.message_model = _message_model(latest.client)
            self._set_updated(info, latest.client)
        return info

    def _set_updated(self, info: v2.SubscriptionInfo, client: Client) -> None:
        ago_ms = int((self._clock.monotonic() - client.settings_at) * 1000)
        info.last_update_timestamp.CopyFrom(timestamp(self._clock.now_ms() - ago_ms))


def connection_to_wire(client: Client, clients: ClientRegistry, clock: Clock) -> admin_v1.Connection:
    wire = admin_v1.Connection(
        client_id=client.client_id,
        client_type=client.client_type,
        version=client.version,
        remote_address=str(Address(*client.peer)),
        group=client.group or "",
        topics=sorted(client.topics),
        telemetry=client.stream is not None,
    )
    name = _LANGUAGES.get(client.language, client.language)
    if name in v2.Language.keys():  # noqa: SIM118 - an enum of protobuf is no mapping
        wire.language = v2.Language.Value(name)
    wire.last_heartbeat_timestamp.CopyFrom(timestamp(_last_seen_ms(client, clients, clock)))
    if client.settings is not None:
        wire.settings.CopyFrom(client.settings)
        wire.subscriptions.extend(client.settings.subscription.subscriptions)
    return wire


def _last_seen_ms(client: Client, clients: ClientRegistry, clock: Clock) -> int:
    return clock.now_ms() - int(clients.idle_seconds(client) * 1000)


def _client_info(client: Client) -> v2.ClientInfo:
    host, at, _ = client.client_id.rpartition("/")[2].partition("@")  # with accounts, it is prefixed by the access key
    return v2.ClientInfo(
        client_id=client.client_id,
        version=client.version,
        language=client.language,
        hostname=host if at else "",  # the official clients' ids begin with it
        egress_ip=client.peer[0],
        message_model=_message_model(client),
    )


def _of_client(answer: v2.TelemetryCommand) -> v2.Status:
    """The client's error instead of a result."""
    if answer.status.code in _FINE:
        return v2.Status(
            code=v2.Code.NOT_IMPLEMENTED, message="the client answered something else; its SDK does not support this"
        )
    return v2.Status(code=answer.status.code, message=answer.status.message or "the client gave no reason")


def _message_model(client: Client) -> v2.MessageModel.ValueType:
    return v2.MessageModel.LITE_SELECTIVE if client.client_type in _LITE_TYPES else v2.MessageModel.CLUSTERING


def _subscriptions(client: Client) -> Iterator[_Subscribed]:
    """The subscriptions in the client's settings; none without settings."""
    if client.settings is None or client.group is None:
        return
    for entry in client.settings.subscription.subscriptions:
        topic = topic_name(entry.topic, client)
        yield _Subscribed(client, topic, entry.expression if entry.HasField("expression") else _EVERYTHING)


def _may_read(client: Client, topic: str) -> bool:
    """Whether the client reads the topic; assumed if its settings are unknown."""
    return client.settings is None or topic in subscribed_topics(client)


async def agree(connected: list[Client]) -> bool:
    """Whether the clients with known settings have equal subscriptions."""
    first: frozenset[tuple[str, tuple[int, str]]] | None = None
    async for client in in_turns(connected):
        if client.settings is not None:
            said = frozenset([(each.topic, each.meaning) async for each in in_turns(_subscriptions(client))])
            if first is None:
                first = said
            elif said != first:
                return False
    return True


def _counted(size: int, part: Message, advice: str) -> int:
    """The size of an answer with one part more. Raises InvalidRequestError if clients cannot take it."""
    size += part.ByteSize()
    if size > LISTING_SIZE_MAX:
        raise InvalidRequestError(
            v2.Code.BAD_REQUEST, f"the answer is larger than {LISTING_SIZE_MAX >> 20} MiB; {advice}"
        )
    return size
