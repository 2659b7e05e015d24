"""A model of fail-over with a lease, explored exhaustively: no order of events loses an answered message.

Brokers append, follow, report, change the claim, lose the lease and take it, in any order. Requests to the lease and
their answers may be lost, and a master may learn of any event arbitrarily late. Two invariants hold for any clocks. The
third one holds if the holder's clock and etcd's run at about the same speed:

    answered    every broker that may take the lease has all answered messages, in one order
    one writer  all records of an epoch are written by one broker
    one serves  no two brokers consider themselves the holder at the same time

`Rules` are the rules that the code follows, each with a switch. Without any one of them the exploration finds a
violation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.support.reachable import reachable

Record = tuple[int, int, int]
"""Epoch, broker, and a unique number."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that the brokers follow, each with a switch."""

    fence: bool = True  # etcd.py: the claim changes by compare-and-swap on its version
    only_in_sync: bool = True  # leadership.py: may_take
    wait_for_claim: bool = True  # acknowledgements.py: every broker of the claim confirms
    wait_for_both: bool = True  # in_sync_set.py: during a change, wait for the brokers of the old and the new claim
    join_with_all: bool = True  # in_sync_set.py: a broker joins with all confirmed messages
    expire_first: bool = True  # leadership.py: the lease expires at its holder before it does in etcd


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker. As master: its epoch, its view of the claim, its confirmed offset; `known`: reports by broker."""

    log: tuple[Record, ...] = ()
    seen: int = 0  # the newest epoch in its log
    epoch: int = 0  # the epoch in which it is the master, or 0
    holds: bool = False  # considers itself the holder
    version: int = 0
    members: frozenset[int] = frozenset()
    waited: frozenset[int] = frozenset()  # the other brokers that must confirm
    unheard: bool = False  # the outcome of a change is unknown
    confirmed: int = 0
    known: tuple[int, ...] = ()
    follows: int | None = None
    in_flight: tuple[int, ...] = ()  # the newest report to each master, in flight


@dataclass(frozen=True, slots=True)
class State:
    """The whole state. `claim`: version, epoch, master, in-sync set. `taker`: has the lease but has not begun."""

    brokers: tuple[Broker, ...]
    version: int
    epoch: int
    master: int
    in_sync: frozenset[int]
    holder: int | None
    taker: int | None = None
    answered: tuple[Record, ...] = ()
    appends: int = 0
    takes: int = 0
    changes: int = 0


class ViolationError(AssertionError):
    """An invariant is violated."""


@dataclass(frozen=True, slots=True)
class Model:
    """The possible events, within limits."""

    rules: Rules
    count: int
    appends: int
    takes: int
    changes: int
    clocks_agree: bool = False

    def start(self) -> State:
        none = (0,) * self.count
        first = Broker(seen=1, epoch=1, holds=True, version=1, members=frozenset((0,)), known=none, in_flight=none)
        others = tuple(Broker(known=none, in_flight=none) for _ in range(self.count - 1))
        return State((first, *others), version=1, epoch=1, master=0, in_sync=frozenset((0,)), holder=0)

    def check(self, state: State) -> None:
        """Raise ViolationError if an invariant is violated."""
        for number in state.in_sync:
            if state.brokers[number].log[: len(state.answered)] != state.answered:
                raise ViolationError(f"broker {number} may take the lease without {state.answered}: {state}")
        writers = {(epoch, broker) for found in state.brokers for epoch, broker, _ in found.log}
        if len({epoch for epoch, _ in writers}) < len(writers):
            raise ViolationError(f"two brokers wrote in one epoch: {state}")
        if self.clocks_agree and sum(found.holds for found in state.brokers) > 1:
            raise ViolationError(f"two brokers take themselves for the holder: {state}")

    def next(self, state: State) -> Iterator[State]:
        """Every state that one event leads to; raises ViolationError."""
        for number, broker in enumerate(state.brokers):
            if broker.epoch:
                yield from self._of_master(state, number, broker)
            else:
                yield from self._of_replica(state, number, broker)
        holder = state.holder
        if holder is not None and state.taker is None:
            held = state.brokers[holder].holds
            if not (self.clocks_agree and self.rules.expire_first and held):
                yield replace(state, holder=None)  # the lease expires in etcd

    # --- A master -----------------------------------------------------------------------------------------------

    def _of_master(self, state: State, number: int, broker: Broker) -> Iterator[State]:
        if state.appends < self.appends and broker.holds:
            record = (broker.epoch, number, state.appends)
            yield replace(_with(state, number, replace(broker, log=(*broker.log, record))), appends=state.appends + 1)
        for other, found in enumerate(state.brokers):
            if found.in_flight[number] > broker.known[other]:
                yield _with(state, number, replace(broker, known=_put(broker.known, other, found.in_flight[number])))
        if broker.holds:
            yield from self._answer(state, number, broker)
            yield _with(state, number, replace(broker, holds=False))  # its lease expires, and it notices
        else:
            # It becomes a replica.
            yield _with(state, number, replace(broker, epoch=0, known=(0,) * self.count))
        yield from self._change(state, number, broker)

    def _answer(self, state: State, number: int, broker: Broker) -> Iterator[State]:
        waited = broker.waited if self.rules.wait_for_claim else frozenset()
        end = min((broker.known[other] for other in waited), default=len(broker.log))
        answer, before = broker.log[:end], state.answered
        shorter = min(end, len(before))
        if answer[:shorter] != before[:shorter]:
            raise ViolationError(f"{answer} was answered after {before}: {state}")
        if end > broker.confirmed:
            answered = answer if end > len(before) else before
            yield replace(_with(state, number, replace(broker, confirmed=end)), answered=answered)

    def _change(self, state: State, number: int, broker: Broker) -> Iterator[State]:
        if broker.unheard:
            # It reads the claim.
            if state.epoch == broker.epoch:
                yield _with(state, number, _settled(broker, number, state.in_sync, state.version))
            else:
                yield _with(state, number, replace(broker, holds=False, unheard=False))
            return
        if state.changes >= self.changes:
            return
        for other in range(self.count):
            if other == number:
                continue
            if other in broker.members:
                yield from self._cas(state, number, broker, broker.members - {other})
            elif other not in broker.waited:
                yield _with(state, number, replace(broker, waited=broker.waited | {other}))  # it is about to join
            elif broker.known[other] >= broker.confirmed or not self.rules.join_with_all:
                yield from self._cas(state, number, broker, broker.members | {other})

    def _cas(self, state: State, number: int, broker: Broker, wanted: frozenset[int]) -> Iterator[State]:
        state = replace(state, changes=state.changes + 1)
        waited = (broker.waited | wanted) - {number}
        if not self.rules.wait_for_both:
            waited = wanted - {number}
        unheard = replace(broker, waited=waited, unheard=True)
        yield _with(state, number, unheard)  # the request is lost or refused
        if state.version == broker.version or not self.rules.fence:
            done = replace(state, version=state.version + 1, in_sync=wanted)
            if not self.rules.fence:
                done = replace(done, epoch=broker.epoch, master=number)
            yield _with(done, number, unheard)  # the answer is lost
            yield _with(done, number, _settled(broker, number, wanted, done.version))

    # --- A replica ----------------------------------------------------------------------------------------------

    def _of_replica(self, state: State, number: int, broker: Broker) -> Iterator[State]:
        if broker.follows is not None:
            yield from self._follow(state, number, broker, state.brokers[broker.follows])
        for other, master in enumerate(state.brokers):
            if other != broker.follows and master.epoch and master.epoch >= broker.seen:
                yield self._connect(state, number, broker, other, master)
        if state.taker == number:
            began = Broker(
                log=broker.log,
                seen=state.epoch,
                epoch=state.epoch,
                holds=True,
                version=state.version,
                members=frozenset((number,)),
                confirmed=len(broker.log),
                known=(0,) * self.count,
                in_flight=broker.in_flight,
            )
            yield replace(_with(state, number, began), taker=None)
        elif state.holder is None and state.takes < self.takes and state.taker is None:
            may = number in state.in_sync and (broker.seen == state.epoch or state.master == number)
            if may or not self.rules.only_in_sync:
                yield replace(
                    state,
                    version=state.version + 1,
                    epoch=state.epoch + 1,
                    master=number,
                    in_sync=frozenset((number,)),
                    holder=number,
                    taker=number,
                    takes=state.takes + 1,
                )

    def _follow(self, state: State, number: int, broker: Broker, master: Broker) -> Iterator[State]:
        assert broker.follows is not None, "the caller looked"
        if master.epoch and len(broker.log) < len(master.log):
            record = master.log[len(broker.log)]
            taken = replace(broker, log=(*broker.log, record), seen=max(broker.seen, record[0]))
            yield _with(state, number, taken)
        if broker.in_flight[broker.follows] < len(broker.log):
            sent = replace(broker, in_flight=_put(broker.in_flight, broker.follows, len(broker.log)))
            yield _with(state, number, sent)

    def _connect(self, state: State, number: int, broker: Broker, other: int, master: Broker) -> State:
        """Truncate the log to the common part and connect. The old master may not notice the end of its connection."""
        common = 0
        while common < min(len(broker.log), len(master.log)) and broker.log[common] == master.log[common]:
            common += 1
        joined = replace(
            broker,
            log=broker.log[:common],
            seen=master.epoch,
            follows=other,
            in_flight=_put(broker.in_flight, other, 0),
        )
        heard = replace(master, known=_put(master.known, number, 0))
        return _with(_with(state, number, joined), other, heard)


def _settled(broker: Broker, number: int, members: frozenset[int], version: int) -> Broker:
    waited = members - {number}
    return replace(broker, members=members, waited=waited, version=version, unheard=False)


def _put(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _with(state: State, number: int, broker: Broker) -> State:
    brokers = (*state.brokers[:number], broker, *state.brokers[number + 1 :])
    return replace(state, brokers=brokers)


def _explore(model: Model) -> tuple[int, int]:
    """Visit every reachable state; return the number of states and the maximum number of answered messages."""
    states = answered = 0
    for state in reachable(model.start(), model.next):
        states += 1
        model.check(state)
        answered = max(answered, len(state.answered))
    return states, answered


_TWO = Model(Rules(), count=2, appends=2, takes=1, changes=2)


def test_no_order_of_events_loses_an_answered_message() -> None:
    """Two brokers with arbitrary clocks."""
    states, answered = _explore(_TWO)
    assert states > 30_000
    assert answered == 2


def test_with_clocks_that_agree_one_broker_serves() -> None:
    """The old master's lease expires before another broker takes it."""
    states, answered = _explore(replace(_TWO, appends=1, clocks_agree=True))
    assert states > 5000
    assert answered == 1


@pytest.mark.parametrize(
    "rule", ["fence", "only_in_sync", "wait_for_claim", "wait_for_both", "join_with_all", "expire_first"]
)
def test_each_rule_is_needed(rule: str) -> None:
    """Without the rule, some order of events loses a message or lets two brokers serve."""
    with pytest.raises(ViolationError):
        _explore(replace(_TWO, rules=Rules(**{rule: False}), clocks_agree=rule == "expire_first"))


@pytest.mark.skipif("AEROBEE_MODEL" not in os.environ, reason="minutes; set AEROBEE_MODEL=1")
@pytest.mark.parametrize("model", [replace(_TWO, takes=2), replace(_TWO, count=3, appends=1)], ids=["twice", "three"])
def test_with_two_fail_overs_or_three_brokers(model: Model) -> None:
    """The same with two fail-overs, and with three brokers."""
    states, answered = _explore(model)
    assert states > 150_000
    assert answered == model.appends
