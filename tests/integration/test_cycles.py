"""What ends leaves no reference cycles: old ones are examined once an hour while many calls wait, and would fill the
memory with what clients have long closed."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

from aerobee_broker.config import Address, ListenConfig
from aerobee_proto import v2
from tests.support.hostile_input import GREETING, HEALTH, RECEIVE, SEND, heartbeat
from tests.support.http2_attacker import headers, message
from tests.support.in_process_broker import InProcessBroker
from tests.support.remoting_client import remoting_broker
from tests.support.tls_records import trusting

COUNT = 40


def calls() -> bytes:
    """Answered calls, calls that are refused, receives that wait, one of which gets a message, and requests that never
    end, the last one within a frame."""
    send = v2.SendMessageRequest()
    sent = send.messages.add(topic=v2.Resource(name="t"), body=b"b")
    sent.system_properties.message_id = "1"
    wait = v2.ReceiveMessageRequest(group=v2.Resource(name="g"), long_polling_timeout=v2.Duration(seconds=20))
    wait.message_queue.topic.name = "t"
    wait.invisible_duration.FromSeconds(30)
    parts = [GREETING]
    for n in range(COUNT):
        first = 1 + 8 * n
        parts += (
            headers(first, HEALTH) + message(first, b""),
            headers(first + 2, SEND) + message(first + 2, b"\xff"),
            headers(first + 4, RECEIVE) + message(first + 4, wait.SerializeToString()),
            headers(first + 6, SEND),
        )
    first += 8
    parts += (headers(first, SEND) + message(first, send.SerializeToString()), headers(first + 2, SEND))
    return b"".join((*parts, message(first + 2, bytes(1000))[:-500]))


@pytest.mark.parametrize("protocol", ["grpc", "remoting", "tls"])
async def test_connections_and_calls_leave_no_cycles(tmp_path: Path, protocol: str) -> None:
    loopback = Address("127.0.0.1", 0)
    listen = ListenConfig(grpc=loopback, metrics=loopback, remoting=loopback, tls=loopback, drain_seconds=0.5)
    async with remoting_broker(tmp_path, dev=True, listen=listen) as (broker, _):
        sent = heartbeat(3) * COUNT if protocol == "remoting" else calls()
        await used(broker, protocol, sent)  # loads what is made once
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await used(broker, protocol, sent)
            gc.collect()
            found = Counter(map(of_broker, gc.garbage))
            del found[""]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            if was_enabled:
                gc.enable()
        assert not found


def of_broker(each: object) -> str:
    """The name of an object of the broker, or of one of its functions that an error's traceback has; or empty."""
    if isinstance(each, FrameType):
        return each.f_code.co_qualname if each.f_globals["__name__"].startswith("aerobee") else ""
    return type(each).__name__ if type(each).__module__.startswith("aerobee") else ""


async def used(broker: InProcessBroker, protocol: str, sent: bytes) -> None:
    """A connection sends this, stays for a moment, and goes."""
    address = {"remoting": broker.remoting, "tls": broker.tls}.get(protocol)
    host, _, port = str(address or broker.endpoint).rpartition(":")
    context = trusting() if protocol == "tls" else None
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(sent)
    while not await reader.read(1):
        pass
    await asyncio.sleep(0.5)  # its calls are old
    writer.transport.abort()
    await broker.waiting(0)
    await asyncio.sleep(1.0)  # in which the connection and its calls end; with less the test would see less
