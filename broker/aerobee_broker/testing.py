"""A broker for tests, as a process that `aerobee_client.testing` starts and talks to.

    parent                        this process
                                  imports everything, and waits
    {"arguments": [...], ...}  -> starts a broker, as `aerobee serve` with these arguments
                               <- ready grpc=HOST:PORT metrics=HOST:PORT
    {"advance_seconds": 3600}  -> moves the clock, and what is due happens
                               <- advanced
    end of the input           -> stops, as for SIGTERM: a parent that died leaves nothing behind

A line each way, orders in JSON. Most of the time that a broker takes to start goes into imports. A process that has
done them before it is needed starts a broker in the time that the broker itself takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import uvloop

from aerobee_broker import server  # noqa: F401  # imported before it is needed: that is what this process is for
from aerobee_broker.commands import serve
from aerobee_broker.errors import BrokerError
from aerobee_store.errors import StoreError
from aerobee_store.testing.travelling_clock import TravellingClock


@dataclass(frozen=True, slots=True)
class Order:
    """The first line. `log` is where standard error goes; `settings` have full names, as `store.segment_size`."""

    arguments: list[str]
    log: str
    settings: dict[str, object]
    moving_time: bool


def main() -> int:
    """Wait for an order, run the broker, and return its exit code."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 0  # nobody needs it
    order = Order(**json.loads(line))
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 2)
    os.close(log)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    commands = argparse.ArgumentParser(prog="aerobee").add_subparsers(required=True)
    serve.add_parser(commands)
    arguments = commands.choices["serve"].parse_args(order.arguments)
    try:
        config = serve.load_config(arguments, order.settings)
        serve.prepare_process()
        # uvloop keeps its own time, which cannot be moved.
        loop_factory = asyncio.new_event_loop if order.moving_time else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_serve(config, moving_time=order.moving_time))
    except (BrokerError, StoreError) as error:
        print(f"aerobee: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


async def _serve(config: Any, *, moving_time: bool) -> int:
    stop = asyncio.Event()
    clock = TravellingClock() if moving_time else None
    listening = asyncio.create_task(_listen(stop, clock), name="orders of the test")
    try:
        return await serve.serve(config, stop, clock=clock)
    finally:
        listening.cancel()


async def _listen(stop: asyncio.Event, clock: TravellingClock | None) -> None:
    """Follow orders until the input ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = json.loads(line)
        if clock is not None:
            await clock.advance(order["advance_seconds"])
        print("advanced", flush=True)
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
