"""The contract of every lease, tested with etcd, with Kubernetes, and with the in-memory lease of other tests.

Kubernetes is a stand-in, and a real kube-apiserver where there is one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Protocol

import pytest

from aerobee_broker.replication.etcd import EtcdLease
from aerobee_broker.replication.kubernetes import KubernetesLease
from aerobee_broker.replication.lease import Claim, Holder, Lease, LeaseConflictError, LeaseLostError, LeaseView
from tests.support.etcd import running_etcd
from tests.support.kube_apiserver import running_kube_apiserver
from tests.support.kubernetes import running_stand_in
from tests.support.memory_lease import LeaseState, MemoryLease


class Broker(Protocol):
    """One group's lease, as the broker with this id sees it."""

    def __call__(self, broker_id: int, lease_seconds: int = 60) -> Lease: ...


class Groups(Protocol):
    """Leases of one kind; each call is for another group."""

    def __call__(self) -> Broker: ...


@pytest.fixture(scope="module", params=["memory", "etcd", "stand-in", "kube-apiserver"])
def groups(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    directory = tmp_path_factory.mktemp("lease")
    names = (f"group-{number}" for number in itertools.count())
    if request.param == "memory":

        def in_memory() -> Broker:
            state = LeaseState()
            return lambda broker_id, lease_seconds=60: MemoryLease(broker_id, state)

        yield in_memory
    elif request.param == "etcd":
        with running_etcd(directory) as endpoint:

            def in_etcd() -> Broker:
                prefix = f"/test/{next(names)}"
                return lambda broker_id, lease_seconds=60: EtcdLease(
                    [endpoint], prefix, broker_id, lease_seconds, timeout_seconds=30
                )

            yield in_etcd
    else:
        running = running_stand_in if request.param == "stand-in" else running_kube_apiserver
        with running(directory) as server:
            access = server.access()

            def in_kubernetes() -> Broker:
                name = next(names)
                return lambda broker_id, lease_seconds=60: KubernetesLease(
                    access, name, broker_id, lease_seconds, timeout_seconds=30
                )

            yield in_kubernetes


@pytest.fixture
def broker(groups: Groups) -> Broker:
    """A group of its own for each test."""
    return groups()


_FIRST = Claim(1, 1, frozenset((1,)))
_SECOND = Claim(2, 2, frozenset((2,)))


async def test_a_broker_that_was_killed_takes_its_own_lease_at_once(broker: Broker) -> None:
    """Its earlier process can neither renew nor change anything then; another broker cannot take the lease."""
    killed, again, other = broker(1), broker(1), broker(2)
    version = await killed.take(await killed.read(), _FIRST)
    with pytest.raises(LeaseConflictError):
        await other.take(await other.read(), _SECOND)
    await again.take(await again.read(), Claim(2, 1, frozenset((1,))))
    if not isinstance(killed, MemoryLease):  # it knows a holder by the id of the broker only
        with pytest.raises(LeaseLostError):
            await killed.renew()
    with pytest.raises(LeaseConflictError):
        await killed.change(version, _FIRST)
    await again.renew()
    found = await other.read()
    assert (found.holder, found.claim) == (Holder(1), Claim(2, 1, frozenset((1,))))


async def test_a_broker_that_was_killed_does_not_end_the_lease_of_another(broker: Broker) -> None:
    """It has seen its own lease, which ended before it could take it again; another broker was faster."""
    killed, again, other = broker(1), broker(1), broker(2)
    await killed.take(await killed.read(), _FIRST)
    seen = await again.read()
    await killed.release()
    await other.take(await other.read(), _SECOND)
    with pytest.raises(LeaseConflictError):
        await again.take(seen, Claim(2, 1, frozenset((1,))))
    await other.renew()
    assert (await again.read()).holder == Holder(2)


async def test_one_of_two_takes_the_lease(broker: Broker) -> None:
    """The other broker sees the claim."""
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
    """Therefore a replaced master cannot change it."""
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
    """The claim stays when the lease is lost."""
    first, second = broker(1), broker(2)
    version = await first.take(await first.read(), _FIRST)
    await first.renew()
    await first.release()
    with pytest.raises(LeaseLostError):
        await first.renew()
    assert await second.read() == LeaseView(version, _FIRST, None)


async def test_one_of_several_that_take_it_at_once_succeeds(broker: Broker) -> None:
    """All of them saw the lease free."""
    brokers = [broker(broker_id) for broker_id in range(1, 6)]
    seen = [await each.read() for each in brokers]
    taking = [
        each.take(view, Claim(1, number, frozenset((number,))))
        for number, (each, view) in enumerate(zip(brokers, seen, strict=True), start=1)
    ]
    outcomes = await asyncio.gather(*taking, return_exceptions=True)
    assert sorted(isinstance(outcome, int) for outcome in outcomes) == [False] * 4 + [True]
    assert sum(isinstance(outcome, LeaseConflictError) for outcome in outcomes) == 4
    winner = [isinstance(outcome, int) for outcome in outcomes].index(True) + 1
    assert (await brokers[0].read()).holder == Holder(winner)


async def test_renewals_do_not_disturb_a_change_of_the_claim(broker: Broker) -> None:
    """The version is that of the claim."""
    first = broker(1)
    version = await first.take(await first.read(), _FIRST)
    for members in ((1, 2), (1,), (1, 3)):
        renewing = [first.renew() for _ in range(4)]
        claim = Claim(1, 1, frozenset(members))
        changing = asyncio.create_task(first.change(version, claim))
        await asyncio.gather(changing, *renewing)
        version = changing.result()
        assert await first.read() == LeaseView(version, claim, Holder(1))


@pytest.mark.parametrize("groups", ["etcd", "stand-in", "kube-apiserver"], indirect=True)
async def test_a_lease_without_renewals_ends(broker: Broker) -> None:
    """It ends after the agreed seconds. The claim stays, and another broker takes the lease."""
    first, second = broker(1, 2), broker(2, 2)
    version = await first.take(await first.read(), _FIRST)
    async with asyncio.timeout(120):
        while (view := await second.read()).holder is not None:  # noqa: ASYNC110 - time passes
            await asyncio.sleep(0.05)
    assert (view.version, view.claim) == (version, _FIRST)
    await second.take(view, _SECOND)
    with pytest.raises(LeaseLostError):
        await first.renew()
    with pytest.raises(LeaseConflictError):
        await first.change(version, Claim(1, 1, frozenset((1, 2))))
