"""Queries of `mqadmin` and the dashboard: clients, progress of groups, state of the broker."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from aerobee_broker.config import BrokerConfig
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import BrokerError, ClientSilentError
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.remoting.clients import Member, RemotingClients
from aerobee_broker.remoting.offsets import OffsetRequests
from aerobee_broker.remoting.shown_records import shown_bytes
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, Handler, PeerGoneError
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, body_object, boolean, integer, text
from aerobee_broker.remoting_wire.frame import VERSION, Command
from aerobee_broker.statistics.broker_stats import BrokerStats, Window
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_store import CorruptRecordError, InvalidMessageError, MessageStore, RecordNotFoundError
from aerobee_store.clock import Clock
from aerobee_store.records.properties import TAGS, parse_offset_message_id, tags_code
from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import Bean, ObjectMap

_log = logging.getLogger(__name__)

_UNITS_MAX: Final = 1000
_CLIENT_SECONDS: Final = 10.0  # time for a client to answer an operator's request
_VERSION_NAME: Final = "V5_3_3"
_STATS: Final[tuple[tuple[str, Window], ...]] = (
    ("statsMinute", "minute"),
    ("statsHour", "hour"),
    ("statsDay", "day"),
)

_UNKNOWN: Final = {
    "getMissTps": "0.0 0.0 0.0",
    "dispatchMaxBuffer": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "putMessageFailedTimes": "0",
    "remainHowManyDataToCommit": "0 B",
    "putMessageEntireTimeMax": "0",
    "getMessageEntireTimeMax": "0",
    "putMessageDistributeTime": "[<=0ms]:0",
    "pageCacheLockTimeMills": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
    **{
        f"{pool}{figure}": "0"
        for pool in ("sendThreadPool", "pullThreadPool", "litePullThreadPool", "queryThreadPool", "ackThreadPool")
        for figure in ("QueueSize", "QueueCapacity", "QueueHeadWaitTimeMills")
    },
}
"""Figures of RocketMQ's broker that this one does not have."""


_QUEUES_MAX: Final = 60_000
"""Queues of one answer about the progress of groups: as many as fit into a frame of RocketMQ's clients."""


class _Walk:
    """A look at the queues of groups, between two of which other tasks run. `received`: messages in the last minute."""

    def __init__(self, received: Mapping[str, int]) -> None:
        self.received = received
        self.turns = Turns()
        self._left = _QUEUES_MAX

    def take(self, count: int) -> None:
        """Count so many queues. RemotingError if there are too many."""
        self._left -= count
        if self._left < 0:
            raise RemotingError(
                Answer.SYSTEM_ERROR,
                f"the answer would have more than {_QUEUES_MAX} queues, the limit; ask for one group, or some topics",
            )


class _Progress(Struct):
    """The progress of a group in queues, and the sums of its lag and of its messages in flight."""

    per_second: float
    queues: list[tuple[Bean, Bean]] = field(default_factory=list)
    behind: int = 0
    in_flight: int = 0

    def to_json(self) -> Bean:
        return Bean(consumeTps=self.per_second, offsetTable=ObjectMap.of(self.queues))


async def _written(body: Callable[[], Bean]) -> Command:
    """An answer whose body may be megabytes; it is made in another thread."""
    return answer(body=await asyncio.to_thread(lambda: java_json.dumps(body(), pretty=False)))


