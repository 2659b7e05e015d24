"""The registry of connected clients, their commands, and their expiry."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.clients import registry as clients_module
from aerobee_broker.clients.registry import Client, ClientRegistry, TelemetryStream
from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import ClientNotConnectedError, ClientSilentError, TooManyRequestsError
from aerobee_broker.limits.ledger import Ledger
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


def test_any_call_counts_as_a_heartbeat(clients: ClientRegistry, clock: ManualClock) -> None:
    """Each call renews a client. A client that is silent for longer expires, and the listeners are called."""
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


def test_the_client_with_the_oldest_call_makes_room(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    """As if it had gone: its memory is given back, and the listeners are called."""
    monkeypatch.setattr(clients_module, "_CLIENTS_MAX", 2)
    ledger, gone = Ledger(), list[str]()
    clients = ClientRegistry(clock, ledger=ledger)
    clients.gone_listeners.append(gone.append)
    for client_id in ("a", "b", "a"):
        clients.seen(client_id)
    held = ledger.held
    clients.seen("c")
    assert gone == ["b"]
    assert [client.client_id for client in clients.all()] == ["a", "c"]
    assert ledger.held == held


async def command_of(stream: TelemetryStream) -> v2.TelemetryCommand:
    """The next command of a stream."""
    data = await stream.next()
    assert data is not None
    return v2.TelemetryCommand.FromString(data)


async def test_a_command_and_its_answer(clients: ClientRegistry) -> None:
    """The answer must come from the requested client and have the command's nonce, in either field."""
    client, other = clients.seen("c"), clients.seen("other")
    stream = clients.open_stream(client)
    for field in ("thread_stack_trace", "print_thread_stack_trace_command"):
        asking = asyncio.ensure_future(clients.print_stacks(client))
        sent = await command_of(stream)
        nonce = sent.print_thread_stack_trace_command.nonce
        answer = v2.TelemetryCommand(status=v2.Status(code=v2.Code.OK))
        getattr(answer, field).nonce = nonce
        clients.answered(other, answer)
        clients.answered(client, v2.TelemetryCommand(thread_stack_trace=v2.ThreadStackTrace(nonce="another")))
        clients.answered(client, v2.TelemetryCommand())
        await asyncio.sleep(0)
        assert not asking.done()
        clients.answered(client, answer)
        clients.answered(client, answer)
        assert await asking == answer
    asking = asyncio.ensure_future(clients.verify_message(client, v2.Message(body=b"b")))
    sent = await command_of(stream)
    assert sent.verify_message_command.message.body == b"b"
    failed = v2.TelemetryCommand(
        status=v2.Status(code=v2.Code.FAILED_TO_CONSUME_MESSAGE),
        verify_message_result=v2.VerifyMessageResult(nonce=sent.verify_message_command.nonce),
    )
    clients.answered(client, failed)
    assert await asking == failed


async def test_a_command_without_an_answer(clients: ClientRegistry) -> None:
    """A command ends at its timeout, with the stream, or with the client. Without a stream it fails at once."""
    client = clients.seen("c")
    with pytest.raises(ClientNotConnectedError, match="Telemetry"):
        await clients.print_stacks(client)
    assert not clients.reconnect(client)
    stream = clients.open_stream(client)
    with pytest.raises(ClientSilentError, match=r"within 0\.01 s"):
        await clients.print_stacks(client, seconds=0.01)
    asking = asyncio.ensure_future(clients.print_stacks(client))
    await asyncio.sleep(0)
    clients.close_stream(client, stream)
    with pytest.raises(ClientNotConnectedError):
        await asking
    clients.open_stream(client)
    asking = asyncio.ensure_future(clients.print_stacks(client))
    await asyncio.sleep(0)
    clients.terminate("c")
    with pytest.raises(ClientNotConnectedError):
        await asking


def test_consumers_by_group_and_producers_by_topic(clients: ClientRegistry) -> None:
    """Consumers are found by group, producers by topic."""
    consumer, producer = clients.seen("c"), clients.seen("p")
    consumer.group, consumer.client_type = "g", v2.ClientType.SIMPLE_CONSUMER
    producer.topics, producer.client_type = frozenset({"t"}), v2.ClientType.PRODUCER
    assert clients.of_group("g") == [consumer]
    assert clients.producers_of("t") == [producer]
    assert (consumer.is_consumer, producer.is_consumer) == (True, False)


