"""Brokers for tests: a process that `aerobee_client.broker_starter` starts and talks to.

    parent                                this process
                                          imports everything, and waits at a socket
    {"arguments": [...], ...}, pipes  ->  forks a broker, as `aerobee serve` with these arguments
                                      <-  {"pid": 4711}
    {"exit_code_of": 4711}            ->  waits for the end of that process
                                      <-  {"code": 0}
    end of the socket                 ->  ends

The broker writes to the pipes that came with its order, and reads from them:

                                      <-  ready grpc=HOST:PORT metrics=HOST:PORT
    {"advance_seconds": 3600}         ->  moves the clock, and runs everything that becomes due
                                      <-  advanced
    end of the input                  ->  stops, as for SIGTERM: a parent that died leaves nothing behind
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from aerobee_broker.cli import error_line
from aerobee_broker.commands import serve
from aerobee_broker.config import BrokerConfig
from aerobee_broker.errors import BrokerError
from aerobee_store.deferred import load_deferred
from aerobee_store.errors import StoreError
from aerobee_store.testing.travelling_clock import TravellingClock

_ORDER_SIZE_MAX: Final = 1 << 18  # bytes: the limit of what the parent may send


@dataclass(frozen=True, slots=True)
class Order:
    """An order for one broker. `log` receives standard error; `settings` have full names, such as
    `store.segment_size`."""

    arguments: list[str]
    log: str
    settings: dict[str, object]
    moving_time: bool
    advanced_seconds: float  # how far a broker with moving time begins ahead of the system's clock
    directory: str
    environment: dict[str, str]


def main(control: socket.socket, run: Callable[[dict[str, Any], int, int], int]) -> int:
    """Fork a process for each order, which runs it with two pipes; return its exit code there, and here after the last
    order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test runner
    serve.import_broker()  # now, to share the modules with all brokers
    BrokerConfig.tiny(Path())  # and what is read once from the types of the settings
    is_loaded = False
    orders = select.poll()  # select does not support descriptors above 1023, which a large test run reaches
    orders.register(control, select.POLLIN)
    while True:
        if not is_loaded and not orders.poll(0):  # while no broker is asked for
            load_deferred()
            is_loaded = True
        data, descriptors, _, _ = socket.recv_fds(control, _ORDER_SIZE_MAX, 2)
        if not data:
            return 0
        order = json.loads(data)
        if (ended := order.get("exit_code_of")) is not None:
            _, status = os.waitpid(ended, 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if not pid:
                control.close()
                return _run_forked(partial(run, order, *descriptors))
            for descriptor in descriptors:
                os.close(descriptor)
            answer = {"pid": pid}
        control.send(json.dumps(answer).encode())


def _run_forked(run: Callable[[], int]) -> int:
    """Run a program in this process, which ends without taking the interpreter down.

    That would copy every page which the process shares with the one that forked it, and take longer than most brokers
    of tests. Threads are waited for and exit functions called as usual, except for those from before the fork.
    """
    code = 1  # of an error that the interpreter prints

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    atexit.register(end)
    try:
        code = run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    return code


def enter(stdin: int, stdout: int, *, log: str, directory: str, environment: dict[str, str]) -> None:
    """Make this process one of its own: with pipes, a log, a directory and an environment."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)


def run_broker(fields: dict[str, Any], stdin: int, stdout: int) -> int:
    """Run the broker in this process, and return its exit code."""
    order = Order(**fields)
    enter(stdin, stdout, log=order.log, directory=order.directory, environment=order.environment)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    commands = argparse.ArgumentParser(prog="aerobee").add_subparsers(required=True)
    serve.add_parser(commands)
    arguments = commands.choices["serve"].parse_args(order.arguments)
    try:
        config = serve.load_config(arguments, order.settings)
        serve.prepare_process()
        # uvloop has a clock of its own, which cannot be moved.
        loop_factory = asyncio.new_event_loop if order.moving_time else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_serve(config, order))
    except (BrokerError, StoreError, OSError) as error:
        print(f"aerobee: {' '.join(error_line(error).split())}", file=sys.stderr)
        return 1


async def _serve(config: Any, order: Order) -> int:
    stop = asyncio.Event()
    clock = TravellingClock(order.advanced_seconds) if order.moving_time else None
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
    sys.exit(main(socket.socket(fileno=int(sys.argv[1])), run_broker))
