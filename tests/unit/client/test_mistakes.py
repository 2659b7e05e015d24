"""Mistakes of the program that uses the client fail at once, with the next step, and damage nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aerobee_client import (
    BadRequestError,
    Client,
    ClientError,
    ConfigurationError,
    Hooks,
    InvalidEndpointError,
    Message,
    ReceivedMessage,
    SendResult,
    blocking,
    connect,
)
from aerobee_client.filters import wire_filters
from aerobee_client.hooks import after_handle
from aerobee_client.messages.checks import check
from aerobee_client.sending.request import Sending
from aerobee_proto import v2
from aerobee_store.records.message_rules import ServerLimits
from tests.support.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.timeout(300)

MESSAGE = Message(topic="orders", body=b"x")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"body": "text"}, r"body is of type str; give bytes, such as text.encode\(\)"),
        ({"body": bytearray(b"x")}, "body is of type bytearray; give bytes"),
        ({"topic": b"orders"}, "topic is of type bytes; give a str"),
        ({"keys": "order-7"}, r"keys is of type str; give a tuple, such as \('order-7',\)"),
        ({"keys": (7,)}, "key.* is of type int; give a str"),
        ({"tag": 7}, "tag.* is of type int; give a str"),
        ({"properties": {"amount": 7}}, "property 'amount' is of type int; give a str"),
        ({"delivery_timestamp": 1.9e12}, "delivery_timestamp is of type float; give Unix milliseconds"),
        ({"delivery_timestamp": 1_900_000_000}, "before 1974; give Unix milliseconds, not seconds"),
        ({"delivery_timestamp": 60}, "not seconds or a delay"),
    ],
)
def test_fields_of_wrong_types(fields: dict[str, Any], text: str) -> None:
    """A message that mypy would reject is refused by its field's name before anything is sent."""
    with pytest.raises(BadRequestError, match=text):
        check(Message(**{"topic": "orders", "body": b"x", **fields}), ServerLimits())


async def test_a_failure_of_ours_ends_only_its_request(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception during a request reaches its callers, and later sends succeed."""

    async def broken(sending: Sending, messages: Sequence[object]) -> list[object]:
        raise RuntimeError("a bug")

    producer = client.producer()
    with monkeypatch.context() as patched:
        patched.setattr(Sending, "send_message", broken)
        with pytest.raises(ClientError, match="RuntimeError: a bug; the message may be stored"):
            await producer.send(MESSAGE)
    assert "a send failed unexpectedly" in caplog.text
    assert isinstance(await producer.send(MESSAGE), SendResult)


class FailingHooks(Hooks):
    """Raises after each operation."""

    def after_send(self, message: Message, outcome: object) -> None:
        raise RuntimeError("after a send")

    def after_handle(self, message: ReceivedMessage, error: BaseException | None) -> None:
        raise RuntimeError("after a handler")


class SilentHooks(Hooks):
    """Forgets to return the message."""

    def before_send(self, message: Message) -> Message:
        return None  # type: ignore[return-value]  # the mistake


async def test_a_hook_that_raises_after_a_send(broker: ScriptedBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The send succeeds, the exception is logged, and the producer's memory is free again."""
    async with connect(broker.endpoint, hooks=[FailingHooks()]) as client:
        producer = client.producer(waiting_count_max=1)
        for _ in range(2):
            assert isinstance(await producer.send(MESSAGE), SendResult)
        await producer.flush()
    assert caplog.text.count("a hook failed after a send hook=FailingHooks topic=orders") == 2


def test_a_hook_that_raises_after_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; hooks before it in order run nevertheless."""
    seen: list[str] = []

    class Noting(Hooks):
        def after_handle(self, message: ReceivedMessage, error: BaseException | None) -> None:
            seen.append(message.topic)

    received = ReceivedMessage(
        **{name: None for name in ReceivedMessage.__dataclass_fields__ if name != "topic"},  # type: ignore[arg-type]
        topic="orders",
    )
    after_handle([Noting(), FailingHooks()], received, None)
    assert seen == ["orders"]
    assert "a hook failed after a handler hook=FailingHooks topic=orders" in caplog.text


async def test_a_hook_that_returns_nothing(broker: ScriptedBroker) -> None:
    """The error names the hook."""
    async with connect(broker.endpoint, hooks=[SilentHooks()]) as client:
        with pytest.raises(TypeError, match=r"SilentHooks\.before_send returned None; return the message to send"):
            await client.producer().send(MESSAGE)
    assert not broker.requests("SendMessage")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"request_count_max": 0}, "request_count_max is 0; give at least 1"),
        ({"request_size_max": 0}, "request_size_max is 0"),
        ({"max_in_flight": 0}, "max_in_flight is 0"),
        ({"linger_seconds": -1}, "linger_seconds is -1; give 0 or more"),
        ({"topics": "orders"}, "topics is the text 'orders'; give a list"),
    ],
)
async def test_options_of_a_producer(client: Client, options: dict[str, Any], text: str) -> None:
    """Options with which a send would never end are refused."""
    with pytest.raises((ValueError, TypeError), match=text):
        client.producer(**options)


async def test_a_checker_with_a_wrong_answer(
    broker: ScriptedBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with the allowed answers; nothing is committed, and the broker asks again."""
    asked = asyncio.Event()
    answers: list[object] = [True, "commit"]

    def checker(message: object) -> object:
        if len(answers) == 1:
            asked.set()
        return answers.pop(0)

    producer = client.producer(topics=["orders"], transaction_checker=checker)  # type: ignore[arg-type]  # the mistake
    await producer.send(MESSAGE)  # opens the Telemetry stream
    command = v2.RecoverOrphanedTransactionCommand(message=v2.Message(topic=v2.Resource(name="orders"), body=b"x"))
    for _ in range(2):
        broker.command(v2.TelemetryCommand(recover_orphaned_transaction_command=command))
    await asked.wait()
    await broker.called("EndTransaction", 1)
    assert len(broker.requests("EndTransaction")) == 1
    assert "returned True instead of commit, rollback or unknown" in caplog.text


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda client: client.push_consumer("g", "t", None), TypeError, "the handler is None; give a function"),
        (lambda client: client.pull_consumer("g", "t", start="earliest"), ValueError, "'earliest'; give 'begin'"),
        (lambda client: client.pull_consumer("g", "t", start=1.5), ValueError, "start is 1.5; give 'begin', 'end' or"),
        (lambda client: client.simple_consumer("g", {"t": 3}), TypeError, "the filter 3 is neither tags nor SqlFilter"),
        (lambda client: client.simple_consumer("g", []), ValueError, "name at least one topic"),
    ],
)
async def test_arguments_of_consumers(
    client: Client, make: Callable[[Any], object], error: type[Exception], text: str
) -> None:
    """A wrong argument is refused when the consumer is made, and not when the first message comes."""
    with pytest.raises(error, match=text):
        make(client)


