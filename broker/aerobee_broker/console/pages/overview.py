"""The first page: what the broker does now and did lately, what needs attention; and the rights of an account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

from starlette.responses import Response

from aerobee_broker.console.visit import Visit

_SHOWN: Final = 8
_ItemT = TypeVar("_ItemT")


async def show(visit: Visit) -> Response:
    """The overview; for an account that may not look at it, what it may do."""
    if not visit.may_look:
        return await rights(visit)
    admin = visit.admin
    broker, store, topics, groups = await asyncio.gather(
        admin.broker_status(),
        admin.store_status(),
        _listed(admin.topic_status(order="in_rate", descending=True, max_count=_SHOWN)),
        _listed(admin.group_status(order="lag", descending=True, max_count=_SHOWN)),
    )
    return visit.page("overview.html", broker=broker, store=store, topics=topics, groups=groups)


async def rights(visit: Visit) -> Response:
    """Who is signed in, and what the account may do."""
    return visit.page("rights.html", account=visit.identity.account)


async def _listed(items: AsyncIterator[_ItemT]) -> list[_ItemT]:
    return [item async for item in items]
