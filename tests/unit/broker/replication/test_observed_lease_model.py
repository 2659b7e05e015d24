"""A model of a lease that its observers judge, as in Kubernetes, explored exhaustively: at most one broker serves.

`test_lease_model.py` shows that no message is lost, whenever a lease ends and whatever the clocks say. This model has
the time: all clocks advance together, in ticks, and a process or a request may be delayed by any number of them. So the
durations of holder and observers are equal here. The real holder's is shorter, because real clocks differ.

    one serves    no two brokers hold the lease by their own count
    named         the object names the broker that serves

`Rules` are the rules that the code follows, each with a switch. Without any one of them the exploration finds a
violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.support.reachable import reachable

_TICKS = 2  # the duration of the lease


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that the brokers follow, each with a switch."""

    compare: bool = True  # kubernetes.py: a write names the resourceVersion that was read
    check: bool = True  # kubernetes.py: a renewal is refused if the object names another holder
    watch: bool = True  # kubernetes.py: only a lease that was seen unchanged for the whole duration is free
    from_request: bool = True  # leadership.py: the holder counts from the request of the renewal
    deadline: bool = True  # leadership.py: the holder stops when its time is over


@dataclass(frozen=True, slots=True)
class Request:
    """A renewal or a taking: it reads the object, writes it, and is answered. `renews`: the taking that it renews."""

    renews: int | None = None
    age: int = 0
    read: int | None = None
    written: int | None = None  # the holder's number that it wrote


@dataclass(frozen=True, slots=True)
class Broker:
    """`number`: of the taking by which it holds the lease, until `left` ticks have passed."""

    number: int | None = None
    left: int = 0
    request: Request | None = None
    watched: int = -1  # the resourceVersion that it saw last
    watched_ticks: int = 0  # since it saw it first


@dataclass(frozen=True, slots=True)
class State:
    """The object (its resourceVersion and its holder's number) and the brokers."""

    brokers: tuple[Broker, ...]
    version: int = 0
    holder: int = 0
    takings: int = 0
    renewals: int = 0


class ViolationError(AssertionError):
    """An invariant is violated."""


@dataclass(frozen=True, slots=True)
class Model:
    """The possible events, within limits. Time has none."""

    rules: Rules = Rules()
    count: int = 2
    takings: int = 2
    renewals: int = 1

    def start(self) -> State:
        holder = Broker(number=0, left=_TICKS)
        return State((holder, *(Broker() for _ in range(self.count - 1))))

    def serves(self, broker: Broker) -> bool:
        return broker.number is not None and (broker.left > 0 or not self.rules.deadline)

    def check(self, state: State) -> None:
        """Raise ViolationError if an invariant is violated."""
        serving = [broker.number for broker in state.brokers if self.serves(broker)]
        if len(serving) > 1:
            raise ViolationError(f"two brokers serve: {state}")
        if serving and serving != [state.holder]:
            raise ViolationError(f"the object names another holder: {state}")

    def next(self, state: State) -> Iterator[State]:
        """Every state that one event leads to."""
        yield replace(state, brokers=tuple(self._tick(broker) for broker in state.brokers))
        for place, broker in enumerate(state.brokers):
            for changed, found in self._of_broker(state, broker):
                yield replace(changed, brokers=(*state.brokers[:place], found, *state.brokers[place + 1 :]))

    def _tick(self, broker: Broker) -> Broker:
        left, request = max(broker.left - 1, 0), broker.request
        number = broker.number if left or not self.rules.deadline else None
        if request is not None:
            request = replace(request, age=min(request.age + 1, _TICKS))
        return replace(
            broker, number=number, left=left, request=request, watched_ticks=min(broker.watched_ticks + 1, _TICKS)
        )

    def _of_broker(self, state: State, broker: Broker) -> Iterator[tuple[State, Broker]]:
        request = broker.request
        if request is None:
            if self.serves(broker):
                if state.renewals < self.renewals:
                    yield replace(state, renewals=state.renewals + 1), replace(broker, request=Request(broker.number))
            else:
                yield state, _look(broker, state.version)
                if state.takings < self.takings:
                    yield replace(state, takings=state.takings + 1), replace(broker, request=Request())
            return
        yield state, replace(broker, request=None)  # the request, or its answer, is lost
        if request.written is not None:
            yield state, self._answered(broker, request)
        elif request.read is None:
            yield state, self._read(state, broker, request)
        elif request.read == state.version or not self.rules.compare:
            holder = state.version + 1 if request.renews is None else request.renews
            written = replace(state, version=state.version + 1, holder=holder)
            yield written, replace(broker, request=replace(request, written=holder))
        else:
            yield state, replace(broker, request=replace(request, read=None))  # a conflict: it reads again

    def _read(self, state: State, broker: Broker, request: Request) -> Broker:
        broker = _look(broker, state.version)
        if request.renews is None:
            allowed = broker.watched_ticks >= _TICKS or not self.rules.watch
        else:
            allowed = request.renews == state.holder or not self.rules.check
        return replace(broker, request=replace(request, read=state.version) if allowed else None)

    def _answered(self, broker: Broker, request: Request) -> Broker:
        left = _TICKS - request.age if self.rules.from_request else _TICKS
        broker = replace(broker, request=None)
        if request.renews is None:
            return replace(broker, number=request.written, left=left) if left > 0 else broker
        return replace(broker, left=max(broker.left, left)) if self.serves(broker) else broker


def _look(broker: Broker, version: int) -> Broker:
    return broker if broker.watched == version else replace(broker, watched=version, watched_ticks=0)


def _explore(model: Model) -> tuple[int, set[int]]:
    """Visit every reachable state; return the number of states, and which brokers served in any of them."""
    states, served = 0, set[int]()
    for state in reachable(model.start(), model.next):
        states += 1
        model.check(state)
        served |= {place for place, broker in enumerate(state.brokers) if model.serves(broker)}
    return states, served


def test_at_most_one_broker_serves() -> None:
    """Whatever is delayed or lost, and each of the two brokers does serve."""
    states, served = _explore(Model())
    assert states > 1000
    assert served == {0, 1}


@pytest.mark.parametrize("rule", ["compare", "check", "watch", "from_request", "deadline"])
def test_each_rule_is_needed(rule: str) -> None:
    """Without the rule, some order of events lets two brokers serve, or the object names the wrong one."""
    with pytest.raises(ViolationError):
        _explore(Model(Rules(**{rule: False})))
