"""Sends transactional messages and ends them: {"do": "send", "body", "decision": "commit", "rollback", null}.

`answer`: its checker's answer to the broker: `commit`, `rollback`, or anything else for "not known". For each check
it reports {"event": "checked", "body", "message_id", "corrupted"}.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    Message,
    Producer,
    TransactionChecker,
    TransactionResolution,
)

from tests.integration.sdk_python.conversation import obey, options, say


class Checker(TransactionChecker):  # type: ignore[misc]  # the SDK has no types
    def __init__(self, answer: str | None) -> None:
        self._answer = answer

    def check(self, message: Any) -> Any:
        say("checked", body=message.body.decode(), message_id=message.message_id, corrupted=message.corrupted)
        if self._answer == "commit":
            return TransactionResolution.COMMIT
        if self._answer == "rollback":
            return TransactionResolution.ROLLBACK
        return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


def main() -> None:
    given = options()
    topic = given["topic"]
    configuration = ClientConfiguration(given["endpoint"], Credentials())
    producer = Producer(configuration, (topic,), checker=Checker(given.get("answer")))
    producer.startup()
    say("ready")
    transactions: dict[str, Any] = {}

    def send(body: str, decision: str | None = None) -> dict[str, Any]:
        message = Message()
        message.topic, message.body, message.tag = topic, body.encode(), "t"
        transaction = producer.begin_transaction()
        receipt = producer.send(message, transaction)
        transactions[body] = transaction
        if decision is not None:
            decide(body, decision)
        return {"message_id": receipt.message_id, "transaction_id": receipt.transaction_id}

    def decide(body: str, decision: str) -> dict[str, Any]:
        transaction = transactions[body]
        answer = transaction.commit() if decision == "commit" else transaction.rollback()
        return {"code": answer.status.code}

    def die() -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    obey({"send": send, "decide": decide, "die": die})
    producer.shutdown()


if __name__ == "__main__":
    main()
