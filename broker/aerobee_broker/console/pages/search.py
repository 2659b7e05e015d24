"""Search everywhere: names of topics and groups, clients, and messages by id or key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

from starlette.responses import Response

from aerobee_broker.console.visit import Visit, segment
from aerobee_client import ClientError, ForbiddenError, NotFoundError, StoredMessage

_NAMES_SHOWN: Final = 20
_CLIENTS_LOOKED_AT: Final = 2000
_TOPICS_LOOKED_IN: Final = 100
"""Those that got messages last; an index answers each question in about a millisecond."""
_AT_A_TIME: Final = 8
_MESSAGES_SHOWN: Final = 50
_ItemT = TypeVar("_ItemT")


async def show(visit: Visit) -> Response:
    """What was found; a single hit is opened at once."""
    text = visit.query.text("q")[:255]
    if not text:
        return visit.page("search.html", text="", topics=[], groups=[], clients=[], messages=[], looked_in=0)
    topics, groups, clients, (messages, looked_in) = await asyncio.gather(
        _some(visit.admin.topic_status(search=text, include_system=True, max_count=_NAMES_SHOWN)),
        _some(visit.admin.group_status(search=text, include_system=True, max_count=_NAMES_SHOWN)),
        _clients(visit, text),
        _messages(visit, text),
    )
    addresses = [
        *(f"/topics/{segment(each.topic.name)}" for each in topics),
        *(f"/groups/{segment(each.group.name)}" for each in groups),
        *(f"/clients/{segment(each)}" for each in clients),
        *(f"/topics/{segment(each.topic)}/{each.queue_id}/{each.queue_offset}" for each in messages),
    ]
    if len(addresses) == 1:
        return visit.go(visit.url(addresses[0]))
    return visit.page(
        "search.html", text=text, topics=topics, groups=groups, clients=clients, messages=messages, looked_in=looked_in
    )


async def _some(items: AsyncIterator[_ItemT]) -> list[_ItemT]:
    return [item async for item in items]


async def _clients(visit: Visit, text: str) -> list[str]:
    found, looked_at = [], 0
    async for client in visit.admin.connections():
        looked_at += 1
        if text.casefold() in client.client_id.casefold():
            found.append(client.client_id)
        if len(found) == _NAMES_SHOWN or looked_at == _CLIENTS_LOOKED_AT:
            break
    return found


async def _messages(visit: Visit, text: str) -> tuple[list[StoredMessage], int]:
    """Messages with this id or key in the topics that got messages last, and in how many topics was looked."""
    names = [
        each.topic.name
        async for each in visit.admin.topic_status(order="last_stored", descending=True, max_count=_TOPICS_LOOKED_IN)
    ]
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def of_topic(name: str) -> list[StoredMessage]:
        async with gate:
            try:
                by_id = await _some(visit.admin.query(name, message_id=text, max_count=_MESSAGES_SHOWN))
                return by_id or await _some(visit.admin.query(name, key=text, max_count=_MESSAGES_SHOWN))
            except (ForbiddenError, NotFoundError):
                return []
            except ClientError as error:
                if "id" in str(error):  # a text that can be no id of a message
                    return await _some(visit.admin.query(name, key=text, max_count=_MESSAGES_SHOWN))
                raise

    found = await asyncio.gather(*(of_topic(name) for name in names))
    messages = {(each.topic, each.queue_id, each.queue_offset): each for some in found for each in some}
    return list(messages.values())[:_MESSAGES_SHOWN], len(names)
