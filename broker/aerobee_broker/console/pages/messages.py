"""Messages: one with its whole life, its body as a file."""

from __future__ import annotations

import time
from urllib.parse import quote

from starlette.responses import Response

from aerobee_broker.console import bodies, words
from aerobee_broker.console.drawing.life import life_of, state_words
from aerobee_broker.console.drawing.timeline import draw
from aerobee_broker.console.visit import Visit
from aerobee_client import NotFoundError
from aerobee_client.messages.message import StoredMessage, stored_message
from aerobee_proto import admin_v1, v2


async def show(visit: Visit) -> Response:
    """A message at its place in a queue."""
    return await _show(visit, await _at_place(visit))


async def show_by_id(visit: Visit) -> Response:
    """All stored messages with an id: a producer that was not answered sends again."""
    topic, message_id = visit.name(), visit.name("message_id")
    return await _show(visit, await visit.admin.message_timelines(topic, message_id=message_id, history=True))


async def download(visit: Visit) -> Response:
    """The body as a file, as programs get it: decompressed."""
    message = stored_message((await _at_place(visit, history=False))[0].message)
    name = quote(f"{message.topic}-{message.queue_id}-{message.queue_offset}.bin")
    return Response(
        message.body,
        media_type="application/octet-stream",
        headers={"content-disposition": f"attachment; filename*=UTF-8''{name}", "content-security-policy": "sandbox"},
    )


async def _at_place(visit: Visit, *, history: bool = True) -> list[admin_v1.MessageTimeline]:
    place = visit.request.path_params
    found = await visit.admin.message_timelines(
        visit.name(), queue_id=place["queue"], queue_offset=place["offset"], history=history
    )
    if not found:
        raise NotFoundError(v2.Code.MESSAGE_NOT_FOUND, "there is no message at this place any more")
    return found


async def _show(visit: Visit, found: list[admin_v1.MessageTimeline]) -> Response:
    now = int(time.time() * 1000)
    wanted = visit.query.text("as")
    messages = [
        {
            "timeline": timeline,
            "message": message,
            "life": draw(life_of(timeline, now)),
            "body": bodies.shown(message.body, wanted),
            "facts": _facts(message),
        }
        for timeline, message in ((each, stored_message(each.message)) for each in found)
    ]
    return visit.page(
        "message.html", name=visit.name(), messages=messages, state_words=state_words, event_words=words.event
    )


def _facts(message: StoredMessage) -> list[tuple[str, str]]:
    """What a message has besides its body and place."""
    facts = [
        ("tag", message.tag),
        ("keys", " ".join(message.keys)),
        ("message group", message.message_group),
        ("priority", None if message.priority is None else str(message.priority)),
        ("lite topic", message.lite_topic),
        ("trace context", message.trace_context),
        ("born on", message.born_host),
    ]
    return [(name, value) for name, value in facts if value]
