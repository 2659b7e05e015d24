"""What an operator asks of a broker: topics, groups, state, and messages by key, id or time.

Topics and groups are those of `aerobee.v1` (`aerobee_proto.admin_v1`), where every field is explained; only Aerobee
answers them. All calls raise the errors of `aerobee_client.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from aerobee_client.connection import Connection, headers, new_client_id
from aerobee_client.message import StoredMessage, stored_message
from aerobee_proto import admin_v1, v2

_PAGE_COUNT = 32


class Admin:
    """`Client.admin` is one; it needs no closing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = connection.aerobee_admin
        self._metadata = headers(new_client_id())

    async def create_topic(
        self,
        name: str,
        *,
        queue_count: int = 0,
        message_types: Iterable[v2.MessageType.ValueType] = (),
        attributes: Mapping[str, str] | None = None,
    ) -> admin_v1.Topic:
        """Create a topic, or return the one that exists with the same definition. 0 queues: the broker's default.

        Several message types make a MIXED topic, none a NORMAL one.
        """
        topic = admin_v1.Topic(
            name=name, read_queue_count=queue_count, accept_message_types=message_types, attributes=attributes or {}
        )
        request = admin_v1.CreateTopicRequest(topic=topic)
        return (await self._connection.call(self._stub.CreateTopic, request, self._metadata)).topic

    async def update_topic(
        self,
        name: str,
        *,
        queue_count: int | None = None,
        message_types: Iterable[v2.MessageType.ValueType] = (),
        attributes: Mapping[str, str] | None = None,
    ) -> admin_v1.Topic:
        """Change what is given and keep the rest."""
        request = admin_v1.UpdateTopicRequest(
            name=name,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            accept_message_types=message_types,
            set_attributes=attributes or {},
        )
        return (await self._connection.call(self._stub.UpdateTopic, request, self._metadata)).topic

    async def delete_topic(self, name: str) -> None:
        """Forget a topic and the offsets of its groups."""
        request = admin_v1.DeleteTopicRequest(name=name)
        await self._connection.call(self._stub.DeleteTopic, request, self._metadata)

    async def list_topics(self, *, include_system: bool = False) -> list[admin_v1.Topic]:
        """All topics in order of names."""
        request = admin_v1.ListTopicsRequest(include_system=include_system)
        return list((await self._connection.call(self._stub.ListTopics, request, self._metadata)).topics)

    async def describe_topic(self, name: str) -> admin_v1.DescribeTopicResponse:
        """Definition, queues and readers of one topic."""
        request = admin_v1.DescribeTopicRequest(name=name)
        return await self._connection.call(self._stub.DescribeTopic, request, self._metadata)

    async def create_group(self, name: str, *, fifo: bool = False, max_attempts: int = 0) -> admin_v1.Group:
        """Create a consumer group, or return the one that exists alike. 0 attempts: the broker's default."""
        request = admin_v1.CreateGroupRequest(group=admin_v1.Group(name=name, fifo=fifo, max_attempts=max_attempts))
        return (await self._connection.call(self._stub.CreateGroup, request, self._metadata)).group

    async def update_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        max_attempts: int | None = None,
        consume_enabled: bool | None = None,
    ) -> admin_v1.Group:
        """Change what is given and keep the rest. Without `consume_enabled` a group keeps its progress and waits."""
        request = admin_v1.UpdateGroupRequest(
            name=name, fifo=fifo, max_attempts=max_attempts, consume_enabled=consume_enabled
        )
        return (await self._connection.call(self._stub.UpdateGroup, request, self._metadata)).group

    async def delete_group(self, name: str) -> None:
        """Forget a group and its offsets; ForbiddenError while clients of the group are connected."""
        request = admin_v1.DeleteGroupRequest(name=name)
        await self._connection.call(self._stub.DeleteGroup, request, self._metadata)

    async def list_groups(self, *, include_system: bool = False) -> list[admin_v1.Group]:
        """All consumer groups in order of names."""
        request = admin_v1.ListGroupsRequest(include_system=include_system)
        return list((await self._connection.call(self._stub.ListGroups, request, self._metadata)).groups)

    async def describe_group(self, name: str) -> admin_v1.DescribeGroupResponse:
        """Definition, progress and clients of one group."""
        request = admin_v1.DescribeGroupRequest(name=name)
        return await self._connection.call(self._stub.DescribeGroup, request, self._metadata)

    async def broker_status(self) -> admin_v1.GetBrokerStatusResponse:
        """Who the broker is, how it is set up and whether it takes messages."""
        request = admin_v1.GetBrokerStatusRequest()
        return await self._connection.call(self._stub.GetBrokerStatus, request, self._metadata)

    async def store_status(self) -> admin_v1.GetStoreStatusResponse:
        """Where the log begins and ends, how much of it is durable, what it costs."""
        request = admin_v1.GetStoreStatusRequest()
        return await self._connection.call(self._stub.GetStoreStatus, request, self._metadata)

    async def query(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        begin: int | None = None,
        end: int | None = None,
        max_count: int = 64,
    ) -> AsyncIterator[StoredMessage]:
        """Up to `max_count` messages by key, by message id, or all within a time range, page by page.

        `begin` and `end` are Unix milliseconds of storing, both included. Give a key or an id, or neither.
        """
        if key is not None and message_id is not None:
            raise ValueError("give either key or message_id")
        request = v2.ListMessageRequest(topic=v2.Resource(name=topic))
        if key is not None:
            request.message_key = key
        if message_id is not None:
            request.message_id = message_id
        if begin is not None:
            request.begin_timestamp.FromMilliseconds(begin)
        if end is not None:
            request.end_timestamp.FromMilliseconds(end)
        left = max_count
        while left > 0:
            request.max_message_nums = left
            request.page_size = min(left, _PAGE_COUNT)
            answer = await self._connection.call(self._connection.admin.QueryMessage, request, self._metadata)
            for wire in answer.messages[:left]:
                yield stored_message(wire)
            left -= len(answer.messages)
            if not answer.scroll_id or not answer.messages:
                return
            request.scroll_id = answer.scroll_id
