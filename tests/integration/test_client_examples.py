"""The examples of docs/client.md and README.md are the code that mypy checks, and they run."""

from __future__ import annotations

import ast
import asyncio
import re
import time
from pathlib import Path

import pytest

from aerobee_client import Message, blocking, connect
from aerobee_client.testing import BrokerProcess
from tests.typing import client_examples

ROOT = Path(__file__).parents[2]
_DEFAULT = "127.0.0.1:8081"


@pytest.fixture
def at_the_broker(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples connect to the default address; this points it at the test's broker."""
    waiting = blocking.connect
    monkeypatch.setattr(blocking, "connect", lambda endpoint: waiting(endpoint.replace(_DEFAULT, broker.endpoint)))


class Database:
    """A stand-in for the database in the examples."""

    def __init__(self) -> None:
        self.billed: list[bytes] = []
        self.billing = asyncio.Event()
        self.commits = 0

    async def has_order(self, key: str) -> bool:
        return True

    async def commit(self) -> None:
        self.commits += 1

    async def bill(self, order: bytes) -> None:
        self.billed.append(order)
        self.billing.set()


def statements(code: str) -> list[str]:
    """The statements at all depths, without comments and layout; of a compound statement, its header."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
            text = ast.unparse(node)
            found.append(text.splitlines()[0] if hasattr(node, "body") else text)
    return found


@pytest.mark.parametrize("page", ["docs/client.md"])
def test_the_examples_on_the_page_are_checked(page: str) -> None:
    """Every statement of every example is in the file that mypy checks and the tests below run."""
    checked = set(statements((ROOT / "tests" / "typing" / "client_examples.py").read_text()))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        assert [each for each in statements(block) if each not in checked] == []


def test_without_an_event_loop(at_the_broker: None) -> None:
    """The same with the blocking API."""
    client_examples.without_an_event_loop()


async def test_sending_and_transactions(broker: BrokerProcess) -> None:
    """Each form of a send, a recall, and a transaction."""
    database, tomorrow = Database(), int((time.time() + 86_400) * 1000)
    async with connect(broker.endpoint) as client, asyncio.timeout(90):
        await client_examples.sending(client, [Message(topic="sent", body=b"x", keys=("k",))] * 3, tomorrow)
        await client_examples.transactions(client, database)
    assert database.commits == 1


async def test_consuming(broker: BrokerProcess) -> None:
    """Push until the program is told to stop, then pull from yesterday on; the page's loop never ends."""
    database, stop = Database(), asyncio.Event()
    async with connect(broker.endpoint) as client, asyncio.timeout(90):
        await client.producer().send(Message(topic="orders", body=b"paid", tag="paid"))
        yesterday = int((time.time() - 86_400) * 1000)
        consuming = asyncio.create_task(client_examples.consuming(client, database, stop, yesterday))
        await database.billing.wait()
        assert b"paid" in database.billed
        stop.set()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consuming, 1)


async def test_in_bulk(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """Records are packed, appended and read."""
    async with connect(broker.endpoint) as client, asyncio.timeout(90):
        await client_examples.in_bulk(client, 7, [Message(topic="orders", body=b"in bulk")] * 3)
    assert "b'in bulk'" in capsys.readouterr().out
