"""A message as JSON, as commands print it and the console exports it.

A body that is not UTF-8 text is in `bodyBase64` instead of `body`. Times are Unix milliseconds.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from aerobee_store.records.topic_names import DEAD_LETTER_PREFIX

if TYPE_CHECKING:
    from aerobee_client import StoredMessage
    from aerobee_proto import admin_v1, v2


def message_json(message: StoredMessage) -> dict[str, object]:
    """A message of the client as JSON, without unset fields."""
    fields: dict[str, object] = {"topic": message.topic, "messageId": message.message_id}
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["bodyBase64"] = base64.b64encode(message.body).decode()
    optional = {
        "tag": message.tag,
        "messageGroup": message.message_group,
        "deliveryTimestamp": message.delivery_timestamp,
        "receiptHandle": getattr(message, "receipt_handle", None),
        "deliveryAttempt": getattr(message, "delivery_attempt", None),
        "corrupted": message.corrupted or None,
    }
    fields.update((name, value) for name, value in optional.items() if value is not None)
    return fields | {
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
    }


def dead_letter_json(letter: admin_v1.DeadLetter) -> dict[str, Any]:
    """The message and the details of its dead-lettering as JSON; without a body if it was read without one."""
    fields = _listed_json(letter.message, letter.body_size)
    fields = {"group": fields.pop("topic").removeprefix(DEAD_LETTER_PREFIX), "offset": letter.offset, **fields}  # type: ignore[attr-defined]  # a name is text
    fields |= {
        "originTopic": letter.origin_topic,
        "originMessageId": letter.origin_message_id,
    }
    if letter.HasField("resent_timestamp"):
        fields["resentTimestamp"] = letter.resent_timestamp.ToMilliseconds()
    return fields


def waiting_message_json(message: v2.Message, body_size: int) -> dict[str, Any]:
    """A message that is in no queue of its topic yet."""
    fields = _listed_json(message, body_size)
    del fields["queueId"], fields["queueOffset"]
    return fields


def _listed_json(message: v2.Message, body_size: int) -> dict[str, object]:
    """A message of a list, which may have come without its body."""
    from aerobee_client.messages.message import stored_message

    fields = message_json(stored_message(message))
    if len(message.body) != body_size:
        fields.pop("body", None)
    return fields | {"bodySize": body_size}
