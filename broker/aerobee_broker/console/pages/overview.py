"""The first page: what the broker does now and did lately, what needs attention; and the rights of an account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

from starlette.responses import Response

from aerobee_broker.console import rendering
from aerobee_broker.console.figures import SPANS, Figures, step_of
from aerobee_broker.console.visit import Visit
from aerobee_proto import admin_v1

_SHOWN: Final = 8
_MESSAGES: Final = (
    ("messages_in", "in", "in"),
    ("messages_out", "out", "out"),
    ("acknowledged", "acknowledged", "acknowledged"),
)
_ItemT = TypeVar("_ItemT")


async def show(visit: Visit) -> Response:
    """The overview; for an account that may not look at it, what it may do."""
    if not visit.may_look:
        return await rights(visit)
    admin = visit.admin
    broker, store, problems, history = await asyncio.gather(
        admin.broker_status(), admin.store_status(), admin.problems(), admin.history(step_of(visit.query))
    )
    topics, groups, oldest = await asyncio.gather(
        _listed(admin.topic_status(order="in_rate", descending=True, max_count=_SHOWN)),
        _listed(admin.group_status(order="lag", descending=True, max_count=_SHOWN)),
        _listed(admin.group_status(order="age", descending=True, max_count=1)),
    )
    figures = Figures(history)
    charts = (
        figures.chart("Messages a second", rendering.rate, *_MESSAGES),
        figures.chart("Backlog of all groups", rendering.number, ("backlog", "messages", "backlog")),
        figures.chart("Bytes in a second", rendering.size, ("bytes_in", "stored", "in")),
        figures.chart("Syncs a second", rendering.rate, ("syncs", "of the log", "plain")),
    )
    return visit.page(
        "overview.html",
        broker=broker,
        store=store,
        problems=problems,
        critical=admin_v1.Severity.SEVERITY_CRITICAL,
        figures=figures,
        charts=charts,
        spans=SPANS,
        topics=topics,
        groups=groups,
        oldest=min((each.oldest_timestamp.ToMilliseconds() for each in oldest if each.lag), default=None),
    )


async def rights(visit: Visit) -> Response:
    """Who is signed in, and what the account may do."""
    return visit.page("rights.html", account=visit.identity.account)


async def _listed(items: AsyncIterator[_ItemT]) -> list[_ItemT]:
    return [item async for item in items]
