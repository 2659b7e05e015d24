"""Queries of `mqadmin` and the dashboard: clients, progress of groups, state of the broker."""

from __future__ import annotations

from typing import Final

from aerobee_broker.config import BrokerConfig
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import ClientSilentError
from aerobee_broker.remoting.clients import Member, RemotingClients
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, Handler, PeerGoneError
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, boolean, integer, text
from aerobee_broker.remoting_wire.frame import VERSION, Command
from aerobee_broker.statistics.broker_stats import BrokerStats, Window
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_store import CorruptRecordError, InvalidMessageError, MessageStore, RecordNotFoundError
from aerobee_store.clock import Clock
from aerobee_store.records.properties import TAGS, parse_offset_message_id, tags_code
from aerobee_store.tables.java_json import Bean, ObjectMap

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
    "msgPutTotalYesterdayMorning": "0",
    "msgPutTotalTodayMorning": "0",
    "msgGetTotalYesterdayMorning": "0",
    "msgGetTotalTodayMorning": "0",
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
        timer: Timer,
        broker_stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        self._clients = clients
        self._timer = timer
        self._broker_stats = broker_stats
        self._clock = clock
        self._started_ms = clock.now_ms()
        self.handlers: dict[int, Handler] = {
            Request.GET_TOPIC_STATS_INFO: self.topic_stats,
            Request.GET_CONSUME_STATS: self.consume_stats,
            Request.QUERY_CONSUME_QUEUE: self.consume_queue,
            Request.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
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
        return answer(body=self._consume_stats(text(request, "consumerGroup"), text(request, "topic", ""))[0])

    async def all_consume_stats(self, request: Command, _: Connection) -> Command:
        """The same for all groups, either orderly ones or the others."""
        orderly = boolean(request, "isOrder")
        found: list[object] = []
        total = 0
        for group in self._tables.groups:
            if group.consume_orderly == orderly:
                stats, behind = self._consume_stats(group.name, "")
                found.append({group.name: [stats]})
                total += behind
        name = self._config.name
        body = Bean(brokerAddr=name, consumeStatsList=found, totalDiff=total, totalInflightDiff=0)
        return answer(body=body)

    def _consume_stats(self, group: str, only: str) -> tuple[Bean, int]:
        """The progress and the lag of a group in one topic or in all."""
        behind = 0
        consumers = self._clients.consumers(group)
        names = dict.fromkeys(
            [*self._tables.offsets.topics_of(group), *(consumers.subscriptions if consumers is not None else ())]
        )
        table = []
        for name in names:
            topic = self._tables.topics.get(name)
            if topic is None or (only and name != only):
                continue
            for queue_id in range(topic.read_queue_count):
                low, high = self._store.queue_range(name, queue_id)
                committed = self._deliveries.committed_offset(name, group, queue_id)
                offset = low if committed is None else committed
                last = self._store.store_timestamp_at(name, queue_id, offset - 1) if offset > low else None
                wrapper = Bean(brokerOffset=high, consumerOffset=offset, pullOffset=offset, lastTimestamp=last or 0)
                table.append((self._queue(name, queue_id), wrapper))
                behind += max(high - offset, 0)
        seconds = self._broker_stats.seconds("minute")
        got = sum(t.messages for (_, g), t in self._broker_stats.groups("minute").items() if g == group)
        stats = Bean(consumeTps=got / seconds if seconds > 0 else 0.0, offsetTable=ObjectMap.of(table))
        return stats, behind

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

    async def consume_directly(self, request: Command, _: Connection) -> Command:
        """Deliver a stored message to a consumer."""
        found = self._consumer(request)
        try:
            place = parse_offset_message_id(text(request, "msgId"))[1]
            record = self._store.record_at(place)
        except (InvalidMessageError, RecordNotFoundError, CorruptRecordError) as error:
            raise RemotingError(Answer.SYSTEM_ERROR, str(error)) from None
        fields = {**request.fields, "brokerName": self._config.name, "topic": record.topic}
        return await _relayed(found, Command(request.code, fields=fields, body=self._store.record_bytes(record)))

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
            "remainHowManyDataToFlush": f"{status.wrote - status.flushed} B",
            "remainTransientStoreBufferNumbs": str(status.pool_buffers_free or 0),
            "commitLogDirCapacity": f"Total : {status.disk.total} B, Free : {status.disk.available} B.",
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
