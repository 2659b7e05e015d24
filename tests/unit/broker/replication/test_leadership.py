"""Taking the lease, its expiry, and the brokers in the claim, with a lease in memory."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aerobee_broker.config import Address, BrokerConfig, ListenConfig
from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.replication.acknowledgements import Acknowledgements, Replica
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.etcd import EtcdLease
from aerobee_broker.replication.in_sync_set import InSyncSet
from aerobee_broker.replication.leadership import Leadership, is_member, note_member
from aerobee_broker.replication.lease import Claim, Holder, LeaseView
from aerobee_broker.replication.master_broker import MasterBroker
from aerobee_broker.server import _lease
from aerobee_store import Message, MessageStore
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.errors import ConfigError, ReplicaMissingError, ReplicaTimeoutError, StoreRefusalError
from aerobee_store.running_flags import RunningState
from tests.support.memory_lease import LeaseState, MemoryLease


@dataclass(slots=True)
class _Master:
    """Broker 1 with the lease. The test sets its clock and the end of its log."""

    directory: Path
    acks: str = "all"
    lease: MemoryLease = field(default_factory=lambda: MemoryLease(1))
    time: float = 100.0
    end: int = 500
    leadership: Leadership = field(init=False)
    acknowledgements: Acknowledgements = field(init=False)
    in_sync: InSyncSet = field(init=False)
    running: RunningState = field(default_factory=RunningState)

    @property
    def positions(self) -> tuple[int, int, int, int]:
        return self.end, self.end, self.end, self.end

    def request_flush(self) -> None:
        """Nothing to do, because everything is durable."""

    async def start(self) -> _Master:
        config = ReplicationConfig(acks=self.acks, ack_timeout_seconds=0.05)
        self.leadership = Leadership(self.lease, 1, 10, now=lambda: self.time)
        self.acknowledgements = Acknowledgements(config, self)
        self.acknowledgements.is_master = lambda: self.leadership.is_held
        assert await self.leadership.take(await self.leadership.look(), last_epoch=4)
        epochs = Epochs(DiskFileSystem(), self.directory)
        epochs.begin(5, self.end)
        self.in_sync = InSyncSet(self.leadership, self.acknowledgements, epochs, 5.0, lambda: self.time)
        return self

    def replica(self, broker_id: int, acked: int) -> Replica:
        found = Replica(("id", str(broker_id)), "127.0.0.1:1", counts=True)
        self.acknowledgements.connected(found)
        self.acknowledgements.reported(found, acked)
        return found

    async def look(self, times: int = 3) -> frozenset[int]:
        for _ in range(times):
            await self.in_sync.look()
        assert self.lease.state.claim is not None
        return self.lease.state.claim.in_sync


@pytest.mark.parametrize(
    ("view", "member", "last_epoch", "may"),
    [
        (LeaseView(1, Claim(3, 1, frozenset((1, 2))), None), True, 3, True),
        (LeaseView(1, Claim(3, 1, frozenset((1, 2))), Holder(1)), True, 3, False),
        (LeaseView(1, Claim(3, 1, frozenset((1,))), None), True, 3, False),
        (LeaseView(1, Claim(3, 1, frozenset((1, 2))), None), False, 3, False),
        (LeaseView(1, Claim(3, 1, frozenset((1, 2))), None), True, 2, False),
        (LeaseView(1, Claim(3, 2, frozenset((2,))), None), True, 2, True),
        (LeaseView(0, None, None), True, 3, False),
        (LeaseView(1, Claim(3, 2, frozenset((1, 2))), Holder(2)), True, 3, True),
        (LeaseView(1, Claim(3, 2, frozenset((1, 2))), Holder(2)), True, 2, False),
        (LeaseView(1, Claim(3, 2, frozenset((1, 2))), Holder(2)), False, 3, False),
        (LeaseView(1, Claim(3, 1, frozenset((1, 2))), Holder(2)), True, 3, False),
        (LeaseView(1, Claim(3, 2, frozenset((1, 2))), Holder(1)), True, 3, False),
    ],
    ids=[
        "in sync",
        "held",
        "not in sync",
        "store is new",
        "log is older",
        "died before it began",
        "no group",
        "held by its earlier process",
        "held by its id with a newer log",
        "held by its id with a lost store",
        "held by its id in the epoch of another",
        "held by another in its epoch",
    ],
)
async def test_conditions_for_taking_the_lease(view: LeaseView, member: bool, last_epoch: int, may: bool) -> None:
    """Whether broker 2 may take the lease depends on its state and on the claim."""
    leadership = Leadership(MemoryLease(2), 2, 10)
    assert leadership.may_take(view, is_member=member, last_epoch=last_epoch) is may


async def test_the_lease_counts_from_the_request_and_ends_here_first(tmp_path: Path) -> None:
    """The lease counts for 8 of its 10 s, from the request on. A renewal extends it unless it has expired."""
    master = await _Master(tmp_path).start()
    assert master.leadership.claim == Claim(5, 1, frozenset((1,)))
    master.time += 7.9
    assert 0 < master.leadership.seconds_left < 0.2
    renewing = asyncio.create_task(master.leadership.run())
    await asyncio.wait_for(_until(lambda: master.leadership.seconds_left > 1), 60)
    master.time += 8.1
    assert not master.leadership.is_held
    await asyncio.wait_for(master.leadership.lost.wait(), 60)
    assert master.leadership.seconds_left == 0
    renewing.cancel()


async def _until(is_true: object) -> None:
    assert callable(is_true)
    while not is_true():  # noqa: ASYNC110 - another task does it
        await asyncio.sleep(0.005)


@dataclass(slots=True)
class _SlowLease(MemoryLease):
    """Its answers take three seconds of a clock."""

    clock: list[float] = field(default_factory=lambda: [100.0])

    def _answer(self) -> None:
        self.clock[0] += 3


async def test_slow_answers_do_not_lengthen_the_lease() -> None:
    """The system counts from when it got the request, which may be long before the answer: taken or renewed."""
    lease = _SlowLease(1)
    leadership = Leadership(lease, 1, 10, now=lambda: lease.clock[0])
    assert await leadership.take(LeaseView(0, None, None), last_epoch=0)
    assert leadership.seconds_left == pytest.approx(8 - 3)
    lease.clock[0] += 4.9
    await leadership._renew_once()  # sleeps for the tenth of a second that is left
    assert leadership.is_held
    assert leadership.seconds_left == pytest.approx(8 - 3)


async def test_nothing_is_confirmed_once_the_lease_has_expired(tmp_path: Path) -> None:
    """A message is not confirmed even if every broker of the claim has it."""
    master = await _Master(tmp_path).start()
    await master.acknowledgements.wait(500)
    master.time += 8.1
    with pytest.raises(ReplicaMissingError, match="lease of this master has expired"):
        await master.acknowledgements.wait(500)


async def test_a_replica_joins_with_all_that_was_confirmed(tmp_path: Path) -> None:
    """A replica at the log's end first has to confirm each message, then joins the claim with all confirmed ones."""
    master = await _Master(tmp_path).start()
    replica = master.replica(2, 499)
    assert await master.look() == {1}
    master.acknowledgements.reported(replica, 500)
    master.end = 600
    await master.acknowledgements.wait(600)  # before messages wait for the replica
    await master.look(1)
    master.end = 700
    with pytest.raises(ReplicaTimeoutError):
        await master.acknowledgements.wait(700)
    assert await master.look() == {1}
    master.acknowledgements.reported(replica, 600)
    assert await master.look() == {1, 2}


