"""A real broker for tests, as a child process. pytest fixtures for it are in `aerobee_client.pytest_plugin`.

    with run_broker(memory=True, moving_time=True) as broker:
        with blocking.connect(broker.endpoint) as client:
            ...
        broker.advance(3600)    # delays of an hour, retries and checks of transactions are due now

Imports take most of a broker's start. `prepare` starts a process that does them in advance and starts all further
brokers by `fork`, each in some tens of milliseconds.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from aerobee_client import broker_starter

if TYPE_CHECKING:
    from aerobee_client.client import Client, ConnectOptions

_READY = re.compile(rb"ready grpc=(\S+) metrics=(\S+)(?: tls=(\S+))?(?: remoting=\S+)?\n")
_ADVANCED = re.compile(rb"advanced\n")
_START_SECONDS = 30.0  # a start takes a fraction of a second, but more on a busy machine
_STOP_SECONDS = 30.0
_MEMORY = Path("/dev/shm")  # noqa: S108  # a file system in memory, where Linux has one
_MEMORY_FREE_MIN = 128 << 20

# How full the machine's disk is must not decide whether a test passes.
_DISK_SETTINGS: Mapping[str, object] = {"store.disk_force_clean_ratio": 1.0, "store.disk_full_ratio": 1.0}
# A test needs neither segments of a gigabyte nor half a gigabyte of index.
_MEMORY_SETTINGS: Mapping[str, object] = {
    "store.segment_size": 16 << 20,
    "store.segments_ahead": 0,
    "store.queue_file_size": 30_000 * 20,
    "store.index_slot_count": 50_000,
    "store.index_entry_count": 200_000,
    "store.disk_headroom": 8 << 20,
}
# Clients do not notice that time is moved and send a heartbeat every ten seconds: they must not expire.
_MOVING_TIME_SETTINGS: Mapping[str, object] = {"limits.client_expiry_seconds": 400 * 86_400}

MessageType = Literal["normal", "fifo", "delay", "transaction", "priority", "lite"]


class AddressKeeper:
    """Reserves the ports of a process that has ended until its restart, so that no other process gets them as free
    ports."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def keep(self, *endpoints: str) -> None:
        """Bind these addresses, `127.0.0.1:port`, without listening: connections are refused, but a server can still
        listen."""
        self.release()
        addresses = [endpoint.rpartition(":") for endpoint in endpoints if not endpoint.startswith("unix:")]
        for host, _, port in addresses:
            kept = socket.socket()
            self._sockets.append(kept)
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # another process listens there; the next start reports it
                kept.bind((host, int(port)))

    def release(self) -> None:
        """Release the ports. A process that listens there already is not affected."""
        while self._sockets:
            self._sockets.pop().close()


