"""A minimal client of RocketMQ's remoting protocol: durable sends on one connection, several in flight."""

from __future__ import annotations

import asyncio
import struct
import time

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.frame import Command, encode
from tests.benchmarks.report import percentile
from tests.support.remoting_client import send_fields

_LENGTH = struct.Struct(">I")
_SUCCESS = b'"code":0,'


async def measure(address: Address, seconds: float, in_flight: int, body_size: int) -> tuple[float, float]:
    """Messages per second, and the p99 of a send in seconds. RuntimeError if a send is not stored."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    fields = {name: str(value) for name, value in send_fields("aerobee-bench").items()}
    template = encode(Command(Request.SEND_MESSAGE_V2, opaque=1_000_000_000, fields=fields, body=bytes(body_size)))
    began: dict[int, float] = {}
    durations: list[float] = []
    number = 1_000_000_000  # the number of digits is constant, so the frame's lengths are, too

    def begin() -> None:
        nonlocal number
        number += 1
        began[number] = time.perf_counter()
        writer.write(template.replace(b"1000000000", b"%d" % number, 1))

    end = time.perf_counter() + seconds
    for _ in range(in_flight):
        begin()
    while began:
        (length,) = _LENGTH.unpack(await reader.readexactly(4))
        answer = await reader.readexactly(length)
        if _SUCCESS not in answer:
            raise RuntimeError(f"a send was refused: {answer[:300]!r}")
        at = answer.index(b'"opaque":') + 9
        now = time.perf_counter()
        durations.append(now - began.pop(int(answer[at : at + 10])))
        if now < end:
            begin()
    writer.close()
    await writer.wait_closed()
    return len(durations) / seconds, percentile(durations, 0.99)