async def test_an_absent_replica_is_waited_for_until_it_leaves_the_claim(tmp_path: Path) -> None:
    """The absent replica could still take the lease."""
    master = await _Master(tmp_path).start()
    replica = master.replica(2, 500)
    assert await master.look() == {1, 2}
    master.acknowledgements.gone(replica)
    master.end = 600
    master.time += 4.9
    assert await master.look() == {1, 2}
    with pytest.raises(ReplicaTimeoutError):
        await master.acknowledgements.wait(600)
    master.time += 0.2
    assert await master.look() == {1}
    await master.acknowledgements.wait(600)


@pytest.mark.parametrize("loses", ["requests", "answers"])
async def test_while_a_change_is_unknown_old_and_new_brokers_are_waited_for(tmp_path: Path, loses: str) -> None:
    """Messages wait for the brokers of the old and the new claim until the lease answers."""
    master = await _Master(tmp_path).start()
    replica = master.replica(2, 500)
    assert await master.look() == {1, 2}
    master.acknowledgements.gone(replica)
    master.time += 5.1
    master.lease.loses = loses
    await master.look()
    master.end = 600
    with pytest.raises(ReplicaTimeoutError):
        await master.acknowledgements.wait(600)
    master.lease.loses = ""
    assert await master.look() == {1}
    await master.acknowledgements.wait(600)