async def test_a_client_that_does_not_read_has_bounded_commands(clients: ClientRegistry) -> None:
    """Writing a command never waits; of many unread commands only the newest are kept."""
    client = clients.seen("a")
    stream = clients.open_stream(client)
    for number in range(1000):
        assert client.command(command(str(number)))
    stream.close()
    nonces = []
    while stream.backlog:
        nonces.append(int((await command_of(stream)).reconnect_endpoints_command.nonce))
    assert await stream.next() is None
    assert nonces == list(range(1000 - len(nonces), 1000))
    assert 1 <= len(nonces) <= 100


async def test_settings_replace_those_that_were_not_sent(clock: ManualClock) -> None:
    """A client that does not read keeps its latest settings, and other commands, and all of them are counted."""
    ledger = Ledger()
    clients = ClientRegistry(clock, ledger=ledger)
    client = clients.seen("a")
    stream = clients.open_stream(client)
    client.command(command("1"))
    for number in range(10):
        topic = v2.Resource(name=f"{number}" * 1000)
        client.command(v2.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing(topics=[topic]))))
    assert stream.backlog == 2
    assert 1000 < ledger.held_of_kind["commands"] < 2000
    assert (await command_of(stream)).reconnect_endpoints_command.nonce == "1"
    assert (await command_of(stream)).settings.publishing.topics[0].name == "9" * 1000
    client.command(command("2"))
    clients.close_stream(client, stream)
    assert ledger.held_of_kind["commands"] == 0


async def test_the_longest_silent_clients_go_when_ids_fill_the_memory(clock: ManualClock) -> None:
    """Invented ids count in the ledger; past its bound some of them go, and nobody else does."""
    ledger = Ledger(LimitsConfig(waiting_bytes_max=100_000, request_bytes_max=40_000))
    clients = ClientRegistry(clock, ledger=ledger)
    clients.open_stream(clients.seen("connected"))
    peer = ledger.open("other", "host", lambda: pytest.fail("another peer is dropped"))
    peer.set("received", 100)
    for number in range(1000):
        clients.seen(f"invented {number}")
        assert ledger.held <= ledger.held_max
    assert "connected" in clients
    assert "invented 999" in clients
    assert "invented 0" not in clients


async def test_silent_clients_lose_their_stream(clients: ClientRegistry, clock: ManualClock) -> None:
    """The stream of an expired client ends."""
    stream = clients.open_stream(clients.seen("a"))
    waiting = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    clock.advance(121)
    clients.expire()
    async with asyncio.timeout(60):
        assert await waiting is None


async def test_after_termination_the_stream_takes_no_commands(clients: ClientRegistry) -> None:
    """After termination the stream stays open but takes no commands. It ends at the latest when the broker stops."""
    client = clients.seen("a")
    stream = clients.open_stream(client)
    clients.terminate("a")
    assert not client.command(command("1"))
    waiting = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    clients.close_streams()
    async with asyncio.timeout(60):
        assert await waiting is None


def test_invented_ids_do_not_fill_the_memory(clients: ClientRegistry) -> None:
    """With 100,000 clients, each further one replaces the least recently seen one."""
    gone: list[str] = []
    clients.gone_listeners.append(gone.append)
    for number in range(100_000):
        clients.seen(f"c{number}")
    clients.seen("c0")
    for number in range(1000):
        clients.seen(f"d{number}")
    assert len(clients) == 100_000
    assert gone == [f"c{number}" for number in range(1, 1001)]
    assert clients.get("c0") is not None


def test_settings_of_all_clients_have_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of disconnected clients are dropped first. If all are connected, further settings are refused."""
    monkeypatch.setattr(clients_module, "SETTINGS_BYTES_MAX", 10_000)
    registry = ClientRegistry(ManualClock())
    large = v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name="t" * 3000)]))

    def connected(name: str) -> Client:
        client = registry.seen(name)
        client.stream = TelemetryStream(Ledger().open_table("clients", lambda: None))
        return client

    gone = registry.seen("gone")
    registry.remember(gone, large)
    kept = [connected(f"kept {number}") for number in range(3)]
    for client in kept:
        registry.remember(client, large)
        registry.remember(client, large)  # replaces the first
    assert gone.settings is None
    assert all(client.settings == large for client in kept)
    with pytest.raises(TooManyRequestsError, match="fewer topics"):
        registry.remember(connected("one more"), large)
    assert all(client.settings == large for client in kept)
    registry.terminate("kept 0")
    registry.remember(connected("one more"), large)
    for name in ("gone", "kept 1", "kept 2", "one more"):
        registry.terminate(name)
    assert registry.settings_bytes == 0
