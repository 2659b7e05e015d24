"""Who is connected, and when somebody is not any more."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.clients import ClientRegistry
from aerobee_proto import v2
from aerobee_store.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clients(clock: ManualClock) -> ClientRegistry:
    return ClientRegistry(clock, expiry_seconds=120)


def command(nonce: str) -> v2.TelemetryCommand:
    return v2.TelemetryCommand(reconnect_endpoints_command=v2.ReconnectEndpointsCommand(nonce=nonce))


def test_any_call_is_a_sign_of_life(clients: ClientRegistry, clock: ManualClock) -> None:
    """A client that calls within the time stays; one that is silent for longer is gone, and the listeners hear it."""
    gone: list[str] = []
    clients.gone_listeners.append(gone.append)
    clients.seen("lively")
    clients.seen("silent")
    clock.advance(119)
    clients.seen("lively")
    clients.expire()
    assert gone == []
    clock.advance(2)
    clients.expire()
    assert gone == ["silent"]
    assert clients.get("silent") is None
    assert [client.client_id for client in clients.all()] == ["lively"]


def test_termination(clients: ClientRegistry) -> None:
    """A goodbye takes effect at once; that of nobody is harmless."""
    gone: list[str] = []
    clients.gone_listeners.append(gone.append)
    clients.seen("a")
    clients.terminate("a")
    clients.terminate("a")
    clients.terminate("never seen")
    assert gone == ["a"]
    assert len(clients) == 0


def test_who_consumes_and_produces(clients: ClientRegistry) -> None:
    """Clients are found by group and by topic."""
    consumer, producer = clients.seen("c"), clients.seen("p")
    consumer.group, consumer.client_type = "g", v2.ClientType.SIMPLE_CONSUMER
    producer.topics, producer.client_type = frozenset({"t"}), v2.ClientType.PRODUCER
    assert clients.of_group("g") == [consumer]
    assert clients.producers_of("t") == [producer]
    assert (consumer.is_consumer, producer.is_consumer) == (True, False)


async def test_a_client_that_does_not_read_costs_nothing(clients: ClientRegistry) -> None:
    """Writing never waits, and of many unread commands the newest are kept."""
    client = clients.seen("a")
    stream = clients.open_stream(client)
    for number in range(1000):
        assert client.command(command(str(number)))
    stream.close()
    nonces = []
    while (pending := await stream.next()) is not None:
        nonces.append(int(pending.reconnect_endpoints_command.nonce))
    assert nonces == list(range(1000 - len(nonces), 1000))
    assert 1 <= len(nonces) <= 100


async def test_a_second_stream_replaces_the_first(clients: ClientRegistry) -> None:
    """The first ends; its end does not take the second away."""
    client = clients.seen("a")
    first = clients.open_stream(client)
    second = clients.open_stream(client)
    assert await first.next() is None
    clients.close_stream(client, first)
    assert client.stream is second
    clients.close_stream(client, second)
    assert not client.command(command("1"))


async def test_silent_clients_lose_their_stream(clients: ClientRegistry, clock: ManualClock) -> None:
    """Whoever waits for the next command of a client that is gone is told that there is none."""
    stream = clients.open_stream(clients.seen("a"))
    waiting = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    clock.advance(121)
    clients.expire()
    async with asyncio.timeout(5):
        assert await waiting is None


async def test_after_a_goodbye_the_client_hangs_up(clients: ClientRegistry) -> None:
    """Its stream stays open until then, takes no more commands, and ends at the latest when the broker stops."""
    client = clients.seen("a")
    stream = clients.open_stream(client)
    clients.terminate("a")
    assert not client.command(command("1"))
    waiting = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    clients.close_streams()
    async with asyncio.timeout(5):
        assert await waiting is None
