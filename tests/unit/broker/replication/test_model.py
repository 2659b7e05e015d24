"""A model of replication, explored exhaustively: no order of events loses a message that was answered.

Nodes append, sync, follow, report, lose power, are promoted and demoted, at any time and in any order. Reports may
arrive after the replica has left. `Rules` are the rules that the code follows, each with a switch. Without any one of
them the exploration finds a loss, so each is needed.

The invariants:

    no loss       a promoted node has all answered messages
    one order     a node that answers has all earlier answers in its log, at the same places, and so has every other
                  master of a later epoch
    no fork       without a promotion, a replica has nothing that its master has not, whichever node loses power
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from aerobee_broker.replication.epochs import common_end
from aerobee_broker.replication.frames import Epoch
from tests.support.reachable import reachable

Entry = tuple[int, int]
"""The node that wrote it, and a unique number."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that the brokers follow, each with a switch."""

    report_after_sync: bool = True  # follower.py: wait_stored before the report
    wait_for_reports: bool = True  # acknowledgements.py: an answer waits for reports
    compare_logs: bool = True  # follower.py and replica.py: epochs, and the last record
    send_synced_only: bool = True  # master.py: only durable bytes


@dataclass(frozen=True, slots=True)
class Node:
    """One broker. `synced`: entries that survive a power cut."""

    is_master: bool
    log: tuple[Entry, ...] = ()
    synced: int = 0
    epochs: tuple[Epoch, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """The whole state. `follows`: the master of each replica. `in_flight`, `known`: reports by (replica, master)."""

    nodes: tuple[Node, ...]
    follows: tuple[int | None, ...]
    in_flight: tuple[tuple[int, ...], ...]
    known: tuple[tuple[int, ...], ...]
    answered: tuple[Entry, ...] = ()
    appends: int = 0
    promotions: int = 0
    demotions: int = 0
    cuts: int = 0


def _put(table: tuple[tuple[int, ...], ...], row: int, column: int, value: int) -> tuple[tuple[int, ...], ...]:
    changed = [list(values) for values in table]
    changed[row][column] = value
    return tuple(tuple(values) for values in changed)


class ViolationError(AssertionError):
    """An invariant is violated."""


@dataclass(frozen=True, slots=True)
class Model:
    """The possible events, within limits."""

    rules: Rules
    acks: int
    node_count: int
    appends: int
    promotions: int
    demotions: int
    cuts: int

    def start(self) -> State:
        none = tuple((0,) * self.node_count for _ in range(self.node_count))
        nodes = tuple(
            Node(is_master=number == 0, epochs=(Epoch(1, 0),) if number == 0 else ())
            for number in range(self.node_count)
        )
        return State(nodes, (None,) * self.node_count, none, none)

    def next(self, state: State) -> Iterator[State]:
        """Every state that one event leads to; raises ViolationError."""
        if not state.promotions and not state.demotions:
            for node in state.nodes[1:]:
                if state.nodes[0].log[: len(node.log)] != node.log:
                    raise ViolationError(f"a replica has what its master has not: {state}")
        for number, node in enumerate(state.nodes):
            if node.is_master:
                yield from self._of_master(state, number, node)
            else:
                yield from self._of_replica(state, number, node)
            if node.synced < len(node.log):
                yield self._with(state, number, replace(node, synced=len(node.log)))
            if state.cuts < self.cuts and node.synced < len(node.log):
                yield self._without_power(state, number, node)

    def _of_master(self, state: State, number: int, node: Node) -> Iterator[State]:
        if state.appends < self.appends:
            entry = (number, state.appends)
            yield replace(self._with(state, number, replace(node, log=(*node.log, entry))), appends=state.appends + 1)
        for other in range(self.node_count):
            if state.in_flight[other][number] > state.known[other][number]:
                yield replace(state, known=_put(state.known, other, number, state.in_flight[other][number]))
        confirmed = sorted((state.known[other][number] for other in range(self.node_count)), reverse=True)
        end = min(confirmed[self.acks - 1], node.synced) if self.rules.wait_for_reports else node.synced
        if end > 0:
            answer = node.log[:end]
            shorter = min(end, len(state.answered))
            if answer[:shorter] != state.answered[:shorter] or state.answered != node.log[: len(state.answered)]:
                raise ViolationError(f"{answer} was answered after {state.answered}: {state}")
            for later in state.nodes:
                if later.is_master and _last(later) > _last(node) and later.log[:end] != answer:
                    raise ViolationError(f"{answer} was answered by a master that was replaced: {state}")
            if end > len(state.answered):
                yield replace(state, answered=answer)
        if state.demotions < self.demotions:
            # The master restarts as a replica, and its replicas lose their connections.
            demoted = self._with(state, number, replace(node, is_master=False))
            yield replace(self._without_replicas(demoted, number), demotions=state.demotions + 1)

    def _of_replica(self, state: State, number: int, node: Node) -> Iterator[State]:
        followed = state.follows[number]
        if followed is None:
            for other, master in enumerate(state.nodes):
                if master.is_master and self._may_follow(node, master):
                    start = tuple(epoch for epoch in master.epochs if epoch.start <= len(node.log))
                    joined = self._with(state, number, replace(node, epochs=start or node.epochs))
                    follows = tuple(other if at == number else value for at, value in enumerate(state.follows))
                    none = replace(joined, follows=follows)
                    yield replace(
                        none,
                        in_flight=_put(none.in_flight, number, other, 0),
                        known=_put(none.known, number, other, 0),
                    )
        else:
            master = state.nodes[followed]
            limit = master.synced if self.rules.send_synced_only else len(master.log)
            if len(node.log) < limit:
                log = (*node.log, master.log[len(node.log)])
                epochs = tuple(epoch for epoch in master.epochs if epoch.start < len(log))
                taken = epochs if epochs and epochs[-1].number > _last(node) else node.epochs
                yield self._with(state, number, replace(node, log=log, epochs=taken))
            reported = node.synced if self.rules.report_after_sync else len(node.log)
            if reported > state.in_flight[number][followed]:
                yield replace(state, in_flight=_put(state.in_flight, number, followed, reported))
            yield self._left(state, number)
        if state.promotions < self.promotions:
            if node.log[: len(state.answered)] != state.answered:
                raise ViolationError(f"{state.answered} was answered, and {node} is promoted")
            # Reports already sent may still arrive.
            epoch = Epoch(_last(node) + 1, len(node.log))
            promoted = replace(node, is_master=True, synced=len(node.log), epochs=(*node.epochs, epoch))
            left = self._left(state, number, reports_arrive=True)
            yield replace(self._with(left, number, promoted), promotions=state.promotions + 1)

    def _may_follow(self, node: Node, master: Node) -> bool:
        if _last(master) < _last(node):
            return False
        if not self.rules.compare_logs:
            return len(node.log) <= master.synced
        common = common_end(node.epochs, len(node.log), master.epochs, master.synced)
        if common is None:
            common = 0 if node.epochs else min(len(node.log), master.synced)
        if common < len(node.log):
            return False
        return not node.log or node.log[-1] == master.log[len(node.log) - 1]

    def _left(self, state: State, number: int, *, reports_arrive: bool = False) -> State:
        followed = state.follows[number]
        follows = tuple(None if at == number else value for at, value in enumerate(state.follows))
        left = replace(state, follows=follows)
        if followed is None or reports_arrive:
            return left
        return replace(
            left, in_flight=_put(left.in_flight, number, followed, 0), known=_put(left.known, number, followed, 0)
        )

    def _without_replicas(self, state: State, master: int) -> State:
        for other, followed in enumerate(state.follows):
            if followed == master:
                state = self._left(state, other)
        for other in range(self.node_count):  # replicas that left before
            state = replace(
                state,
                in_flight=_put(state.in_flight, other, master, 0),
                known=_put(state.known, other, master, 0),
            )
        return state

    def _without_power(self, state: State, number: int, node: Node) -> State:
        cut = replace(node, log=node.log[: node.synced])
        state = self._left(self._with(state, number, cut), number, reports_arrive=True)
        return replace(self._without_replicas(state, number), cuts=state.cuts + 1)

    @staticmethod
    def _with(state: State, number: int, node: Node) -> State:
        nodes = tuple(node if at == number else value for at, value in enumerate(state.nodes))
        return replace(state, nodes=nodes)


def _last(node: Node) -> int:
    return node.epochs[-1].number if node.epochs else 0


def _explore(model: Model) -> tuple[int, int]:
    """Visit every reachable state; return the number of states and the maximum number of answered messages."""
    states = answered = 0
    for state in reachable(model.start(), model.next):
        states += 1
        answered = max(answered, len(state.answered))
    return states, answered


_TWO = Model(Rules(), acks=1, node_count=2, appends=2, promotions=2, demotions=2, cuts=1)
_THREE = Model(Rules(), acks=2, node_count=3, appends=1, promotions=1, demotions=1, cuts=0)


@pytest.mark.parametrize("model", [_TWO, _THREE], ids=["two nodes", "three nodes"])
def test_no_order_of_events_loses_an_answered_message(model: Model) -> None:
    """Operators promote and demote at any time, and the old master may continue."""
    states, answered = _explore(model)
    assert states > 1000
    assert answered == model.appends


@pytest.mark.parametrize("rule", ["report_after_sync", "wait_for_reports", "compare_logs", "send_synced_only"])
def test_each_rule_is_needed(rule: str) -> None:
    """Without the rule, some order of events loses a message."""
    model = replace(_TWO, rules=Rules(**{rule: False}))
    with pytest.raises(ViolationError):
        _explore(model)
