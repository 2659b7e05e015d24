"""Sending a message, also one like a stored one, edited."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from aerobee_broker.console import bodies
from aerobee_broker.console.forms import Fields, FormError, whole_number
from aerobee_broker.console.visit import Visit, segment
from aerobee_client import Message, NotFoundError
from aerobee_client.messages.message import StoredMessage, stored_message
from aerobee_proto import v2

_FORMS: Final = ("text", "hex")


async def show(visit: Visit) -> Response:
    """The form; `like` in the address names the place of a message whose contents it begins with."""
    fields = visit.fields
    if not fields and (place := visit.query.text("like")):
        fields = fields_of(await _stored(visit, place))
    return visit.page("send.html", name=visit.name(), given=fields)


async def send(visit: Visit) -> Response:
    """Store the message of the form, and show it."""
    topic, fields = visit.name(), visit.fields
    result = await visit.producer().send(
        Message(
            topic=topic,
            body=body_of(fields),
            tag=fields.text("tag") or None,
            keys=tuple(fields.text("keys").split()),
            properties=properties_of(fields.get("properties", "")),
            message_group=fields.text("message_group") or None,
            delivery_timestamp=fields.moment("deliver_at", "Deliver at"),
            priority=fields.number("priority", "Priority", most=2**31 - 1),
            lite_topic=fields.text("lite_topic") or None,
        )
    )
    address = visit.url(f"/topics/{segment(topic)}/id/{segment(result.message_id)}")
    return visit.go(address, f"The message was stored in {topic}.")


async def _stored(visit: Visit, place: str) -> StoredMessage:
    queue, offset = map(whole_number, place.partition(":")[::2])
    if queue is None or offset is None:
        raise FormError(f"{place[:40]!r} names no message; open one and choose to send it again")
    found = await visit.admin.message_timelines(visit.name(), queue_id=queue, queue_offset=offset)
    if not found:
        raise NotFoundError(v2.Code.MESSAGE_NOT_FOUND, "the message is not there any more")
    return stored_message(found[0].message)


def fields_of(message: StoredMessage) -> Fields:
    """What a form begins with for a message like this one."""
    body = bodies.shown(message.body, "text")
    text = message.body.decode() if body.form == "text" and not body.is_cut else message.body.hex(" ")
    return Fields(
        {
            "body": text,
            "form": "text" if body.form == "text" and not body.is_cut else "hex",
            "tag": message.tag or "",
            "keys": " ".join(message.keys),
            "properties": "\n".join(f"{name}={value}" for name, value in message.properties.items()),
            "message_group": message.message_group or "",
            "priority": "" if message.priority is None else str(message.priority),
            "lite_topic": message.lite_topic or "",
        }
    )


def body_of(fields: Fields) -> bytes:
    """The body that a form gives."""
    text = fields.get("body", "")
    if fields.chosen("form", "Body", _FORMS, "text") == "text":
        return text.replace("\r\n", "\n").encode()  # browsers send line breaks so
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise FormError("the body is not in hexadecimal; give pairs of 0 to 9 and a to f") from None


def properties_of(text: str) -> dict[str, str]:
    """Lines of NAME=VALUE. FormError for others."""
    found = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise FormError(f"property {line[:60]!r} is not NAME=VALUE; write one on each line")
        found[name.strip()] = value.strip()
    return found
