"""`aerobee_client.testing`, as users of the client test their own programs with it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from aerobee_client import Message, Resolution, StoredMessage, blocking
from aerobee_client.testing import BrokerProcess, run_broker


def test_the_fixture_works_in_another_project(tmp_path: Path) -> None:
    """The README's example works in a directory outside this project, with warnings as errors."""
    (tmp_path / "test_orders.py").write_text(
        "import asyncio\n"
        "from aerobee_client import Message, connect\n"
        "def test_orders(aerobee_broker):\n"
        "    async def story():\n"
        "        async with connect(aerobee_broker.endpoint) as client:\n"
        "            await client.producer().send(Message(topic='orders', body=b'hello'))\n"
        "            (message,) = await client.simple_consumer('billing', 'orders').receive()\n"
        "            assert message.body == b'hello'\n"
        "    asyncio.run(story())\n"
    )
    (tmp_path / "conftest.py").write_text(
        "import aerobee_client.pytest_plugin\n"
        "def pytest_configure(config):\n"
        "    if not config.pluginmanager.is_registered(aerobee_client.pytest_plugin):\n"
        "        config.pluginmanager.register(aerobee_client.pytest_plugin)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", str(tmp_path)]
    command.append(
        f"--basetemp={tmp_path / 'temporary'}"
    )  # else pytest removes files of earlier runs, which takes long
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_a_failed_start_is_explained(tmp_path: Path) -> None:
    """The error contains the broker's output, and nothing keeps running."""
    with pytest.raises(RuntimeError, match="ended with code 2") as raised, run_broker(tmp_path, ["--flush", "maybe"]):
        pytest.fail("it must not start")
    assert "invalid choice: 'maybe'" in str(raised.value)


def test_the_life_of_a_broker(aerobee_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics and log are readable; a second stop is harmless, a second start is an error; the ports stay the same."""
    with urllib.request.urlopen(f"http://{aerobee_broker.metrics}/readyz", timeout=60) as answer:
        assert answer.status == 200
    with pytest.raises(RuntimeError, match="runs already"):
        aerobee_broker.start()
    first = aerobee_broker.pid
    addresses = (aerobee_broker.endpoint, aerobee_broker.metrics)
    assert aerobee_broker.stop() == 0
    assert aerobee_broker.stop() == 0
    for host, _, port in (address.rpartition(":") for address in addresses):
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind((host, int(port)))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
    assert "broker stopped" in aerobee_broker.log_text()
    monkeypatch.setenv("AEROBEE_STORE_NONSENSE", "settings of the person do not reach it")
    aerobee_broker.start()
    assert aerobee_broker.pid != first
    assert (aerobee_broker.endpoint, aerobee_broker.metrics) == addresses
    assert (aerobee_broker.store / "lock").exists()


EXAMPLE = Path(__file__).parents[2] / "examples" / "pytest-project"


@pytest.mark.sdk("python")
def test_the_example_project(tmp_path: Path) -> None:
    """Its tests pass in a process that gets the fixtures only from the package's entry point or this package."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "conftest.py").write_text(
        "import aerobee_client.pytest_plugin as plugin\n"
        "def pytest_configure(config):\n"
        "    if not config.pluginmanager.is_registered(plugin):\n"
        "        config.pluginmanager.register(plugin)\n"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}  # the official SDK writes its log there
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    command.append(f"--basetemp={tmp_path / 'temporary'}")
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=100, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "10 passed" in ended.stdout


