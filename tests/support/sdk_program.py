"""A program that uses an official SDK, as a child process that exchanges lines of JSON with a test.

    test -> program     {"do": "receive", "count": 10}              one command a line; shut down at the end of input
    program -> test     {"event": "ready"}                          the client serves
                        {"event": "answer", ...}                    to a command, in the order of the commands
                        {"event": "message", "time": ..., ...}      a listener was called
                        {"event": "error", "error": "..."}          the command before failed

Programs start at once and side by side; `ready` waits for one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aerobee_client.broker_starter import ForkedBroker
from aerobee_client.testing import BrokerProcess
from tests.support.shell import Shell
from tests.support.warm_program import fork_warm

Event = dict[str, Any]
_SECONDS = 40.0  # timeout of short operations; a test machine may be very busy


class SdkProgram:
    """`command` is followed by `options` as JSON; `home` gets the log files that SDKs write to a home directory.

    `module`: a program in Python, to start by `fork` from a process that has done most of its imports.
    """

    def __init__(
        self, command: Sequence[str], home: Path, cwd: Path, *, module: str | None = None, **options: Any
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.name = f"{Path(command[-1]).name} {json.dumps(options)}"
        self._stderr = home / "stderr.log"
        self._logs = home / "logs"
        self._events: list[Event] = []
        self._answers_seen = 0
        self._ended = False
        self._changed = threading.Condition()
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        environment.update(HOME=str(home), no_proxy="127.0.0.1,localhost")
        self._process: subprocess.Popen[bytes] | ForkedBroker
        if module is not None and "LD_PRELOAD" not in environment:
            self._process = fork_warm(module, [json.dumps(options)], log=self._stderr, environment=environment)
        else:
            with self._stderr.open("wb") as stderr:
                self._process = subprocess.Popen(
                    [*command, json.dumps(options)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    cwd=cwd,
                    env=environment,
                )
        self._reader = threading.Thread(target=self._read, name=f"reads {self.name}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program, so that none outlives its test."""
        self.signal(signal.SIGKILL)
        self._process.wait(_SECONDS)
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a command that the program never read
                    pipe.close()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ready(self) -> Self:
        """Wait until the client has started."""
        self.wait(lambda events: any(event["event"] == "ready" for event in events), "its start")
        return self

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a command; `answer` waits for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, seconds: float = _SECONDS) -> Event:
        """The answer to the oldest unanswered command. AssertionError if the command failed."""

        def answered(events: list[Event]) -> bool:
            return len(_answers(events)) > self._answers_seen

        self.wait(answered, "an answer", seconds)
        answer = _answers(self._events)[self._answers_seen]
        self._answers_seen += 1
        assert answer["event"] == "answer", f"{self.name}: {answer['error']}\n{self.logs()}"
        return answer

    def ask(self, do: str, *, seconds: float = _SECONDS, **arguments: Any) -> Event:
        """Send a command, and return its answer."""
        self.tell(do, **arguments)
        return self.answer(seconds)

    def messages(self, event: str = "message") -> list[Event]:
        """The listener's messages so far, or other events of that name."""
        with self._changed:
            return [each for each in self._events if each["event"] == event]

    def wait_messages(self, count: int, event: str = "message", seconds: float = _SECONDS) -> list[Event]:
        """Wait for at least `count` of them."""
        self.wait(lambda events: sum(e["event"] == event for e in events) >= count, f"{count} of {event!r}", seconds)
        return self.messages(event)

    def wait(self, true: Callable[[list[Event]], bool], what: str, seconds: float = _SECONDS) -> None:
        """Wait until `true` holds for all events so far; AssertionError on timeout or if the program has ended."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not true(self._events):
                left = deadline - time.monotonic()
                if self._ended or not self._changed.wait(max(left, 0)):
                    if true(self._events):
                        return
                    cause = "ended before" if self._ended else f"did not give in {seconds:g} s"
                    raise AssertionError(f"{self.name} {cause}: {what}; events: {self._events[-20:]}\n{self.logs()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process; ignored if it has ended."""
        if self.running:
            os.kill(self._process.pid, number)

    def end(self) -> int:
        """Shut the program down cleanly; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(_SECONDS)

    def logs(self) -> str:
        """The end of the output of program and SDK."""
        files = [self._stderr, *sorted(self._logs.rglob("*.log"))]
        texts = [f"--- {path.name}\n" + path.read_text(errors="replace")[-4000:] for path in files if path.exists()]
        return "\n".join(texts)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in open(self._process.stdout.fileno(), "rb", closefd=False):  # noqa: SIM115 - buffered
            event = json.loads(line)
            with self._changed:
                self._events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _answers(events: list[Event]) -> list[Event]:
    return [event for event in events if event["event"] in ("answer", "error")]


def wait_all_messages(
    programs: Sequence[SdkProgram], bodies: set[str], event: str = "message", seconds: float = _SECONDS
) -> list[Event]:
    """The messages of all programs' listeners, once every one of these bodies has arrived."""
    deadline = time.monotonic() + seconds
    while True:
        found = [message for program in programs for message in program.messages(event)]
        missing = bodies - {message["body"] for message in found}
        if not missing:
            return found
        logs = "\n".join(program.logs() for program in programs)
        assert time.monotonic() < deadline, f"{len(missing)} of {len(bodies)} are missing: {sorted(missing)}\n{logs}"
        assert all(program.running for program in programs), f"a program has ended\n{logs}"
        time.sleep(0.05)


def bodies(messages: Iterable[Event]) -> list[str]:
    """The bodies of all these messages, sorted."""
    return sorted(message["body"] for message in messages)


def numbered(count: int, prefix: str = "m") -> list[dict[str, Any]]:
    """Messages to send."""
    return [{"body": f"{prefix}{number}"} for number in range(count)]


def group_queues(broker: BrokerProcess, group: str) -> list[dict[str, Any]]:
    """A group's progress in each queue, as the broker sees it."""
    queues: list[dict[str, Any]] = Shell(broker.endpoint).json("group", "describe", group)["queues"]
    return queues


def create_topic(broker: BrokerProcess, topic: str, *message_types: str) -> None:
    """Create a topic for messages of these types, named as on the command line."""
    types = (argument for name in message_types for argument in ("--type", name))
    Shell(broker.endpoint).text("topic", "create", topic, *types)


def reconnect(broker: BrokerProcess, group: str) -> None:
    """Tell the clients of a group to reopen their Telemetry streams."""
    shell = Shell(broker.endpoint)
    found = shell.json("group", "describe", group)
    assert found["clients"], found
    for client in found["clients"]:
        shell.text("client", "reconnect", client["clientId"])


def wait_group(broker: BrokerProcess, group: str, **expected: int) -> None:
    """Wait until a group's `lag`, `inflight` or `ready`, summed over its queues, have the expected values."""
    deadline = time.monotonic() + _SECONDS
    while True:
        queues = group_queues(broker, group)
        sums = {name: sum(queue[name] for queue in queues) for name in expected}
        if sums == expected:
            return
        assert time.monotonic() < deadline, f"group {group!r} has {sums}, expected {expected}"
        time.sleep(0.05)


def send_until_taken(producer: SdkProgram, messages: list[dict[str, Any]]) -> None:
    """Send through a producer whose broker may be unreachable; failed sends are retried, as applications do."""
    deadline = time.monotonic() + _SECONDS
    while True:
        producer.tell("send", messages=messages)
        try:
            producer.answer()
            return
        except AssertionError:
            assert producer.running, producer.logs()
            assert time.monotonic() < deadline, producer.logs()
            time.sleep(0.2)
