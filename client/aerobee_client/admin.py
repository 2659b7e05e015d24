"""Administration of a broker: topics, groups, clients, messages, dead letters, settings, status.

The answers are documented where they are declared: in `aerobee/v1/admin.proto` (`aerobee_proto.admin_v1`, only on
Aerobee) and in RocketMQ's `admin.proto` (`v2`). Names are stored names, `namespace%name` in a namespace; times are Unix
milliseconds. Long lists are iterators that fetch page by page. All calls raise the errors of `aerobee_client.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aerobee_client.connections.connection import AnswerT, Connection, RequestT, Stubs, new_client_id
from aerobee_client.errors import ClientError, ForbiddenError, status_error
from aerobee_client.messages.message import StoredMessage, stored_message
from aerobee_proto import admin_v1, v2

if TYPE_CHECKING:
    from grpc.aio import UnaryUnaryMultiCallable

_PAGE_COUNT = 32
_DEAD_LETTER_PAGE_COUNT = 100
_STATUS_PAGE_COUNT = 1000
TopicOrder = Literal["name", "messages", "bytes", "in_rate", "out_rate", "last_stored"]
GroupOrder = Literal["name", "lag", "age", "out_rate", "clients", "dead_letters"]
LogLevel = Literal["TRACE", "DEBUG", "INFO", "WARN", "ERROR"]


@dataclass(frozen=True, slots=True)
class Tailed:
    """What a tail has seen since its previous item. `dropped`: messages that were too many."""

    messages: list[StoredMessage]
    dropped: int
    bodies_hidden: bool


class Admin:
    """The administration calls of `Client.admin`; needs no closing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._metadata = connection.headers(new_client_id())

    async def create_topic(
        self,
        name: str,
        *,
        queue_count: int = 0,
        message_types: Iterable[v2.MessageType.ValueType] = (),
        attributes: Mapping[str, str] | None = None,
        permission: v2.Permission.ValueType | None = None,
    ) -> admin_v1.Topic:
        """Create a topic, or return the one that exists with the same definition. 0 queues: the broker's default.

        Several message types make a MIXED topic, none a NORMAL one.
        """
        topic = admin_v1.Topic(
            name=name,
            read_queue_count=queue_count,
            accept_message_types=message_types,
            attributes=attributes or {},
            permission=permission or v2.Permission.PERMISSION_UNSPECIFIED,
        )
        request = admin_v1.CreateTopicRequest(topic=topic)
        return (await self._call(lambda stubs: stubs.aerobee_admin.CreateTopic, request)).topic

    async def update_topic(
        self,
        name: str,
        *,
        queue_count: int | None = None,
        message_types: Iterable[v2.MessageType.ValueType] = (),
        attributes: Mapping[str, str] | None = None,
        permission: v2.Permission.ValueType | None = None,
    ) -> admin_v1.Topic:
        """Change the given attributes and keep the others."""
        request = admin_v1.UpdateTopicRequest(
            name=name,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            accept_message_types=message_types,
            set_attributes=attributes or {},
            permission=permission,
        )
        return (await self._call(lambda stubs: stubs.aerobee_admin.UpdateTopic, request)).topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and the offsets of its groups."""
        request = admin_v1.DeleteTopicRequest(name=name)
        await self._call(lambda stubs: stubs.aerobee_admin.DeleteTopic, request)

    async def purge_topic(self, name: str, *, dry_run: bool = False) -> admin_v1.PurgeTopicResponse:
        """Remove all messages of a topic for all groups, and keep its definition; `dry_run` only counts them."""
        request = admin_v1.PurgeTopicRequest(name=name, dry_run=dry_run)
        return await self._call(lambda stubs: stubs.aerobee_admin.PurgeTopic, request)

    async def list_topics(self, *, include_system: bool = False) -> list[admin_v1.Topic]:
        """All topics in order of names."""
        request = admin_v1.ListTopicsRequest(include_system=include_system)
        topics: list[admin_v1.Topic] = []
        while True:
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListTopics, request)
            topics += answer.topics
            if not answer.next_page_token:
                return topics
            request.page_token = answer.next_page_token

    async def describe_topic(self, name: str) -> admin_v1.DescribeTopicResponse:
        """Definition, queues and readers of one topic."""
        request = admin_v1.DescribeTopicRequest(name=name)
        return await self._call(lambda stubs: stubs.aerobee_admin.DescribeTopic, request)

    async def create_group(
        self,
        name: str,
        *,
        fifo: bool = False,
        max_attempts: int = 0,
        retry_policy: v2.RetryPolicy | None = None,
    ) -> admin_v1.Group:
        """Create a consumer group, or return the one that exists with the same definition. 0 attempts, no policy: the
        broker's default."""
        group = admin_v1.Group(name=name, fifo=fifo, max_attempts=max_attempts, retry_policy=retry_policy)
        request = admin_v1.CreateGroupRequest(group=group)
        return (await self._call(lambda stubs: stubs.aerobee_admin.CreateGroup, request)).group

    async def update_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        max_attempts: int | None = None,
        consume_enabled: bool | None = None,
        retry_policy: v2.RetryPolicy | None = None,
    ) -> admin_v1.Group:
        """Change the given attributes and keep the others. Without `consume_enabled` a group keeps its progress and
        waits."""
        request = admin_v1.UpdateGroupRequest(
            name=name,
            fifo=fifo,
            max_attempts=max_attempts,
            consume_enabled=consume_enabled,
            retry_policy=retry_policy,
        )
        return (await self._call(lambda stubs: stubs.aerobee_admin.UpdateGroup, request)).group

    async def delete_group(self, name: str) -> None:
        """Delete a group and its offsets; ForbiddenError while clients of the group are connected."""
        request = admin_v1.DeleteGroupRequest(name=name)
        await self._call(lambda stubs: stubs.aerobee_admin.DeleteGroup, request)

    async def list_groups(self, *, include_system: bool = False) -> list[admin_v1.Group]:
        """All consumer groups in order of names."""
        request = admin_v1.ListGroupsRequest(include_system=include_system)
        groups: list[admin_v1.Group] = []
        while True:
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListGroups, request)
            groups += answer.groups
            if not answer.next_page_token:
                return groups
            request.page_token = answer.next_page_token

    async def describe_group(self, name: str) -> admin_v1.DescribeGroupResponse:
        """Definition, progress and clients of one group."""
        request = admin_v1.DescribeGroupRequest(name=name)
        return await self._call(lambda stubs: stubs.aerobee_admin.DescribeGroup, request)

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        timestamp: int | None = None,
        offset: int | None = None,
        earliest: bool = False,
        latest: bool = False,
        skip: int | None = None,
        like_group: str | None = None,
        queue_ids: Iterable[int] = (),
        lite_topic: str = "",
        dry_run: bool = False,
    ) -> list[admin_v1.ResetOffsetsResponse.Queue]:
        """Move a group to another offset of a topic; give exactly one target. Consumers may keep running.

        `skip`: this many messages after the oldest unfinished one. `like_group`: where another group is. `dry_run` only
        reports the changes. Applies to all queues or lite topics, unless some are named.
        """
        request = admin_v1.ResetOffsetsRequest(
            group=group, topic=topic, queue_ids=queue_ids, lite_topic=lite_topic, dry_run=dry_run
        )
        given = 0
        if timestamp is not None:
            request.timestamp.FromMilliseconds(timestamp)
            given += 1
        for name, value in (
            ("offset", offset),
            ("skip", skip),
            ("like_group", like_group),
            ("earliest", earliest or None),
            ("latest", latest or None),
        ):
            if value is not None:
                setattr(request, name, value)
                given += 1
        if given != 1:
            raise ValueError("give exactly one of timestamp, offset, earliest, latest, skip and like_group")
        return list((await self._call(lambda stubs: stubs.aerobee_admin.ResetOffsets, request)).queues)

    async def accumulation(self, group: str, topics: Iterable[str] = ()) -> v2.DescribeGroupAccumulationResponse:
        """The lag of a group, in total and by topic; in the named topics, or all."""
        request = v2.DescribeGroupAccumulationRequest(group=_resource(group), topics=map(_resource, topics))
        return await self._call(lambda stubs: stubs.admin.DescribeGroupAccumulation, request)

    async def time_spans(self, group: str, topics: Iterable[str] = ()) -> list[v2.QueryTimeSpanResponse.QueueTimeSpan]:
        """The time span of the messages in each queue, and the group's position in it."""
        request = v2.QueryTimeSpanRequest(group=_resource(group), topics=map(_resource, topics))
        answer = await self._call(lambda stubs: stubs.admin.QueryTimeSpan, request)
        return list(answer.queue_time_span_list)

    async def topic_status(
        self,
        *,
        search: str = "",
        order: TopicOrder = "name",
        descending: bool = False,
        include_system: bool = False,
        max_count: int | None = None,
    ) -> AsyncIterator[admin_v1.TopicStatus]:
        """Topics whose name contains `search` with their messages, bytes and rates, sorted by the broker."""
        request = admin_v1.ListTopicStatusRequest(
            search=search,
            order=admin_v1.TopicOrder.Value(f"TOPIC_ORDER_{order.upper()}"),
            descending=descending,
            include_system=include_system,
        )
        count = 0
        while True:
            request.page_size = 0 if max_count is None else min(max_count - count, _STATUS_PAGE_COUNT)
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListTopicStatus, request)
            for topic in answer.topics:
                yield topic
            count += len(answer.topics)
            if not answer.next_page_token or count == max_count:
                return
            request.page_token = answer.next_page_token

    async def group_status(
        self,
        *,
        search: str = "",
        topic: str = "",
        order: GroupOrder = "name",
        descending: bool = False,
        include_system: bool = False,
        max_count: int | None = None,
    ) -> AsyncIterator[admin_v1.GroupStatus]:
        """Groups whose name contains `search` with their backlog, its age and their rates, sorted by the broker.
        `topic`: only groups that read it."""
        request = admin_v1.ListGroupStatusRequest(
            search=search,
            topic=topic,
            order=admin_v1.GroupOrder.Value(f"GROUP_ORDER_{order.upper()}"),
            descending=descending,
            include_system=include_system,
        )
        count = 0
        while True:
            request.page_size = 0 if max_count is None else min(max_count - count, _STATUS_PAGE_COUNT)
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListGroupStatus, request)
            for group in answer.groups:
                yield group
            count += len(answer.groups)
            if not answer.next_page_token or count == max_count:
                return
            request.page_token = answer.next_page_token

    # --- Clients and subscriptions ----------------------------------------------------------------------------

    async def connections(
        self, *, group: str = "", topic: str = "", client_id: str = ""
    ) -> AsyncIterator[admin_v1.Connection]:
        """The connected clients in order of client ids; optionally only consumers of a group, users of a topic, or one
        client."""
        request = admin_v1.ListConnectionsRequest(group=group, topic=topic, client_id=client_id)
        while True:
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListConnections, request)
            for connection in answer.connections:
                yield connection
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def subscriptions(self, *, topic: str | None = None, group: str | None = None) -> list[v2.SubscriptionInfo]:
        """The topics that each group reads, and whether the subscriptions of its clients agree."""
        request = v2.ListSubscriptionRequest(topic=_optional(topic), group=_optional(group))
        answer = await self._call(lambda stubs: stubs.admin.ListSubscription, request)
        return list(answer.subscription_info)

    async def client_subscriptions(
        self, *, topic: str | None = None, group: str | None = None
    ) -> list[v2.DescribeSubscriptionResponse.ClientSubscriptionInfo]:
        """The subscriptions of each connected client."""
        request = v2.DescribeSubscriptionRequest(topic=_optional(topic), group=_optional(group))
        answer = await self._call(lambda stubs: stubs.admin.DescribeSubscription, request)
        return list(answer.client_subscription_info)

    async def delete_subscription(self, topic: str, group: str) -> None:
        """Delete the position of a group in a topic; ForbiddenError while clients of the group read it."""
        request = v2.DeleteSubscriptionRequest(topic=_resource(topic), group=_resource(group))
        await self._call(lambda stubs: stubs.admin.DeleteSubscription, request)

    async def consumer_running_info(self, client_id: str, group: str) -> v2.ConsumerRunningInfo:
        """The broker's view of a consumer."""
        request = v2.GetConsumerRunningInfoRequest(client_id=client_id, group=_resource(group))
        answer = await self._call(lambda stubs: stubs.admin.GetConsumerRunningInfo, request)
        return answer.consumer_running_info

    async def reconnect_client(self, client_id: str) -> None:
        """Ask a client to reopen its Telemetry stream; not every SDK does."""
        request = admin_v1.ReconnectClientRequest(client_id=client_id)
        await self._call(lambda stubs: stubs.aerobee_admin.ReconnectClient, request)

    async def disconnect_client(self, client_id: str) -> None:
        """Forget a client as if it had left; one that runs on connects again with its next call."""
        request = admin_v1.DisconnectClientRequest(client_id=client_id)
        await self._call(lambda stubs: stubs.aerobee_admin.DisconnectClient, request)

    async def client_stacks(self, client_id: str) -> str:
        """The thread stacks of a client, as text. The broker waits 5 s for the client, so allow a longer timeout.

        UnsupportedError if its SDK does not support it.
        """
        request = v2.PrintThreadStackTraceRequest(client_id=client_id)
        answer = await self._call(lambda stubs: stubs.admin.PrintThreadStackTrace, request, check=lambda answer: None)
        if error := status_error(answer.status):  # not retried: it has taken long enough
            raise error
        return answer.thread_stack_trace

    async def verify_message(self, client_id: str, group: str, topic: str, message_id: str) -> None:
        """Deliver a stored message to a push consumer as a test; nothing is acknowledged. Timeout: see `client_stacks`.

        ServerError with FAILED_TO_CONSUME_MESSAGE if the listener fails.
        """
        request = v2.VerifyMessageRequest(
            client_id=client_id, group=_resource(group), topic=_resource(topic), message_id=message_id
        )
        answer = await self._call(lambda stubs: stubs.admin.VerifyMessage, request, check=lambda answer: None)
        if error := status_error(answer.status):
            raise error

    # --- Accounts ---------------------------------------------------------------------------------------------

    async def who_am_i(self) -> admin_v1.WhoAmIResponse:
        """The account of this client and its rights; every account may ask."""
        return await self._call(lambda stubs: stubs.aerobee_admin.WhoAmI, admin_v1.WhoAmIRequest())

    async def accounts(self) -> AsyncIterator[admin_v1.Account]:
        """The accounts and their rights, in order of access keys; none if the broker requires none."""
        request = admin_v1.ListAccountsRequest()
        while True:
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListAccounts, request)
            for account in answer.accounts:
                yield account
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def operations(
        self, *, account: str = "", search: str = "", max_count: int | None = None
    ) -> AsyncIterator[admin_v1.Operation]:
        """Who changed what, newest first; at most the latest 1000 changes."""
        request = admin_v1.ListOperationsRequest(account=account, search=search)
        left = max_count
        while left is None or left > 0:
            request.page_size = 0 if left is None else min(left, _STATUS_PAGE_COUNT)
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListOperations, request)
            for operation in answer.operations:
                yield operation
            if left is not None:
                left -= len(answer.operations)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    # --- The broker -------------------------------------------------------------------------------------------

    async def broker_status(self) -> admin_v1.GetBrokerStatusResponse:
        """The broker's identity and configuration, and whether it accepts messages."""
        request = admin_v1.GetBrokerStatusRequest()
        return await self._call(lambda stubs: stubs.aerobee_admin.GetBrokerStatus, request)

    async def store_status(self) -> admin_v1.GetStoreStatusResponse:
        """The beginning and end of the log, its durable part, and counters."""
        request = admin_v1.GetStoreStatusRequest()
        return await self._call(lambda stubs: stubs.aerobee_admin.GetStoreStatus, request)

    async def segments(self) -> admin_v1.ListSegmentsResponse:
        """The segments of the log, oldest first, how fast it grows, and when the disk will be full."""
        request = admin_v1.ListSegmentsRequest(page_size=_STATUS_PAGE_COUNT)
        answer = await self._call(lambda stubs: stubs.aerobee_admin.ListSegments, request)
        while answer.next_page_token:
            request.page_token = answer.next_page_token
            following = await self._call(lambda stubs: stubs.aerobee_admin.ListSegments, request)
            answer.segments.extend(following.segments)
            answer.next_page_token = following.next_page_token
        return answer

    async def brokers(self) -> admin_v1.ListBrokersResponse:
        """The brokers that the name servers know, in order of names; `error` says why some may be missing."""
        request = admin_v1.ListBrokersRequest(page_size=_STATUS_PAGE_COUNT)
        answer = await self._call(lambda stubs: stubs.aerobee_admin.ListBrokers, request)
        while answer.next_page_token:
            request.page_token = answer.next_page_token
            following = await self._call(lambda stubs: stubs.aerobee_admin.ListBrokers, request)
            answer.brokers.extend(following.brokers)
            answer.next_page_token = following.next_page_token
        return answer

    async def traffic(
        self, window: Literal["minute", "hour", "day"] = "minute", *, topic: str = "", count: int = 100
    ) -> admin_v1.ListTrafficResponse:
        """The `count` (up to 1000) busiest topics, and pairs of topic and group, of the recent past."""
        request = admin_v1.ListTrafficRequest(
            window=admin_v1.TrafficWindow.Value(f"TRAFFIC_WINDOW_{window.upper()}"), topic=topic, count=count
        )
        return await self._call(lambda stubs: stubs.aerobee_admin.ListTraffic, request)

    async def history(
        self, step: Literal["second", "minute"] = "second", *, topic: str = "", group: str = "", count: int = 0
    ) -> admin_v1.GetHistoryResponse:
        """Figures of the broker, a topic or a group over time: the seconds of ten minutes, or the minutes of a day."""
        request = admin_v1.GetHistoryRequest(
            topic=topic, group=group, step=admin_v1.HistoryStep.Value(f"HISTORY_STEP_{step.upper()}"), count=count
        )
        return await self._call(lambda stubs: stubs.aerobee_admin.GetHistory, request)

    async def problems(self) -> list[admin_v1.Problem]:
        """What needs attention, critical problems first, each with its next step."""
        request = admin_v1.GetProblemsRequest()
        return list((await self._call(lambda stubs: stubs.aerobee_admin.GetProblems, request)).problems)

    async def configuration(self, prefix: str = "") -> list[admin_v1.Setting]:
        """All settings in order of names, or those whose names begin with a prefix, each with its source."""
        request = admin_v1.GetConfigurationRequest(prefix=prefix)
        return list((await self._call(lambda stubs: stubs.aerobee_admin.GetConfiguration, request)).settings)

    async def update_configuration(
        self, values: Mapping[str, str] | None = None, *, unset: Iterable[str] = ()
    ) -> list[admin_v1.Setting]:
        """Change settings of the running broker, also after restarts; `unset` ones return to their other source."""
        request = admin_v1.UpdateConfigurationRequest(set=values or {}, unset=unset)
        return list((await self._call(lambda stubs: stubs.aerobee_admin.UpdateConfiguration, request)).settings)

    async def change_log_level(self, level: LogLevel) -> str:
        """Change the log level until the next start; returns the broker's answer."""
        request = v2.ChangeLogLevelRequest(level=v2.ChangeLogLevelRequest.Level.Value(level))

        # The one response without a status; any answer means success.
        def method(stubs: Stubs) -> Any:
            return stubs.admin.ChangeLogLevel

        answer = await self._call(method, request, check=lambda answer: None)
        return str(answer.remark)

    # --- Messages ---------------------------------------------------------------------------------------------

    async def query(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        unfinished_by: str | None = None,
        lite_topic: str | None = None,
        begin: int | None = None,
        end: int | None = None,
        max_count: int = 64,
    ) -> AsyncIterator[StoredMessage]:
        """Up to `max_count` messages by key, by message id, or within a time range, page by page.

        `unfinished_by` is a group: its messages in flight or ready (Aerobee only). `begin` and `end` are store times in
        Unix milliseconds, inclusive. Give at most one of the other criteria.
        """
        if sum(each is not None for each in (key, message_id, unfinished_by, lite_topic)) > 1:
            raise ValueError("give one of key, message_id, unfinished_by and lite_topic")
        request = v2.ListMessageRequest(topic=v2.Resource(name=topic))
        if key is not None:
            request.message_key = key
        if message_id is not None:
            request.message_id = message_id
        if unfinished_by is not None:
            request.subscription = unfinished_by
        if lite_topic is not None:
            request.lite_topic = lite_topic
        if begin is not None:
            request.begin_timestamp.FromMilliseconds(begin)
        if end is not None:
            request.end_timestamp.FromMilliseconds(end)
        left = max_count
        while left > 0:
            request.max_message_nums = left
            request.page_size = min(left, _PAGE_COUNT)
            answer = await self._call(lambda stubs: stubs.admin.QueryMessage, request)
            for wire in answer.messages[:left]:
                yield stored_message(wire)
            left -= len(answer.messages)
            if answer.scroll_id in ("", request.scroll_id):
                return
            request.scroll_id = answer.scroll_id

    async def browse(
        self,
        topic: str,
        *,
        oldest_first: bool = False,
        queue_ids: Iterable[int] = (),
        begin_offset: int | None = None,
        end_offset: int | None = None,
        begin: int | None = None,
        end: int | None = None,
        tags: str = "",
        sql: str = "",
        text: str = "",
        max_count: int | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """The messages of a topic in order of storing, newest first, without any effect on groups.

        `begin` (inclusive) and `end` are store times in Unix milliseconds. `text` is looked for in keys, properties and
        bodies. ForbiddenError if the account may not read the bodies; `browse_page` then returns the rest.
        """
        request = admin_v1.BrowseMessagesRequest(
            topic=topic,
            oldest_first=oldest_first,
            queue_ids=queue_ids,
            begin_offset=begin_offset,
            end_offset=end_offset,
            filter=_filter(tags, sql),
            text=text,
            include_bodies=True,
        )
        if begin is not None:
            request.begin_timestamp.FromMilliseconds(begin)
        if end is not None:
            request.end_timestamp.FromMilliseconds(end)
        left = max_count
        while left is None or left > 0:
            request.page_size = 0 if left is None else min(left, _STATUS_PAGE_COUNT)
            page = await self.browse_page(request)
            if page.bodies_hidden:
                raise ForbiddenError(
                    v2.Code.FORBIDDEN,
                    f"this account may not read the bodies of topic {topic!r}; "
                    "ask an operator to add the name to its consume",
                )
            for found in page.messages:
                yield stored_message(found.message)
            if left is not None:
                left -= len(page.messages)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def browse_page(self, request: admin_v1.BrowseMessagesRequest) -> admin_v1.BrowseMessagesResponse:
        """One page of `browse`, which also tells where each message is stored; an empty one may have a next page."""
        return await self._call(lambda stubs: stubs.aerobee_admin.BrowseMessages, request)

    async def tail(
        self,
        topic: str,
        *,
        queue_ids: Iterable[int] = (),
        tags: str = "",
        sql: str = "",
        text: str = "",
        rate_max: int = 0,
        last_count: int = 0,
        body_size_max: int = 0,
    ) -> AsyncGenerator[Tailed, None]:
        """The messages of a topic as they are stored, after the last `last_count` (up to 100), until it is closed.

        Nothing is recorded and no group takes part. Of more than `rate_max` a second (0: 50) the newest come. Begins
        with one item at once, and has one at least every 15 seconds. Bodies are empty if the account may not read them.
        """
        request = admin_v1.TailMessagesRequest(
            topic=topic,
            queue_ids=queue_ids,
            filter=_filter(tags, sql),
            text=text,
            include_bodies=True,
            rate_max=rate_max,
            last_count=last_count,
            body_size_max=body_size_max,
        )
        responses = self._connection.stream(
            lambda stubs: stubs.aerobee_admin.TailMessages, request, self._metadata, timeout_seconds=None
        )
        async with aclosing(responses):
            async for response in responses:
                if error := status_error(response.status):
                    raise error
                messages = [stored_message(found.message) for found in response.messages]
                yield Tailed(messages, response.dropped_count, response.bodies_hidden)

    async def message_timelines(
        self,
        topic: str,
        *,
        message_id: str = "",
        queue_id: int | None = None,
        queue_offset: int | None = None,
        group: str = "",
        history: bool = False,
    ) -> list[admin_v1.MessageTimeline]:
        """The events and state of a message, by its id or position; for one group, or all. NotFoundError if there is
        none.

        `history`: also its deliveries and acknowledgements, which takes longer.
        """
        request = admin_v1.DescribeMessageRequest(
            topic=topic,
            message_id=message_id,
            queue_id=queue_id,
            queue_offset=queue_offset,
            group=group,
            history=history,
        )
        return list((await self._call(lambda stubs: stubs.aerobee_admin.DescribeMessage, request)).timelines)

    # --- Messages that wait -----------------------------------------------------------------------------------

    async def delayed_messages(
        self,
        topic: str = "",
        *,
        begin: int | None = None,
        end: int | None = None,
        bodies: bool = False,
        max_count: int | None = None,
    ) -> AsyncIterator[admin_v1.DelayedMessage]:
        """The messages that wait for their delivery time, of one topic or all, due from `begin` to before `end`."""
        request = admin_v1.ListDelayedMessagesRequest(topic=topic, include_bodies=bodies)
        if begin is not None:
            request.begin_timestamp.FromMilliseconds(begin)
        if end is not None:
            request.end_timestamp.FromMilliseconds(end)
        left = max_count
        while left is None or left > 0:
            request.page_size = 0 if left is None else min(left, _STATUS_PAGE_COUNT)
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListDelayedMessages, request)
            for message in answer.messages:
                yield message
            if left is not None:
                left -= len(answer.messages)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def recall_delayed(self, handles: Iterable[str]) -> list[admin_v1.RecallDelayedMessagesResponse.Result]:
        """Take delayed messages back, up to 1000; each result has a status of its own."""
        request = admin_v1.RecallDelayedMessagesRequest(recall_handles=handles)
        answer = await self._call(
            lambda stubs: stubs.aerobee_admin.RecallDelayedMessages,
            request,
            check=lambda answer: None if answer.results else status_error(answer.status),
        )
        return list(answer.results)

    async def transactions(
        self, topic: str = "", *, bodies: bool = False, max_count: int | None = None
    ) -> AsyncIterator[admin_v1.OpenTransaction]:
        """The transactions without a decision, of one topic or all, the oldest first."""
        request = admin_v1.ListTransactionsRequest(topic=topic, include_bodies=bodies)
        left = max_count
        while left is None or left > 0:
            request.page_size = 0 if left is None else min(left, _STATUS_PAGE_COUNT)
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListTransactions, request)
            for transaction in answer.transactions:
                yield transaction
            if left is not None:
                left -= len(answer.transactions)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def decide_transactions(
        self, topic: str, transaction_ids: Iterable[str], *, commit: bool
    ) -> list[admin_v1.DecideTransactionsResponse.Result]:
        """Commit or roll back transactions of a topic in place of their producer, up to 1000."""
        resolution = v2.TransactionResolution.COMMIT if commit else v2.TransactionResolution.ROLLBACK
        request = admin_v1.DecideTransactionsRequest(
            topic=topic, transaction_ids=transaction_ids, resolution=resolution
        )
        answer = await self._call(
            lambda stubs: stubs.aerobee_admin.DecideTransactions,
            request,
            check=lambda answer: None if answer.results else status_error(answer.status),
        )
        return list(answer.results)

    # --- Dead letters -----------------------------------------------------------------------------------------

    async def dead_letter_queues(self) -> AsyncIterator[admin_v1.DeadLetterQueue]:
        """The groups that have dead letters, and their number."""
        request = admin_v1.ListDeadLetterQueuesRequest()
        while True:
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListDeadLetterQueues, request)
            for queue in answer.queues:
                yield queue
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def dead_letters(
        self,
        group: str,
        *,
        message_id: str = "",
        begin: int | None = None,
        end: int | None = None,
        bodies: bool = False,
        max_count: int | None = None,
    ) -> AsyncIterator[admin_v1.DeadLetter]:
        """The dead letters of a group, oldest first; `begin` and `end` limit when they were dead-lettered, inclusive.
        `bodies`: with bodies."""
        request = admin_v1.ListDeadLettersRequest(group=group, message_id=message_id, include_bodies=bodies)
        if begin is not None:
            request.begin_timestamp.FromMilliseconds(begin)
        if end is not None:
            request.end_timestamp.FromMilliseconds(end)
        count = 0
        while True:
            if max_count is not None:
                request.page_size = min(max_count - count, _DEAD_LETTER_PAGE_COUNT)
            answer = await self._call(lambda stubs: stubs.aerobee_admin.ListDeadLetters, request)
            for letter in answer.dead_letters:
                yield letter
                count += 1
                if count == max_count:
                    return
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def dead_letter(self, group: str, offset: int) -> admin_v1.DeadLetter | None:
        """One dead letter with its body; None if there is none at this offset."""
        request = admin_v1.ListDeadLettersRequest(group=group, include_bodies=True, page_size=1, page_token=str(offset))
        answer = await self._call(lambda stubs: stubs.aerobee_admin.ListDeadLetters, request)
        return next((letter for letter in answer.dead_letters if letter.offset == offset), None)

    async def delete_dead_letters(
        self,
        group: str,
        offsets: Iterable[int] = (),
        *,
        before: int | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Remove dead letters of a group: up to 1000 offsets, all given up before a time, or all. Returns how many."""
        request = admin_v1.DeleteDeadLettersRequest(group=group, offsets=offsets, all=everything, dry_run=dry_run)
        if before is not None:
            request.before_timestamp.FromMilliseconds(before)
        return (await self._call(lambda stubs: stubs.aerobee_admin.DeleteDeadLetters, request)).deleted_count

    async def resend_dead_letters(
        self,
        group: str,
        offsets: Sequence[int],
        *,
        topic: str = "",
        again: bool = False,
        edit: admin_v1.DeadLetterEdit | None = None,
    ) -> list[admin_v1.ResendDeadLettersResponse.Result]:
        """Store dead letters again in their original topics for this group, or in `topic` for all its groups.

        At most 1000 at a time. Each result has a status of its own; dead letters resent before are refused unless
        `again`. With `again`, messages may be stored twice if an answer is lost, because the call is then repeated.
        `edit`: what is replaced in each of them.
        """
        request = admin_v1.ResendDeadLettersRequest(group=group, offsets=offsets, topic=topic, again=again, edit=edit)
        answer = await self._call(
            lambda stubs: stubs.aerobee_admin.ResendDeadLetters,
            request,
            check=lambda answer: None if answer.results else status_error(answer.status),
        )
        return list(answer.results)

    async def call(
        self, select: Callable[[Stubs], UnaryUnaryMultiCallable[RequestT, AnswerT]], request: RequestT
    ) -> AnswerT:
        """One call as the protocol has it, for programs that turn pages themselves: the method that `select` names."""
        return await self._call(select, request)

    async def _call(
        self,
        select: Callable[[Stubs], UnaryUnaryMultiCallable[RequestT, AnswerT]],
        request: RequestT,
        *,
        check: Callable[[AnswerT], ClientError | None] = lambda answer: status_error(answer.status),
    ) -> AnswerT:
        return await self._connection.call(select, request, self._metadata, check=check)


def _filter(tags: str, sql: str) -> v2.FilterExpression | None:
    if tags and sql:
        raise ValueError("give tags or sql, not both")
    if sql:
        return v2.FilterExpression(type=v2.FilterType.SQL, expression=sql)
    return v2.FilterExpression(type=v2.FilterType.TAG, expression=tags) if tags else None


def _resource(name: str) -> v2.Resource:
    return v2.Resource(name=name)


def _optional(name: str | None) -> v2.Resource | None:
    return None if name is None else _resource(name)
