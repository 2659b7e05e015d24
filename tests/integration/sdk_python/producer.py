"""Sends messages on command, and recalls them.

{"do": "send", "messages": [{"body", "tag", "keys", "properties", "message_group", "lite_topic", "priority",
                           "due": Unix seconds}]}
{"do": "recall", "body": of a message that was sent}
"""

from __future__ import annotations

from typing import Any

from rocketmq import Message, Producer

from tests.integration.sdk_python.conversation import configuration, obey, options, say


def main() -> None:
    given = options()
    topic = given["topic"]
    producer = Producer(configuration(given), (topic,), tls_enable=given.get("tls", False))
    producer.startup()
    say("ready")

    receipts: dict[str, Any] = {}

    def send(messages: list[dict[str, Any]]) -> dict[str, Any]:
        for fields in messages:
            receipts[fields["body"]] = producer.send(to_message(topic, fields))
        return {"message_ids": [receipts[fields["body"]].message_id for fields in messages]}

    def recall(body: str) -> dict[str, Any]:
        return {"message_id": producer.recall_message(topic, receipts[body].recall_handle)}

    obey({"send": send, "recall": recall})
    producer.shutdown()


def to_message(topic: str, fields: dict[str, Any]) -> Any:
    message = Message()
    message.topic = topic
    message.body = fields["body"].encode()
    if fields.get("tag"):
        message.tag = fields["tag"]
    for key in fields.get("keys", ()):
        message.keys = key  # the SDK's setter appends
    if fields.get("message_group"):
        message.message_group = fields["message_group"]
    if "priority" in fields:
        message.priority = fields["priority"]
    if fields.get("lite_topic"):
        message.lite_topic = fields["lite_topic"]
    if fields.get("due"):
        message.delivery_timestamp = fields["due"]
    for name, value in fields.get("properties", {}).items():
        message.add_property(name, value)
    return message


if __name__ == "__main__":
    main()