class StatisticsRequests:
    """One method per request code; `handlers` is the table."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        tables: Tables,
        deliveries: Deliveries,
        clients: RemotingClients,
        offsets: OffsetRequests,
        level_delay: LevelDelay,
        timer: Timer,
        broker_stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        self._clients = clients
        self._offsets = offsets
        self._level_delay = level_delay
        self._timer = timer
        self._broker_stats = broker_stats
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._walking = asyncio.Lock()  # one walk at a time, however many are asked for
        self.handlers: dict[int, Handler] = {
            Request.GET_TOPIC_STATS_INFO: self.topic_stats,
            Request.GET_CONSUME_STATS: self.consume_stats,
            Request.QUERY_CONSUME_QUEUE: self.consume_queue,
            Request.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            Request.QUERY_CONSUME_TIME_SPAN: self.time_span,
            Request.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            Request.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            Request.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            Request.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            Request.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            Request.GET_ALL_PRODUCER_INFO: self.producers,
            Request.GET_CONSUMER_RUNNING_INFO: self.running_info,
            Request.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            Request.VIEW_BROKER_STATS_DATA: self.stats_item,
            Request.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            Request.GET_BROKER_HA_STATUS: self.replication,
        }

    # --- Messages ---------------------------------------------------------------------------------------------

    async def topic_stats(self, request: Command, _: Connection) -> Command:
        topic = self._tables.topic_or_expected(text(request, "topic"))
        table = []
        for queue_id in range(max(topic.read_queue_count, topic.write_queue_count)):
            low, high = self._store.queue_range(topic.name, queue_id)
            last = self._store.store_timestamp_at(topic.name, queue_id, high - 1) if high > low else None
            offsets = Bean(minOffset=low, maxOffset=high, lastUpdateTimestamp=last or 0)
            table.append((self._queue(topic.name, queue_id), offsets))
        seconds = self._broker_stats.seconds("minute")
        sent = self._broker_stats.topics("minute").get(topic.name)
        rate = sent.messages / seconds if sent is not None and seconds > 0 else 0.0
        return answer(body=Bean(offsetTable=ObjectMap.of(table), topicPutTps=rate))

    async def consume_queue(self, request: Command, _: Connection) -> Command:
        """The positions of some messages of a queue, from its units."""
        topic = self._tables.topics.require(text(request, "topic"))
        queue_id, index = integer(request, "queueId", bits=32), integer(request, "index")
        count = min(max(integer(request, "count", bits=32), 0), _UNITS_MAX)
        low, high = self._store.queue_range(topic.name, queue_id)
        records = self._store.read(topic.name, queue_id, max(index, low), max_count=count).records if count else ()
        units: list[object] = [
            Bean(
                eval=True,
                physicOffset=record.physical_offset,
                physicSize=record.size,
                tagsCode=tags_code(record.properties.get(TAGS)),
            )
            for record in records
        ]
        return answer(body=Bean(maxQueueIndex=high, minQueueIndex=low, queueData=units))

    async def consume_stats(self, request: Command, _: Connection) -> Command:
        """The progress of a group in each queue of its topics, including those to which its consumers have
        subscribed."""
        only = {name for name in [text(request, "topic", ""), *text(request, "topicList", "").split(";")] if name}
        async with self._walking:
            progress = await self._progress(text(request, "consumerGroup"), only, self._walk())
            return await _written(progress.to_json)

    async def all_consume_stats(self, request: Command, _: Connection) -> Command:
        """The same for all groups, either orderly ones or the others."""
        orderly = boolean(request, "isOrder")
        found: dict[str, _Progress] = {}
        async with self._walking:
            walk = self._walk()
            for group in self._tables.groups:
                if group.consume_orderly == orderly:
                    found[group.name] = await self._progress(group.name, set(), walk)

            def body() -> Bean:
                return Bean(
                    brokerAddr=self._config.name,
                    consumeStatsList=[{name: [progress.to_json()]} for name, progress in found.items()],
                    totalDiff=sum(progress.behind for progress in found.values()),
                    totalInflightDiff=sum(progress.in_flight for progress in found.values()),
                )

            return await _written(body)

    def _walk(self) -> _Walk:
        received: Counter[str] = Counter()
        for (_topic, group), traffic in self._broker_stats.groups("minute").items():
            received[group] += traffic.messages
        return _Walk(received)

    async def _progress(self, group: str, only: set[str], walk: _Walk) -> _Progress:
        """Of a group in some topics or in all.

        What is in flight is between the committed and the pulled offset. A group that receives has messages in flight
        anywhere after the committed offset; their number then counts from there.
        """
        seconds = self._broker_stats.seconds("minute")
        found = _Progress(walk.received.get(group, 0) / seconds if seconds > 0 else 0.0)
        consumers = self._clients.consumers(group)
        receiving = {}
        for status in self._deliveries.statuses(group):
            await walk.turns.next()
            receiving[status.topic, status.queue_id] = status.in_flight
        names = dict.fromkeys(
            [
                *self._tables.offsets.topics_of(group),
                *(name for name, _ in receiving),
                *(consumers.subscriptions if consumers is not None else ()),
            ]
        )
        for name in names:
            topic = self._tables.topics.get(name)
            if topic is None or (only and name not in only):
                continue
            walk.take(topic.read_queue_count)
            for queue_id in range(topic.read_queue_count):
                await walk.turns.next()
                low, high = self._store.queue_range(name, queue_id)
                committed = self._deliveries.committed_offset(name, group, queue_id)
                offset = low if committed is None else committed
                last = self._store.store_timestamp_at(name, queue_id, offset - 1) if offset > low else None
                pulled = min(self._offsets.pulled(name, group, queue_id), high)
                in_flight = max(receiving.get((name, queue_id), 0), pulled - offset)
                wrapper = Bean(
                    brokerOffset=high, consumerOffset=offset, pullOffset=offset + in_flight, lastTimestamp=last or 0
                )
                found.queues.append((self._queue(name, queue_id), wrapper))
                found.behind += max(high - offset, 0)
                found.in_flight += in_flight
        return found

    async def time_span(self, request: Command, _: Connection) -> Command:
        """The store times of the first and last message of each queue, and of the last one that the group consumed."""
        topic = self._tables.topics.require(text(request, "topic"))
        group = text(request, "group")
        spans: list[object] = []
        for queue_id in range(topic.write_queue_count):
            low, high = self._store.queue_range(topic.name, queue_id)
            offset = self._deliveries.committed_offset(topic.name, group, queue_id) or 0
            first = self._stored_ms(topic.name, queue_id, low) if low < high else -1
            waiting_since = self._stored_ms(topic.name, queue_id, max(offset, low)) if offset < high else -1
            spans.append(
                Bean(
                    messageQueue=self._queue(topic.name, queue_id),
                    minTimeStamp=first,
                    maxTimeStamp=self._stored_ms(topic.name, queue_id, high - 1) if low < high else -1,
                    consumeTimeStamp=self._stored_ms(topic.name, queue_id, offset - 1) if offset > low else first,
                    delayTime=max(self._clock.now_ms() - waiting_since, 0) if waiting_since > 0 else 0,
                )
            )
        return answer(body=Bean(consumeTimeSpanSet=spans))

    def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        found = self._store.store_timestamp_at(topic, queue_id, offset)
        return -1 if found is None else found

    def _queue(self, topic: str, queue_id: int) -> Bean:
        return Bean(brokerName=self._config.name, queueId=queue_id, topic=topic)

    async def groups_of_topic(self, request: Command, _: Connection) -> Command:
        topic = text(request, "topic")
        online = [
            group
            for group in self._clients.consumer_groups()
            if (consumers := self._clients.consumers(group)) is not None and topic in consumers.subscriptions
        ]
        names = dict.fromkeys([*online, *self._tables.offsets.groups_of(topic)])
        return answer(body=Bean(groupList=list[object](names)))

    async def topics_of_group(self, request: Command, connection: Connection) -> Command:
        """The topics in which the group has an offset."""
        names = list[object](self._tables.offsets.topics_of(text(request, "group")))
        return answer(body=Bean(topicList=names, brokerAddr=str(connection.local)))

    async def subscription(self, request: Command, _: Connection) -> Command:
        """What the consumers of a group want of a topic; null if they are gone."""
        group, topic = text(request, "group"), text(request, "topic")
        consumers = self._clients.consumers(group)
        found = None if consumers is None else consumers.subscriptions.get(topic)
        return answer(body=Bean(group=group, topic=topic, subscriptionData=None if found is None else found.body))

    # --- Clients ----------------------------------------------------------------------------------------------

    async def consumer_connections(self, request: Command, _: Connection) -> Command:
        group = text(request, "consumerGroup")
        consumers = self._clients.consumers(group)
        if consumers is None:
            raise RemotingError(Answer.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        return answer(
            body=Bean(
                connectionSet=[_connection(found) for found in consumers.members.values()],
                consumeFromWhere=consumers.consume_from,
                consumeType=consumers.consume_type,
                messageModel=consumers.message_model,
                subscriptionTable={name: found.body for name, found in consumers.subscriptions.items()},
            )
        )

    async def producer_connections(self, request: Command, _: Connection) -> Command:
        group = text(request, "producerGroup")
        producers = self._clients.producers(group)
        if not producers:
            raise RemotingError(Answer.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return answer(body=Bean(connectionSet=[_connection(found) for found in producers]))

    async def producers(self, _request: Command, _: Connection) -> Command:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        groups: dict[str, object] = {}
        for group in self._clients.producer_groups():
            groups[group] = [
                Bean(
                    clientId=found.client_id,
                    remoteIP=_address(found),
                    language=found.language,
                    version=found.version,
                    lastUpdateTimestamp=now_ms - round((now - found.seen_at) * 1000),
                )
                for found in self._clients.producers(group)
            ]
        return answer(body=Bean(data=groups))

    async def running_info(self, request: Command, _: Connection) -> Command:
        """The running info reported by a consumer."""
        found = self._consumer(request)
        return await _relayed(found, Command(request.code, fields=dict(request.fields)))

    async def consumer_status(self, request: Command, _: Connection) -> Command:
        """The offsets that each consumer of a group, or one of them, has in its queues."""
        group, only = text(request, "group"), text(request, "clientAddr", "")
        consumers = self._clients.consumers(group)
        if consumers is None:
            raise RemotingError(Answer.SYSTEM_ERROR, f"no consumer of group {group[:80]!r} is online; start one")
        fields = {"topic": text(request, "topic"), "group": group}
        wanted = [found for name, found in consumers.members.items() if only in ("", name)]
        asked = [
            _relayed(found, Command(Request.GET_CONSUMER_STATUS_FROM_CLIENT, fields=dict(fields))) for found in wanted
        ]
        table: dict[str, object] = {}
        for found, answered in zip(wanted, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answered, BrokerError):
                _log.warning("consumer did not tell its offsets client_id=%s: %s", found.client_id, answered)
            elif isinstance(answered, BaseException):
                raise answered
            elif answered.code == Answer.SUCCESS:
                table[found.client_id] = body_object(answered).get("messageQueueTable")
        return answer(body=Bean(consumerTable=table))

    async def consume_directly(self, request: Command, _: Connection) -> Command:
        """Deliver a stored message to a consumer."""
        found = self._consumer(request)
        try:
            place = parse_offset_message_id(text(request, "msgId"))[1]
            record = self._store.record_at(place)
        except (InvalidMessageError, RecordNotFoundError, CorruptRecordError) as error:
            raise RemotingError(Answer.SYSTEM_ERROR, str(error)) from None
        fields = {**request.fields, "brokerName": self._config.name, "topic": record.topic}
        return await _relayed(found, Command(request.code, fields=fields, body=shown_bytes(self._store, record)))

    def _consumer(self, request: Command) -> Member:
        group, client_id = text(request, "consumerGroup"), text(request, "clientId")
        consumers = self._clients.consumers(group)
        found = None if consumers is None else consumers.members.get(client_id)
        if found is None:
            raise RemotingError(Answer.SYSTEM_ERROR, f"The Consumer <{group[:80]}> <{client_id[:80]}> not online")
        return found

    # --- The broker -------------------------------------------------------------------------------------------

    async def stats_item(self, request: Command, _: Connection) -> Command:
        name, key = text(request, "statsName"), text(request, "statsKey")
        try:
            items = {label: self._broker_stats.item(name, key, window) for label, window in _STATS}
        except KeyError:
            raise RemotingError(Answer.SYSTEM_ERROR, f"The stats <{name[:80]}> <{key[:80]}> not exist") from None
        return answer(
            body=Bean(
                (label, Bean(sum=round(item.sum), tps=item.per_second, avgpt=item.average))
                for label, item in items.items()
            )
        )

    async def runtime_info(self, _request: Command, _: Connection) -> Command:
        """Everything that `mqadmin` and the dashboard print; unknown numbers are 0."""
        status, stats = self._store.status(), self._store.stats
        incoming, outgoing = self._broker_stats.per_second()
        rate_in, rate_out = f"{incoming:.2f} " * 3, f"{outgoing:.2f} " * 3
        yesterday, today = self._broker_stats.mornings
        sent, got = str(stats.messages_appended), str(stats.messages_read)
        milliseconds = max(self._clock.now_ms() - self._started_ms, 0)
        minutes, seconds = divmod(milliseconds // 1000, 60)
        days, minutes = divmod(minutes, 1440)
        ratio = f"{status.disk.used / status.disk.total:.4f}" if status.disk.total else "0"
        average = stats.bytes_appended / stats.messages_appended if stats.messages_appended else 0.0
        table = {
            **_UNKNOWN,
            "brokerVersionDesc": _VERSION_NAME,
            "brokerVersion": str(VERSION),
            "brokerActive": "true",
            "bootTimestamp": str(self._started_ms),
            "runtime": f"[ {days} days, {minutes // 60} hours, {minutes % 60} minutes, {seconds} seconds ]",
            "putTps": rate_in.strip(),
            "getTotalTps": rate_out.strip(),
            "getFoundTps": rate_out.strip(),
            "getTransferredTps": rate_out.strip(),
            "getTransferedTps": rate_out.strip(),  # as spelt in RocketMQ 4
            "msgPutTotalYesterdayMorning": str(yesterday[0]),
            "msgGetTotalYesterdayMorning": str(yesterday[1]),
            "msgPutTotalTodayMorning": str(today[0]),
            "msgGetTotalTodayMorning": str(today[1]),
            "msgPutTotalTodayNow": sent,
            "msgGetTotalTodayNow": got,
            "putMessageTimesTotal": sent,
            "putMessageSizeTotal": str(stats.bytes_appended),
            "putMessageAverageSize": f"{average:.1f}",
            "earliestMessageTimeStamp": str(status.oldest_timestamp or self._clock.now_ms()),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogMinOffset": str(status.min_offset),
            "commitLogMaxOffset": str(status.wrote),
            "dispatchBehindBytes": str(max(status.committed - status.dispatched, 0)),
            "remainHowManyDataToFlush": _bytes(status.wrote - status.flushed),
            "remainTransientStoreBufferNumbs": str(status.pool_buffers_free or 0),
            "commitLogDirCapacity": f"Total : {_bytes(status.disk.total)}, Free : {_bytes(status.disk.available)}.",
            **{
                f"scheduleMessageOffset_{level}": f"{delivered},{end}"
                for level, (delivered, end) in self._level_delay.progress().items()
            },
            "timerReadBehind": str(self._timer.dequeue_lag),
            "timerOffsetBehind": str(self._timer.enqueue_lag),
        }
        return answer(body=Bean(table=table))

    async def replication(self, _request: Command, _: Connection) -> Command:
        """A master without slaves."""
        return answer(
            body=Bean(
                haClientRuntimeInfo=Bean(
                    lastReadTimestamp=0,
                    lastWriteTimestamp=0,
                    masterFlushOffset=0,
                    maxOffset=0,
                    transferredByteInSecond=0,
                ),
                haConnectionInfo=[],
                inSyncSlaveNums=0,
                master=True,
                masterCommitLogMaxOffset=self._store.positions[0],
            )
        )


def _bytes(count: int) -> str:
    """A number of bytes as tools read it, such as `1.5 GiB`."""
    exponent = min((max(count, 1).bit_length() - 1) // 10, 6)
    return f"{count} B" if not exponent else f"{count / 1024**exponent:.1f} {' KMGTPE'[exponent]}iB"


async def _relayed(found: Member, request: Command) -> Command:
    """A client's answer, as the answer to the operator."""
    try:
        answered = await found.connection.ask(request, _CLIENT_SECONDS)
    except TimeoutError:
        raise ClientSilentError(found.client_id, _CLIENT_SECONDS) from None
    except PeerGoneError as error:
        raise RemotingError(Answer.SYSTEM_ERROR, str(error)) from None
    return answer(answered.fields, code=answered.code, body=answered.body, remark=answered.remark)


def _connection(found: Member) -> Bean:
    return Bean(clientAddr=_address(found), clientId=found.client_id, language=found.language, version=found.version)


def _address(found: Member) -> str:
    return f"{found.connection.peer[0]}:{found.connection.peer[1]}"
