"""Clients: who is connected, and one client."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from aerobee_broker.console import words
from aerobee_broker.console.lists import PAGE_COUNT
from aerobee_broker.console.visit import Visit, segment
from aerobee_client import NotFoundError
from aerobee_proto import admin_v1, v2

_LOOKED_AT: Final = 2000
"""Clients that a search for a part of a client id looks at."""


async def show_all(visit: Visit) -> Response:
    """The clients, of a group or topic, or with a part of a client id."""
    query = visit.query
    text, group, topic = query.text("q"), query.text("group"), query.text("topic")
    clients: list[admin_v1.Connection] = []
    token = query.text("page")
    if text:
        looked_at = 0
        async for client in visit.admin.connections(group=group, topic=topic):
            looked_at += 1
            if text.casefold() in client.client_id.casefold():
                clients.append(client)
            if looked_at == _LOOKED_AT or len(clients) == 2 * PAGE_COUNT:
                break
        following = ""
    else:
        request = admin_v1.ListConnectionsRequest(group=group, topic=topic, page_size=PAGE_COUNT, page_token=token)
        found = await visit.admin.call(lambda stubs: stubs.aerobee_admin.ListConnections, request)
        clients, following = list(found.connections), found.next_page_token
    return visit.page(
        "clients.html",
        clients=clients,
        next=following,
        client_type=words.client_type,
        sdk=words.sdk,
        subscription=words.subscription,
    )


async def show(visit: Visit) -> Response:
    """One client, as it described itself."""
    return await _shown(visit)


async def show_stacks(visit: Visit) -> Response:
    """The same, with the stacks of its threads, which it is asked for."""
    return await _shown(visit, await visit.admin.client_stacks(visit.name()))


async def try_message(visit: Visit) -> Response:
    """Give a stored message to the listener of a push consumer, as a test."""
    name, fields = visit.name(), visit.fields
    topic, message_id = fields.needed("topic", "Topic"), fields.needed("message", "Message id")
    await visit.admin.verify_message(name, fields.needed("group", "Group"), topic, message_id)
    note = f"The listener consumed message {message_id}. Nothing is acknowledged or counted."
    return visit.go(visit.url(f"/clients/{segment(name)}"), note)


async def _shown(visit: Visit, stacks: str = "") -> Response:
    name = visit.name()
    found = [client async for client in visit.admin.connections(client_id=name)]
    if not found:
        raise NotFoundError(v2.Code.NOT_FOUND, f"client {name} is not connected")
    return visit.page(
        "client.html",
        name=name,
        client=found[0],
        client_type=words.client_type,
        sdk=words.sdk,
        subscription=words.subscription,
        stacks=stacks,
        settings_text=str(found[0].settings) if found[0].HasField("settings") else "",
    )


async def disconnect(visit: Visit) -> Response:
    """Forget a client."""
    name = visit.name()
    await visit.admin.disconnect_client(name)
    return visit.go(visit.url("/clients"), f"Client {name} was forgotten; if it runs on, it connects again.")


async def reconnect(visit: Visit) -> Response:
    """Ask a client to open its Telemetry stream anew."""
    name = visit.name()
    await visit.admin.reconnect_client(name)
    return visit.go(visit.url(f"/clients/{segment(name)}"), "The client was told to connect again; not every SDK does.")