class TestTimeThatMoves:
    async def test_moving_the_clock_redelivers_unacknowledged_messages(self, aerobee_broker: BrokerProcess) -> None:
        """The clock jumps a minute at once, and stays ahead after a restart."""
        async with aerobee_broker.connect() as client:
            await client.producer().send(Message(topic="t", body=b"x"))
            consumer = client.simple_consumer("g", "t")
            (first,) = await consumer.receive(invisible_seconds=60)
            assert await consumer.receive(wait_seconds=0) == []
            aerobee_broker.advance(61)
            (second,) = await consumer.receive(invisible_seconds=3600)
            assert (first.delivery_attempt, second.delivery_attempt) == (1, 2)
            before = aerobee_broker.now_ms()
            await asyncio.to_thread(aerobee_broker.restart)
            assert await consumer.receive(wait_seconds=0) == []
            aerobee_broker.advance(3600)
            (third,) = await consumer.receive()
            assert third.delivery_attempt == 3
            assert aerobee_broker.now_ms() >= before + 3_600_000

    async def test_transactions_are_checked(self, aerobee_broker: BrokerProcess) -> None:
        """The broker checks first after six seconds, then every 30 seconds."""
        asked = asyncio.Queue[str]()

        async def checker(message: StoredMessage) -> Resolution:
            asked.put_nowait(message.message_id)
            return "commit" if asked.qsize() > 1 else "unknown"

        async with aerobee_broker.connect() as client:
            producer = client.producer(transaction_checker=checker)
            transaction = producer.transaction()
            sent = await transaction.send(Message(topic="t", body=b"x"))
            consumer = client.simple_consumer("g", "t")
            async with asyncio.timeout(60):
                while asked.qsize() < 2:
                    assert await consumer.receive(wait_seconds=0) == []
                    aerobee_broker.advance(10)
            (message,) = await consumer.receive()
            assert message.message_id == sent.message_id == asked.get_nowait()

    def test_the_clock_moves_only_on_request(self, tmp_path: Path) -> None:
        """The clock can only be moved if the test asks for that at the start."""
        with run_broker(tmp_path) as broker, pytest.raises(RuntimeError, match="moving_time=True"):
            broker.advance(1)


def test_a_store_in_memory(tmp_path: Path) -> None:
    """The store outlives the broker process, but not the block. A broker ends with the program that started it."""
    with run_broker(memory=True) as broker, blocking.connect(broker.endpoint) as client:
        assert broker.store.is_relative_to("/dev/shm")
        client.producer().send(Message(topic="t", body=b"x"))
        broker.kill()
        broker.start()
        assert [message.body for message in client.simple_consumer("g", "t").receive()] == [b"x"]
    assert not broker.store.exists()
    program = (
        "import os, sys\n"
        "from aerobee_client.testing import run_broker\n"
        "with run_broker() as broker:\n"
        "    print(broker.pid, flush=True)\n"
        "    os._exit(0)\n"
    )
    left_behind = {**os.environ, "TMPDIR": str(tmp_path)}  # a program that ends in this way cannot remove its files
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=left_behind)
    pid = int(ended.stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the broker outlives who started it"
        time.sleep(0.05)


def test_a_broker_for_tests_without_pytest(tmp_path: Path) -> None:
    """`run_broker` needs no pytest; one prepared process starts all brokers, and none is left behind."""
    program = (
        "import sys\n"
        "sys.modules['pytest'] = None\n"
        "from pathlib import Path\n"
        "from aerobee_client import testing, blocking, broker_starter, Message\n"
        "testing.prepare()\n"
        "starter = broker_starter.kept().pid\n"
        "with testing.run_broker() as first, testing.run_broker() as broker:\n"
        "    parents = {int(Path(f'/proc/{each.pid}/stat').read_text().split()[3]) for each in (first, broker)}\n"
        "    assert parents == {starter}\n"
        "    with blocking.connect(broker.endpoint) as client:\n"
        "        client.producer().send(Message(topic='t', body=b'x'))\n"
        "testing.unprepare()\n"
        "assert not Path(f'/proc/{starter}').exists()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60, cwd=tmp_path)


def test_a_starter_that_dies(tmp_path: Path) -> None:
    """Its broker keeps running and can be stopped, without an exit code; the next start has a new starter."""
    program = (
        "import os, signal\n"
        "from aerobee_client import testing, broker_starter, blocking, Message\n"
        "testing.prepare()\n"
        "with testing.run_broker() as broker:\n"
        "    os.kill(broker_starter.kept().pid, signal.SIGKILL)\n"
        "    with blocking.connect(broker.endpoint) as client:\n"
        "        client.producer().send(Message(topic='t', body=b'x'))\n"
        "    assert broker.stop() == -1\n"
        "    broker.start()\n"
        "    with blocking.connect(broker.endpoint) as client:\n"
        "        assert [m.body for m in client.simple_consumer('g', 't').receive()] == [b'x']\n"
        "    assert broker.stop() == 0\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=200, cwd=tmp_path)


def test_the_process_that_starts_brokers_takes_any_descriptor() -> None:
    """The test run may have more than 1,024 files open before the first broker is asked for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this machine allows fewer open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    own, theirs = socket.socketpair()
    number = fcntl.fcntl(theirs, fcntl.F_DUPFD, 2000)
    try:
        command = [sys.executable, "-m", "aerobee_broker.testing", str(number)]
        with subprocess.Popen(command, pass_fds=[number], stderr=subprocess.PIPE, text=True) as process:
            own.close()
            _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    finally:
        os.close(number)
        theirs.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
