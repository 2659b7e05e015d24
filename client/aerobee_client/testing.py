"""A real broker for tests, as a child process: the pytest fixture `aerobee_broker`.

    async def test_orders_are_billed(aerobee_broker):
        async with connect(aerobee_broker.endpoint) as client:
            ...

Every test gets a broker of its own on free ports, with a store in a temporary directory, that creates topics on first
use. Installing Aerobee is enough for pytest to find the fixture. `run_broker` is the same without pytest.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_READY = re.compile(rb"ready grpc=(\S+) metrics=(\S+)(?: tls=(\S+))?\n")
_START_SECONDS = 30.0  # a start takes a fraction of a second; machines that build and test may be very busy
_STOP_SECONDS = 30.0


class AddressKeeper:
    """Keeps the ports of a process that has ended until its next life: who asks for any free port gets none of them."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def keep(self, *endpoints: str) -> None:
        """Bind these, `127.0.0.1:port`, without listening: connections are refused, a server may still listen there."""
        self.release()
        for host, _, port in (endpoint.rpartition(":") for endpoint in endpoints):
            kept = socket.socket()
            self._sockets.append(kept)
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # somebody listens there, as the next start will say
                kept.bind((host, int(port)))

    def release(self) -> None:
        """Give them back. A process that listens there by now is not disturbed."""
        while self._sockets:
            self._sockets.pop().close()


class BrokerProcess:
    """A broker of which a test owns the process, the ports and the store. `run_broker` makes one."""

    def __init__(self, store: Path, log: Path, arguments: Sequence[str]) -> None:
        self.store = store
        self._log = log
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        # Free ports at first; a restart listens where it listened before, as clients expect.
        self.endpoint = "127.0.0.1:0"
        self.metrics = "127.0.0.1:0"
        self.tls_endpoint: str | None = None  # with the argument `--listen-tls`
        self._keeper = AddressKeeper()

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        if self._process is None:
            raise RuntimeError("the broker was not started yet; call start()")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until it serves. RuntimeError with its output if it does not."""
        if self.running:
            raise RuntimeError(f"the broker runs already as process {self.pid}")
        ports = ("--listen", self.endpoint, "--metrics", self.metrics)
        command = [sys.executable, "-m", "aerobee_broker", "serve", "--store", str(self.store), *ports]
        again = () if self.tls_endpoint is None else ("--listen-tls", self.tls_endpoint)
        # Settings of the person who runs the tests are not settings of the test.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AEROBEE_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our interpreter, and arguments of the test
                [*command, *self._arguments, *again],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        ready = self._wait_ready(self._process)
        self.endpoint, self.metrics = ready[1].decode(), ready[2].decode()
        self.tls_endpoint = ready[3].decode() if ready[3] is not None else None
        self._keeper.release()

    def stop(self) -> int:
        """End it in an orderly way (SIGTERM) and return its exit code. Does nothing to one that has ended."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a chance to do anything (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it, if it runs, and start it again on the same store and ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it for good: its ports are free for others."""
        try:
            self.stop()
        finally:
            self._keeper.release()

    def log_text(self) -> str:
        """What all its runs wrote to standard error."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(
                f"the broker did not end within {_STOP_SECONDS} s; its log:\n{self.log_text()}"
            ) from None
        finally:
            if process.stdout is not None and not process.stdout.closed:
                process.stdout.close()
                listened = (self.endpoint, self.metrics, self.tls_endpoint)
                self._keeper.keep(*(endpoint for endpoint in listened if endpoint and not endpoint.endswith(":0")))

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> re.Match[bytes]:
        assert process.stdout is not None, "started with a pipe"
        written = b""
        poll = select.poll()  # select itself takes no descriptor above 1023, which a large test run reaches
        poll.register(process.stdout, select.POLLIN)
        deadline = time.monotonic() + _START_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if not poll.poll(left * 1000):
                break
            chunk = os.read(process.stdout.fileno(), 4096)
            written += chunk
            if match := _READY.search(written):
                return match
            if not chunk:  # it closed its output: it ended
                process.wait(_STOP_SECONDS)
                break
        code = process.poll()
        self.kill()
        state = f"did not serve within {_START_SECONDS} s" if code is None else f"ended with code {code}"
        raise RuntimeError(f"the broker {state}; its log:\n{self.log_text()}")


@contextmanager
def run_broker(directory: Path, arguments: Sequence[str] = ("--dev",)) -> Iterator[BrokerProcess]:
    """A broker with its store in `directory / "store"`, started with further `arguments` of `aerobee serve`.

    Stopped at the end, by its own process id, whatever happened.
    """
    broker = BrokerProcess(directory / "store", directory / "broker.log", arguments)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture
def aerobee_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for one test: `.endpoint`, `.metrics`, `.store`, `.kill()`, `.restart()`, `.stop()`, `.log_text()`."""
    with run_broker(tmp_path_factory.mktemp("aerobee")) as broker:
        yield broker
