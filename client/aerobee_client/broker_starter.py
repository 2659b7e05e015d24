"""Starts brokers for tests by `fork`, from a process that has done their imports.

    this process                         starter: python -m aerobee_broker.testing    brokers
    order, two ends of pipes         ->  forks                                         serves, until its input ends
                                     <-  process id
    exit code of a process id        ->  waits for it
                                     <-  exit code
    end of the socket                ->  ends; its brokers keep running

Imports take most of a broker's start. With a starter, only the first broker of a program waits for them, and no broker
waits if `prepare` was called in time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any, Final

_ANSWER_SECONDS: Final = 120.0  # the first answer comes after the imports: a second, or many on a busy machine
_ORDER_SIZE_MAX: Final = 1 << 17  # bytes; mostly for the environment


class ForkedBroker:
    """A broker's process, which is a child of the starter, with the interface of `subprocess.Popen`."""

    def __init__(self, starter: BrokerStarter, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._starter = starter
        # readable when the process has ended; it prevents reuse of the process id
        self._descriptor = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout_seconds: float) -> int:
        """The exit code. TimeoutError if the process is still running after the timeout."""
        code = self._ended(timeout_seconds)
        if code is None:
            raise TimeoutError(f"process {self.pid} is still running after {timeout_seconds:g} s")
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; ignored if the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def _ended(self, timeout_seconds: float) -> int | None:
        if self._code is None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if not poll.poll(timeout_seconds * 1000):
                return None
            self._code = self._starter.exit_code(self.pid)
            os.close(self._descriptor)
        return self._code


class BrokerStarter:
    """The process that imports and forks. It ends with `close`, or with this process."""

    def __init__(self, module: str = "aerobee_broker.testing") -> None:
        """`module`: the program that takes the orders."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _ORDER_SIZE_MAX)
        self._one_at_a_time = threading.Lock()
        self._socket.settimeout(_ANSWER_SECONDS)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  # our interpreter, and a module of ours
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**_environment(), "OPENBLAS_NUM_THREADS": "1"},  # a process with threads must not fork
            )

    @property
    def pid(self) -> int:
        """Process id of the starter."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can start another broker."""
        return self._process.poll() is None

    def start(self, order: Mapping[str, object]) -> ForkedBroker:
        """Fork a broker with this order, by default here and in this environment. RuntimeError if the starter does not
        answer."""
        stdin_theirs, stdin = os.pipe()
        stdout, stdout_theirs = os.pipe()
        files = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb", buffering=0)
        try:
            whole = {"directory": os.getcwd(), "environment": _environment(), **order}
            pid = self._ask(whole, [stdin_theirs, stdout_theirs])["pid"]
            return ForkedBroker(self, int(pid), *files)
        except BaseException:
            for file in files:
                file.close()
            raise
        finally:
            os.close(stdin_theirs)
            os.close(stdout_theirs)

    def exit_code(self, pid: int) -> int:
        """The exit code of a broker that has ended; -1 if it is unknown, because the starter was killed."""
        try:
            return int(self._ask({"exit_code_of": pid}, [])["code"])
        except RuntimeError:
            return -1

    def close(self) -> None:
        """End the starter. Brokers keep running."""
        self._socket.close()
        self._process.kill()  # at once, even during its imports
        self._process.wait()

    def _ask(self, order: Mapping[str, object], descriptors: list[int]) -> dict[str, Any]:
        try:
            with self._one_at_a_time:
                socket.send_fds(self._socket, [json.dumps(order).encode()], descriptors)
                answer = self._socket.recv(4096)
        except OSError as error:
            self._process.kill()  # a late answer could be taken for that to another order
            raise RuntimeError(f"the process that starts brokers does not answer: {error}") from error
        if not answer:
            raise RuntimeError("the process that starts brokers has ended; see its standard error")
        found: dict[str, Any] = json.loads(answer)
        return found


def _environment() -> dict[str, str]:
    """The environment without the user's own settings, which must not affect the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AEROBEE_")}


# --- The starter of this program -------------------------------------------------------------------------------------

_kept: BrokerStarter | None = None


def keep() -> None:
    """Start a starter now, for all brokers of this program until `drop`."""
    global _kept
    if _kept is None or not _kept.alive:
        _kept = BrokerStarter()


def drop() -> None:
    """End the kept starter. Running brokers keep running."""
    global _kept
    if _kept is not None:
        _kept.close()
        _kept = None


def kept() -> BrokerStarter | None:
    """The kept starter, if it is alive."""
    return _kept if _kept is not None and _kept.alive else None
