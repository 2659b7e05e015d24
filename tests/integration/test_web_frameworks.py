"""The recipes for FastAPI and Django, and one trace from a producer through the broker to a consumer."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import Message, ReceivedMessage, blocking
from aerobee_client.opentelemetry import OpenTelemetryHooks
from aerobee_client.testing import BrokerProcess
from tests.support.page_blocks import ROOT, blocks_of

_SECONDS = 60.0


@pytest.fixture(autouse=True)
def at_the_broker(aerobee_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes connect where this variable says."""
    monkeypatch.setenv("AEROBEE_ENDPOINT", aerobee_broker.endpoint)


async def test_fastapi_sends_and_receives(aerobee_broker: BrokerProcess) -> None:
    """A request stores a message, and the handler of the same application receives it."""
    pytest.importorskip("fastapi", reason="needs FastAPI: make setup")
    from examples.web import fastapi_orders

    fastapi_orders.billed.clear()
    async with fastapi_orders.app.router.lifespan_context(fastapi_orders.app), asyncio.timeout(_SECONDS):
        answer = await _post(fastapi_orders.app, "/orders/7")
        assert answer["message_id"]
        while fastapi_orders.billed != ["7"]:  # noqa: ASYNC110  # the application tells nobody
            await asyncio.sleep(0.01)


async def _post(app: Any, path: str) -> dict[str, str]:
    """One request to an ASGI application."""
    parts: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            assert event["status"] == 200
        parts.append(event.get("body", b""))

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await app({**scope, "headers": [], "http_version": "1.1", "scheme": "http", "root_path": ""}, receive, send)
    answer: dict[str, str] = json.loads(b"".join(parts))
    return answer


def test_django_sends(aerobee_broker: BrokerProcess) -> None:
    """A request stores a message."""
    pytest.importorskip("django", reason="needs Django: make setup")
    from examples.web import django_orders

    django_orders.producer.cache_clear()
    status: list[str] = []
    environment = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/orders/8",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
    }
    body = b"".join(django_orders.application(environment, lambda code, _headers: status.append(code)))
    assert (status, list(json.loads(body))) == (["200 OK"], ["message_id"])
    with blocking.connect(aerobee_broker.endpoint) as client, client.simple_consumer("billing", "orders") as consumer:
        assert [message.body for message in consumer.receive()] == [b"8"]


@asynccontextmanager
async def spans() -> AsyncIterator[tuple[Any, OpenTelemetryHooks]]:
    """An exporter in memory, and hooks that write to it by the real SDK."""
    pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk: make setup")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hooks = OpenTelemetryHooks(tracer_provider=provider)
    yield exporter, hooks
    provider.shutdown()


async def test_one_trace_from_producer_to_consumer(aerobee_broker: BrokerProcess) -> None:
    """The handler's span is a child of the send's, in another client, after a restart of the broker; both have the
    names and attributes of the semantic conventions, and so has the broker's copy of the message."""
    handled = asyncio.Event()

    async def bill(message: ReceivedMessage) -> None:
        handled.set()

    async with spans() as (exporter, hooks):
        async with aerobee_broker.connect(hooks=[hooks]) as sender:
            await sender.producer().send(Message(topic="orders", body=b"hello", tag="paid", keys=("order-7",)))
        aerobee_broker.kill()
        aerobee_broker.start()
        async with (
            aerobee_broker.connect(hooks=[hooks]) as receiver,
            receiver.push_consumer("billing", "orders", bill),
            asyncio.timeout(_SECONDS),
        ):
            await handled.wait()
        send, process = exporter.get_finished_spans()
    assert (send.name, send.kind.name, process.name, process.kind.name) == (
        *("send orders", "PRODUCER"),
        *("process orders", "CONSUMER"),
    )
    assert process.context.trace_id == send.context.trace_id
    assert process.parent.span_id == send.context.span_id
    for span, operation in ((send, "send"), (process, "process")):
        assert dict(span.attributes) == {
            "messaging.system": "rocketmq",
            "messaging.destination.name": "orders",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.message.id": send.attributes["messaging.message.id"],
            "messaging.message.body.size": 5,
            "messaging.rocketmq.message.tag": "paid",
            "messaging.rocketmq.message.keys": ("order-7",),
        }
    async with aerobee_broker.connect() as client:
        (stored,) = [message async for message in client.admin.query("orders", key="order-7")]
    flags = int(send.context.trace_flags)
    assert stored.trace_context == f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}-{flags:02x}"


@pytest.mark.parametrize(
    "program", ["taskiq/billing.py", "celery/billing.py", "web/fastapi_orders.py", "web/django_orders.py"]
)
def test_the_page_shows_the_programs_that_the_tests_run(program: str) -> None:
    """docs/frameworks.md has each program as it is in examples/."""
    code = (Path(ROOT) / "examples" / program).read_text()
    assert code in [block.code for block in blocks_of(ROOT / "docs" / "frameworks.md")]
