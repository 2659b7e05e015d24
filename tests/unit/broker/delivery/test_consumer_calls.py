"""Calls of consumers as protocol messages without gRPC: rules beyond those of the conformance items."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import (
    InvalidReceiptHandleError,
)
from aerobee_proto import v2
from aerobee_store import Message
from tests.support.delivery_harness import GROUP, TOPIC, Harness

Code = v2.Code
Responses = list[v2.ReceiveMessageResponse]


def request(
    *,
    batch_size: int = 32,
    invisible: float | None = 30.0,
    auto_renew: bool = False,
    wait: float | None = 0.0,
    expression: str = "*",
    topic: str = TOPIC,
    group: str = GROUP,
    queue_id: int = 0,
) -> v2.ReceiveMessageRequest:
    """A ReceiveMessageRequest; None leaves a field unset."""
    made = v2.ReceiveMessageRequest(
        group=v2.Resource(name=group),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=queue_id),
        filter_expression=v2.FilterExpression(type=v2.FilterType.TAG, expression=expression),
        batch_size=batch_size,
        auto_renew=auto_renew,
    )
    if invisible is not None:
        made.invisible_duration.FromMilliseconds(round(invisible * 1000))
    if wait is not None:
        made.long_polling_timeout.FromMilliseconds(round(wait * 1000))
    return made


async def call(harness: Harness, made: v2.ReceiveMessageRequest, remaining: float | None = 10.0) -> Responses:
    """All responses of one receive."""
    processor = harness.receive_processor
    return [
        response
        async for some in processor.process(made, harness.client(), remaining)
        for response in responses_in(some)
    ]


def responses_in(some: v2.ReceiveMessageResponse | list[bytes]) -> Responses:
    """The responses in one step of the stream."""
    return [v2.ReceiveMessageResponse.FromString(data) for data in some] if isinstance(some, list) else [some]


async def receive(harness: Harness, made: v2.ReceiveMessageRequest | None = None) -> list[v2.Message]:
    """The messages of one receive."""
    return [response.message for response in await call(harness, made or request()) if response.HasField("message")]


def ack(harness: Harness, *handles: str) -> v2.AckMessageRequest:
    """An AckMessageRequest with ids m0, m1, ..."""
    return v2.AckMessageRequest(
        group=v2.Resource(name=GROUP),
        topic=v2.Resource(name=TOPIC),
        entries=[v2.AckMessageEntry(message_id=f"m{i}", receipt_handle=h) for i, h in enumerate(handles)],
    )


def change(handle: str, milliseconds: int) -> v2.ChangeInvisibleDurationRequest:
    """A ChangeInvisibleDurationRequest."""
    made = v2.ChangeInvisibleDurationRequest(
        group=v2.Resource(name=GROUP), topic=v2.Resource(name=TOPIC), receipt_handle=handle
    )
    made.invisible_duration.FromMilliseconds(milliseconds)
    return made


# --- ReceiveMessage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "waits"), [(4.0, False), (None, True), (1.0, True)])
async def test_old_clients_keep_half_of_their_request_timeout(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, seconds: float | None, waits: bool
) -> None:
    """Clients before Java 5.0.5 send no polling time; half of their timeout is left for transferring the answer."""
    client = harness.client()
    settings = v2.Settings()
    if seconds is not None:  # without settings or a timeout in them: half of 3 s
        settings.request_timeout.FromMilliseconds(round(seconds * 1000))
    client.settings_data = settings.SerializeToString()
    waits_of: list[float] = []
    wait = harness.deliveries.long_polling.wait

    async def note(*line: Any, **how: Any) -> bool:
        waits_of.append(line[3])
        return await wait(*line, **how)

    monkeypatch.setattr(harness.deliveries.long_polling, "wait", note)
    [first, _] = [some async for some in harness.receive_processor.process(request(wait=None), client, 2.0)]
    assert responses_in(first)[0].status.code == Code.MESSAGE_NOT_FOUND
    assert (sum(waits_of) > 0.1) == waits


async def test_small_messages_are_written_together(harness: Harness) -> None:
    """One step has many small messages, or a single message above the step's limit; all are counted."""
    await harness.send(*"abc")
    large = Message(topic=TOPIC, queue_id=0, body=bytes(100_000), properties={"UNIQ_KEY": "id-large"})
    [place] = harness.store.append([large])
    await harness.store.wait_stored(place.end)
    steps = [responses_in(some) async for some in harness.receive_processor.process(request(), harness.client(), 10.0)]
    assert [[len(response.message.body) for response in step] for step in steps] == [[0], [1, 1, 1], [100_000], [0]]
    received = harness.counters.received_by(TOPIC, GROUP)
    assert (received.messages, received.milliseconds.count) == (4, 4)
    assert received.bytes == sum(response.ByteSize() for step in steps[1:3] for response in step)


async def test_all_messages_of_an_incomplete_answer_are_redelivered_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call ended after the first of three messages, each written separately: clients drop what they got so far."""
    monkeypatch.setattr("aerobee_broker.processors.receive._RESPONSES_SIZE_MAX", 1)
    await harness.send("a", "b", "c")
    stream = harness.receive_processor.process(request(), Client("c"), 10.0)
    assert responses_in(await anext(stream))[0].status.code == Code.OK
    [first] = [response.message for response in responses_in(await anext(stream))]
    await anext(stream)  # the second is being sent when the call breaks
    await stream.aclose()
    again = await receive(harness)
    assert [(m.body, m.system_properties.delivery_attempt) for m in again] == [(b"a", 2), (b"b", 2), (b"c", 2)]
    answer = await harness.acknowledge_processor.acknowledge(
        ack(harness, first.system_properties.receipt_handle), Client("c")
    )
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


# --- ChangeInvisibleDuration --------------------------------------------------------------------------------


async def test_an_expired_handle_is_refused_like_by_rocketmq(harness: Harness) -> None:
    """Other test suites compare this text, for acknowledgements and for changes."""
    await harness.send("a")
    [message] = await receive(harness)
    handle = message.system_properties.receipt_handle
    await harness.acknowledge_processor.change_invisible(change(handle, 5), harness.client())  # replaces the handle
    answer = await harness.acknowledge_processor.acknowledge(ack(harness, handle), harness.client())
    [entry] = answer.entries
    assert entry.status.code == Code.INVALID_RECEIPT_HANDLE
    assert entry.status.message.startswith("receipt handle is expired")
    with pytest.raises(InvalidReceiptHandleError, match=r"^receipt handle is expired"):
        await harness.acknowledge_processor.change_invisible(change(handle, 5), harness.client())
