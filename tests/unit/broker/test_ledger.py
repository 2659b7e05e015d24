"""The ledger: the total of what waits for peers, and who is dropped past it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from aerobee_broker.config import LimitsConfig
from aerobee_broker.limits.ledger import HELD_KINDS, Holdings, Kind, Ledger

TOTAL = 1000
REQUESTS = 800
HELD = TOTAL - REQUESTS // 2


def ledger() -> Ledger:
    return Ledger(
        LimitsConfig(
            request_bytes_max=REQUESTS,
            request_bytes_per_client_max=REQUESTS,
            answer_bytes_max=REQUESTS,
            answer_bytes_per_client_max=REQUESTS,
            waiting_bytes_max=TOTAL,
        )
    )


class Peers:
    """Connections of a ledger; a dropped one goes when `leave` is called."""

    def __init__(self, of: Ledger) -> None:
        self.ledger = of
        self.dropped: list[str] = []
        self.open: dict[str, Holdings] = {}

    def connect(self, name: str, host: str = "h", *, is_known: bool = False) -> Holdings:
        found = self.open[name] = self.ledger.open(name, host, lambda: self.dropped.append(name))
        found.is_known = is_known
        return found

    def leave(self) -> None:
        for name in self.dropped:
            if (found := self.open.pop(name, None)) is not None:
                found.close()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_largest_peer_is_dropped_past_the_bound() -> None:
    """One that holds more than the others goes; the total falls when it has gone."""
    peers = Peers(of := ledger())
    for number in range(5):
        peers.connect(f"small {number}", f"h{number}").set("received", 50)
    worst = peers.connect("worst", "x")
    worst.set("received", 300)
    assert not peers.dropped
    worst.set("received", 400)
    assert peers.dropped == ["worst"]
    assert of.dropped == 1
    peers.leave()
    assert of.used == 250


def test_who_leaves_is_not_counted_again() -> None:
    """Until a dropped peer has gone, its bytes drop nobody else."""
    peers = Peers(of := ledger())
    peers.connect("worst").set("received", HELD + 1)
    for number in range(4):
        peers.connect(f"small {number}").set("received", 100)
    assert peers.dropped == ["worst"]
    assert of.used > TOTAL


def test_strangers_are_dropped_before_accounts() -> None:
    """A peer with an account stays while strangers hold anything, whatever it holds itself."""
    peers = Peers(ledger())
    peers.connect("account", is_known=True).set("received", 500)
    for number in range(3):
        peers.connect(f"stranger {number}").set("received", 60)
    assert peers.dropped
    assert "account" not in peers.dropped


def test_many_small_peers_of_one_host_go_before_a_larger_one_of_another() -> None:
    """An attack is not hidden by spreading it over connections."""
    peers = Peers(ledger())
    peers.connect("large", "other").set("received", 200)
    for number in range(50):
        peers.connect(f"part {number}", "attacker").set("received", 10)
    assert peers.dropped
    assert "large" not in peers.dropped


def test_a_table_is_made_smaller_and_stays() -> None:
    """A table that many clients fill gives up a part whenever it is the worst."""
    of = ledger()

    def shrink() -> None:
        table.set("clients", 100)

    table = of.open_table("clients", shrink)
    for _ in range(3):
        table.set("clients", HELD + 1)
        assert of.held == 100


async def test_calls_wait_while_others_hold_the_total() -> None:
    """A request waits for bytes that are held, and is served when they are released."""
    peers = Peers(of := ledger())
    held = peers.connect("held")
    held.set("received", HELD)
    await of.answers.take(100, ("a",), seconds=1)
    await of.requests.take(200, ("a",), seconds=1)
    waiting = asyncio.create_task(of.requests.take(150, ("b",), seconds=60))
    await settled()
    assert not waiting.done()
    held.set("received", HELD - 50)
    await waiting
    assert of.used == TOTAL
    second = asyncio.create_task(of.requests.take(50, ("c",), seconds=60))
    await settled()
    assert not second.done()
    of.answers.give(100, ("a",))  # bytes of the other budget
    await second
    assert not peers.dropped


async def test_held_bytes_never_stop_all_requests() -> None:
    """However much peers hold, requests have their part of the total."""
    peers = Peers(of := ledger())
    for number in range(100):
        peers.connect(f"{number}").set("received", 50)
        peers.leave()
    assert of.held <= HELD
    assert of.requests.try_take(REQUESTS // 2, ("a",))


@pytest.mark.parametrize("seed", range(20))
async def test_sums_agree_after_any_sequence(seed: int) -> None:
    """At any time the total is the sum of what peers hold, by kind and by peer, and at the end it is nothing."""
    dice = random.Random(seed)
    peers = Peers(of := ledger())
    taken: list[tuple[int, tuple[str, ...]]] = []

    def connect() -> None:
        peers.connect(f"peer {dice.random()}", dice.choice("abc"), is_known=dice.random() < 0.3)

    def change() -> None:
        if peers.open:
            kind: Kind = dice.choice(HELD_KINDS)
            dice.choice([*peers.open.values()]).set(kind, dice.randrange(300))

    def take() -> None:
        owner = (dice.choice([*peers.open] or ["nobody"]),)
        size = dice.randrange(1, 200)
        if of.requests.try_take(size, owner):
            taken.append((size, owner))

    def give() -> None:
        if taken:
            of.requests.give(*taken.pop(dice.randrange(len(taken))))

    actions: list[Callable[[], None]] = [connect, change, change, take, give, peers.leave]
    for _ in range(500):
        dice.choice(actions)()
        open_ = peers.open.values()
        assert of.held == sum(found.size for found in open_) == sum(of.held_of_kind.values())
        staying = sum(found.size for name, found in peers.open.items() if name not in peers.dropped)
        assert staying <= of.held_max
        assert of.used == sum(of.sizes().values())
    while taken:
        give()
    for found in [*peers.open.values()]:
        found.close()
    assert (of.used, of.held) == (0, 0)
