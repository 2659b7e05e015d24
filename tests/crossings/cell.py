"""A broker in a state, and what one feature was promised there."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import ClassVar, Final

from aerobee_client import Credentials
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from tests.model.calls import HUNG, NO_ANSWER, SETTINGS, Calls
from tests.model.promises import Delivery, Kind, Promise, Promises, Sent

NOTHING_THERE: Final = frozenset(
    ("MESSAGE_NOT_FOUND", "PULL_NOT_FOUND", "POLLING_TIMEOUT", "PULL_OFFSET_MOVED", "QUERY_NOT_FOUND")
)
"""Answers that say that there is no message, and nothing more."""
ENDED: Final = frozenset(
    f"{NO_ANSWER}{how}" for how in ("UNAVAILABLE", "CANCELLED", "CLOSED", "UnavailableError", "ClientError")
)
"""How a call ends whose broker does."""
_SECONDS: Final = 60.0
_ROUNDS: Final = 40  # quarters of an hour, until each message has been delivered as often as it may be


class Stage(Enum):
    """When a feature is used. Time passes between INSIDE and LATER, so that delays fall due within the state."""

    BEFORE = "before"
    INSIDE = "inside"
    LATER = "later"
    AFTER = "after"

    @property
    def is_inside(self) -> bool:
        return self in (Stage.INSIDE, Stage.LATER)


class State(ABC):
    """Something that happens to a broker. A broker is in order before `enter` and after `leave`."""

    name: ClassVar[str]
    answers: ClassVar[frozenset[str]]
    """What a call may be answered with inside, besides OK."""
    refused: ClassVar[frozenset[str]] = frozenset()
    """Calls that may not be answered with OK inside."""
    allows_success: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, object]] = {}
    moves_time: ClassVar[bool] = True
    """Whether time passes within it; not for a broker that may have ended."""
    is_long: ClassVar[bool] = False
    """Whether it is in `make test-crossings` only."""

    def prepare(self, directory: Path) -> tuple[Sequence[str], Mapping[str, object]]:
        """What the broker needs besides a directory for its store: further arguments and settings."""
        return (), self.settings

    def broker(self, directory: Path) -> BrokerProcess:
        """The broker, which was not started yet."""
        arguments, settings = self.prepare(directory)
        return BrokerProcess(
            directory / "store",
            directory / "log",
            arguments,
            settings={**SETTINGS, "listen.remoting": "127.0.0.1:0", "listen.drain_seconds": 0.5, **settings},
            moving_time=True,
        )

    def begin(self, world: World) -> None:  # noqa: B027 - most states have none
        """What the state needs before the features are used."""

    @abstractmethod
    def enter(self, world: World) -> None:
        """Return when the broker is in the state."""

    @abstractmethod
    def leave(self, world: World) -> None:
        """Return when it is not any more."""

    def end(self) -> None:  # noqa: B027 - most states start nothing
        """End what the state has started, also after a failure."""


class World:
    """A broker with movable time, in a store that cells of one state share."""

    def __init__(self, directory: Path, state: State) -> None:
        self.state = state
        self.directory = directory
        self.credentials: Credentials | None = None
        self.broker = state.broker(directory)
        self.cells: dict[str, Cell] = {}
        self._numbers = itertools.count(1)

    def start(self, *, clock_moved_seconds: float = 0.0, settings: Mapping[str, object] | None = None) -> None:
        """Start the broker again."""
        self.broker.start(clock_moved_seconds=clock_moved_seconds, settings=settings)
        self.connect()

    def restart(self, *, clock_moved_seconds: float = 0.0, settings: Mapping[str, object] | None = None) -> None:
        """Kill the broker, and start it again."""
        self.broker.kill()
        self.start(clock_moved_seconds=clock_moved_seconds, settings=settings)

    def connect(self, credentials: Credentials | None = None) -> None:
        """From now on cells call the broker anew, with this account."""
        self.credentials = credentials or self.credentials
        for cell in self.cells.values():
            cell.connect()

    def next_id(self) -> str:
        return f"m{next(self._numbers):06}"

    def run(self, features: Iterable[Feature]) -> None:
        """Use the features before the state, within and after it, and finish everything that was promised."""
        self.broker.start()
        try:
            self.state.begin(self)
            self.cells = {feature.name: Cell(self, feature) for feature in features}
            for cell in self.cells.values():
                cell.make()
            self._use(Stage.BEFORE)
            self.state.enter(self)
            self._use(Stage.INSIDE)
            if self.state.moves_time:
                self.broker.advance(90)
            self._use(Stage.LATER)
            self.state.leave(self)
            self._use(Stage.AFTER)
            self._settle()
            assert self.broker.stop() == 0, self.broker.log_text()[-3000:]
        finally:
            for cell in self.cells.values():
                cell.close()
            self.state.end()
            self.broker.kill()
            self.broker.close()

    def _use(self, stage: Stage) -> None:
        for cell in self.cells.values():
            cell.use(stage)

    def _settle(self) -> None:
        """Let everything fall due, and let consumers finish what they get."""
        for cell in self.cells.values():
            cell.calls.answers.clear()
        due = [sent.due_ms for cell in self.cells.values() for sent in cell.promises.sent.values()]
        self.broker.advance(max((max(due, default=0) - self.broker.now_ms()) / 1000, 0) + 4 * 3600)
        waiting = list(self.cells.values())
        for _ in range(_ROUNDS):
            waiting = [cell for cell in waiting if not cell.consume_all()]
            if not waiting:
                break
            self.broker.advance(900)
        for cell in self.cells.values():
            cell.judge()


class Cell:
    """One feature in one state."""

    def __init__(self, world: World, feature: Feature) -> None:
        self.world = world
        self.feature = feature
        self.stage = Stage.BEFORE
        self.topic = feature.name
        self.group = f"{feature.name}-readers"
        self.promises = Promises()
        self.problems: list[str] = []
        self.history: list[str] = []
        self.held: list[Delivery] = []
        self.told: dict[str, int | None] = {}  # what changes of an operator were answered with
        self.calls = Calls(world.broker.endpoint, self.promises, world.credentials)

    @property
    def broker(self) -> BrokerProcess:
        return self.world.broker

    def connect(self) -> None:
        """Call the broker with a new connection."""
        answers = self.calls.answers
        self.close()
        self.calls = Calls(self.broker.endpoint, self.promises, self.world.credentials)
        self.calls.retry_seconds = _SECONDS
        self.calls.answers = answers
        self.look_at_clock()

    def close(self) -> None:
        self.calls.close()

    def make(self) -> None:
        """Make the topic and the group of the feature; the group begins with the first message."""
        feature = self.feature
        self.make_topic()
        self.calls.administer(
            lambda admin: admin.create_group(self.group, fifo=feature.is_ordered, max_attempts=feature.max_attempts)
        )
        attempts = feature.max_attempts or 10_000
        self.promises.subscribe(self.group, self.topic, ordered=feature.is_ordered, max_attempts=attempts)
        self.begin()

    def make_topic(self) -> None:
        kind = v2.MessageType.Value(self.feature.kind.name)
        self.calls.administer(lambda admin: admin.create_topic(self.topic, queue_count=2, message_types=(kind,)))

    def begin(self) -> None:
        """A first receive gives the group its position: at the first message."""
        self.receive(1, 10)

    def use(self, stage: Stage) -> None:
        """Use the feature, and judge the answers."""
        self.stage = stage
        self.calls.answers.clear()
        # gRPC connects with a pause after failures, also for a new client of an address where no broker was.
        self.calls.retry_seconds = 0.0 if stage.is_inside else _SECONDS
        self.look_at_clock()
        try:
            self.feature.use(self)
        except AssertionError as error:
            self.problems.append(f"{stage.value}: {error}")
        self.look_at_clock()
        answers = self.calls.answers
        self.history.append(f"{stage.value}: {answers}")
        state = self.world.state
        allowed = NOTHING_THERE | {"INVALID_RECEIPT_HANDLE"} | self.feature.answers
        if stage.is_inside:
            allowed |= state.answers
        if state.allows_success or not stage.is_inside:
            allowed |= {"OK"}
        self.problems += [
            f"{stage.value}: {method} was answered with {answer}"
            for method, answer in answers
            if answer not in allowed
            or answer == HUNG
            or (stage.is_inside and answer == "OK" and method in state.refused)
        ]

    def messages(self, count: int = 1, *, delay_seconds: float = 0, message_group: str = "") -> list[Sent]:
        """New messages, which are not sent yet."""
        due_ms = round(self.broker.now_ms() + delay_seconds * 1000) if delay_seconds else 0
        return [
            self.promises.attempt(
                self.world.next_id(), self.feature.kind, self.topic, message_group=message_group, due_ms=due_ms
            )
            for _ in range(count)
        ]

    def send(self, count: int = 1, **properties: int) -> list[Sent]:
        """Send messages in one call."""
        batch = self.messages(count)
        self.calls.send(batch, **properties)
        return batch

    def receive(self, count: int = 32, hidden_seconds: int = 600) -> list[Delivery]:
        """Receive what there is, into `held`."""
        if self.feature.kind is Kind.LITE:
            self.calls.subscribe_lite(self.topic, self.group)
        self.look_at_clock()
        until_ms = self.broker.now_ms() + hidden_seconds * 1000
        found = self.feature.receive(self, count, hidden_seconds)
        self.look_at_clock()
        for delivery in found:
            self.promises.hidden(self.group, delivery.message_id, until_ms)
        return found

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.feature.acknowledge(self, deliveries)

    def renew(self, delivery: Delivery, seconds: int) -> Delivery | None:
        """Change the invisible time; 0: give the message back. Returns the delivery with its new handle."""
        until_ms = self.broker.now_ms() + seconds * 1000
        self.promises.hidden(self.group, delivery.message_id, 0)
        handle = self.calls.renew(self.group, self.topic, delivery, seconds)
        if handle is None:
            return None
        self.promises.hidden(self.group, delivery.message_id, until_ms if seconds else 0)
        return replace(delivery, handle=handle)

    def bury(self, deliveries: Sequence[Delivery]) -> None:
        """Let messages become dead letters."""
        for delivery in deliveries:
            self.calls.bury(self.group, self.topic, delivery)

    def look_at_clock(self) -> None:
        self.promises.clock(self.broker.now_ms())

    def each_sent(self, is_wanted: Callable[[Sent], bool]) -> list[Sent]:
        return [sent for sent in self.promises.sent.values() if sent.stored is Promise.YES and is_wanted(sent)]

    def consume_all(self) -> bool:
        """Finish all that the group gets; returns whether it has everything that it was promised."""
        while found := self.receive(32, 600):
            self.acknowledge(found)
            if self.promises.violations:
                return True
        self.feature.settle(self)
        return not self.promises.missing(self.group)

    def judge(self) -> None:
        """Collect what contradicts a promise."""
        self.problems += self.promises.violations
        if missing := self.promises.missing(self.group):
            self.problems.append(f"{self.group} never got {len(missing)} messages: {missing[:3]}")
        self.feature.judge(self)


class Feature(ABC):
    """Something that a broker does. `use` is called once in each stage."""

    name: ClassVar[str]
    kind: ClassVar[Kind] = Kind.NORMAL
    is_ordered: ClassVar[bool] = False
    max_attempts: ClassVar[int] = 0
    answers: ClassVar[frozenset[str]] = frozenset()
    """Further answers that are right in every stage."""
    cannot: ClassVar[Mapping[str, str]] = {}
    """States in which it is not tested, and why."""

    @abstractmethod
    def use(self, cell: Cell) -> None:
        """Use the feature, which may be refused."""

    def receive(self, cell: Cell, count: int, hidden_seconds: int) -> list[Delivery]:
        """How its messages are received."""
        return cell.calls.receive(cell.group, cell.topic, count=count, hidden_seconds=hidden_seconds)

    def acknowledge(self, cell: Cell, deliveries: Sequence[Delivery]) -> None:
        """How they are finished."""
        cell.calls.acknowledge(cell.group, cell.topic, deliveries)

    def settle(self, cell: Cell) -> None:  # noqa: B027 - most features end with the acknowledgement
        """Note what has become of messages that the group gets no more."""

    def judge(self, cell: Cell) -> None:  # noqa: B027 - most promises are judged for every feature
        """Further promises, once everything has arrived."""
