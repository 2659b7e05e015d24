"""The messages of a topic without a group: a browser, newest first, and a live tail."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from aerobee_broker.console import bodies, failures
from aerobee_broker.console.forms import Fields, FormError
from aerobee_broker.console.lists import PAGE_COUNT
from aerobee_broker.console.protection import is_same_site
from aerobee_broker.console.visit import Visit, segment
from aerobee_client.admin import Tailed
from aerobee_client.messages.message import StoredMessage, stored_message
from aerobee_proto import admin_v1, v2

_BEGINNING: Final = 400
"""Bytes of each body that a list needs."""
_FILTERS: Final = ("tags", "sql", "text", "queues", "from", "to", "begin", "end")
_RECENT: Final = 20
"""Messages that a tail begins with."""


async def show(visit: Visit) -> Response:
    """A page of messages that match the filters in the address."""
    wanted = visit.query
    page = await visit.admin.browse_page(_request(visit.name(), wanted))
    return visit.page(
        "messages.html",
        name=visit.name(),
        messages=[_shown(found) for found in page.messages],
        page=page,
        next=page.next_page_token,
        wanted=wanted,
        is_filtered=any(
            wanted.text(field) for field in ("tags", "sql", "text", "queues", "from", "to", "begin", "end")
        ),
    )


async def show_tail(visit: Visit) -> Response:
    """The page that follows a topic; its script asks for `follow`."""
    wanted = {field: visit.query.text(field) for field in ("tags", "sql", "text", "queues")}
    await visit.admin.describe_topic(visit.name())  # refuses here what the script could not explain
    source = visit.url(f"/topics/{segment(visit.name())}/tail/events", **wanted)
    return visit.page("tail.html", name=visit.name(), wanted=visit.query, source=source)


async def follow(visit: Visit) -> Response:
    """Messages as server-sent events, until the browser leaves."""
    if not is_same_site(visit.request):
        raise FormError("another site asked for this; open the console and follow the topic there")
    return StreamingResponse(_events(visit), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _request(topic: str, wanted: Fields) -> admin_v1.BrowseMessagesRequest:
    request = admin_v1.BrowseMessagesRequest(
        topic=topic,
        queue_ids=wanted.numbers("queues", "Queues"),
        oldest_first=wanted.is_on("oldest"),
        begin_offset=wanted.number("from", "From offset"),
        end_offset=wanted.number("to", "To offset"),
        text=wanted.text("text"),
        include_bodies=True,
        body_size_max=_BEGINNING,
        page_size=PAGE_COUNT,
        page_token=wanted.text("page"),
    )
    for field, label in (("begin", "Stored from"), ("end", "Stored before")):
        if (moment := wanted.moment(field, label)) is not None:
            getattr(request, f"{field}_timestamp").FromMilliseconds(moment)
    if (expression := _expression(wanted)) is not None:
        request.filter.CopyFrom(expression)
    return request


def _expression(wanted: Fields) -> v2.FilterExpression | None:
    tags, sql = wanted.text("tags"), wanted.text("sql")
    if tags and sql:
        raise FormError("give tags or an SQL expression, not both")
    if sql:
        return v2.FilterExpression(type=v2.FilterType.SQL, expression=sql)
    return v2.FilterExpression(type=v2.FilterType.TAG, expression=tags) if tags else None


@dataclass(frozen=True, slots=True)
class _Row:
    """A message in the list."""

    queue: int
    offset: int
    stored: int
    tag: str
    keys: str
    size: int
    text: str


def _shown(found: admin_v1.BrowsedMessage) -> _Row:
    properties = found.message.system_properties
    is_unreadable = found.body_cut and properties.body_encoding != v2.Encoding.IDENTITY
    body = b"" if is_unreadable else stored_message(found.message).body
    return _Row(
        queue=properties.queue_id,
        offset=properties.queue_offset,
        stored=properties.store_timestamp.ToMilliseconds(),
        tag=properties.tag,
        keys=" ".join(properties.keys),
        size=found.body_size,
        text="compressed" if is_unreadable else bodies.one_line(body),
    )


async def _events(visit: Visit) -> AsyncIterator[str]:
    wanted = visit.query
    is_again = "last-event-id" in visit.request.headers
    try:
        tailed: AsyncGenerator[Tailed, None] = visit.admin.tail(
            visit.name(),
            queue_ids=wanted.numbers("queues", "Queues"),
            tags=wanted.text("tags"),
            sql=wanted.text("sql"),
            text=wanted.text("text"),
            last_count=0 if is_again else _RECENT,
        )
        async with aclosing(tailed):
            async for each in tailed:
                yield _event("messages", _tailed(visit, each))
    except failures.KNOWN as error:
        if failures.status_of(error) < 500:
            yield _event("refused", {"text": failures.text_of(error)})


def _tailed(visit: Visit, tailed: Tailed) -> dict[str, Any]:
    messages = [_row(visit, message) for message in tailed.messages]
    return {"messages": messages, "dropped": tailed.dropped, "hidden": tailed.bodies_hidden}


def _row(visit: Visit, message: StoredMessage) -> dict[str, Any]:
    place = f"/topics/{segment(visit.name())}/{message.queue_id}/{message.queue_offset}"
    return {
        "address": visit.url(place),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "stored": message.store_timestamp,
        "tag": message.tag or "",
        "keys": " ".join(message.keys),
        "text": bodies.one_line(message.body),
    }


def _event(kind: str, data: object) -> str:
    """One event; its id tells the next connection of the browser that it is not the first."""
    return f"event: {kind}\nid: 1\ndata: {json.dumps(data)}\n\n"
