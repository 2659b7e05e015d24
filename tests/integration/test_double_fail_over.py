"""Two fail-overs in sequence by the commands of docs/replication.md, with broker processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Answer
from tests.support.broker_process import BrokerProcess, running

pytestmark = pytest.mark.timeout(300)
_DOCS = Path(__file__).parents[2] / "docs" / "replication.md"


async def _fail_over(dead: BrokerProcess, next_master: BrokerProcess, sent: list[bytes], round_: int) -> None:
    """The page's three steps: stop the master, promote the replica, start the old master as a replica."""
    await dead.kill()
    await next_master.promote()
    for number in range(3):
        sent.append(f"round {round_} message {number}".encode())
        assert await next_master.send(sent[-1]) == Answer.SUCCESS
    await dead.start("--role", "replica", "--master", next_master.remoting)
    await dead.follows(next_master)


async def test_second_fail_over_has_one_master(tmp_path: Path) -> None:
    """After each fail-over the other broker follows, and every answered message is at both."""
    a = BrokerProcess(tmp_path, "a", "--role", "master")
    b = BrokerProcess(tmp_path, "b", "--role", "replica", "--master", a.remoting)
    sent: list[bytes] = []
    async with running(a, b):
        await a.start()
        await b.start()
        await a.send(b"first")
        sent.append(b"first")
        await b.follows(a)
        for round_, (dead, successor) in enumerate(((a, b), (b, a), (a, b))):
            await _fail_over(dead, successor, sent, round_)
            assert [(await each.status())["master"] for each in (successor, dead)] == [True, False]
            assert (await dead.send(b"to the wrong one")) != Answer.SUCCESS
            assert await dead.bodies() == await successor.bodies() == sent
        status = json.loads((await b.command("replication", "--json")).stdout)
        assert (status["master"], status["epoch"]) == (True, 4)


async def test_promoted_broker_says_what_its_next_start_does(tmp_path: Path) -> None:
    """`promote` tells to change the role, and each role does what the command said."""
    a = BrokerProcess(tmp_path, "a", "--role", "master")
    b = BrokerProcess(tmp_path, "b", "--role", "replica", "--master", a.remoting)
    async with running(a, b):
        await a.start()
        await b.start()
        await b.follows(a)
        await a.kill()
        assert "replication.role to master" in await b.promote()
        await b.kill()
        await b.start("--role", "master")
        assert (await b.status())["master"]
        await b.kill()
        await b.start("--role", "replica", "--master", a.remoting)
        assert not (await b.status())["master"]
        assert "this store was a master's" in b.log
        await b.kill()
        await b.launch("--role", "master")
        assert await b.ended() != 0
        assert "is the store of a replica" in b.log


def test_the_page_has_these_steps() -> None:
    """The steps above are those of the page."""
    text = _DOCS.read_text()
    section = text[text.index("## Promotion") : text.index("## Automatic fail-over")]
    for wanted in (
        r"1\. Stop the old master",
        r"`aerobee promote --remoting",
        r"`--role replica --master",
        "role = master",
    ):
        assert re.search(wanted, section), wanted
