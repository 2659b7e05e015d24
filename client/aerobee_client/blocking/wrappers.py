"""The calls of producers, consumers and administration, blocking. Made by `make map`; do not edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from grpc.aio import UnaryUnaryMultiCallable

from aerobee_client.admin import Admin, GroupOrder, LogLevel, Tailed, TopicOrder
from aerobee_client.allocation import Queue
from aerobee_client.blocking.loop_thread import ClosingWrapper, Wrapper
from aerobee_client.connections.connection import AnswerT, RequestT, Stubs
from aerobee_client.messages.message import Message, ReceivedMessage, SendResult, StoredMessage
from aerobee_client.producer import Producer
from aerobee_client.pull_consumer import PullConsumer
from aerobee_client.push_consumer import PushConsumer
from aerobee_client.simple_consumer import SimpleConsumer
from aerobee_proto import admin_v1, v2


class BlockingAdmin(Wrapper[Admin]):
    """The administration calls of `BlockingClient.admin`."""

    def create_topic(
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
        return self._loop_thread.run(
            self.asynchronous.create_topic(
                name, queue_count=queue_count, message_types=message_types, attributes=attributes, permission=permission
            )
        )

    def update_topic(
        self,
        name: str,
        *,
        queue_count: int | None = None,
        message_types: Iterable[v2.MessageType.ValueType] = (),
        attributes: Mapping[str, str] | None = None,
        permission: v2.Permission.ValueType | None = None,
    ) -> admin_v1.Topic:
        """Change the given attributes and keep the others."""
        return self._loop_thread.run(
            self.asynchronous.update_topic(
                name, queue_count=queue_count, message_types=message_types, attributes=attributes, permission=permission
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and the offsets of its groups."""
        return self._loop_thread.run(self.asynchronous.delete_topic(name))

    def purge_topic(self, name: str, *, dry_run: bool = False) -> admin_v1.PurgeTopicResponse:
        """Remove all messages of a topic for all groups, and keep its definition; `dry_run` only counts them."""
        return self._loop_thread.run(self.asynchronous.purge_topic(name, dry_run=dry_run))

    def list_topics(self, *, include_system: bool = False) -> list[admin_v1.Topic]:
        """All topics in order of names."""
        return self._loop_thread.run(self.asynchronous.list_topics(include_system=include_system))

    def describe_topic(self, name: str) -> admin_v1.DescribeTopicResponse:
        """Definition, queues and readers of one topic."""
        return self._loop_thread.run(self.asynchronous.describe_topic(name))

    def create_group(
        self, name: str, *, fifo: bool = False, max_attempts: int = 0, retry_policy: v2.RetryPolicy | None = None
    ) -> admin_v1.Group:
        """Create a consumer group, or return the one that exists with the same definition. 0 attempts, no policy: the
        broker's default."""
        return self._loop_thread.run(
            self.asynchronous.create_group(name, fifo=fifo, max_attempts=max_attempts, retry_policy=retry_policy)
        )

    def update_group(
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
        return self._loop_thread.run(
            self.asynchronous.update_group(
                name, fifo=fifo, max_attempts=max_attempts, consume_enabled=consume_enabled, retry_policy=retry_policy
            )
        )

    def delete_group(self, name: str) -> None:
        """Delete a group and its offsets; ForbiddenError while clients of the group are connected."""
        return self._loop_thread.run(self.asynchronous.delete_group(name))

    def list_groups(self, *, include_system: bool = False) -> list[admin_v1.Group]:
        """All consumer groups in order of names."""
        return self._loop_thread.run(self.asynchronous.list_groups(include_system=include_system))

    def describe_group(self, name: str) -> admin_v1.DescribeGroupResponse:
        """Definition, progress and clients of one group."""
        return self._loop_thread.run(self.asynchronous.describe_group(name))

    def reset_offsets(
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
        return self._loop_thread.run(
            self.asynchronous.reset_offsets(
                group,
                topic,
                timestamp=timestamp,
                offset=offset,
                earliest=earliest,
                latest=latest,
                skip=skip,
                like_group=like_group,
                queue_ids=queue_ids,
                lite_topic=lite_topic,
                dry_run=dry_run,
            )
        )

    def accumulation(self, group: str, topics: Iterable[str] = ()) -> v2.DescribeGroupAccumulationResponse:
        """The lag of a group, in total and by topic; in the named topics, or all."""
        return self._loop_thread.run(self.asynchronous.accumulation(group, topics))

    def time_spans(self, group: str, topics: Iterable[str] = ()) -> list[v2.QueryTimeSpanResponse.QueueTimeSpan]:
        """The time span of the messages in each queue, and the group's position in it."""
        return self._loop_thread.run(self.asynchronous.time_spans(group, topics))

    def topic_status(
        self,
        *,
        search: str = "",
        order: TopicOrder = "name",
        descending: bool = False,
        include_system: bool = False,
        max_count: int | None = None,
    ) -> Iterator[admin_v1.TopicStatus]:
        """Topics whose name contains `search` with their messages, bytes and rates, sorted by the broker."""
        yield from self._loop_thread.iterate(
            self.asynchronous.topic_status(
                search=search, order=order, descending=descending, include_system=include_system, max_count=max_count
            )
        )

    def group_status(
        self,
        *,
        search: str = "",
        topic: str = "",
        order: GroupOrder = "name",
        descending: bool = False,
        include_system: bool = False,
        max_count: int | None = None,
    ) -> Iterator[admin_v1.GroupStatus]:
        """Groups whose name contains `search` with their backlog, its age and their rates, sorted by the broker.
        `topic`: only groups that read it."""
        yield from self._loop_thread.iterate(
            self.asynchronous.group_status(
                search=search,
                topic=topic,
                order=order,
                descending=descending,
                include_system=include_system,
                max_count=max_count,
            )
        )

    def connections(self, *, group: str = "", topic: str = "", client_id: str = "") -> Iterator[admin_v1.Connection]:
        """The connected clients in order of client ids; optionally only consumers of a group, users of a topic, or one
        client."""
        yield from self._loop_thread.iterate(
            self.asynchronous.connections(group=group, topic=topic, client_id=client_id)
        )

    def subscriptions(self, *, topic: str | None = None, group: str | None = None) -> list[v2.SubscriptionInfo]:
        """The topics that each group reads, and whether the subscriptions of its clients agree."""
        return self._loop_thread.run(self.asynchronous.subscriptions(topic=topic, group=group))

    def client_subscriptions(
        self, *, topic: str | None = None, group: str | None = None
    ) -> list[v2.DescribeSubscriptionResponse.ClientSubscriptionInfo]:
        """The subscriptions of each connected client."""
        return self._loop_thread.run(self.asynchronous.client_subscriptions(topic=topic, group=group))

    def delete_subscription(self, topic: str, group: str) -> None:
        """Delete the position of a group in a topic; ForbiddenError while clients of the group read it."""
        return self._loop_thread.run(self.asynchronous.delete_subscription(topic, group))

    def consumer_running_info(self, client_id: str, group: str) -> v2.ConsumerRunningInfo:
        """The broker's view of a consumer."""
        return self._loop_thread.run(self.asynchronous.consumer_running_info(client_id, group))

    def reconnect_client(self, client_id: str) -> None:
        """Ask a client to reopen its Telemetry stream; not every SDK does."""
        return self._loop_thread.run(self.asynchronous.reconnect_client(client_id))

    def disconnect_client(self, client_id: str) -> None:
        """Forget a client as if it had left; one that runs on connects again with its next call."""
        return self._loop_thread.run(self.asynchronous.disconnect_client(client_id))

    def client_stacks(self, client_id: str) -> str:
        """The thread stacks of a client, as text. The broker waits 5 s for the client, so allow a longer timeout.

        UnsupportedError if its SDK does not support it.
        """
        return self._loop_thread.run(self.asynchronous.client_stacks(client_id))

    def verify_message(self, client_id: str, group: str, topic: str, message_id: str) -> None:
        """Deliver a stored message to a push consumer as a test; nothing is acknowledged. Timeout: see `client_stacks`.

        ServerError with FAILED_TO_CONSUME_MESSAGE if the listener fails.
        """
        return self._loop_thread.run(self.asynchronous.verify_message(client_id, group, topic, message_id))

    def who_am_i(self) -> admin_v1.WhoAmIResponse:
        """The account of this client and its rights; every account may ask."""
        return self._loop_thread.run(self.asynchronous.who_am_i())

    def accounts(self) -> Iterator[admin_v1.Account]:
        """The accounts and their rights, in order of access keys; none if the broker requires none."""
        yield from self._loop_thread.iterate(self.asynchronous.accounts())

    def operations(
        self, *, account: str = "", search: str = "", max_count: int | None = None
    ) -> Iterator[admin_v1.Operation]:
        """Who changed what, newest first; at most the latest 1000 changes."""
        yield from self._loop_thread.iterate(
            self.asynchronous.operations(account=account, search=search, max_count=max_count)
        )

    def broker_status(self) -> admin_v1.GetBrokerStatusResponse:
        """The broker's identity and configuration, and whether it accepts messages."""
        return self._loop_thread.run(self.asynchronous.broker_status())

    def store_status(self) -> admin_v1.GetStoreStatusResponse:
        """The beginning and end of the log, its durable part, and counters."""
        return self._loop_thread.run(self.asynchronous.store_status())

    def segments(self) -> admin_v1.ListSegmentsResponse:
        """The segments of the log, oldest first, how fast it grows, and when the disk will be full."""
        return self._loop_thread.run(self.asynchronous.segments())

    def brokers(self) -> admin_v1.ListBrokersResponse:
        """The brokers that the name servers know, in order of names; `error` says why some may be missing."""
        return self._loop_thread.run(self.asynchronous.brokers())

    def traffic(
        self, window: Literal["minute", "hour", "day"] = "minute", *, topic: str = "", count: int = 100
    ) -> admin_v1.ListTrafficResponse:
        """The `count` (up to 1000) busiest topics, and pairs of topic and group, of the recent past."""
        return self._loop_thread.run(self.asynchronous.traffic(window, topic=topic, count=count))

    def history(
        self, step: Literal["second", "minute"] = "second", *, topic: str = "", group: str = "", count: int = 0
    ) -> admin_v1.GetHistoryResponse:
        """Figures of the broker, a topic or a group over time: the seconds of ten minutes, or the minutes of a day."""
        return self._loop_thread.run(self.asynchronous.history(step, topic=topic, group=group, count=count))

    def problems(self) -> list[admin_v1.Problem]:
        """What needs attention, critical problems first, each with its next step."""
        return self._loop_thread.run(self.asynchronous.problems())

    def configuration(self, prefix: str = "") -> list[admin_v1.Setting]:
        """All settings in order of names, or those whose names begin with a prefix, each with its source."""
        return self._loop_thread.run(self.asynchronous.configuration(prefix))

    def update_configuration(
        self, values: Mapping[str, str] | None = None, *, unset: Iterable[str] = ()
    ) -> list[admin_v1.Setting]:
        """Change settings of the running broker, also after restarts; `unset` ones return to their other source."""
        return self._loop_thread.run(self.asynchronous.update_configuration(values, unset=unset))

    def change_log_level(self, level: LogLevel) -> str:
        """Change the log level until the next start; returns the broker's answer."""
        return self._loop_thread.run(self.asynchronous.change_log_level(level))

    def query(
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
    ) -> Iterator[StoredMessage]:
        """Up to `max_count` messages by key, by message id, or within a time range, page by page.

        `unfinished_by` is a group: its messages in flight or ready (Aerobee only). `begin` and `end` are store times in
        Unix milliseconds, inclusive. Give at most one of the other criteria.
        """
        yield from self._loop_thread.iterate(
            self.asynchronous.query(
                topic,
                key=key,
                message_id=message_id,
                unfinished_by=unfinished_by,
                lite_topic=lite_topic,
                begin=begin,
                end=end,
                max_count=max_count,
            )
        )

    def browse(
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
    ) -> Iterator[StoredMessage]:
        """The messages of a topic in order of storing, newest first, without any effect on groups.

        `begin` (inclusive) and `end` are store times in Unix milliseconds. `text` is looked for in keys, properties and
        bodies. ForbiddenError if the account may not read the bodies; `browse_page` then returns the rest.
        """
        yield from self._loop_thread.iterate(
            self.asynchronous.browse(
                topic,
                oldest_first=oldest_first,
                queue_ids=queue_ids,
                begin_offset=begin_offset,
                end_offset=end_offset,
                begin=begin,
                end=end,
                tags=tags,
                sql=sql,
                text=text,
                max_count=max_count,
            )
        )

    def browse_page(self, request: admin_v1.BrowseMessagesRequest) -> admin_v1.BrowseMessagesResponse:
        """One page of `browse`, which also tells where each message is stored; an empty one may have a next page."""
        return self._loop_thread.run(self.asynchronous.browse_page(request))

    def tail(
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
    ) -> Iterator[Tailed]:
        """The messages of a topic as they are stored, after the last `last_count` (up to 100), until it is closed.

        Nothing is recorded and no group takes part. Of more than `rate_max` a second (0: 50) the newest come. Begins
        with one item at once, and has one at least every 15 seconds. Bodies are empty if the account may not read them.
        """
        yield from self._loop_thread.iterate(
            self.asynchronous.tail(
                topic,
                queue_ids=queue_ids,
                tags=tags,
                sql=sql,
                text=text,
                rate_max=rate_max,
                last_count=last_count,
                body_size_max=body_size_max,
            )
        )

    def message_timelines(
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
        return self._loop_thread.run(
            self.asynchronous.message_timelines(
                topic, message_id=message_id, queue_id=queue_id, queue_offset=queue_offset, group=group, history=history
            )
        )

    def delayed_messages(
        self,
        topic: str = "",
        *,
        begin: int | None = None,
        end: int | None = None,
        bodies: bool = False,
        max_count: int | None = None,
    ) -> Iterator[admin_v1.DelayedMessage]:
        """The messages that wait for their delivery time, of one topic or all, due from `begin` to before `end`."""
        yield from self._loop_thread.iterate(
            self.asynchronous.delayed_messages(topic, begin=begin, end=end, bodies=bodies, max_count=max_count)
        )

    def recall_delayed(self, handles: Iterable[str]) -> list[admin_v1.RecallDelayedMessagesResponse.Result]:
        """Take delayed messages back, up to 1000; each result has a status of its own."""
        return self._loop_thread.run(self.asynchronous.recall_delayed(handles))

    def transactions(
        self, topic: str = "", *, bodies: bool = False, max_count: int | None = None
    ) -> Iterator[admin_v1.OpenTransaction]:
        """The transactions without a decision, of one topic or all, the oldest first."""
        yield from self._loop_thread.iterate(self.asynchronous.transactions(topic, bodies=bodies, max_count=max_count))

    def decide_transactions(
        self, topic: str, transaction_ids: Iterable[str], *, commit: bool
    ) -> list[admin_v1.DecideTransactionsResponse.Result]:
        """Commit or roll back transactions of a topic in place of their producer, up to 1000."""
        return self._loop_thread.run(self.asynchronous.decide_transactions(topic, transaction_ids, commit=commit))

    def dead_letter_queues(self) -> Iterator[admin_v1.DeadLetterQueue]:
        """The groups that have dead letters, and their number."""
        yield from self._loop_thread.iterate(self.asynchronous.dead_letter_queues())

    def dead_letters(
        self,
        group: str,
        *,
        message_id: str = "",
        begin: int | None = None,
        end: int | None = None,
        bodies: bool = False,
        max_count: int | None = None,
    ) -> Iterator[admin_v1.DeadLetter]:
        """The dead letters of a group, oldest first; `begin` and `end` limit when they were dead-lettered, inclusive.
        `bodies`: with bodies."""
        yield from self._loop_thread.iterate(
            self.asynchronous.dead_letters(
                group, message_id=message_id, begin=begin, end=end, bodies=bodies, max_count=max_count
            )
        )

    def dead_letter(self, group: str, offset: int) -> admin_v1.DeadLetter | None:
        """One dead letter with its body; None if there is none at this offset."""
        return self._loop_thread.run(self.asynchronous.dead_letter(group, offset))

    def delete_dead_letters(
        self,
        group: str,
        offsets: Iterable[int] = (),
        *,
        before: int | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Remove dead letters of a group: up to 1000 offsets, all given up before a time, or all. Returns how many."""
        return self._loop_thread.run(
            self.asynchronous.delete_dead_letters(group, offsets, before=before, everything=everything, dry_run=dry_run)
        )

    def resend_dead_letters(
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
        return self._loop_thread.run(
            self.asynchronous.resend_dead_letters(group, offsets, topic=topic, again=again, edit=edit)
        )

    def call(self, select: Callable[[Stubs], UnaryUnaryMultiCallable[RequestT, AnswerT]], request: RequestT) -> AnswerT:
        """One call as the protocol has it, for programs that turn pages themselves: the method that `select` names."""
        return self._loop_thread.run(self.asynchronous.call(select, request))


class ProducerCalls(ClosingWrapper[Producer]):
    """The calls of a producer."""

    def send(self, message: Message) -> SendResult:
        """Return when the broker has stored the message as safely as it promises.

        Concurrent sends share requests. Raises NotFoundError if the topic does not exist, BadRequestError if the
        message exceeds a limit, and UnavailableError, DeadlineError or InternalServerError after the last attempt.
        After the last two, and after a cancellation, the message may be stored nevertheless.
        """
        return self._loop_thread.run(self.asynchronous.send(message))

    def send_many(self, messages: Sequence[Message]) -> list[SendResult]:
        """Send messages in few requests; the results have the order of `messages`.

        Raises BatchError if some failed: its `outcomes` tell which, with a SendResult for those that are stored. Order
        in the broker as for `submit`.
        """
        return self._loop_thread.run(self.asynchronous.send_many(messages))

    def send_one_way(self, message: Message) -> None:
        """Return when there is space in memory for the message, without a result.

        A failure is logged at debug level. `flush` and `close` wait for the message.
        """
        return self._loop_thread.run(self.asynchronous.send_one_way(message))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Recall a delayed message that is not due yet; returns its message id. `SendResult.recall_handle` is its
        handle.

        Raises BadRequestError if it is already delivered or recalled.
        """
        return self._loop_thread.run(self.asynchronous.recall(topic, recall_handle))

    def flush(self) -> None:
        """Return when every submitted message is stored or has failed."""
        return self._loop_thread.run(self.asynchronous.flush())


class SimpleConsumerCalls(ClosingWrapper[SimpleConsumer]):
    """The calls of a consumer."""

    def receive(
        self, max_count: int = 16, *, invisible_seconds: float = 30.0, wait_seconds: float = 10.0
    ) -> list[ReceivedMessage]:
        """Up to `max_count` messages of the subscribed topics, all of which are polled at once, on all of their
        brokers. One answer of a broker has at most 32 (`delivery.receive_count_max` of Aerobee's configuration).

        Returns as soon as there is a message; empty if there was none within `wait_seconds` (0 to 20, limited by the
        server). Messages of other topics that arrive at the same time are kept for the next call, while they are hidden
        from others. Messages whose bodies cannot be decompressed are included, `corrupted` and with the stored body.
        Messages of a cancelled call are delivered again when their `invisible_seconds` are over. A broker that does not
        answer is retried, as in every call. Raises NotFoundError if a topic or, without automatic creation, the group
        does not exist; UnavailableError if a connection breaks while the broker has the request.
        """
        return self._loop_thread.run(
            self.asynchronous.receive(max_count, invisible_seconds=invisible_seconds, wait_seconds=wait_seconds)
        )

    def ack(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages; they are not delivered to the group again.

        Raises BadRequestError if the invisible time of a single message is over, and BatchError if some of several
        failed: its `outcomes` are in the order of `messages`, None for acknowledged ones.
        """
        return self._loop_thread.run(self.asynchronous.ack(messages))

    def change_invisible(self, message: ReceivedMessage, invisible_seconds: float) -> ReceivedMessage:
        """Hide a delivered message for `invisible_seconds` (0 to 12 hours) from now; 0 returns it at once.

        Returns the message with its new receipt handle; the old one becomes invalid. Raises BadRequestError if the
        invisible time is over.
        """
        return self._loop_thread.run(self.asynchronous.change_invisible(message, invisible_seconds))

    def nack(self, message: ReceivedMessage, delay_seconds: float = 0.0) -> None:
        """Return a message to the group, which receives it again after `delay_seconds`, with the next attempt
        number."""
        return self._loop_thread.run(self.asynchronous.nack(message, delay_seconds))

    @contextmanager
    def keep_invisible(self, message: ReceivedMessage, invisible_seconds: float = 30.0) -> Iterator[ReceivedMessage]:
        """Keep a message invisible while the block runs, then acknowledge it; if the block raises, return it to the
        group.

            for message in await consumer.receive():
                async with consumer.keep_invisible(message):
                    await takes_minutes(message.body)

        The time is renewed every third of `invisible_seconds`, so after the death of the process the message stays
        invisible for at most that long. A failed renewal is logged, and the next one follows.
        """
        with self._loop_thread.entered(self.asynchronous.keep_invisible(message, invisible_seconds)) as value:
            yield value

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages without end, each acknowledged when the next one is requested:

            async for message in consumer:
                print(message.body)

        If `break` or an error ends the loop, the current message is not acknowledged and will be redelivered.
        """
        yield from self._loop_thread.iterate(aiter(self.asynchronous))


class PushConsumerCalls(ClosingWrapper[PushConsumer]):
    """The calls of a push consumer."""

    @property
    def ordered(self) -> bool:
        """Whether the broker says that the group is ordered; known once the consumer has started."""
        return self._loop_thread.call(lambda: self.asynchronous.ordered)

    def start(self) -> None:
        """Begin. Errors as for a call; later ones are logged and retried."""
        return self._loop_thread.run(self.asynchronous.start())


class PullConsumerCalls(ClosingWrapper[PullConsumer]):
    """The calls of a pull consumer."""

    def start(self) -> None:
        """Begin to read. Errors as for a call."""
        return self._loop_thread.run(self.asynchronous.start())

    def getmany(self, *, max_count: int = 500, wait_seconds: float = 10.0) -> list[StoredMessage]:
        """Up to `max_count` messages of the queues in turn; empty if none arrived within `wait_seconds`.

        They count as handled with the next `getmany`, or `commit`. Raises the error that ended reading: NotFoundError
        if a topic is gone, UnsupportedError if the server lacks these calls. ClientError before `start`.
        """
        return self._loop_thread.run(self.asynchronous.getmany(max_count=max_count, wait_seconds=wait_seconds))

    def getone(self) -> StoredMessage:
        """The next message, however long it takes. ClientError if the consumer is closed."""
        return self._loop_thread.run(self.asynchronous.getone())

    def __iter__(self) -> Iterator[StoredMessage]:
        yield from self._loop_thread.iterate(aiter(self.asynchronous))

    def assignment(self) -> frozenset[Queue]:
        """The queues assigned to this consumer now."""
        return self._loop_thread.call(lambda: self.asynchronous.assignment())

    def queues(self, topic: str) -> list[Queue]:
        """All queues of a topic."""
        return self._loop_thread.run(self.asynchronous.queues(topic))

    def assign(self, queues: Iterable[Queue]) -> None:
        """Read exactly these queues from now on, whatever others of the group read. ValueError for a topic that is not
        subscribed."""
        return self._loop_thread.run(self.asynchronous.assign(queues))

    def seek(self, queue: Queue, offset: int) -> None:
        """Continue at `offset`, or at the nearest one that the queue has; buffered messages are dropped."""
        return self._loop_thread.run(self.asynchronous.seek(queue, offset))

    def seek_to_beginning(self, *queues: Queue) -> None:
        """Read the given queues, or all assigned ones, from their beginning."""
        return self._loop_thread.run(self.asynchronous.seek_to_beginning(*queues))

    def seek_to_end(self, *queues: Queue) -> None:
        """Read only messages stored from now on."""
        return self._loop_thread.run(self.asynchronous.seek_to_end(*queues))

    def seek_to_time(self, timestamp: int, *queues: Queue) -> None:
        """Read messages stored at `timestamp` (Unix milliseconds) or later."""
        return self._loop_thread.run(self.asynchronous.seek_to_time(timestamp, *queues))

    def seek_to_committed(self, *queues: Queue) -> None:
        """Continue at the committed offset; at `start` where there is none."""
        return self._loop_thread.run(self.asynchronous.seek_to_committed(*queues))

    def pause(self, *queues: Queue) -> None:
        """Return no messages of these queues, or of any, until `resume`, and fetch no more."""
        return self._loop_thread.call(lambda: self.asynchronous.pause(*queues))

    def resume(self, *queues: Queue) -> None:
        """Resume paused queues; all by default."""
        return self._loop_thread.call(lambda: self.asynchronous.resume(*queues))

    def paused(self) -> frozenset[Queue]:
        """The paused queues."""
        return self._loop_thread.call(lambda: self.asynchronous.paused())

    def position(self, queue: Queue) -> int:
        """The offset of the next message to be returned."""
        return self._loop_thread.run(self.asynchronous.position(queue))

    def committed(self, queue: Queue) -> int | None:
        """The committed offset of the group, or with broadcasting of this consumer; None if there is none."""
        return self._loop_thread.run(self.asynchronous.committed(queue))

    def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        """Commit `offsets` as the positions of the group; by default the end of all messages returned so far."""
        return self._loop_thread.run(self.asynchronous.commit(offsets))

    def beginning_offsets(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The offset of the first message of each queue."""
        return self._loop_thread.run(self.asynchronous.beginning_offsets(queues))

    def end_offsets(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The next offset of each queue."""
        return self._loop_thread.run(self.asynchronous.end_offsets(queues))

    def offset_for_time(self, queue: Queue, timestamp: int) -> int:
        """The offset of the first message stored at `timestamp` (Unix milliseconds) or later; the end if there is
        none."""
        return self._loop_thread.run(self.asynchronous.offset_for_time(queue, timestamp))
