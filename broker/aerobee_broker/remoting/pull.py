"""PULL_MESSAGE: stored records of one queue, with the bytes of the log; held while there is none.

sys_flag    1 commit `commitOffset`   2 may be held   4 the subscription is in the request   8, 16 are ignored
"""

from __future__ import annotations

from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.long_polling import QueueWait
from aerobee_broker.delivery.receive.queue_pull import MEMORY_WAIT_SECONDS, QueuePull
from aerobee_broker.filters.message_filter import MessageFilter, filter_in_turn
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.remoting.clients import RemotingClients, Subscription
from aerobee_broker.remoting.offset_events import OffsetEvents
from aerobee_broker.remoting.offsets import OffsetRequests
from aerobee_broker.remoting.shown_records import shown_bytes
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, integer, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.table_files import Tables
from aerobee_store import MessageStore, ReadResult, RecordNotFoundError

_COMMIT: Final = 1
_MAY_BE_HELD: Final = 2
_HAS_SUBSCRIPTION: Final = 4
_ANSWER_SIZE_MAX: Final = 256 << 10  # bytes of records, but at least one record; RocketMQ's limit for records in memory
_HELD_SECONDS_MAX: Final = 120.0
# RocketMQ's names of a read status, in the remark of the answer.
_NAMES: Final = {
    "found": "FOUND",
    "empty": "NO_MESSAGE_IN_QUEUE",
    "no-match": "NO_MATCHED_MESSAGE",
    "offset-too-small": "OFFSET_TOO_SMALL",
    "offset-at-end": "OFFSET_OVERFLOW_ONE",
    "offset-too-large": "OFFSET_OVERFLOW_BADLY",
}


