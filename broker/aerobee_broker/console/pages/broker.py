"""The broker itself: store, replication and other brokers; settings; accounts."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from aerobee_broker.console import rendering, words
from aerobee_broker.console.figures import SPANS, Figures, step_of
from aerobee_broker.console.lists import PAGE_COUNT
from aerobee_broker.console.visit import Visit
from aerobee_proto import admin_v1


async def show_store(visit: Visit) -> Response:
    """The log, the disks, and how far replicas are."""
    admin = visit.admin
    broker, store, history, log, cluster = await asyncio.gather(
        *(admin.broker_status(), admin.store_status(), admin.history(step_of(visit.query)), admin.segments()),
        admin.brokers(),
    )
    figures = Figures(history)
    charts = (
        figures.chart("Disk used", rendering.size, ("disk_used_bytes", "of the store’s disk", "backlog")),
        figures.chart("Memory of the broker", rendering.size, ("memory_bytes", "resident", "plain")),
        figures.chart("Syncs a second", rendering.rate, ("syncs", "of the log", "plain")),
        figures.chart("Delay of the event loop", _milliseconds, ("loop_delay_seconds", "longest", "in")),
    )
    return visit.page(
        "store.html",
        broker=broker,
        store=store,
        charts=charts,
        spans=SPANS,
        log=log,
        cluster=cluster,
        addresses=words.addresses,
        segments=list(reversed(log.segments))[:_SEGMENTS_SHOWN],
    )


_SEGMENTS_SHOWN: Final = 100


def _milliseconds(seconds: float) -> str:
    return rendering.UNKNOWN if seconds != seconds else f"{seconds * 1000:,.3g} ms"


_SHOWN: Final = ("all", "changed", "changeable")


async def show_settings(visit: Visit) -> Response:
    """Every setting with its value, unit and source."""
    query = visit.query
    text = query.text("q").casefold()
    shown = query.chosen("show", "Show", _SHOWN, "all")
    settings = [
        setting
        for setting in await visit.admin.configuration()
        if text in setting.name.casefold()
        and (shown != "changed" or setting.value != setting.default_value)
        and (shown != "changeable" or setting.changeable)
    ]
    return visit.page("settings.html", found=settings, shown=shown, unit=words.unit, source=words.source)


async def change_setting(visit: Visit) -> Response:
    """Give a setting another value until it is taken back, also after restarts; without a value its other source."""
    name = visit.fields.needed("name", "Setting")
    value = visit.fields.text("value")
    if visit.fields.is_on("unset"):
        await visit.admin.update_configuration(unset=[name])
        note = f"{name} has the value of its other source again."
    else:
        await visit.admin.update_configuration({name: value})
        note = f"{name} is {value} now."
    return visit.go(visit.url("/settings", q=visit.query.text("q"), show=visit.query.text("show")), note)


async def show_changes(visit: Visit) -> Response:
    """Who changed what, newest first."""
    query = visit.query
    request = admin_v1.ListOperationsRequest(
        account=query.text("account"), search=query.text("q"), page_size=PAGE_COUNT, page_token=query.text("page")
    )
    found = await visit.admin.call(lambda stubs: stubs.aerobee_admin.ListOperations, request)
    return visit.page("changes.html", changes=found.operations, next=found.next_page_token)


async def show_accounts(visit: Visit) -> Response:
    """The accounts and their rights."""
    accounts = [account async for account in visit.admin.accounts()]
    return visit.page("accounts.html", accounts=accounts)
