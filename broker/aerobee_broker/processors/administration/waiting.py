"""Messages that wait, for operators: delayed ones until they are due, and half messages until they are decided."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.errors import InvalidRequestError, InvalidTransactionError, TopicNotFoundError
from aerobee_broker.messages.message_mapping import timestamp_ms, to_wire_message
from aerobee_broker.processors.administration.wire import (
    OK,
    clear_body,
    common_status,
    may_read_bodies,
    page_count,
    resource,
    timestamp,
)
from aerobee_broker.processors.statuses import status_of
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.level_listing import AllWaiting
from aerobee_broker.timer.listing import SlotPlace
from aerobee_broker.timer.recall_handle import InvalidRecallHandleError, RecallHandle
from aerobee_broker.timer.wheel_timer import MessageNotPendingError, Timer
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_broker.transactions.half_messages import Outcome
from aerobee_proto import admin_v1, v2
from aerobee_store import Record
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal

_PAGE_COUNT: Final = 50
_AT_ONCE_MAX: Final = 1000
_TIME_MAX: Final = 1 << 62
_OUTCOMES: Final = {
    v2.TransactionResolution.COMMIT: Outcome.COMMIT,
    v2.TransactionResolution.ROLLBACK: Outcome.ROLLBACK,
}


class WaitingMessages:
    """One method per RPC."""

    def __init__(
        self,
        *,
        settings: Settings,
        tables: Tables,
        timer: Timer,
        level_delay: LevelDelay,
        delayed: AllWaiting,
        transactions: Transactions,
        counters: BrokerCounters,
    ) -> None:
        self._level_delay = level_delay
        self._delayed = delayed
        self._settings = settings
        self._tables = tables
        self._timer = timer
        self._transactions = transactions
        self._counters = counters

    # --- Delayed messages -------------------------------------------------------------------------------------

    async def list_delayed(
        self, request: admin_v1.ListDelayedMessagesRequest, client: Client
    ) -> admin_v1.ListDelayedMessagesResponse:
        topic = self._tables.topics.require(request.topic).name if request.topic else ""
        page = await self._delayed.page(
            topic=topic,
            begin_ms=timestamp_ms(request.begin_timestamp) if request.HasField("begin_timestamp") else 0,
            end_ms=timestamp_ms(request.end_timestamp) if request.HasField("end_timestamp") else _TIME_MAX,
            after=_place_of(request.page_token),
            count=page_count(request.page_size, default=_PAGE_COUNT),
        )
        total = sum(self._timer.stats.pending.values()) + self._level_delay.waiting
        response = admin_v1.ListDelayedMessagesResponse(status=OK, total_count=total)
        for waiting in page.messages:
            record = waiting.record
            message, hidden = self._message(record, request.include_bodies, client)
            response.bodies_hidden = response.bodies_hidden or hidden
            found = response.messages.add(message=message, body_size=len(record.body))
            found.due_timestamp.CopyFrom(timestamp(waiting.due_ms))
            deliver_ms = decimal(record.properties.get(p.TIMER_DELIVER_MS))
            if deliver_ms is not None and record.unique_key:
                name = self._settings.current.name
                handle = RecallHandle(record.properties[p.REAL_TOPIC], name, deliver_ms, record.unique_key)
                found.recall_handle = handle.encode()
        if page.next is not None:
            place = page.next
            response.next_page_token = f"{place.slot_ms}-{place.due_ms}-{place.physical_offset}"
        return response

    async def recall(
        self, request: admin_v1.RecallDelayedMessagesRequest, _: Client
    ) -> admin_v1.RecallDelayedMessagesResponse:
        _check_count(len(request.recall_handles), "recall_handles")
        results = []
        for text in request.recall_handles:
            result = admin_v1.RecallDelayedMessagesResponse.Result(recall_handle=text, status=OK)
            try:
                handle = RecallHandle.decode(text)
                result.message_id = handle.message_id
                await self._timer.recall(handle.topic, handle.message_id, handle.deliver_ms)
            except InvalidRecallHandleError as error:
                result.status.CopyFrom(v2.Status(code=v2.Code.BAD_REQUEST, message=str(error)))
            except MessageNotPendingError as error:
                result.status.CopyFrom(v2.Status(code=v2.Code.MESSAGE_NOT_FOUND, message=str(error)))
            results.append(result)
        status = common_status([result.status for result in results], "recalled")
        return admin_v1.RecallDelayedMessagesResponse(status=status, results=results)

    # --- Transactions -----------------------------------------------------------------------------------------

    async def list_transactions(
        self, request: admin_v1.ListTransactionsRequest, client: Client
    ) -> admin_v1.ListTransactionsResponse:
        topic = self._tables.topics.require(request.topic).name if request.topic else ""
        after = -1
        if request.page_token:
            number = decimal(request.page_token)
            if number is None:
                raise _bad_token(request.page_token)
            after = number
        page, token = await self._transactions.undecided(
            topic=topic, after=after, count=page_count(request.page_size, default=_PAGE_COUNT)
        )
        response = admin_v1.ListTransactionsResponse(
            status=OK,
            total_count=self._transactions.pending_count,
            next_page_token="" if token is None else str(token),
        )
        for undecided in page:
            message, hidden = self._message(undecided.record, request.include_bodies, client)
            response.bodies_hidden = response.bodies_hidden or hidden
            found = response.transactions.add(
                transaction_id=undecided.transaction_id,
                message=message,
                check_count=undecided.checks,
                producer_group=undecided.record.properties.get(p.PRODUCER_GROUP, ""),
                body_size=len(undecided.record.body),
            )
            found.begin_timestamp.CopyFrom(timestamp(undecided.since_ms))
            if undecided.next_check_ms is not None:
                found.next_check_timestamp.CopyFrom(timestamp(undecided.next_check_ms))
        return response

    async def decide(
        self, request: admin_v1.DecideTransactionsRequest, _: Client
    ) -> admin_v1.DecideTransactionsResponse:
        _check_count(len(request.transaction_ids), "transaction_ids")
        outcome = _OUTCOMES.get(request.resolution)
        if outcome is None:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, f"resolution {request.resolution} is no decision; give COMMIT or ROLLBACK"
            )
        results = []
        for transaction_id in request.transaction_ids:
            result = admin_v1.DecideTransactionsResponse.Result(transaction_id=transaction_id, status=OK)
            try:
                final = await self._transactions.end(request.topic, transaction_id, outcome)
            except (InvalidTransactionError, TopicNotFoundError) as error:
                result.status.CopyFrom(status_of(error, "DecideTransactions"))
            else:
                if final is not None:
                    self._counters.stored(request.topic, ["transaction"], [final.queue_id], [final.place.size])
            results.append(result)
        status = common_status([result.status for result in results], "decided")
        return admin_v1.DecideTransactionsResponse(status=status, results=results)

    def _message(self, record: Record, include_body: bool, client: Client) -> tuple[v2.Message, bool]:
        """The message under the topic that it is for, and whether its body is hidden from the caller."""
        topic = record.properties.get(p.REAL_TOPIC, "")
        message = to_wire_message(record, resource(topic))
        hidden = include_body and not may_read_bodies(client, topic)
        if hidden or not include_body:
            clear_body(message)
        return message, hidden


def _check_count(count: int, name: str) -> None:
    if count > _AT_ONCE_MAX:
        raise InvalidRequestError(
            v2.Code.BAD_REQUEST, f"{count} {name} in one request; give at most {_AT_ONCE_MAX} at a time"
        )


def _place_of(token: str) -> SlotPlace | None:
    if not token:
        return None
    numbers = [decimal(part) for part in token.split("-")]
    if len(numbers) != 3 or None in numbers:
        raise _bad_token(token)
    slot_ms, due_ms, physical_offset = (number or 0 for number in numbers)
    return SlotPlace(slot_ms, due_ms, physical_offset)


def _bad_token(token: str) -> InvalidRequestError:
    return InvalidRequestError(v2.Code.BAD_REQUEST, f"page_token {token[:80]!r} is invalid; start without one")
