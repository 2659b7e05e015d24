"""`aerobee_client.testing` as those use it who test their own programs."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from aerobee_client.testing import BrokerProcess, run_broker


def test_a_test_of_somebody_else(tmp_path: Path) -> None:
    """The README's example works in a directory that knows nothing of this project, with warnings as errors."""
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
        "import aerobee_client.testing\n"
        "def pytest_configure(config):\n"
        "    if not config.pluginmanager.is_registered(aerobee_client.testing):\n"
        "        config.pluginmanager.register(aerobee_client.testing)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    """The error holds what the broker wrote, so that nobody has to look for a log; nothing is left running."""
    with pytest.raises(RuntimeError, match="ended with code 2") as raised, run_broker(tmp_path, ["--flush", "maybe"]):
        pytest.fail("it must not start")
    assert "invalid choice: 'maybe'" in str(raised.value)


def test_the_life_of_a_broker(aerobee_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics answer, the log can be read, stopping twice is harmless, starting twice an error; ports stay its own."""
    with urllib.request.urlopen(f"http://{aerobee_broker.metrics}/readyz", timeout=5) as answer:
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
