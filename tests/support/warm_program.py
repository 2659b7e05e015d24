"""Programs of ours that tests start by `fork`, from a process that has done their imports.

It saves a fifth of a second of a core for each; those of the official SDK of Python share its imports of other packages
as well. Tests of the command line and of starts themselves run `python -m aerobee_broker` instead; so does this module
where the environment names a library to load before all others.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerobee_client.broker_starter import BrokerStarter, ForkedBroker

_SECONDS = 120.0
_starter: BrokerStarter | None = None


class WarmProgram:
    """A running program. Its standard input is empty."""

    def __init__(self, process: ForkedBroker | subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._stdout = process.stdout
        self._read = b""

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; ignored if it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """End it, as a crash does; returns its exit code."""
        self.send_signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Its exit code once it has ended. Its output is gone then."""
        code = self._process.wait(_SECONDS)
        self._stdout.close()
        return code

    async def ended(self) -> int:
        """The same, while other tasks run."""
        if self.returncode is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                await _readable(descriptor)
            finally:
                os.close(descriptor)
        return self.wait()

    def first_line(self) -> bytes:
        """The first line of its output; waits for it."""
        while b"\n" not in self._read and (chunk := os.read(self._stdout.fileno(), 4096)):
            self._read += chunk
        line, newline, self._read = self._read.partition(b"\n")
        return line + newline

    async def output(self) -> bytes:
        """All of its output that is left, once it has closed it."""
        chunk = b"none yet"
        while chunk:
            await _readable(self._stdout.fileno())
            chunk = os.read(self._stdout.fileno(), 1 << 16)
            self._read += chunk
        return self._read

    async def line(self) -> bytes:
        """The next line of its output; what is left of it if it ends."""
        while b"\n" not in self._read:
            await _readable(self._stdout.fileno())
            chunk = os.read(self._stdout.fileno(), 4096)
            if not chunk:
                break
            self._read += chunk
        line, newline, self._read = self._read.partition(b"\n")
        return line + newline


def start_warm(
    module: str, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
) -> WarmProgram:
    """Start `python -m MODULE ARGUMENTS`; `log` receives its standard error."""
    environment = {**(os.environ if environment is None else environment)}
    if "LD_PRELOAD" in environment:
        command = [sys.executable, "-m", module, *arguments]
        with log.open("ab") as file:
            return WarmProgram(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, env=environment, bufsize=0
                )
            )
    process = fork_warm(module, arguments, log=log, environment=environment)
    process.stdin.close()
    return WarmProgram(process)


def fork_warm(module: str, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> ForkedBroker:
    """The same with a standard input, as a bare process. No library of `environment` is loaded before all others."""
    global _starter
    log.touch()  # a test may read it before the program has begun
    if _starter is None or not _starter.alive:
        _starter = BrokerStarter(__name__)
        atexit.register(_starter.close)
    order = {"module": module, "arguments": list(arguments), "log": str(log), "environment": {**environment}}
    return _starter.start(order)


async def run_warm(module: str, arguments: Sequence[str], *, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENTS` to its end."""
    with tempfile.NamedTemporaryFile() as errors:
        program = start_warm(module, arguments, log=Path(errors.name))
        try:
            async with asyncio.timeout(seconds):
                output = await program.output()
                code = await program.ended()
        finally:
            program.send_signal(signal.SIGKILL)
        return subprocess.CompletedProcess([module, *arguments], code, output.decode(), errors.read().decode())


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(descriptor, lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)


def _run(order: dict[str, Any], stdin: int, stdout: int) -> int:
    """Run the program in this process."""
    from aerobee_broker.testing import enter

    enter(stdin, stdout, log=order["log"], directory=order["directory"], environment=order["environment"])
    # those of the first process are of files that could be sought in
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv[1:] = order["arguments"]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    from aerobee_broker.testing import main

    with suppress(ImportError):  # half of what the official SDK imports; its own modules open logs in $HOME
        importlib.import_module("opentelemetry.exporter.otlp.proto.grpc.metric_exporter")
    sys.exit(main(socket.socket(fileno=int(sys.argv[1])), _run))
