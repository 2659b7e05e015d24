"""Fail-over with a lease in a real etcd, or in Kubernetes: two broker processes, one of which is killed, paused or cut
off.

Each confirmed message is stored afterwards, once and in order; unconfirmed ones are set aside.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Answer
from tests.support.etcd import running_etcd
from tests.support.lease_group import LeaseService, Member, one_becomes_master, running, running_lease_service
from tests.support.port_forwarder import forwarded_port

_SECONDS = 120.0
_NUMBERS = itertools.count()
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=["etcd", "kubernetes"])
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeaseService]:
    with running_lease_service(request.param, tmp_path_factory.mktemp("lease")) as found:
        yield found


@pytest.fixture
def service(services: LeaseService) -> LeaseService:
    """With a lease that no other test uses."""
    return replace(services, group=f"group-{next(_NUMBERS)}")


async def _confirmed(member: Member, count: int) -> list[bytes]:
    """Send until `count` messages are confirmed, and return those. Unconfirmed ones are not sent again."""
    answered: list[bytes] = []
    async with asyncio.timeout(_SECONDS):
        while len(answered) < count:
            body = b"%06d" % next(_NUMBERS)
            if await member.send(body) == Answer.SUCCESS:
                answered.append(body)
    return answered


def _in_order(found: list[bytes], answered: list[bytes]) -> None:
    assert [body for body in found if body in set(answered)] == answered


async def test_a_killed_master_is_replaced_and_returns_as_a_replica(tmp_path: Path, service: LeaseService) -> None:
    """The new master later stops cleanly, and the old one takes over again at once."""
    first, second = service.member(tmp_path, 1), service.member(tmp_path, 2)
    async with running(first, second):
        await first.becomes_master(in_sync=2)
        answered = await _confirmed(first, 20)
        first.kill()
        epoch = (await second.becomes_master())["leaseEpoch"]
        assert epoch > 1
        answered += await _confirmed(second, 20)
        first.start()
        await first.becomes_replica()
        await second.becomes_master(in_sync=2)
        answered += await _confirmed(second, 20)
        second.send_signal(signal.SIGTERM)
        assert (await first.becomes_master())["leaseEpoch"] > epoch
        _in_order(await first.bodies(), answered)


async def test_a_master_that_is_started_again_at_once_does_not_wait_for_its_own_lease(
    tmp_path: Path, service: LeaseService
) -> None:
    """The lease of the killed process would last longer than this test."""
    only = service.member(tmp_path, 1)
    only.lease_seconds = 600
    async with running(only):
        epoch = (await only.becomes_master())["leaseEpoch"]
        answered = await _confirmed(only, 5)
        only.kill()
        only.start()
        assert (await only.becomes_master())["leaseEpoch"] == epoch + 1
        answered += await _confirmed(only, 5)
        _in_order(await only.bodies(), answered)


async def test_a_paused_master_confirms_nothing_when_resumed(tmp_path: Path, service: LeaseService) -> None:
    """A send read before the pause, or after it, is not confirmed."""
    first, second = service.member(tmp_path, 1), service.member(tmp_path, 2)
    async with running(first, second):
        await first.becomes_master(in_sync=2)
        answered = await _confirmed(first, 20)
        first.send_signal(signal.SIGSTOP)
        late = [asyncio.create_task(first.send(b"late %d" % number, 120.0)) for number in range(5)]
        await second.becomes_master()
        answered += await _confirmed(second, 20)
        first.send_signal(signal.SIGCONT)
        assert Answer.SUCCESS not in await asyncio.gather(*late)
        await first.becomes_replica()
        await second.becomes_master(in_sync=2)
        answered += await _confirmed(second, 20)
        _in_order(await second.bodies(), answered)


async def test_an_unconfirmed_tail_is_quarantined(tmp_path: Path) -> None:
    """The master is cut off from its replica and killed. It returns as a replica, and names the file with its tail."""
    with running_etcd(tmp_path) as etcd:
        first, second = Member(tmp_path, 1, etcd), Member(tmp_path, 2, etcd)
        with forwarded_port(str(first.listen_replicas)) as forwarder:
            first.advertise = forwarder.endpoint
            async with running(first, second):
                await first.becomes_master(in_sync=2)
                answered = await _confirmed(first, 20)
                forwarder.lose_answers()
                sending = [asyncio.create_task(first.send(b"unconfirmed %d" % number, 60.0)) for number in range(5)]
                assert set(await asyncio.gather(*sending)) == {Answer.FLUSH_SLAVE_TIMEOUT}
                first.kill()
                await second.becomes_master()
                answered += await _confirmed(second, 20)
                forwarder.reset()
                first.start()
                found = await first.becomes_replica()
                assert len(found["divergedTails"]) == 1
                assert b"unconfirmed 4" in (first.store / "quarantine" / found["divergedTails"][0]).read_bytes()
                await second.becomes_master(in_sync=2)
                answered += await _confirmed(second, 5)
                _in_order(await second.bodies(), answered)
                second.kill()
                await first.becomes_master()
                _in_order(await first.bodies(), answered)


async def test_a_master_that_cannot_reach_the_lease_confirms_nothing_after_it(
    tmp_path: Path, service: LeaseService
) -> None:
    """This holds although its replica is connected; it is master again once the lease is reachable."""
    with forwarded_port(service.address) as forwarder:
        first, second = (service.member(tmp_path, number, forwarder.endpoint) for number in (1, 2))
        async with running(first, second):
            await first.becomes_master(in_sync=2)
            answered = await _confirmed(first, 20)
            forwarder.lose_answers()
            async with asyncio.timeout(60):
                while await first.send(b"x") == Answer.SUCCESS:  # noqa: ASYNC110 - until the lease is over
                    await asyncio.sleep(0.05)
            assert await first.send(b"y") != Answer.SUCCESS
            forwarder.reset()
            master = await one_becomes_master(first, second, in_sync=2)
            answered += await _confirmed(master, 5)
            _in_order(await master.bodies(), answered)
            assert "Traceback" not in first.log + second.log


async def test_a_broker_whose_store_is_new_does_not_take_the_lease(tmp_path: Path) -> None:
    """It was in sync and is empty now, so it waits for the old master."""
    with running_etcd(tmp_path) as etcd:
        first, second = Member(tmp_path, 1, etcd), Member(tmp_path, 2, etcd)
        async with running(first, second):
            await first.becomes_master(in_sync=2)
            answered = await _confirmed(first, 20)
            second.kill()
            first.kill()
            second.store.rename(tmp_path / "away")
            second.start()
            async with asyncio.timeout(60):
                while "is no longer in sync" not in second.log:  # noqa: ASYNC110 - a process says it
                    await asyncio.sleep(0.05)
            first.start()
            await first.becomes_master(in_sync=2)
            _in_order(await first.bodies(), answered)
            assert "lease taken" not in second.log.split("is no longer in sync")[-1]
