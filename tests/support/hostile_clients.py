"""What every hostile client has to leave behind: readable answers, a broker that works, and its memory."""

from __future__ import annotations

import asyncio
import os
import re
import urllib.request

from aerobee_client import Message, UnavailableError, connect
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2

Code = v2.Code

# What a person must never see: names of Python's things, objects, files of ours.
INSIDE = re.compile(r"Traceback|\b[A-Za-z_]*(?:Error|Exception)\b|0x[0-9a-f]{6,}|\.py\b|<class|object at")


def readable(status: v2.Status, what: str = "") -> None:
    """A code that blames the caller, or praises; words for a person."""
    assert status.code not in (Code.CODE_UNSPECIFIED, Code.INTERNAL_SERVER_ERROR, Code.INTERNAL_ERROR), (status, what)
    assert status.message or status.code == Code.OK, what
    assert INSIDE.search(status.message) is None, (status.message, what)
    assert len(status.message) < 1000, what


async def works(broker: BrokerProcess, topic: str = "returns", group: str = "auditing") -> None:
    """A message makes the round, and the HTTP side answers. The topic has no messages that our client refuses."""
    body = os.urandom(16)
    async with asyncio.timeout(60), connect(broker.endpoint) as client:
        while True:
            try:
                await client.producer().send(Message(topic=topic, body=body))
                break
            except UnavailableError:  # it cleans up after thousands of connections, or accepts again in a second
                await asyncio.sleep(0.2)
        consumer = client.simple_consumer(group, topic)
        while True:
            received = await consumer.receive(32)
            await consumer.ack(received)
            if body in [message.body for message in received]:
                break
    assert await asyncio.to_thread(http_status, broker) == 200


def http_status(broker: BrokerProcess) -> int:
    with urllib.request.urlopen(f"http://{broker.metrics}/readyz", timeout=10) as answer:
        return int(answer.status)


def metric(broker: BrokerProcess, name: str) -> float:
    """The value of a metric that has one series."""
    with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=30) as answer:
        (value,) = re.findall(rf"^{name}{{.*}} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(value)


def resident(broker: BrokerProcess) -> int:
    """Bytes of memory that the process holds."""
    with open(f"/proc/{broker.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(broker: BrokerProcess) -> float:
    """The time of processors that the process has used."""
    with open(f"/proc/{broker.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