async def test_the_claim_of_a_newer_epoch_ends_the_old_masters(tmp_path: Path) -> None:
    """The old master cannot remove the new one from the claim, so it can confirm nothing without it."""
    master = await _Master(tmp_path).start()
    replica = master.replica(2, 500)
    assert await master.look() == {1, 2}
    state = master.lease.state
    state.holder = None
    other = Leadership(MemoryLease(2, state), 2, 10)
    assert await other.take(await other.look(), last_epoch=5)
    master.acknowledgements.gone(replica)
    master.time += 5.1
    assert await master.look() == {2}
    assert state.claim == Claim(6, 2, frozenset((2,)))
    assert master.leadership.lost.is_set()
    master.end = 600
    with pytest.raises(ReplicaMissingError):
        await master.acknowledgements.wait(600)


async def test_with_a_number_of_acks_as_many_have_to_be_in_the_claim(tmp_path: Path) -> None:
    """With acks = 1, a master alone confirms nothing."""
    master = await _Master(tmp_path, acks="1").start()
    with pytest.raises(ReplicaMissingError, match="0 replicas are in sync"):
        await master.acknowledgements.wait(500)
    master.replica(2, 500)
    assert await master.look() == {1, 2}
    await master.acknowledgements.wait(500)


async def test_a_new_store_leaves_the_claim() -> None:
    """A broker with a new store leaves the claim before it follows a master."""
    state = LeaseState(7, Claim(3, 1, frozenset((1, 2))), Holder(1))
    leadership = Leadership(MemoryLease(2, state), 2, 10)
    await leadership.leave(await leadership.look())
    assert state.claim == Claim(3, 1, frozenset((1,)))


def test_a_store_records_its_membership(tmp_path: Path) -> None:
    """Membership is recorded in the store, so an emptied store is no member."""
    assert not is_member(DiskFileSystem(), tmp_path)
    note_member(DiskFileSystem(), tmp_path, 2)
    note_member(DiskFileSystem(), tmp_path, 2)
    assert is_member(DiskFileSystem(), tmp_path)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"etcd": ("10.0.0.1:2379",)}, "not a URL such as http://10.0.0.5:2379"),
        ({"etcd": ("http://e:2379",), "acks": "1"}, "set replication.role"),
        ({"etcd": ("http://e:2379",), "role": "master", "listen": "a:1"}, "set a number of replicas, or all"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, object], text: str) -> None:
    """The error says how to fix the setting."""
    with pytest.raises(ConfigError, match=text):
        ReplicationConfig(**settings)  # type: ignore[arg-type]


def test_keys_in_etcd_begin_with_the_prefix(tmp_path: Path) -> None:
    """And then have the cluster and the name of the broker."""
    replication = ReplicationConfig(
        broker_id=1, role="master", listen="127.0.0.1:0", acks="all", etcd=("http://127.0.0.1:1",), etcd_prefix="/mine"
    )
    listen = ListenConfig(remoting=Address("127.0.0.1", 10911))
    lease = _lease(BrokerConfig.tiny(tmp_path, cluster="blue", name="a", listen=listen, replication=replication))
    assert isinstance(lease, EtcdLease)
    assert base64.b64decode(lease._claim_key) == b"/mine/blue/a/claim"
    assert base64.b64decode(lease._holder_key) == b"/mine/blue/a/holder"


async def test_a_master_whose_lease_is_lost_stores_nothing_more(tmp_path: Path) -> None:
    """Not even what it would answer with an error: another broker's log continues elsewhere."""
    config = BrokerConfig.tiny(tmp_path, replication=ReplicationConfig(acks="all"))
    leadership = Leadership(MemoryLease(1), 1, 10)
    assert await leadership.take(await leadership.look(), last_epoch=0)
    with MessageStore.open(config.store) as store:
        master = await MasterBroker.open(config, store, leadership)
        keeping = asyncio.create_task(master.keep_lease())
        store.append([Message("T", 0, b"stored")])
        end = store.positions[0]
        leadership.lose("another broker took it")
        await keeping
        with pytest.raises(StoreRefusalError, match="the lease of this master has expired"):
            store.append([Message("T", 0, b"refused")])
        assert store.positions[0] == end
        await master.stop()
