"""Items 36, 37 and 123: brokers and name servers that start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import Address
from aerobee_broker.namesrv import requests, server
from aerobee_broker.namesrv.requests import WIPED_FILE
from aerobee_broker.namesrv.route_tables import Broker, RouteTables
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_store.testing import ManualClock
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, remoting_broker, send

_ANY = Address("127.0.0.1", 0)


@asynccontextmanager
async def name_server(directory: Path, address: Address = _ANY) -> AsyncIterator[Address]:
    """A name server in this event loop, stopped at the end."""
    stop = asyncio.Event()
    ready: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.run(address, directory, stop, lambda bound, _: ready.set_result(bound)))
    async with asyncio.timeout(60):
        yield await ready
    stop.set()
    assert await task == 0


async def _eventually(ask: Callable[[], Awaitable[Any]], wanted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(60):
        while not wanted(found := await ask()):  # noqa: ASYNC110 - it happens elsewhere
            await asyncio.sleep(0.05)
    return found


async def _route(address: Address, topic: str) -> Any:
    client = await RemotingClient.connect(address)
    try:
        answer = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": topic})
        return json_body(answer)["brokerDatas"] if answer.code == Answer.SUCCESS else None
    finally:
        await client.close()


async def _known_to(address: Address, topic: str) -> Any:
    """The route, once the name server has it."""
    return await _eventually(lambda: _route(address, topic), bool)


async def test_c036_a_name_server_restarts(tmp_path: Path) -> None:
    """It answers at once with saved routes, then with the broker's own registration; stored values are kept."""
    value = {"namespace": "n", "key": "k", "value": "v"}
    async with name_server(tmp_path / "ns") as address:
        async with remoting_broker(tmp_path / "store", namesrv=(str(address),)) as (broker, client):
            await send(client, "Kept")
            before = await _known_to(address, "Kept")
            assert before[0]["brokerAddrs"] == {"0": str(broker.remoting)}
        asking = await RemotingClient.connect(address)
        assert (await asking.call(Request.PUT_KV_CONFIG, value)).code == 0
        await asking.close()
    async with name_server(tmp_path / "ns") as address:
        assert await _route(address, "Kept") is None, "the broker had left"
        asking = await RemotingClient.connect(address)
        assert (await asking.call(Request.GET_KV_CONFIG, value)).fields == {"value": "v"}
        await asking.close()


async def test_routes_survive_the_restart_of_a_name_server(tmp_path: Path) -> None:
    """A second name server answers with the saved routes at once, before any broker registers."""
    async with name_server(tmp_path / "ns") as address:
        names = (str(address),)
        async with remoting_broker(tmp_path / "store", namesrv=names) as (_, client):
            await send(client, "Kept")
            before = await _known_to(address, "Kept")
            await _eventually(lambda: _exists(tmp_path / "ns" / "routes.json"), bool)
            (tmp_path / "copy").mkdir()
            (tmp_path / "copy" / "routes.json").write_bytes((tmp_path / "ns" / "routes.json").read_bytes())
            async with name_server(tmp_path / "copy") as restarted:
                assert await _route(restarted, "Kept") == before


async def test_a_wiped_write_permission(tmp_path: Path) -> None:
    """The broker's old and new topics are read-only for producers until it is restored, even after a restart."""

    async def permission(address: Address, topic: str) -> int:
        client = await RemotingClient.connect(address)
        try:
            answer = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": topic})
            return int(json_body(answer)["queueDatas"][0]["perm"]) if answer.code == Answer.SUCCESS else 0
        finally:
            await client.close()

    async def told(address: Address, code: Request) -> dict[str, str]:
        client = await RemotingClient.connect(address)
        try:
            return (await client.call(code, {"brokerName": "aerobee"})).fields
        finally:
            await client.close()

    async with AsyncExitStack() as servers:
        first = await servers.enter_async_context(AsyncExitStack())
        address = await first.enter_async_context(name_server(tmp_path / "ns"))
        async with remoting_broker(tmp_path / "store", namesrv=(str(address),)) as (_, client):
            await send(client, "Old")
            await _eventually(lambda: permission(address, "Old"), lambda found: found == 6)
            assert int((await told(address, Request.WIPE_WRITE_PERMISSION_OF_BROKER))["wipeTopicCount"]) > 0
            assert "aerobee" in (tmp_path / "ns" / WIPED_FILE).read_text(), "a kill after the answer changes nothing"
            assert await permission(address, "Old") == 4
            await send(client, "New")  # on the old connection; the broker itself still accepts messages
            assert await _eventually(lambda: permission(address, "New"), bool) == 4
            await first.aclose()
            await servers.enter_async_context(name_server(tmp_path / "ns", address))
            assert await _eventually(lambda: permission(address, "Old"), bool) == 4
            await told(address, Request.ADD_WRITE_PERMISSION_OF_BROKER)
            assert await permission(address, "Old") == 6


async def test_write_permissions_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of brokers that are gone stay, so their number is limited."""
    monkeypatch.setattr(requests, "BROKERS_MAX", 2)
    tables = RouteTables(ManualClock())
    permissions = requests.WritePermissions(tables)
    tables.wiped = frozenset({"gone", "gone too"})
    tables._brokers["a"] = Broker("c", "a")
    with pytest.raises(RemotingError, match="give it back to some first"):
        await permissions.wipe("a")
    await permissions.restore_writes("gone")
    await permissions.wipe("a")
    await permissions.wipe("nobody")
    assert tables.wiped == {"gone too", "a"}


async def _exists(path: Path) -> bool:
    return path.exists() and b"Kept" in path.read_bytes()


async def test_c037_two_name_servers(tmp_path: Path) -> None:
    """Both know the broker and its topics.

    When one stops the other continues, and a successor gets the registration.
    """
    async with name_server(tmp_path / "one") as one, AsyncExitStack() as second:
        two = await second.enter_async_context(name_server(tmp_path / "two"))
        names = (str(one), str(two))
        async with remoting_broker(tmp_path / "store", namesrv=names) as (broker, client):
            await _known_to(one, "TBW102")
            await _known_to(two, "TBW102")
            await send(client, "Both")
            for address in (one, two):
                assert (await _known_to(address, "Both"))[0]["brokerAddrs"] == {"0": str(broker.remoting)}
            await second.aclose()
            await send(client, "One")
            await _known_to(one, "One")
            async with name_server(tmp_path / "two", two):
                await _known_to(two, "One")
        assert await _route(one, "Both") is None, "the broker has said goodbye"


async def test_c123_an_orderly_stop(tmp_path: Path) -> None:
    """Name servers are informed, and held pulls end; the fixture checks the broker's exit code 0."""
    async with name_server(tmp_path / "ns") as address:
        names = (str(address),)
        async with remoting_broker(tmp_path / "store", namesrv=names) as (_, client):
            await send(client, "Stopping")
            await _known_to(address, "Stopping")
            held = client.begin(Request.PULL_MESSAGE, pull_fields("Stopping", offset=1, sys_flag=6))
            await client.call(106)
            keep = client.close
            client.close = _nothing  # type: ignore[method-assign]  # the connection stays until the broker ends it
        assert (await held).code == Answer.PULL_NOT_FOUND
        await client.closed()
        await keep()
        assert await _route(address, "Stopping") is None


async def _nothing() -> None:
    pass
