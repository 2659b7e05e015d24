"""Reports every message of the lite topics that it subscribes on command.

{"do": "subscribe", "lite_topic"}
{"do": "unsubscribe", "lite_topic"}
"""

from __future__ import annotations

from typing import Any

from rocketmq import ConsumeResult, LitePushConsumer, MessageListener

from tests.integration.sdk_python.conversation import configuration, obey, options, say, told


class Listener(MessageListener):  # type: ignore[misc]  # the SDK has no types
    def consume(self, message: Any) -> Any:
        say("message", lite_topic=message.lite_topic, **told(message))
        return ConsumeResult.SUCCESS


class ObservedLitePushConsumer(LitePushConsumer):  # type: ignore[misc]  # the SDK has no types
    """The SDK's consumer, which does not itself report when an acknowledgement is answered."""

    def _ack(self, message: Any) -> None:
        super()._ack(message)
        say("acknowledged", body=message.body.decode(), attempt=message.delivery_attempt)


def main() -> None:
    given = options()
    consumer = ObservedLitePushConsumer(configuration(given), given["group"], given["topic"], Listener())
    consumer.startup()
    say("ready")

    def subscribe(lite_topic: str) -> dict[str, Any]:
        consumer.subscribe_lite(lite_topic)
        return {}

    def unsubscribe(lite_topic: str) -> dict[str, Any]:
        consumer.unsubscribe_lite(lite_topic)
        return {}

    obey({"subscribe": subscribe, "unsubscribe": unsubscribe})
    consumer.shutdown()


if __name__ == "__main__":
    main()
