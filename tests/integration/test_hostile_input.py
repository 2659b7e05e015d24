"""Hostile input against a real broker: no attack stalls it, fills it, or leaves something behind.

`make test` runs the attacks that end within seconds, and a few drawn ones with fixed seeds. With
AEROBEE_HOSTILE_ROUNDS (`make test-hostile`) all are run and many are drawn. Figures are processor time and memory,
which do not depend on other processes of the machine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_client.testing import run_broker
from tests.support import seeds
from tests.support.hostile_input import NAMED, Attack, drawn
from tests.support.hostile_judge import judge, prepare

pytestmark = pytest.mark.timeout(3600)

ROUNDS = int(os.environ.get("AEROBEE_HOSTILE_ROUNDS", "1"))
SEED = seeds.seed("AEROBEE_HOSTILE_SEED")
DRAWN = 4 if ROUNDS == 1 else 50 * ROUNDS
SHORT = {
    "parts of the largest frame",
    "a header of commas",
    "settings of many open calls",
    "many settings",
    "pipelined calls",
    "empty messages on a stream",
    "producer groups",
    "tiny remoting frames",
    "a heartbeat of empty lists",
    "a compressed registration of bare keys to a broker",
}
"""The attacks of `make test`."""


def attacks() -> Iterator[Attack]:
    for attack in NAMED:
        if attack.target == "broker" and (ROUNDS > 1 or attack.name in SHORT):
            yield attack
    for number in range(DRAWN):
        yield drawn(SEED + number)


@pytest.mark.parametrize("attack", tuple(attacks()), ids=str)
async def test_an_attack_does_no_harm(tmp_path: Path, attack: Attack, capsys: pytest.CaptureFixture[str]) -> None:
    """Another client is answered meanwhile, memory and steps stay below their bounds, and the gauges return."""
    with run_broker(tmp_path) as broker:
        await prepare(broker)
        verdict = await judge(broker, attack)
        with capsys.disabled():
            print(f"\nhostile: {verdict}", flush=True)
        assert await asyncio.to_thread(broker.stop) == 0
        assert "Traceback" not in broker.log_text(), broker.log_text()[-6000:]
    assert not verdict.harm, str(verdict)
