"""Checks after every hostile client: readable answers, a working broker, and its memory."""

from __future__ import annotations

import asyncio
import os
import re
import urllib.request

from aerobee_client import Message, UnavailableError, connect
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2

Code = v2.Code

# What no error text may contain: Python's exception names, objects, our file names.
INSIDE = re.compile(r"Traceback|\b[A-Za-z_]*(?:Error|Exception)\b|0x[0-9a-f]{6,}|\.py\b|<class|object at")


def readable(status: v2.Status, what: str = "") -> None:
    """The code is a success or a client error, and the message is readable text."""
    assert status.code not in (Code.CODE_UNSPECIFIED, Code.INTERNAL_SERVER_ERROR, Code.INTERNAL_ERROR), (status, what)
    assert status.message or status.code == Code.OK, what
    assert INSIDE.search(status.message) is None, (status.message, what)
    assert len(status.message) < 1000, what


async def works(broker: BrokerProcess, topic: str = "returns", group: str = "auditing") -> None:
    """A message is sent and received, and the HTTP port answers. The topic has no message that our client rejects."""
    body = os.urandom(16)
    async with asyncio.timeout(60), connect(broker.endpoint) as client:
        while True:
            try:
                await client.producer().send(Message(topic=topic, body=body))
                break
            except UnavailableError:  # it is still closing connections, and accepts again within a second
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
    """The value of a metric with a single series."""
    with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=30) as answer:
        (value,) = re.findall(rf"^{name}{{.*}} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(value)


def resident(broker: BrokerProcess) -> int:
    """The process's resident memory in bytes."""
    with open(f"/proc/{broker.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(broker: BrokerProcess) -> float:
    """The CPU time that the process has used."""
    with open(f"/proc/{broker.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
