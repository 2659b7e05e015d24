"""What the console asks a connected client: the stacks of its threads, and to try a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, consumer_settings, message
from tests.console.support import Visitor, text_of, visiting
from tests.support.in_process_broker import in_process_broker

TOPIC, GROUP = "orders", "billing"


class Asked(NamedTuple):
    """A client that answers what the test says, and a visitor who asks."""

    client: RawClient
    visitor: Visitor


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    async with in_process_broker(tmp_path / "store") as broker, visiting(broker.endpoint) as visitor:
        client = RawClient(broker.channel)
        await client.create_topic(TOPIC, v2.MessageType.NORMAL)
        await client.create_group(GROUP)
        yield Asked(client, visitor)


async def test_stacks_of_a_client(asked: Asked) -> None:
    """They are on its page, without effect as markup; a client that is gone is named."""
    client, visitor = asked
    page = f"/clients/{client.client_id}"
    async with client.telemetry() as stream:
        await stream.told(**consumer_settings(GROUP, TOPIC))
        assert "Thread stacks" in (await visitor.get(page)).text
        answer = asyncio.ensure_future(visitor.post(f"{page}/stacks"))
        stacks = v2.ThreadStackTrace(nonce=(await stream.read()).print_thread_stack_trace_command.nonce)
        stacks.thread_stack_trace = "main: <b>waiting</b>"
        await stream.call.write(v2.TelemetryCommand(thread_stack_trace=stacks))
        assert "main: &lt;b&gt;waiting&lt;/b&gt;" in (await answer).text
        await client.goodbye(GROUP)
    assert (await visitor.post(f"{page}/stacks")).status_code == 404


@pytest.mark.parametrize(
    ("code", "said"), [(v2.Code.OK, "The listener consumed message"), (v2.Code.FAILED_TO_CONSUME_MESSAGE, "it failed")]
)
async def test_a_message_is_tried(asked: Asked, code: v2.Code.ValueType, said: str) -> None:
    """The verdict of the listener is shown, with its reason if it failed."""
    client, visitor = asked
    [sent] = await client.sent(message(TOPIC, "try me"))
    page = f"/clients/{client.client_id}"
    async with client.telemetry() as stream:
        await stream.told(**consumer_settings(GROUP, TOPIC))
        await visitor.get(page)
        fields = {"group": GROUP, "topic": TOPIC, "message": sent.message_id}
        answer = asyncio.ensure_future(visitor.post(f"{page}/try", fields))
        command = (await stream.read()).verify_message_command
        assert command.message.body == b"try me"
        verdict = v2.TelemetryCommand(status=v2.Status(code=code, message="it failed"))
        verdict.verify_message_result.nonce = command.nonce
        await stream.call.write(verdict)
        assert said in text_of(await answer) or said in (await answer).text
