"""Two broker processes: the replica is killed, paused and cut off; then the master is killed and the replica promoted.

Every confirmed message is stored afterwards, once per confirmation, in the order of its queue.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import Address
from aerobee_broker.namesrv.registrar import Registrar
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.replication.master_broker import MasterBroker
from tests.support.broker_process import BrokerProcess, running
from tests.support.port_forwarder import forwarded_port
from tests.support.remoting_client import RemotingClient, send
from tests.support.replicating import eventually, master

_SECONDS = 120.0
_STORED = (Answer.SUCCESS, Answer.FLUSH_SLAVE_TIMEOUT, Answer.SLAVE_NOT_AVAILABLE)
pytestmark = pytest.mark.timeout(300)


async def test_no_answered_message_is_lost(tmp_path: Path) -> None:
    """The replica fails in each way first, and the master at the end."""
    roles = ("--role", "master", "--acks", "1")
    master = BrokerProcess(tmp_path, "a", *roles)
    async with running(master):
        await master.start()
        client = await master.connect()
        ha = (await client.call(Request.EXCHANGE_BROKER_HA_INFO)).fields["masterHaAddress"]
        with forwarded_port(ha) as forwarder:
            settings = f'[replication]\nmaster_ha = "{forwarder.endpoint}"\n'
            replica = BrokerProcess(tmp_path, "b", "--role", "replica", "--master", master.remoting, config=settings)
            async with running(replica):
                await replica.start()
                answered = await _through_failures(client, replica, forwarder.lose_answers, forwarder.reset)
                await client.close()
                await replica.follows(master)
                await master.kill()
                await replica.promote()
                assert (await replica.command("replication")).stdout.startswith("master, log end ")
                found = await replica.bodies()
    assert len(answered) >= 5 * 20
    assert [body for body in found if body in answered] == sorted(answered)


async def _through_failures(
    client: RemotingClient, replica: BrokerProcess, lose_answers: Callable[[], None], reset: Callable[[], None]
) -> set[bytes]:
    """Send 20 messages after each failure, and some while it lasts; returns the confirmed ones."""
    answered: set[bytes] = set()
    number = 0

    async def send_some(count: int) -> bool:
        nonlocal number
        confirmed = 0
        for _ in range(count):
            body = f"{number:06d}".encode()
            number += 1
            code = (await send(client, "T", body, queue_id=0)).code
            assert code in _STORED
            if code == Answer.SUCCESS:
                answered.add(body)
                confirmed += 1
        return confirmed == count

    async def until_confirmed() -> None:
        await eventually(lambda: send_some(1))
        while not await send_some(20):
            pass

    async def killed() -> None:
        await replica.kill()
        await send_some(3)
        await replica.start()

    async def paused() -> None:
        replica.send_signal(signal.SIGSTOP)
        await send_some(1)
        replica.send_signal(signal.SIGCONT)

    async def cut_off() -> None:
        lose_answers()
        await send_some(1)
        reset()

    failures: list[Callable[[], Awaitable[Any]]] = [killed, paused, cut_off, killed]
    await until_confirmed()
    for failure in failures:
        await failure()
        await until_confirmed()
    return answered


async def test_a_master_tells_its_epochs_before_it_accepts_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that asks a master which is still starting would take it for one of RocketMQ, and never count."""
    answered: list[int] = []
    start = MasterBroker.start

    async def start_late(self: MasterBroker, registrar: Registrar, bound: Address) -> None:
        client = await RemotingClient.connect(bound)
        answered.append((await client.call(Request.GET_BROKER_EPOCH_CACHE)).code)
        await client.close()
        await start(self, registrar, bound)

    monkeypatch.setattr(MasterBroker, "start", start_late)
    async with master(tmp_path) as found:
        assert answered == [Answer.SUCCESS]
        assert (await found.status())["epoch"] == 1
