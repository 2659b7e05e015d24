"""`aerobee namesrv`: a stand-alone name server with three files.

kvConfig.json: the values of operators, in RocketMQ's format; saved before a change is answered.

wipedBrokers.json: the brokers without write permission, in Aerobee's format; saved before a change is answered.

routes.json: the routes of a few seconds ago, in Aerobee's format, so that a restarted server can answer at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from aerobee_broker.config import Address
from aerobee_broker.counters.loop_delay import LoopDelay
from aerobee_broker.limits.garbage import GarbageCollection
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.namesrv.requests import WIPED_FILE, KvConfig, NameServerRequests, WritePermissions
from aerobee_broker.namesrv.route_tables import RouteTables
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection, Identity, RemotingServer
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.frame import Command
from aerobee_store import SystemClock
from aerobee_store.clock import Clock
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.tables.json_table import JsonTable

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0  # between checks for silent brokers, and saves of routes
_DRAIN_SECONDS: Final = 2.0


class NameServerParts(Struct, frozen=True):
    """What the metrics of a name server show."""

    tables: RouteTables
    ledger: Ledger
    loop_delay: LoopDelay
    connections: Callable[[], int]


async def run(
    address: Address,
    directory: Path,
    stop: asyncio.Event,
    announce: Callable[[Address, NameServerParts], None],
    *,
    clock: Clock | None = None,
    check: Callable[[Command, Connection], None] = lambda request, connection: None,
    identity: Identity | None = None,
) -> int:
    """Serve until `stop` is set; returns 0.

    `announce` gets the bound address and the parts, `check` refuses requests by raising, and `identity` is that of this
    process among brokers.

    Raises ListenError, TableFormatError, UnreadableTableError, OSError.
    """
    tables = RouteTables(clock or SystemClock())
    directory.mkdir(parents=True, exist_ok=True)
    ledger = Ledger()
    routes, config, permissions = await _restored(tables, directory, ledger)
    requests = NameServerRequests(
        tables,
        config,
        permissions,
        lambda: {"listenPort": str(bound.port), "serverMode": "namesrv", "storeDirectory": str(directory)},
    )

    async def handle(request: Command, connection: Connection) -> Command | None:
        handler = requests.handlers.get(request.code)
        if handler is None:
            raise RemotingError(Answer.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
        check(request, connection)
        return await handler(request, connection)

    server = RemotingServer(handle, ledger=ledger, identity=identity)
    server.closed_listeners.append(lambda connection: _log_gone(tables.connection_closed(connection.key), "closed"))
    bound = await server.listen("--listen", address)
    loop_delay = LoopDelay()
    try:
        announce(bound, NameServerParts(tables, ledger, loop_delay, lambda: len(server.connections)))
        async with asyncio.TaskGroup() as tasks:
            services = [tasks.create_task(each.run(), name=each.name) for each in (loop_delay, GarbageCollection())]
            await _save_until(stop, tables, routes)
            for service in services:
                service.cancel()
    finally:
        await server.stop(_DRAIN_SECONDS)
    return 0


async def _restored(
    tables: RouteTables, directory: Path, ledger: Ledger
) -> tuple[JsonTable, KvConfig, WritePermissions]:
    """The file of the routes, which are in `tables` now; the configuration of the clients; and brokers that topics may
    not be written to."""
    files = DiskFileSystem()
    values, routes = JsonTable(files, directory / "kvConfig.json"), JsonTable(files, directory / "routes.json")
    wiped = JsonTable(files, directory / WIPED_FILE)
    known = await asyncio.to_thread(routes.load)
    if known is not None:
        tables.restore(known)
    config = KvConfig(lambda content: asyncio.to_thread(values.save, content), ledger)
    config.restore(await asyncio.to_thread(values.load))
    permissions = WritePermissions(tables, lambda content: asyncio.to_thread(wiped.save, content))
    permissions.restore(await asyncio.to_thread(wiped.load))
    return routes, config, permissions


async def _save_until(stop: asyncio.Event, tables: RouteTables, file: JsonTable) -> None:
    """Save changed routes, and remove silent brokers, until `stop` is set."""
    saved = tables.revision
    while not stop.is_set():
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await stop.wait()
        except TimeoutError:
            _log_gone(tables.expire(), "silent")
        if tables.revision != saved:
            saved = tables.revision
            await asyncio.to_thread(file.save, tables.snapshot())


def _log_gone(addresses: list[str], cause: str) -> None:
    for address in addresses:
        _log.warning("broker is gone address=%s cause=%s", address, cause)
