"""Reports every message that its listener gets, and every acknowledgement that the broker answered.

`failures`: the listener fails with that many first attempts of each message, the first of them by raising.
`failing_calls`: body -> how many calls for that message fail, at any attempt (ordered messages are retried in place).
`seconds`: processing time of a message.
"""

from __future__ import annotations

import time
from typing import Any

from rocketmq import ConsumeResult, MessageListener, PushConsumer

from tests.integration.sdk_python.conversation import configuration, obey, options, say, subscription, told


class Listener(MessageListener):  # type: ignore[misc]  # the SDK has no types
    def __init__(self, failures: int, failing_calls: dict[str, int], seconds: float) -> None:
        self._failures = failures
        self._failing_calls = failing_calls
        self._seconds = seconds

    def consume(self, message: Any) -> Any:
        say("message", **told(message))
        time.sleep(self._seconds)
        body = message.body.decode()
        if self._failing_calls.get(body, 0) > 0:
            self._failing_calls[body] -= 1
            return ConsumeResult.FAILURE
        if message.delivery_attempt > self._failures:
            return ConsumeResult.SUCCESS
        if message.delivery_attempt == 1:
            raise ValueError("the listener fails, as it was told")
        return ConsumeResult.FAILURE


class ObservedPushConsumer(PushConsumer):  # type: ignore[misc]  # the SDK has no types
    """The SDK's consumer, which does not itself report when an acknowledgement is answered."""

    def _ack(self, message: Any) -> None:
        super()._ack(message)
        say("acknowledged", body=message.body.decode(), attempt=message.delivery_attempt)


def main() -> None:
    given = options()
    consumer = ObservedPushConsumer(
        configuration(given),
        given["group"],
        Listener(given.get("failures", 0), given.get("failing_calls", {}), given.get("seconds", 0.0)),
        subscription(given),
        consumption_thread_count=given.get("threads", 4),
        tls_enable=given.get("tls", False),
    )
    consumer.startup()
    say("ready")

    def shutdown() -> dict[str, Any]:
        started = time.monotonic()
        consumer.shutdown()
        return {"seconds": time.monotonic() - started}

    obey({"shutdown": shutdown})
    consumer.shutdown()


if __name__ == "__main__":
    main()