class BrokerProcess:
    """A broker whose process, ports and store belong to a test. `run_broker` creates one.

    With `moving_time`, `advance` moves its clock ahead.
    """

    def __init__(
        self,
        store: Path,
        log: Path,
        arguments: Sequence[str],
        *,
        settings: Mapping[str, object] | None = None,
        moving_time: bool = False,
    ) -> None:
        self.store = store
        self._log = log
        self._arguments = list(arguments)
        self._settings = {**(_MOVING_TIME_SETTINGS if moving_time else {}), **(settings or {})}
        self._moving_time = moving_time
        self._advanced_seconds = 0.0
        self._process: broker_starter.ForkedBroker | None = None
        self._starter: broker_starter.BrokerStarter | None = None  # its own, if none is kept
        # Free ports at first; a restart uses the same ports, as clients expect.
        self.endpoint = "127.0.0.1:0"
        self.metrics = "127.0.0.1:0"
        self.tls_endpoint: str | None = None  # with the argument `--listen-tls`
        self._keeper = AddressKeeper()

    @property
    def pid(self) -> int:
        """The process id of the running process, or of the last one."""
        if self._process is None:
            raise RuntimeError("the broker was not started yet; call start()")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, settings: Mapping[str, object] | None = None, clock_moved_seconds: float = 0.0) -> None:
        """Start the process and wait until it is ready. RuntimeError, with its output, if that fails.

        `settings` replace earlier ones of the same name. `clock_moved_seconds`, with `moving_time`: by how much the
        clock of the machine changed while the broker did not run; negative: back.
        """
        self._launch(settings or {}, clock_moved_seconds)
        ready = self._wait_for(_READY, "serve")
        self.endpoint, self.metrics = ready[1].decode(), ready[2].decode()
        self.tls_endpoint = ready[3].decode() if ready[3] is not None else None
        self._keeper.release()

    def advance(self, seconds: float) -> None:
        """Advance the time of the broker, and run everything that becomes due.

        Delayed messages are delivered, unacknowledged messages are redelivered, transactions are checked, messages
        expire. The clients' own time does not change. Waiting receives end, so receive afterwards. RuntimeError without
        `moving_time`.
        """
        if not self._moving_time:
            raise RuntimeError("the time of this broker cannot be moved; start it with moving_time=True")
        self._advance(seconds)
        self._advanced_seconds += seconds

    def now_ms(self) -> int:
        """The broker's time in Unix milliseconds."""
        return round((time.time() + self._advanced_seconds) * 1000)

    def connect(self, *, namespace: str = "", **options: Unpack[ConnectOptions]) -> Client:
        """A client of this broker, as by `aerobee_client.connect`."""
        from aerobee_client.client import connect

        return connect(self.endpoint, namespace=namespace, **options)

    def create_topic(
        self, name: str, message_type: MessageType = "normal", *, queue_count: int = 0, namespace: str = ""
    ) -> str:
        """Create a topic for messages of one type, and return its name. 0 queues: the broker's default."""
        from aerobee_client import blocking
        from aerobee_proto import v2

        kinds = [v2.MessageType.Value(message_type.upper())]
        with blocking.connect(self.endpoint) as client:
            stored = f"{namespace}%{name}" if namespace else name
            client.run(client.asynchronous.admin.create_topic(stored, queue_count=queue_count, message_types=kinds))
        return name

    def create_group(self, name: str, *, fifo: bool = False, max_attempts: int = 0, namespace: str = "") -> str:
        """Create a consumer group, and return its name. `fifo`: messages of one message group in order."""
        from aerobee_client import blocking

        with blocking.connect(self.endpoint) as client:
            stored = f"{namespace}%{name}" if namespace else name
            client.run(client.asynchronous.admin.create_group(stored, fifo=fifo, max_attempts=max_attempts))
        return name

    def stop(self) -> int:
        """Stop it gracefully (SIGTERM) and return its exit code. No effect on a process that has ended."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it if it runs, and start it again on the same store and ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it finally and free its ports."""
        try:
            self.stop()
        finally:
            self._keeper.release()
            if self._starter is not None:
                self._starter.close()
                self._starter = None

    def log_text(self) -> str:
        """The standard error output of all its runs."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def _launch(self, settings: Mapping[str, object], clock_moved_seconds: float) -> None:
        if clock_moved_seconds and not self._moving_time:
            raise RuntimeError("the time of this broker cannot be moved; start it with moving_time=True")
        self._settings.update(settings)
        self._advanced_seconds += clock_moved_seconds
        if self.running:
            raise RuntimeError(f"the broker runs already as process {self.pid}")
        again = () if self.tls_endpoint is None else ("--listen-tls", self.tls_endpoint)
        order = {
            "arguments": [
                *("--store", str(self.store), "--listen", self.endpoint, "--metrics", self.metrics),
                *(*self._arguments, *again),
            ],
            "log": str(self._log),
            "settings": self._settings,
            "moving_time": self._moving_time,
            "advanced_seconds": self._advanced_seconds,
        }
        starter = broker_starter.kept()
        if starter is None:
            starter = self._starter = self._starter or broker_starter.BrokerStarter()
        self._process = starter.start(order)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        process.signal(number)
        try:
            return process.wait(_STOP_SECONDS)
        except TimeoutError:
            process.signal(signal.SIGKILL)
            process.wait(_STOP_SECONDS)
            raise RuntimeError(
                f"the broker did not end within {_STOP_SECONDS} s; its log:\n{self.log_text()}"
            ) from None
        finally:
            if not process.stdout.closed:
                process.stdout.close()
                with suppress(BrokenPipeError):
                    process.stdin.close()
                listened = (self.endpoint, self.metrics, self.tls_endpoint)
                self._keeper.keep(*(endpoint for endpoint in listened if endpoint and not endpoint.endswith(":0")))

    def _advance(self, seconds: float) -> None:
        self._tell({"advance_seconds": seconds})
        self._wait_for(_ADVANCED, "move its time")

    def _tell(self, order: Mapping[str, object]) -> None:
        process = self._process
        assert process is not None, "started before"
        with suppress(BrokenPipeError):  # the wait for its answer reports the cause of its death
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()

    def _wait_for(self, line: re.Pattern[bytes], what: str) -> re.Match[bytes]:
        process = self._process
        assert process is not None, "started before"
        written = b""
        poll = select.poll()  # select does not support descriptors above 1023, which a large test run reaches
        poll.register(process.stdout, select.POLLIN)
        deadline = time.monotonic() + _START_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if not poll.poll(left * 1000):
                break
            chunk = os.read(process.stdout.fileno(), 4096)
            written += chunk
            if match := line.search(written):
                return match
            if not chunk:  # it closed its output because it ended
                process.wait(_STOP_SECONDS)
                break
        code = process.poll()
        self.kill()
        state = f"did not {what} within {_START_SECONDS} s" if code is None else f"ended with code {code}"
        raise RuntimeError(f"the broker {state}; its log:\n{self.log_text()}")


class Namespace:
    """A namespace in a broker for one test: topics and groups of the same names elsewhere are different ones.

    `aerobee_client.connect(endpoint, namespace=name)` works in it; the official SDKs take the namespace in their
    configuration.
    """

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.broker = broker
        self.name = name

    @property
    def endpoint(self) -> str:
        """Of the broker."""
        return self.broker.endpoint

    def connect(self, **options: Unpack[ConnectOptions]) -> Client:
        """A client in this namespace, as by `aerobee_client.connect`."""
        return self.broker.connect(namespace=self.name, **options)

    def create_topic(self, name: str, message_type: MessageType = "normal", *, queue_count: int = 0) -> str:
        """Like `BrokerProcess.create_topic`."""
        return self.broker.create_topic(name, message_type, queue_count=queue_count, namespace=self.name)

    def create_group(self, name: str, *, fifo: bool = False, max_attempts: int = 0) -> str:
        """Like `BrokerProcess.create_group`."""
        return self.broker.create_group(name, fifo=fifo, max_attempts=max_attempts, namespace=self.name)

    def close(self) -> None:
        """Delete its topics and groups. Errors are ignored if the broker is gone or they are in use."""
        from aerobee_client import blocking
        from aerobee_client.errors import ClientError

        prefix = f"{self.name}%"
        if not self.broker.running:
            return
        with blocking.connect(self.endpoint, retry_seconds=0) as client, suppress(ClientError):
            admin = client.asynchronous.admin
            for topic in client.run(admin.list_topics()):
                if topic.name.startswith(prefix):
                    client.run(admin.delete_topic(topic.name))
            for group in client.run(admin.list_groups()):
                if group.name.startswith(prefix):
                    client.run(admin.delete_group(group.name))


_namespace_numbers = itertools.count()


def new_namespace(broker: BrokerProcess) -> Namespace:
    """A namespace that no other test of this broker uses, in any process."""
    return Namespace(broker, f"t{os.getpid()}-{next(_namespace_numbers)}")


@contextmanager
def run_broker(
    directory: Path | None = None,
    arguments: Sequence[str] = ("--dev",),
    *,
    memory: bool = False,
    moving_time: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Iterator[BrokerProcess]:
    """A broker for the duration of the block. It is always stopped at the end, by its own process id.

    - `directory`: its store is in `store` there, its log in `broker.log`; by default a temporary directory.
    - `arguments` are further ones of `aerobee serve`, `settings` those of its configuration (`store.segment_size`).
      By default, no message is refused or removed because the disk is full of other files.
    - `memory`: the store is in /dev/shm, where a sync costs nothing. It survives restarts of the broker, and is removed
      at the end. RuntimeError if too little memory is free.
    - `moving_time`: see `BrokerProcess.advance`.
    """
    temporary = tempfile.mkdtemp(prefix="aerobee-", dir=_memory_directory() if memory else None)
    own = Path(temporary) if directory is None else directory
    broker = BrokerProcess(
        Path(temporary) / "store" if memory else own / "store",
        own / "broker.log",
        arguments,
        settings={**_DISK_SETTINGS, **(_MEMORY_SETTINGS if memory else {}), **(settings or {})},
        moving_time=moving_time,
    )
    try:
        broker.start()
        yield broker
    finally:
        try:
            broker.close()
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _memory_directory() -> Path:
    """A directory in memory. RuntimeError without enough free space."""
    free = shutil.disk_usage(_MEMORY).free if os.access(_MEMORY, os.W_OK) else 0
    if free < _MEMORY_FREE_MIN:
        raise RuntimeError(
            f"{_MEMORY} has {free >> 20} MiB free, a store in memory needs {_MEMORY_FREE_MIN >> 20}; give a "
            f"container more (docker run --shm-size=512m), or keep the store on disk"
        )
    return _MEMORY


# --- The process that starts brokers --------------------------------------------------------------------------------


def prepare() -> None:
    """Import the broker's modules now, in a process that starts all brokers of this program until `unprepare`."""
    atexit.register(unprepare)
    broker_starter.keep()


def unprepare() -> None:
    """End that process."""
    broker_starter.drop()
    atexit.unregister(unprepare)