def test_several_topics_without_filters() -> None:
    """A list of topics subscribes to all messages of each."""
    filters = wire_filters(["orders", "stock"])
    assert {topic: each.expression for topic, each in filters.items()} == {"orders": "*", "stock": "*"}


@pytest.mark.parametrize("expression", ["||", "&&", " && || "])
def test_a_filter_without_a_tag(expression: str) -> None:
    """It would select nothing, and the group would skip every message."""
    with pytest.raises(ValueError, match=r"has no tag; write `TagA \|\| TagB`"):
        wire_filters({"orders": expression})


async def test_calls_in_a_wrong_state(client: Client) -> None:
    """Calls before the start and after the end say what to do; none waits."""
    pull = client.pull_consumer("g", "orders")
    with pytest.raises(ClientError, match="not started; use it with `async with`"):
        await pull.getone()
    with pytest.raises(ValueError, match="max_count is 0; give at least 1"):
        await pull.getmany(max_count=0)
    with pytest.raises(ValueError, match="offset is -1; give 0 or more"):
        await pull.seek(None, -1)  # type: ignore[arg-type]  # refused before its queue is looked for
    with pytest.raises(ValueError, match="max_count is 0; give at least 1"):
        await client.simple_consumer("g", "orders").receive(0)
    await pull.close()
    push = client.push_consumer("g", "orders", print)
    await push.close()
    for consumer in (pull, push):
        with pytest.raises(ClientError, match="this consumer is closed; make a new one"):
            await consumer.start()
    assert await pull.getmany() == []


async def test_a_closed_client(broker: ScriptedBroker) -> None:
    """Nothing can be made or called with it; the error says so."""
    client = connect(broker.endpoint)
    producer = client.producer()
    await producer.send(MESSAGE)
    await client.close()
    with pytest.raises(ClientError, match="make a new one"):
        await producer.send(MESSAGE)
    with pytest.raises(ClientError, match=r"this client is closed; make a new one with connect\(\)"):
        client.producer()
    with pytest.raises(ClientError, match="this client is closed"):
        await client.admin.list_topics()
    with pytest.raises(ClientError, match="this client is closed"):
        async for _ in client.records.read("orders", 0, 0):
            pass


def test_a_closed_blocking_client(caplog: pytest.LogCaptureFixture) -> None:
    """The same for the blocking API; no coroutine is left unawaited, which would be a warning."""
    client = blocking.connect("127.0.0.1:1")
    producer = client.producer()
    client.close()
    with caplog.at_level(logging.WARNING), pytest.raises(ClientError, match="this client is closed"):
        producer.send(MESSAGE)
    assert not caplog.records


def test_connecting_without_an_event_loop() -> None:
    """The error names the blocking API."""
    with pytest.raises(ConfigurationError, match=r"connect in a coroutine, or use aerobee_client\.blocking"):
        connect("127.0.0.1:1")


@pytest.mark.parametrize("endpoint", [None, 8081, ["127.0.0.1:8081", 3]])
async def test_endpoints_of_wrong_types(endpoint: Any) -> None:
    """An endpoint that is no text is refused like one of a wrong form."""
    with pytest.raises(InvalidEndpointError, match=r"is no text; give one such as '127\.0\.0\.1:8081'"):
        connect(endpoint)