class PullRequests:
    """Answers PULL_MESSAGE and LITE_PULL_MESSAGE."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        deliveries: Deliveries,
        clients: RemotingClients,
        offsets: OffsetRequests,
        counters: BrokerCounters,
        events: OffsetEvents | None,
    ) -> None:
        """`events`: None on a replica, which writes no messages of its own."""
        self._settings = settings
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        self._clients = clients
        self._offsets = offsets
        self._counters = counters
        self._events = events

    async def pull(self, request: Command, connection: Connection) -> Command:
        group, name = text(request, "consumerGroup"), text(request, "topic")
        queue_id = integer(request, "queueId", bits=32)
        offset = integer(request, "queueOffset")
        count = self._settings.current.delivery.receive_count(integer(request, "maxMsgNums", bits=32))
        sys_flag = integer(request, "sysFlag", 0, bits=32)
        (await self._tables.group_in_use(group, [name])).check_may_consume()
        self._tables.topics.require(name).check_read_queue(queue_id)
        wanted = await filter_of_subscription(
            self._subscription(request, group, name, sys_flag), self._deliveries.loop_share
        )
        if sys_flag & _COMMIT and (commit := integer(request, "commitOffset", -1)) > 0:
            await self._offsets.commit(name, group, queue_id, commit)
        if (reset := self._offsets.pending_reset(name, group, queue_id)) is not None:
            await self._tell_moved(group, name, queue_id, offset, reset)
            return self._moved(reset, *self._store.queue_range(name, queue_id), remark="OFFSET_RESET")
        seconds = 0.0
        if sys_flag & _MAY_BE_HELD:
            seconds = min(max(integer(request, "suspendTimeoutMillis", 0), 0) / 1000, _HELD_SECONDS_MAX)
        size_max = min(integer(request, "maxMsgBytes", _ANSWER_SIZE_MAX, bits=32), _ANSWER_SIZE_MAX)
        await connection.writable(seconds + MEMORY_WAIT_SECONDS)
        held = QueueWait(self._deliveries.long_polling, name, queue_id, group, connection.key, seconds)
        pull = QueuePull(wanted, group, held, offset, count, size_max, look_until=None, follows_moves=False)
        return await self._read(pull)

    async def _read(self, pull: QueuePull) -> Command:
        """Read until there is an answer, or the time is over."""
        group, topic, begin = pull.group, pull.held.topic, pull.offset
        result = await pull.read(self._store, self._tables.topics, self._deliveries.loop_share)
        if result.records:
            return self._found(group, topic, result)
        low, high = result.min_offset, result.max_offset
        if pull.moved_from is not None:
            await self._tell_moved(group, topic, pull.held.queue_id, pull.moved_from, pull.offset)
            return self._moved(pull.offset, low, high, remark=_NAMES[result.status])
        found_none = result.status == "found"  # among those that could be read
        code = Answer.PULL_NOT_FOUND if pull.offset == begin else Answer.PULL_RETRY_IMMEDIATELY
        return self._answer(code, pull.offset, low, high, "no-match" if found_none else result.status)

    def _found(self, group: str, topic: str, result: ReadResult) -> Command:
        try:
            found_bytes = [shown_bytes(self._store, record) for record in result.records]
        except RecordNotFoundError:  # expired just now
            return self._moved(result.next_offset, result.min_offset, result.max_offset, remark="MESSAGE_WAS_REMOVING")
        self._counters.delivered(topic, group, result.records, list(map(len, found_bytes)))
        self._offsets.note_pulled(topic, group, result.records[0].queue_id, result.next_offset)
        found = self._answer(Answer.SUCCESS, result.next_offset, result.min_offset, result.max_offset, result.status)
        found.body = b"".join(found_bytes)
        return found

    async def _tell_moved(self, group: str, topic: str, queue_id: int, requested: int, corrected: int) -> None:
        if self._events is not None:
            await self._events.moved(group, topic, queue_id, requested, corrected)

    def _moved(self, offset: int, low: int, high: int, *, remark: str) -> Command:
        moved = self._answer(Answer.PULL_OFFSET_MOVED, offset, low, high, "empty")
        moved.remark = remark
        return moved

    @staticmethod
    def _answer(code: Answer, next_offset: int, low: int, high: int, status: str) -> Command:
        fields = {
            "suggestWhichBrokerId": 0,
            "nextBeginOffset": next_offset,
            "minOffset": low,
            "maxOffset": high,
            "topicSysFlag": 0,
            "groupSysFlag": 0,
        }
        return answer(fields, code=code, remark=_NAMES[status])

    def _subscription(self, request: Command, group: str, topic: str, sys_flag: int) -> Subscription:
        if sys_flag & _HAS_SUBSCRIPTION:
            expression, kind = text(request, "subscription", "*"), text(request, "expressionType", "TAG")
            return Subscription(topic, expression, kind, 0)
        consumers = self._clients.consumers(group)
        if consumers is None:
            raise RemotingError(
                Answer.SUBSCRIPTION_NOT_EXIST, f"no consumer of group {group!r} has sent a heartbeat; send one first"
            )
        subscription = consumers.subscriptions.get(topic)
        if subscription is None:
            raise RemotingError(
                Answer.SUBSCRIPTION_NOT_EXIST,
                f"consumer group {group!r} has not subscribed to topic {topic!r}; send a heartbeat with the "
                f"subscription",
            )
        if subscription.version < integer(request, "subVersion", 0):
            raise RemotingError(
                Answer.SUBSCRIPTION_NOT_LATEST,
                f"the broker has an older subscription of group {group!r} to topic {topic!r}; send a heartbeat first",
            )
        return subscription


async def filter_of_subscription(subscription: Subscription, share: LoopShare) -> MessageFilter:
    """The filter of a subscription. Raises errors that become SUBSCRIPTION_PARSE_FAILED."""
    if subscription.expression_type not in ("", "TAG", "SQL92"):
        raise RemotingError(
            Answer.SUBSCRIPTION_PARSE_FAILED,
            f"expression type {subscription.expression_type[:80]!r} is unknown; choose TAG or SQL92",
        )
    expression, is_sql = subscription.expression or "*", subscription.expression_type == "SQL92"
    return await filter_in_turn(expression, share, is_sql=is_sql)
