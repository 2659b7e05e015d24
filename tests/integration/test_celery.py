"""Celery's own worker on a real broker, with the example of `examples/celery`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("celery", reason="needs Celery: make setup")

from aerobee_client import blocking
from aerobee_client.testing import BrokerProcess

ROOT = Path(__file__).parents[2]
_SECONDS = 120.0

pytestmark = pytest.mark.timeout(400)

_FORKED = """
import os, sys
from aerobee_client import blocking
from aerobee_client.errors import ConfigurationError
if os.fork() == 0:
    with blocking.connect(sys.argv[1]) as client:
        print(len(client.admin.list_topics()), flush=True)
    os._exit(0)
os.wait()
with blocking.connect(sys.argv[1]) as client:
    client.admin.list_topics()
if os.fork() == 0:
    try:
        blocking.connect(sys.argv[1])
    except ConfigurationError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@contextmanager
def worker(broker: BrokerProcess, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Celery's worker, as the page starts it."""
    command = [sys.executable, "-m", "celery", "-A", "examples.celery.billing", "worker", "--loglevel", "info"]
    environment = {**os.environ, "AEROBEE_ENDPOINT": broker.endpoint}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait_until_ready(process, log)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_SECONDS)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def _wait_until_ready(worker: subprocess.Popen[bytes], log: Path) -> None:
    """A worker reads what is sent to all workers from its start on: earlier requests get no answer."""
    deadline = time.monotonic() + _SECONDS
    while " ready." not in log.read_text():
        assert worker.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def program(broker: BrokerProcess, *command: str) -> str:
    """Run a program that sends tasks until it ends; return its output."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "AEROBEE_ENDPOINT": broker.endpoint},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example(aerobee_broker: BrokerProcess, tmp_path: Path) -> None:
    """Results, an error, a countdown, tasks sent by a task, and remote control; each task in a process of its own, so
    that the worker replaces processes while it is connected."""
    with worker(aerobee_broker, tmp_path / "log", "--concurrency", "2", "--max-tasks-per-child", "1"):
        lines = program(aerobee_broker, "-m", "examples.celery.send").splitlines()
    assert lines[0] == "order-7: 10 EUR"
    assert lines[1] == "ValueError('order-9 has amount 0')"
    assert lines[2].startswith("order-8: 20 EUR after ")
    assert lines[3] == "2 sent by a task"
    assert lines[4] == "workers that answer: 1"
    with blocking.connect(aerobee_broker.endpoint) as client:
        assert sum(topic.lag for topic in client.admin.describe_group("celery").topics) == 0


def test_events_and_inspection(aerobee_broker: BrokerProcess, tmp_path: Path) -> None:
    """`celery inspect` gets answers, and a monitor sees the events of a worker that sends them."""
    with worker(aerobee_broker, tmp_path / "log", "--pool", "threads", "--concurrency", "2", "-E"):
        inspected = program(
            aerobee_broker,
            "-m",
            "celery",
            "-A",
            "examples.celery.billing",
            "inspect",
            "-t",
            "60",
            "-d",
            f"celery@{os.uname().nodename}",
            "registered",
        )
        assert "examples.celery.billing.bill" in inspected
        seen = program(aerobee_broker, "-c", _MONITOR)
    assert seen.split() == ["task-received", "task-started", "task-succeeded"]


_MONITOR = """
from celery.events import EventReceiver
from examples.celery.billing import app, bill

seen = []


class Monitor(EventReceiver):
    def on_consume_ready(self, *arguments, **options):
        bill.delay("order-1", 1)


def note(event):
    seen.append(event["type"])
    monitor.should_stop = event["type"] == "task-succeeded"


with app.connection() as connection:
    monitor = Monitor(connection, dict.fromkeys(("task-received", "task-started", "task-succeeded"), note))
    monitor.capture(timeout=60)
print(*seen)
"""


def test_a_forked_process_is_told_that_grpc_does_not_survive(aerobee_broker: BrokerProcess) -> None:
    """A client in the child of a process that used one is refused instead of hanging; before the first it works."""
    counted, refused = program(aerobee_broker, "-c", _FORKED, aerobee_broker.endpoint).splitlines()
    assert "worker_pool_start_method" in refused
    assert counted.isdecimal()
