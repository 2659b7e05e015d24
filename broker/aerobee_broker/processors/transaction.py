"""EndTransaction: a producer's decision about a half message."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.naming import topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_broker.transactions.half_messages import Outcome
from aerobee_proto import v2

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
_OUTCOMES: Final[dict[int, Outcome | None]] = {
    v2.TransactionResolution.COMMIT: Outcome.COMMIT,
    v2.TransactionResolution.ROLLBACK: Outcome.ROLLBACK,
    v2.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED: None,  # the checker does not know yet
}


class TransactionProcessor:
    """Any caller that knows the id may decide: after a crash of the sender another producer is asked."""

    def __init__(self, transactions: Transactions, counters: BrokerCounters) -> None:
        self._transactions = transactions
        self._counters = counters

    async def end(self, request: v2.EndTransactionRequest, client: Client) -> v2.EndTransactionResponse:
        topic = topic_name(request.topic, client)
        if not request.transaction_id.strip():
            raise InvalidRequestError(
                v2.Code.INVALID_TRANSACTION_ID, "the transaction id is blank; use the one from the answer to the send"
            )
        if request.resolution not in _OUTCOMES:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, f"resolution {request.resolution} is unknown; use COMMIT or ROLLBACK"
            )
        final = await self._transactions.end(topic, request.transaction_id, _OUTCOMES[request.resolution])
        if final is not None:
            self._counters.stored(topic, ["transaction"], [final.queue_id], [final.place.size])
        return v2.EndTransactionResponse(status=_OK)
