"""Spans and metrics by OpenTelemetry's public API: `connect(..., hooks=[OpenTelemetryHooks()])`.

    pip install opentelemetry-api          # and the SDK and exporter of your choice

A send is a span of kind producer, and its context travels with the message (trace_context, in W3C's form); a handler is
a span of kind consumer, a child of it. Names and attributes are those of OpenTelemetry's semantic conventions for
messaging, with RocketMQ's. Histograms, in seconds: `messaging.client.operation.duration` of sends and
`messaging.process.duration` of handlers.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import Any, Final, Literal

from aerobee_client.errors import ClientError, ConfigurationError
from aerobee_client.hooks import Hooks
from aerobee_client.messages.message import Message, ReceivedMessage, SendResult, new_message_id

_SCOPE: Final = "aerobee_client"
_OPEN_MAX: Final = 100_000  # open spans, including those of messages that were dropped without an event


class OpenTelemetryHooks(Hooks):
    """Pass an instance to `connect`. ConfigurationError if the API is not installed. Without providers, the global
    ones are used."""

    def __init__(self, *, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            raise ConfigurationError("OpenTelemetry is not installed: pip install opentelemetry-api") from None
        self._trace: Any = trace
        self._tracer: Any = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter: Any = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._sends: Any = meter.create_histogram("messaging.client.operation.duration", "s", "sends")
        self._handles: Any = meter.create_histogram("messaging.process.duration", "s", "handlers")
        # Limited by hand, in two lines: the broker's table for this is not the client's to import.
        self._open: OrderedDict[str, tuple[Any, float]] = OrderedDict()

    def before_send(self, message: Message) -> Message:
        """Begin a span and attach its context to the message."""
        if message.message_id is None:
            message = replace(message, message_id=new_message_id())
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={**_attributes(message.topic, "send"), **_details(message)},
        )
        self._begin(f"send {message.message_id}", span)
        context = span.get_span_context()
        if not context.is_valid or message.trace_context is not None:
            return message
        trace_context = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        return replace(message, trace_context=trace_context)

    def after_send(self, message: Message, outcome: SendResult | ClientError) -> None:
        """End the span."""
        error = outcome if isinstance(outcome, ClientError) else None
        self._end(f"send {message.message_id}", self._sends, _attributes(message.topic, "send"), error)

    def before_handle(self, message: ReceivedMessage) -> None:
        """Begin a span as a child of the send's."""
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=self._parent(message.trace_context),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={**_attributes(message.topic, "process"), **_details(message)},
        )
        self._begin(f"process {message.receipt_handle}", span)

    def after_handle(self, message: ReceivedMessage, error: BaseException | None) -> None:
        """End the span."""
        self._end(f"process {message.receipt_handle}", self._handles, _attributes(message.topic, "process"), error)

    def _begin(self, key: str, span: Any) -> None:
        self._open[key] = span, time.perf_counter()
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)[1][0].end()

    def _end(self, key: str, histogram: Any, attributes: dict[str, str], error: BaseException | None) -> None:
        found = self._open.pop(key, None)
        if found is None:
            return
        span, began = found
        if error is not None:
            attributes = {**attributes, "error.type": type(error).__name__}
            span.record_exception(error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        histogram.record(time.perf_counter() - began, attributes)
        span.end()

    def _parent(self, trace_context: str | None) -> Any:
        """The context of the send; None for a text that is not in W3C's form."""
        try:
            _, trace_id, span_id, flags = (trace_context or "").split("-")
            context = self._trace.SpanContext(
                int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=self._trace.TraceFlags(int(flags, 16))
            )
        except ValueError:
            return None
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(context))


def _attributes(topic: str, operation: Literal["send", "process"]) -> dict[str, str]:
    """The attributes of spans and metrics; their values are few."""
    return {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _details(message: Message | ReceivedMessage) -> dict[str, object]:
    """The attributes of a span that metrics must not have, since they differ for each message."""
    found: dict[str, object | None] = {
        "messaging.message.id": message.message_id,
        "messaging.message.body.size": len(message.body),
        "messaging.rocketmq.message.tag": message.tag,
        "messaging.rocketmq.message.keys": list(message.keys) or None,
        "messaging.rocketmq.message.group": message.message_group,
        "messaging.rocketmq.message.delivery_timestamp": message.delivery_timestamp,
    }
    return {name: value for name, value in found.items() if value is not None}
