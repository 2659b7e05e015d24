"""Dead letters: the groups that have some, those of one group, and one with its body; resent or exported."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

from starlette.responses import Response, StreamingResponse

from aerobee_broker.console import bodies
from aerobee_broker.console.forms import FormError
from aerobee_broker.console.lists import PAGE_COUNT
from aerobee_broker.console.pages import sending
from aerobee_broker.console.pages.topics import confirmed
from aerobee_broker.console.visit import Visit, segment
from aerobee_broker.message_json import dead_letter_json
from aerobee_broker.units import counted
from aerobee_client import NotFoundError
from aerobee_client.messages.message import stored_message
from aerobee_proto import admin_v1, v2

_SELECTED_MAX: Final = 1000
"""What one call takes."""


async def show_all(visit: Visit) -> Response:
    """The groups that have dead letters."""
    queues = [queue async for queue in visit.admin.dead_letter_queues()]
    queues.sort(key=lambda queue: (-queue.count, queue.group))
    return visit.page("dead_letter_queues.html", queues=queues)


async def show(visit: Visit) -> Response:
    """The dead letters of one group, oldest first."""
    group, query = visit.name(), visit.query
    request = admin_v1.ListDeadLettersRequest(
        group=group,
        message_id=query.text("id"),
        include_bodies=True,
        page_size=PAGE_COUNT,
        page_token=query.text("page"),
    )
    for field, label in (("begin", "Given up from"), ("end", "until")):
        if (moment := query.moment(field, label)) is not None:
            getattr(request, f"{field}_timestamp").FromMilliseconds(moment)
    found = await visit.admin.call(lambda stubs: stubs.aerobee_admin.ListDeadLetters, request)
    return visit.page(
        "dead_letters.html",
        name=group,
        letters=[(letter, stored_message(letter.message)) for letter in found.dead_letters],
        next=found.next_page_token,
        one_line=bodies.one_line,
        chosen=set(visit.fields.getlist("offsets")),
    )


async def show_one(visit: Visit) -> Response:
    """One dead letter with its body."""
    letter = await _letter(visit)
    message = stored_message(letter.message)
    return visit.page(
        "dead_letter.html",
        name=visit.name(),
        given=visit.fields or sending.fields_of(message),
        letter=letter,
        message=message,
        body=bodies.shown(message.body, visit.query.text("as")),
    )


async def resend(visit: Visit) -> Response:
    """Send the chosen ones again, to their topics or another."""
    group, offsets = visit.name(), _chosen(visit)
    topic = visit.fields.text("topic")
    results = await visit.admin.resend_dead_letters(group, offsets, topic=topic, again=visit.fields.is_on("again"))
    return _done(visit, "sent again", [result.status for result in results])


async def delete(visit: Visit) -> Response:
    """Remove the chosen ones, or all of a group whose name was typed."""
    group = visit.name()
    if visit.fields.is_on("everything"):
        count = await visit.admin.delete_dead_letters(confirmed(visit, "the group"), everything=True)
    else:
        count = await visit.admin.delete_dead_letters(group, _chosen(visit))
    return visit.go(visit.url(f"/dead-letters/{segment(group)}"), f"{counted(count, 'dead letter')} deleted.")


async def resend_edited(visit: Visit) -> Response:
    """Send one again with other contents."""
    fields, edit = visit.fields, admin_v1.DeadLetterEdit()
    edit.body = sending.body_of(fields)
    edit.tag = fields.text("tag")
    edit.keys.values.extend(fields.text("keys").split())
    letter = await _letter(visit)
    properties = sending.properties_of(fields.get("properties", ""))
    edit.set_properties.update(properties)
    edit.delete_properties.extend(set(letter.message.user_properties) - properties.keys())
    offset = visit.request.path_params["offset"]
    topic = fields.text("topic")
    results = await visit.admin.resend_dead_letters(visit.name(), [offset], topic=topic, again=True, edit=edit)
    return _done(visit, "sent again, edited", [result.status for result in results])


async def export(visit: Visit) -> Response:
    """All of a group as lines of JSON, as `aerobee dlq export` writes them."""
    group = visit.name()

    async def lines() -> AsyncIterator[str]:
        async for letter in visit.admin.dead_letters(group, bodies=True):
            yield f"{json.dumps(dead_letter_json(letter))}\n"
            await asyncio.sleep(0)  # other pages run between two letters

    # The first call is made here, so that a refusal is a page and not half a file.
    await visit.admin.call(
        lambda stubs: stubs.aerobee_admin.ListDeadLetters, admin_v1.ListDeadLettersRequest(group=group, page_size=1)
    )
    disposition = f"attachment; filename*=UTF-8''{segment(group)}-dead-letters.jsonl"
    return StreamingResponse(
        lines(), media_type="application/jsonl; charset=utf-8", headers={"content-disposition": disposition}
    )


async def _letter(visit: Visit) -> admin_v1.DeadLetter:
    group, offset = visit.name(), visit.request.path_params["offset"]
    letter = await visit.admin.dead_letter(group, offset)
    if letter is None:
        raise NotFoundError(v2.Code.MESSAGE_NOT_FOUND, f"group {group} has no dead letter {offset} any more")
    return letter


def _chosen(visit: Visit) -> list[int]:
    offsets = visit.fields.numbers("offsets", "Dead letters")
    if not offsets:
        raise FormError("no dead letter is chosen; tick some")
    if len(offsets) > _SELECTED_MAX:
        raise FormError(f"{len(offsets):,} dead letters are chosen; choose at most {_SELECTED_MAX:,} at a time")
    return offsets


def _done(visit: Visit, what: str, statuses: Sequence[v2.Status]) -> Response:
    """Back to the list, with what became of the chosen ones."""
    good = sum(1 for status in statuses if status.code == v2.Code.OK)
    causes = Counter(status.message for status in statuses if status.code != v2.Code.OK)
    text = f"{good:,} of {len(statuses):,} {what}."
    for cause, count in causes.most_common(3):
        text += f" {count:,} not: {cause}."
    address = visit.url(f"/dead-letters/{segment(visit.name())}")
    return visit.go(address, text, "failed" if causes else "done")
