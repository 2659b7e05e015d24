"""Spans and metrics of sends and handlers, with the OpenTelemetry SDK if it is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aerobee_client import ClientError, ConfigurationError, Message, ReceivedMessage, SendResult
from aerobee_client.opentelemetry import OpenTelemetryHooks


def received(message: Message) -> ReceivedMessage:
    """The message as a consumer receives it."""
    return ReceivedMessage(
        topic=message.topic,
        body=message.body,
        message_id=message.message_id or "",
        tag=None,
        keys=(),
        properties={},
        message_group=None,
        queue_id=0,
        queue_offset=0,
        born_timestamp=0,
        born_host="",
        store_timestamp=0,
        delivery_timestamp=None,
        trace_context=message.trace_context,
        receipt_handle="handle",
        delivery_attempt=1,
    )


def test_without_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install."""
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match="pip install opentelemetry-api"):
        OpenTelemetryHooks()


def test_a_handler_is_below_its_send() -> None:
    """Send and handler share a trace. Failures are marked, and no span stays open."""
    sdk: Any = pytest.importorskip("opentelemetry.sdk.trace", reason="needs opentelemetry-sdk")
    exports: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    processors: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
    provider = sdk.TracerProvider()
    spans = exports.InMemorySpanExporter()
    provider.add_span_processor(processors.SimpleSpanProcessor(spans))
    hooks = OpenTelemetryHooks(tracer_provider=provider)
    sent = hooks.before_send(Message(topic="orders", body=b"x"))
    hooks.after_send(sent, SendResult(str(sent.message_id), 0))
    delivery = received(sent)
    hooks.before_handle(delivery)
    hooks.after_handle(delivery, ValueError("no"))
    hooks.before_handle(replace(delivery, trace_context="nonsense"))
    hooks.after_handle(delivery, None)
    failed = hooks.before_send(Message(topic="orders", body=b"x"))
    hooks.after_send(failed, ClientError("gone"))
    send, process, other, lost = spans.get_finished_spans()
    assert (send.name, process.name) == ("send orders", "process orders")
    assert process.parent.span_id == send.context.span_id
    assert process.context.trace_id == send.context.trace_id
    assert other.parent is None
    assert (process.status.is_ok, lost.status.is_ok, send.status.is_ok) == (False, False, True)
    assert not hooks._open
