"""Sends what it is told to: {"do": "send", "messages": [{"body", "tag", "keys", "properties", "message_group"}]}."""

from __future__ import annotations

from typing import Any

from rocketmq import ClientConfiguration, Credentials, Message, Producer

from tests.integration.sdk_python.conversation import obey, options, say


def main() -> None:
    given = options()
    topic = given["topic"]
    producer = Producer(ClientConfiguration(given["endpoint"], Credentials()), (topic,))
    producer.startup()
    say("ready")

    def send(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"message_ids": [producer.send(to_message(topic, fields)).message_id for fields in messages]}

    obey({"send": send})
    producer.shutdown()


def to_message(topic: str, fields: dict[str, Any]) -> Any:
    message = Message()
    message.topic = topic
    message.body = fields["body"].encode()
    if fields.get("tag"):
        message.tag = fields["tag"]
    for key in fields.get("keys", ()):
        message.keys = key  # the SDK's setter adds
    if fields.get("message_group"):
        message.message_group = fields["message_group"]
    for name, value in fields.get("properties", {}).items():
        message.add_property(name, value)
    return message


if __name__ == "__main__":
    main()
