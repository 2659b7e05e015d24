"""Transactions of remoting producers: their decisions, and checks of undecided ones."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.accounts import Accounts, Right
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.remoting.clients import RemotingClients
from aerobee_broker.remoting.shown_records import shown_properties
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, integer, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_broker.transactions.half_messages import HALF_TOPIC, Outcome, read_half
from aerobee_store import CorruptRecordError, MessageStore, Record, RecordNotFoundError
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import INT32_MAX, decimal
from aerobee_store.records.record import encode

_OUTCOMES: Final[dict[int, Outcome | None]] = {8: Outcome.COMMIT, 12: Outcome.ROLLBACK, 0: None}


class TransactionRequests:
    """Answers END_TRANSACTION, and checks transactions by CHECK_TRANSACTION_STATE."""

    def __init__(
        self,
        store: MessageStore,
        transactions: Transactions,
        clients: RemotingClients,
        counters: BrokerCounters,
        accounts: Accounts | None,
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._clients = clients
        self._counters = counters
        self._accounts = accounts

    async def end(self, request: Command, _: Connection) -> Command | None:
        """A decision. "Unknown" is never answered."""
        decision = integer(request, "commitOrRollback", bits=32)
        if decision not in _OUTCOMES:
            raise RemotingError(Answer.INVALID_PARAMETER, f"commitOrRollback is {decision}; 8 commits, 12 rolls back")
        outcome = _OUTCOMES[decision]
        if outcome is None:
            return None
        group, offset = text(request, "producerGroup"), integer(request, "commitLogOffset")
        try:
            record = self._store.record_at(offset)
        except (RecordNotFoundError, CorruptRecordError) as error:
            raise RemotingError(Answer.SYSTEM_ERROR, f"there is no half message at commitLogOffset: {error}") from None
        half = read_half(record) if record.topic == HALF_TOPIC else None
        if half is None or record.queue_offset != integer(request, "tranStateTableOffset"):
            raise RemotingError(Answer.SYSTEM_ERROR, f"the message at commitLogOffset {offset} is another one")
        if record.properties.get(p.PRODUCER_GROUP) != group:
            raise RemotingError(
                Answer.SYSTEM_ERROR, f"the half message at commitLogOffset {offset} is of another producer group"
            )
        final = await self._transactions.end(half.topic, half.transaction_id, outcome)
        if final is not None:
            self._counters.stored(half.topic, ["transaction"], [final.queue_id], [final.place.size])
        return answer()

    def ask(self, record: Record, topic: str, transaction_id: str, number: int) -> bool:
        """Send check number `number` to a producer of the group that sent this half message; False if there is none.

        A check contains the message, so only accounts that may send to its topic get one.
        """
        accounts = self._accounts
        producers = [
            producer
            for producer in self._clients.producers(record.properties.get(p.PRODUCER_GROUP, ""))
            if accounts is None or accounts.may(producer.access_key, Right.PUBLISH, topic)
        ]
        original = record.to_message(
            topic,
            decimal(record.properties.get(p.REAL_QUEUE_ID), INT32_MAX) or 0,
            shown_properties(record.properties),
        )
        for turn in range(len(producers)):
            producer = producers[(number + turn) % len(producers)]
            check = Command(
                Request.CHECK_TRANSACTION_STATE,
                fields={
                    "topic": topic,
                    "tranStateTableOffset": str(record.queue_offset),
                    "commitLogOffset": str(record.physical_offset),
                    "msgId": record.unique_key or transaction_id,
                    "transactionId": transaction_id,
                    "offsetMsgId": p.offset_message_id(record.store_host, record.physical_offset),
                },
                body=encode(
                    original,
                    queue_offset=record.queue_offset,
                    physical_offset=record.physical_offset,
                    store_timestamp=record.store_timestamp,
                    store_host=record.store_host,
                    property_crc=False,
                ),
            )
            if producer.connection.notify(check):
                return True
        return False
