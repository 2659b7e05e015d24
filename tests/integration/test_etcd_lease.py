"""What every lease must do, tried with etcd and with the one in memory that other tests use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerobee_broker.replication.etcd import EtcdLease
from aerobee_broker.replication.lease import (
    Claim,
    Holder,
    Lease,
    LeaseConflictError,
    LeaseLostError,
    LeaseUnavailableError,
    LeaseView,
)
from tests.support.etcd import free_ports, running_etcd
from tests.support.memory_lease import LeaseState, MemoryLease

Broker = Callable[[int], Lease]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as endpoint:
        yield endpoint


@pytest.fixture(params=["memory", "etcd"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """The lease of one group, as the broker with this id sees it."""
    if request.param == "memory":
        state = LeaseState()
        return lambda broker_id: MemoryLease(broker_id, state)
    endpoint, prefix = request.getfixturevalue("etcd"), f"/test/{request.node.name}"
    return lambda broker_id: EtcdLease([endpoint], prefix, broker_id, 60, timeout_seconds=30)


_FIRST = Claim(1, 1, frozenset((1,)))
_SECOND = Claim(2, 2, frozenset((2,)))


async def test_one_of_two_takes_the_lease(broker: Broker) -> None:
    """And the other one sees it."""
    first, second = broker(1), broker(2)
    empty = await first.read()
    assert empty == LeaseView(0, None, None)
    version = await first.take(empty, _FIRST)
    with pytest.raises(LeaseConflictError):
        await second.take(empty, _SECOND)
    assert await second.read() == LeaseView(version, _FIRST, Holder(1))
    with pytest.raises(LeaseConflictError):
        await second.take(await second.read(), _SECOND)
    await first.announce(Holder(1, "a:10911", "a:10912"))
    assert (await second.read()).holder == Holder(1, "a:10911", "a:10912")


async def test_a_claim_is_changed_by_its_version_alone(broker: Broker) -> None:
    """So a master that was replaced changes nothing."""
    first, second = broker(1), broker(2)
    version = await first.take(await first.read(), _FIRST)
    both = Claim(1, 1, frozenset((1, 2)))
    changed = await first.change(version, both)
    assert await second.read() == LeaseView(changed, both, Holder(1))
    with pytest.raises(LeaseConflictError):
        await first.change(version, _FIRST)
    await first.release()
    await second.take(await second.read(), _SECOND)
    with pytest.raises(LeaseConflictError):
        await first.change(changed, _FIRST)
    with pytest.raises(LeaseLostError):
        await first.announce(Holder(1, "a:10911", "a:10912"))
    view = await first.read()
    assert (view.claim, view.holder) == (_SECOND, Holder(2))


async def test_the_lease_is_renewed_until_it_is_lost(broker: Broker) -> None:
    """The claim stays."""
    first, second = broker(1), broker(2)
    version = await first.take(await first.read(), _FIRST)
    await first.renew()
    await first.release()
    with pytest.raises(LeaseLostError):
        await first.renew()
    assert await second.read() == LeaseView(version, _FIRST, None)


async def test_etcd_ends_a_lease_that_nobody_renews(etcd: str) -> None:
    """After the seconds that were agreed, counted by itself."""
    lease = EtcdLease([etcd], "/test/expiry", 1, 2, timeout_seconds=30)
    await lease.take(await lease.read(), _FIRST)
    async with asyncio.timeout(120):
        while (await lease.read()).holder is not None:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.05)
    with pytest.raises(LeaseLostError):
        await lease.renew()


async def test_another_endpoint_is_asked_after_one_that_is_gone(etcd: str) -> None:
    """The first request fails, for nobody knows what became of it."""
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    lease = EtcdLease([gone, etcd], "/test/endpoints", 1, 60, timeout_seconds=30)
    with pytest.raises(LeaseUnavailableError, match=gone.removeprefix("http://")):
        await lease.read()
    assert await lease.read() == LeaseView(0, None, None)


async def test_an_answer_that_is_none_of_etcds_is_no_answer(tmp_path: Path) -> None:
    """A port of something else."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 ready\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        lease = EtcdLease([f"http://127.0.0.1:{port}"], "/test", 1, 60, timeout_seconds=30)
        with pytest.raises(LeaseUnavailableError, match=r"is it an etcd|status"):
            await lease.read()
